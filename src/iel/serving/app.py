"""The routes of the policy server and of the playground, and one sentence for every refusal.

POST /v1/act  /v1/plan  /v1/steps      one query or a batch
WS   /v1/control                       a control loop: goal in, then observation in, action out
GET  /v1/model  /health  /metrics      what is served, and how it is doing
GET  /docs  /openapi.json              how to use it
GET  /  /play/...                      the playground
"""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import iel
from iel.errors import ConfigError, IELError
from iel.serving.engine import GOALS, Busy, Control, Engine, Served
from iel.serving.guard import AccessPolicy, Guard, Limits, Metrics, address_of, refused
from iel.serving.playground import PlayMessage, Session, Stage
from iel.serving.schemas import ROWS, ActQuery, Answer, ControlMessage, Query, Refusal, parse

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
IDLE = 600.0
"""Seconds without a message after which a WebSocket is closed."""
ABOUT = "Send observations and goals, get actions, routes and predicted steps. Refusals are one sentence."
REFUSALS = (401, 403, 413, 415, 421, 422, 429)


def static_files() -> dict[str, tuple[bytes, str]]:
    """Name -> content and type of the package's own few files; the server opens nothing else."""
    files = [file for file in (Path(__file__).parent / "static").iterdir() if file.suffix in KINDS]
    return {file.name: (file.read_bytes(), KINDS[file.suffix]) for file in files}


def create_app(
    served: Sequence[Served], policy: AccessPolicy | None = None, limits: Limits | None = None, *, play: bool = False
) -> Guard:
    """The ASGI application, guarded: the first model answers robots. With `play` it has the playground's page too."""
    engines = [Engine(each) for each in served]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await engines[0].call(engines[0].agent)  # the first request should not wait for the graph
        yield
        for engine in engines:
            engine.close()

    app = Starlette(lifespan=lifespan, exception_handlers={IELError: _sentence, HTTPException: _sentence})
    guard = Guard(app, policy or AccessPolicy(), limits or Limits(), Metrics())
    app.routes.extend([*_policy(engines[0], guard), *_pages(play), *(_playground(engines, guard) if play else ())])
    guard.metrics.routes = frozenset(route.path for route in app.routes if isinstance(route, (Route, WebSocketRoute)))
    return guard


async def _sentence(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        known = {404: "There is nothing here; see /docs.", 405: "This address takes another method; see /docs."}
        return refused(error.status_code, known.get(error.status_code, error.detail), error.headers)
    return refused(429 if isinstance(error, Busy) else 422, str(error))


# ---------------------------------------------------------------- the policy


class Endpoint(NamedTuple):
    """A route that /openapi.json describes."""

    path: str
    summary: str
    answer: Callable[..., Answer]
    """Runs in the engine's worker; its docstring is the description."""
    query: type[Query]
    example: Answer


def _policy(engine: Engine, guard: Guard) -> list[BaseRoute]:
    def post(endpoint: Endpoint) -> Route:
        async def respond(request: Request) -> JSONResponse:
            query = parse(endpoint.query, await request.body())
            answer = await engine.call(endpoint.answer, query)
            guard.metrics.rows += query.count
            return JSONResponse(answer)

        return Route(endpoint.path, respond, methods=["POST"])

    async def model(_: Request) -> JSONResponse:
        limits = {"rows": ROWS, "goals": GOALS, "body": guard.limits.body, "rate": guard.limits.rate}
        return JSONResponse({**engine.served.describe(), "limits": limits, "version": iel.__version__})

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "version": iel.__version__})

    async def metrics(_: Request) -> PlainTextResponse:
        return PlainTextResponse(guard.metrics.text())

    async def described(_: Request) -> JSONResponse:
        return JSONResponse(openapi(endpoints))

    async def control(socket: WebSocket) -> None:
        loop = Control(engine)

        async def reply(text: str) -> None:
            await socket.send_json(await engine.call(loop.answer, parse(ControlMessage, text)))

        await _converse(guard, socket, reply)

    plan = {"waypoints": [[1.0, 2.0]], "steps": [3.1, 4.0], "predicted_steps": 7.1}
    endpoints = [
        Endpoint("/v1/act", "Get an action", engine.act, ActQuery, {"action": [0.1, -0.3]}),
        Endpoint("/v1/plan", "Plan a route", engine.plan, Query, plan),
        Endpoint("/v1/steps", "Predict the steps to a goal", engine.steps, Query, {"steps": 41.5}),
    ]
    reports = {"/v1/model": model, "/health": health, "/metrics": metrics, "/openapi.json": described}
    routes: list[BaseRoute] = [*map(post, endpoints), WebSocketRoute("/v1/control", control)]
    return routes + [Route(path, report) for path, report in reports.items()]


REPORTS = {
    "/v1/model": ("What is served", "Sizes, columns, planners and limits."),
    "/health": ("Whether the server responds", "Needs no token."),
    "/metrics": ("Counts, times and memory", "In the text format that Prometheus reads."),
}


def openapi(endpoints: Sequence[Endpoint]) -> Answer:
    """The OpenAPI document; the types of requests in it are those that `parse` checks."""
    kinds = [Refusal, ControlMessage, *{each.query: None for each in endpoints}]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    reference = dict(zip(kinds, references, strict=True))

    def content(**about: object) -> Answer:
        return {"description": "", "content": {"application/json": about}}

    refusals = {str(code): content(schema=reference[Refusal]) for code in REFUSALS}
    paths: Answer = {
        each.path: {
            "post": {
                "summary": each.summary,
                "description": inspect.getdoc(each.answer),
                "requestBody": {"required": True, **content(schema=reference[each.query])},
                "responses": {"200": content(example=each.example), **refusals},
            }
        }
        for each in endpoints
    }
    for path, (summary, description) in REPORTS.items():
        paths[path] = {"get": {"summary": summary, "description": description, "responses": {"200": content()}}}
    info = {"title": "iel", "version": iel.__version__, "description": ABOUT}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}


# ---------------------------------------------------------------- WebSockets


async def _converse(guard: Guard, socket: WebSocket, reply: Callable[[str], Awaitable[None]]) -> None:
    """Message in, answer out, until the other side leaves, falls silent, or exceeds its rate."""
    await socket.accept()
    with contextlib.suppress(WebSocketDisconnect):  # it left before its answer
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


def _playground(engines: Sequence[Engine], guard: Guard) -> list[BaseRoute]:
    made = functools.cache(Stage)

    async def stage_of(number: int) -> Stage:
        """The playground of one model, made when first requested."""
        if number >= len(engines):
            raise ConfigError(f"There is no model {number}; there are {len(engines)}.")
        return await engines[number].call(made, engines[number])

    async def models(_: Request) -> JSONResponse:
        return JSONResponse([engine.served.describe() for engine in engines])

    async def world(request: Request) -> JSONResponse:
        stage = await stage_of(request.path_params["number"])
        return JSONResponse(await stage.engine.call(stage.describe))

    async def play(socket: WebSocket) -> None:
        try:
            stage = await stage_of(socket.path_params["number"])
        except IELError:
            return await socket.close(1008)
        session = Session(stage)

        async def reply(text: str) -> None:
            for answer in await stage.engine.call(session.take, parse(PlayMessage, text)):
                await socket.send_json(answer)

        await _converse(guard, socket, reply)

    return [
        Route("/play/models", models),
        Route("/play/world/{number:int}", world),
        WebSocketRoute("/play/ws/{number:int}", play),
    ]


# ---------------------------------------------------------------- pages


def _pages(play: bool) -> list[BaseRoute]:
    files = static_files()

    def page(path: str, name: str) -> Route:
        content, kind = files[name]

        async def send(_: Request) -> Response:
            return Response(content, media_type=kind)

        return Route(path, send)

    own = [page("/docs", "docs.html"), page("/", "play.html" if play else "docs.html")]
    return [*own, *(page(f"/static/{name}", name) for name in files)]
