"""The application: routes of the policy server, the playground's page, and one sentence for every refusal.

POST /v1/act  /v1/plan  /v1/steps      one question or a batch
WS   /v1/control                       a control loop: goal in, then observation in, action out
GET  /v1/model  /health  /metrics      what is served, and how it is doing
GET  /docs  /openapi.json              how to ask
GET  /  /play/...                      the playground
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketState

import iel
from iel.errors import ConfigError, IELError
from iel.serving.engine import GOALS, Busy, Control, Engine, Served, finite, warned
from iel.serving.guard import AccessPolicy, Guard, Limits, Metrics, address_of, refused
from iel.serving.playground import FRAMES, PlayMessage, Session, Stage
from iel.serving.schemas import ROWS, ActQuestion, Answer, ControlMessage, Question, Refusal, StepsQuestion, parse

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
IDLE = 600.0
"""Seconds without a message after which a WebSocket is closed."""
ABOUT = "Send observations and goals, get actions, routes and predicted steps. Refusals are one sentence."


def static_files() -> dict[str, tuple[bytes, str]]:
    """Name -> content and type of the package's own few files; nothing else can be asked for."""
    files = [file for file in (Path(__file__).parent / "static").iterdir() if file.suffix in KINDS]
    return {file.name: (file.read_bytes(), KINDS[file.suffix]) for file in files}


def create_app(
    served: Sequence[Served], policy: AccessPolicy | None = None, limits: Limits | None = None, *, play: bool = False
) -> Guard:
    """The ASGI application, guarded. With `play` it has the page as well."""
    engines = [Engine(each) for each in served]

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engines[0].call(engines[0].agent)  # the first request should not wait for the graph
        yield
        for engine in engines:
            engine.close()

    app = FastAPI(
        title="iel", version=iel.__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    guard = Guard(app, policy or AccessPolicy(), limits or Limits(), Metrics())
    for kind in (IELError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _sentence)
    _add_policy(app, engines[0], guard)
    _add_pages(app, play)
    if play:
        _add_playground(app, engines, guard)
    guard.metrics.routes = frozenset(route.path for route in app.routes if isinstance(route, (Route, WebSocketRoute)))
    return guard


async def _sentence(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        known = {404: "There is nothing here; see /docs.", 405: "This address takes another method; see /docs."}
        return refused(error.status_code, known.get(error.status_code, error.detail), error.headers)
    if isinstance(error, RequestValidationError):
        return refused(422, "The address holds something that is not a number; see /docs.")
    return refused(429 if isinstance(error, Busy) else 422, str(error))


# ---------------------------------------------------------------- the policy


def _described(schema: type[Question], answer: Answer) -> dict[str, Any]:
    """How a route is described: bodies are read by `parse`, so the page is told here."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    refusals = {code: {"model": Refusal} for code in (401, 403, 413, 415, 421, 422, 429)}
    ok = {"description": "The answer", "content": {"application/json": {"example": answer}}}
    body = {"requestBody": {"required": True, "content": content}}
    return {"openapi_extra": body, "responses": {200: ok, **refusals}}


def _add_policy(app: FastAPI, engine: Engine, guard: Guard) -> None:
    @app.post("/v1/act", summary="What to do now", **_described(ActQuestion, {"action": [0.1, -0.3], "steps": 41.5}))
    async def act(request: Request) -> JSONResponse:
        """The policy's mean action towards the goal, over the planner's next waypoint."""
        query = parse(ActQuestion, await request.body())
        rows = engine.tables(*query.rows)
        quick = engine.quick(*rows, query.planner)
        actions, steps, warnings = await engine.call(engine.act, *rows, query.planner, query.steps, quick=quick)
        actions = engine.model.signals.in_units(actions, query.units)
        guard.metrics.rows += len(actions)
        answer: Answer = {"action" if query.single else "actions": query.one_or_all(actions.tolist())}
        if steps is not None:
            answer["steps"] = query.one_or_all([finite(value) for value in steps])
        return JSONResponse(answer | warned(warnings))

    @app.post(
        "/v1/plan",
        summary="Which route leads there",
        **_described(Question, {"waypoints": [[1.0, 2.0]], "steps": [3.1, 4.0], "predicted_steps": 7.1}),
    )
    async def plan(request: Request) -> JSONResponse:
        """Waypoints (states of the data) from the observation to the goal, and the predicted steps of each part."""
        query = parse(Question, await request.body())
        rows = engine.tables(*query.rows)
        if max(len(rows[0]), len(rows[1])) > GOALS:
            raise ConfigError(f"A request may ask for at most {GOALS} routes; ask several times.")
        routes = await engine.call(engine.routes, *rows, query.planner)
        guard.metrics.rows += len(routes)
        return JSONResponse(routes[0] if query.single else {"plans": routes})

    @app.post("/v1/steps", summary="How far it is", **_described(StepsQuestion, {"steps": 41.5}))
    async def steps(request: Request) -> JSONResponse:
        """Predicted steps to the goal: by the network alone, or along a planner's route."""
        query = parse(StepsQuestion, await request.body())
        found, warnings = await engine.call(engine.steps, *engine.tables(*query.rows), query.planner)
        guard.metrics.rows += len(found)
        return JSONResponse({"steps": query.one_or_all([finite(value) for value in found])} | warned(warnings))

    @app.get("/v1/model", summary="What is served")
    async def model() -> Answer:
        """Sizes, planners and limits."""
        limits = {"rows": ROWS, "goals": GOALS, "body": guard.limits.body, "rate": guard.limits.rate}
        return {**engine.served.describe(), "limits": limits, "version": iel.__version__}

    @app.get("/health", summary="Is it there?")
    async def health() -> dict[str, str]:
        """Answers as long as the server does; needs no token."""
        return {"status": "ok", "version": iel.__version__}

    @app.get("/metrics", summary="How is it doing?", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counts and times, in the text format that Prometheus reads."""
        return PlainTextResponse(guard.metrics.text())

    @app.websocket("/v1/control")
    async def control(socket: WebSocket) -> None:
        """Each message (`ControlMessage`) is answered by one message: an action, what was done, or an error."""
        loop = Control(engine)

        async def reply(text: str) -> None:
            message = parse(ControlMessage, text)
            await socket.send_json(await engine.call(loop.answer, message, quick=loop.quick(message)))

        await _converse(guard, socket, reply)


# ---------------------------------------------------------------- WebSockets


async def _converse(guard: Guard, socket: WebSocket, reply: Callable[[str], Awaitable[None]]) -> None:
    """Message in, answer out, until the other side leaves, falls silent, or floods us."""
    with _until_closed(socket):
        await socket.accept()
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
            if not guard.rates.take(address_of(socket)):
                return await socket.close(1008)
            guard.metrics.messages += 1
            try:
                await reply(text)
            except IELError as error:
                await socket.send_json({"error": str(error)[:500]})


@contextlib.contextmanager
def _until_closed(socket: WebSocket) -> Iterator[None]:
    """Ends quietly when the other side has left: whoever sends or receives first gets one error, others another."""
    try:
        yield
    except (WebSocketDisconnect, RuntimeError):
        if WebSocketState.DISCONNECTED not in (socket.application_state, socket.client_state):
            raise


def _add_playground(app: FastAPI, engines: Sequence[Engine], guard: Guard) -> None:
    made = functools.cache(Stage)

    async def stage_of(number: int) -> Stage:
        """The playground of one model, made when first requested."""
        if not 0 <= number < len(engines):
            raise ConfigError(f"There is no model {number}; there are {len(engines)}.")
        return await engines[number].call(made, engines[number])

    @app.get("/play/models", summary="What can be played with")
    async def models() -> list[Answer]:
        """The models in the order they were given."""
        return [engine.served.describe() for engine in engines]

    @app.get("/play/world/{number}", summary="The map of one model")
    async def world(number: int) -> JSONResponse:
        """Walls or data, and the raster of the field."""
        stage = await stage_of(number)
        return JSONResponse(await stage.engine.call(stage.describe))

    @app.websocket("/play/ws/{number}")
    async def play(socket: WebSocket, number: int) -> None:
        """Scenes in, plans and frames of the agent out."""
        try:
            stage = await stage_of(number)
        except IELError:
            return await socket.close(1008)
        session, call = Session(stage), stage.engine.call
        walking = asyncio.Event()

        async def reply(text: str) -> None:
            message = parse(PlayMessage, text)
            for answer in await call(session.take, message):
                await socket.send_json(answer)
            if message.agent == "run":
                walking.set()
            elif message.agent is not None:
                walking.clear()

        runner = asyncio.create_task(_walk(socket, session, walking))
        try:
            await _converse(guard, socket, reply)
        finally:
            runner.cancel()
            with contextlib.suppress(asyncio.CancelledError), _until_closed(socket):
                await runner


async def _walk(socket: WebSocket, session: Session, walking: asyncio.Event) -> None:
    """Frames of the agent for as long as it walks; it may be set off again at any time."""
    now = asyncio.get_running_loop().time
    while True:
        await walking.wait()
        started = now()
        try:
            frame = await session.stage.engine.call(session.advance)
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


def _add_pages(app: FastAPI, play: bool) -> None:
    files = static_files()

    def serve(path: str, name: str) -> None:
        content, kind = files[name]

        @app.get(path, include_in_schema=False)
        async def page() -> Response:
            return Response(content, media_type=kind)

    serve("/docs", "docs.html")
    serve("/", "play.html" if play else "docs.html")
    for name in files:
        serve(f"/static/{name}", name)
