"""The application: routes of the policy server, the playground's page, and one sentence for every refusal.

POST /v1/act  /v1/plan  /v1/steps      one question or a batch
WS   /v1/control                       a control loop: goal in, then observation in, action out
GET  /v1/model  /health  /metrics      what is served, and how it is doing
GET  /docs  /openapi.json              how to ask
GET  /  /play/...                      the playground
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

import iel
from iel.errors import ConfigError, IELError
from iel.serving.engine import Busy, Control, Engine, finite, is_quick
from iel.serving.guard import Door, Guard, Limits, address_of
from iel.serving.metrics import Metrics
from iel.serving.playground import FRAMES, PlayMessage, Session, Stage
from iel.serving.schemas import ROWS, ActQuestion, ControlMessage, PlanQuestion, Question, Refusal, StepsQuestion, parse
from iel.serving.source import Served

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
IDLE = 600.0
"""Seconds without a message after which a WebSocket is closed."""
ABOUT = "Send observations and goals, get actions, ways and predicted steps. Answers to bad requests are one sentence."


def static_files() -> dict[str, tuple[bytes, str]]:
    """Name -> content and type of the package's own few files; nothing else can be asked for."""
    folder = resources.files("iel.serving") / "static"
    return {
        entry.name: (entry.read_bytes(), KINDS[entry.name.rpartition(".")[2]])
        for entry in folder.iterdir()
        if entry.name.rpartition(".")[2] in KINDS
    }


class Server:
    """Engines, counts and limits of one application."""

    def __init__(self, served: Sequence[Served], limits: Limits, play: bool):
        self.engines = [Engine(each) for each in served]
        self.limits, self.play, self.metrics = limits, play, Metrics()
        self.stages: dict[int, Stage] = {}
        self.guard: Guard

    @property
    def engine(self) -> Engine:
        """The one that /v1 asks."""
        return self.engines[0]

    async def stage(self, number: int) -> Stage:
        """The playground of one model, made when first asked for."""
        if not 0 <= number < len(self.engines):
            raise ConfigError(f"There is no model {number}; there are {len(self.engines)}.")
        engine = self.engines[number]

        def made() -> Stage:
            return self.stages.get(number) or self.stages.setdefault(number, Stage(engine))

        return await engine.ask(made)


def create_app(
    served: Sequence[Served], door: Door | None = None, limits: Limits | None = None, *, play: bool = False
) -> Any:
    """The ASGI application, guarded. With `play` it has the page as well."""
    server = Server(served, limits or Limits(), play)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        await server.engine.ask(server.engine.planner, None)  # the first request should not wait for the graph
        yield
        for engine in server.engines:
            engine.close()

    app = FastAPI(
        title="iel", version=iel.__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.add_exception_handler(IELError, _sentence)
    app.add_exception_handler(HTTPException, _http_sentence)
    app.add_exception_handler(RequestValidationError, _http_sentence)
    _add_policy(app, server)
    _add_control(app, server)
    _add_pages(app, server)
    if play:
        _add_playground(app, server)
    server.metrics.routes = frozenset(getattr(route, "path", "") for route in app.routes)
    server.guard = Guard(app, door or Door(), server.limits, server.metrics)
    return server.guard


async def _sentence(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)[:500]}, 429 if isinstance(error, Busy) else 422)


async def _http_sentence(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return JSONResponse({"error": "The address holds something that is no number; see /docs."}, 422)
    known = {404: "There is nothing here; see /docs.", 405: "This address takes another method; see /docs."}
    return JSONResponse({"error": known.get(error.status_code, str(error.detail))}, error.status_code)


# ---------------------------------------------------------------- the policy


def _asked(schema: type[Question], answer: dict[str, Any]) -> dict[str, Any]:
    """How a route is described: bodies are read by `parse`, so the page is told here."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    refusals = {code: {"model": Refusal} for code in (401, 403, 413, 415, 421, 422, 429)}
    ok = {"description": "The answer", "content": {"application/json": {"example": answer}}}
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
        "responses": {200: ok, **refusals},
    }


def _add_policy(app: FastAPI, server: Server) -> None:
    engine = server.engine

    @app.post("/v1/act", summary="What to do now", **_asked(ActQuestion, {"action": [0.1, -0.3], "steps": 41.5}))
    async def act(request: Request) -> JSONResponse:
        """The policy's mean action towards the goal, over the planner's next waypoint."""
        asked = parse(ActQuestion, await request.body())
        rows = _tables(*asked.rows)
        quick = engine.quick(*rows, asked.planner)
        actions, steps = await engine.ask(engine.act, *rows, asked.planner, asked.steps, quick=quick)
        server.metrics.rows += len(actions)
        listed = actions.tolist()
        numbers = None if steps is None else [finite(value) for value in steps]
        if asked.single:
            return JSONResponse({"action": listed[0]} | ({} if numbers is None else {"steps": numbers[0]}))
        return JSONResponse({"actions": listed} | ({} if numbers is None else {"steps": numbers}))

    @app.post(
        "/v1/plan",
        summary="Which way leads there",
        **_asked(PlanQuestion, {"waypoints": [[1.0, 2.0]], "steps": [3.1, 4.0], "predicted_steps": 7.1}),
    )
    async def plan(request: Request) -> JSONResponse:
        """Waypoints (states of the data) from the observation to the goal, and the predicted steps of each part."""
        asked = parse(PlanQuestion, await request.body())
        rows = asked.rows
        if max(map(len, rows)) > engine.goal_limit:
            raise ConfigError(f"A request may ask for at most {engine.goal_limit} ways; ask several times.")
        ways = await engine.ask(engine.ways, *_tables(*rows), asked.planner)
        server.metrics.rows += len(ways)
        return JSONResponse(ways[0] if asked.single else {"plans": ways})

    @app.post("/v1/steps", summary="How far it is", **_asked(StepsQuestion, {"steps": 41.5}))
    async def steps(request: Request) -> JSONResponse:
        """Predicted steps to the goal: by the network alone, or along a planner's way."""
        asked = parse(StepsQuestion, await request.body())
        rows = asked.rows
        found = await engine.ask(engine.steps, *_tables(*rows), asked.planner)
        server.metrics.rows += len(found)
        numbers = [finite(value) for value in found]
        return JSONResponse({"steps": numbers[0] if asked.single else numbers})

    @app.get("/v1/model", summary="What is served")
    async def model() -> dict[str, Any]:
        """Sizes, planners and limits."""
        limits = {"rows": ROWS, "goals": engine.goal_limit, "body": server.limits.body, "rate": server.limits.rate}
        return {**engine.served.describe(), "limits": limits, "version": iel.__version__}

    @app.get("/health", summary="Is it there?")
    async def health() -> dict[str, str]:
        """Answers as long as the server does; needs no token."""
        return {"status": "ok", "version": iel.__version__}

    @app.get("/metrics", summary="How is it doing?", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counts and times, in the text format that Prometheus reads."""
        return PlainTextResponse(server.metrics.text())


def _tables(observations: Any, goals: Any) -> tuple[Any, Any]:
    """Rows of equal length as float32; a number too large for that becomes infinite, which the engine refuses."""
    tables = []
    for rows, what in ((observations, "observations"), (goals, "goals")):
        if len({len(row) for row in rows}) != 1:
            raise ConfigError(f"The {what} have different lengths; give rows of equal length.")
        with np.errstate(over="ignore"):
            tables.append(np.array(rows, np.float64).astype(np.float32))
    return tables[0], tables[1]


# ---------------------------------------------------------------- WebSockets


def _add_control(app: FastAPI, server: Server) -> None:
    engine = server.engine

    @app.websocket("/v1/control")
    async def control(socket: WebSocket) -> None:
        """Each message (`ControlMessage`) is answered by one message: an action, what was done, or an error."""
        loop = Control(engine)

        def answer(message: ControlMessage) -> dict[str, Any]:
            done: dict[str, Any] = {}
            if message.goal is not None:
                loop.prepare(_row(message.goal), message.planner, message.acting, message.seed)
                done["goal"] = "set"
            if message.avoid is not None:
                done["nodes_off"] = loop.avoid([_row(row) for row in message.avoid], message.radius)
            if message.observation is not None:
                done["action"], steps = loop.act(_row(message.observation), message.steps)
                if message.steps:
                    done["steps"] = steps
            return done

        async def reply(text: str) -> None:
            message = parse(ControlMessage, text)
            prepared = loop.planner is not None and is_quick(loop.planner)
            quick = prepared and message.goal is None and message.avoid is None
            await socket.send_json(await engine.ask(answer, message, quick=quick))

        await _converse(server, socket, reply)


def _row(values: list[float]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array(values, np.float64).astype(np.float32)


async def _converse(server: Server, socket: WebSocket, reply: Any) -> None:
    """Message in, answer out, until the other side leaves, falls silent, or floods us."""
    await socket.accept()
    address = address_of(socket.scope)
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            try:
                async with asyncio.timeout(IDLE):
                    message = await socket.receive()
            except TimeoutError:
                return await socket.close(1001)
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:  # bytes
                return await socket.close(1003)
            if not server.guard.rates.take(address):
                return await socket.close(1008)
            server.metrics.messages += 1
            try:
                await reply(text)
            except IELError as error:
                await socket.send_json({"error": str(error)[:500]})


def _add_playground(app: FastAPI, server: Server) -> None:
    @app.get("/play/models", summary="What can be played with")
    async def models() -> list[dict[str, Any]]:
        """The models in the order they were given."""
        return [engine.served.describe() for engine in server.engines]

    @app.get("/play/world/{number}", summary="The map of one model")
    async def world(number: int) -> JSONResponse:
        """Walls or data, and the raster of the field."""
        stage = await server.stage(number)
        return JSONResponse(await stage.engine.ask(stage.describe))

    @app.websocket("/play/ws/{number}")
    async def play(socket: WebSocket, number: int) -> None:
        """Scenes in, plans and frames of the agent out."""
        try:
            stage = await server.stage(number)
        except IELError:
            return await socket.close(1008)
        session, ask = Session(stage), stage.engine.ask
        walking = asyncio.Event()

        async def reply(text: str) -> None:
            message = parse(PlayMessage, text)
            if message.strokes is not None:
                await ask(session.draw, message.strokes)
            if message.speed is not None:
                session.speed = message.speed
            if message.scene is not None:
                await socket.send_json(await ask(session.show, message.scene))
            if message.agent == "pause":
                walking.clear()
            elif message.agent == "reset":
                walking.clear()
                await ask(session.leave)
            elif message.agent == "run":
                if session.observation is None:
                    await socket.send_json(await ask(session.reset))
                walking.set()

        walker = asyncio.create_task(_walk(socket, session, walking))
        try:
            await _converse(server, socket, reply)
        finally:
            walker.cancel()
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError, IELError):
                await walker


async def _walk(socket: WebSocket, session: Session, walking: asyncio.Event) -> None:
    """Frames of the agent for as long as it walks; it may be set off again at any time."""
    now = asyncio.get_running_loop().time
    while True:
        await walking.wait()
        started = now()
        try:
            frame = await session.stage.engine.ask(session.advance)
        except Busy:
            await asyncio.sleep(0.1)
            continue
        if frame is None:
            walking.clear()
            continue
        await socket.send_json(frame)
        # Whoever has arrived waits for another goal.
        rest = 1.0 / FRAMES if frame["state"] == "walking" else 0.15
        await asyncio.sleep(max(0.0, rest - (now() - started)))


# ---------------------------------------------------------------- pages


def _add_pages(app: FastAPI, server: Server) -> None:
    files = static_files()
    pages = {"/docs": "docs.html", "/": "play.html" if server.play else "docs.html"}

    def page(name: str) -> Any:
        content, kind = files[name]

        async def answer() -> Response:
            return Response(content, media_type=kind)

        return answer

    for path, name in pages.items():
        app.get(path, include_in_schema=False)(page(name))
    for name in files:
        app.get(f"/static/{name}", include_in_schema=False)(page(name))
