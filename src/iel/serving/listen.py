"""From an application to a socket: uvicorn, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from iel.errors import ConfigError
from iel.serving.guard import Guard, ip_address

HEAD_BYTES = 64 << 10
"""Of a request, without its body."""
HEAD_SECONDS = 10.0
"""Time a connection has to begin a request, and a request to say what it is."""


class Bounded(HttpToolsProtocol):
    """HTTP whose heads are short and come soon: the parser itself would wait and remember without end."""

    patience: asyncio.TimerHandle | None = None
    overhead = body = 0
    began = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        self.began, self.body = False, 0
        super().data_received(data)
        # Whatever is no body: the head, the marks between chunks, what follows the last one.
        self.overhead = 0 if self.began else self.overhead + len(data) - self.body
        if self.overhead > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of this request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.began = True
        self._wait(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        self._wait(None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.body += len(body)
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def _wait(self, seconds: float | None) -> None:
        """Close the connection after so many seconds, unless something else is awaited before."""
        if self.patience is not None:
            self.patience.cancel()
        self.patience = None if seconds is None else self.loop.call_later(seconds, self.transport.close)


class Announcing(uvicorn.Server):
    """Says where it is when it is there, not before: the graph takes a second or two."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def listen(app: Guard, port: int, *, browse: bool, quiet: bool, play: bool) -> str:
    """Serve until interrupted; returns the address it listened on."""
    policy, bound = app.policy, bind(app.policy.address, port)
    address = f"http://{_shown(policy.address)}:{bound.getsockname()[1]}"

    def ready() -> None:
        if quiet:
            print(address, file=sys.stderr, flush=True)
            return
        what = "playground" if play else "policy server"
        print(f"{what} at {address}    described at {address}/docs    Ctrl-C ends it", flush=True)
        if play and policy.token is not None:
            print(f"open {address}/?token=... with the token of IEL_TOKEN in place of the dots", flush=True)
        if browse and policy.token is None:
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    # Rows are few: a second thread would only be waited for. Ctrl-C is how a server ends.
    with threadpool_limits(1, "blas"), contextlib.suppress(KeyboardInterrupt):
        server = Announcing(settings(app))
        server.ready = ready
        server.run(sockets=[bound])
    return address


def settings(app: Guard) -> uvicorn.Config:
    """Quiet, bounded, and without trust in proxies' headers."""
    return uvicorn.Config(
        app,
        http=Bounded,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ws_max_size=app.limits.body,
        ws_max_queue=16,
        ws_per_message_deflate=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        backlog=256,
    )


def bind(address: str, port: int) -> socket.socket:
    """A listening socket, or a sentence."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address, port))
    except OSError as error:
        bound.close()
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{address} port {port} cannot be listened on ({reason}); choose another --port.") from None
    return bound


def _shown(address: str) -> str:
    """An address that a browser on this machine can open."""
    own = ip_address(address)
    if own is not None and own.is_unspecified:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address
