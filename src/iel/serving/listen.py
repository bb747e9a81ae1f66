"""Serves an application on a socket with uvicorn until Ctrl-C, within bounds that uvicorn does not have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import socket
import sys
import threading
import webbrowser
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from iel.errors import ConfigError
from iel.serving.guard import Guard, ip_address

HEAD_BYTES = 64 << 10
"""Bytes of a request without its body."""
BODY = (b"content-length", b"transfer-encoding")
BACKLOG = 64
"""Connections that the system accepts before the server does."""
OWN_FILES = 64
"""Files that the server itself has open, at most."""
HEAD_SECONDS = 10.0
"""Seconds that a connection may take to begin a request, and a request to send its head."""
TURNS = itertools.count(1)


class Bounded(HttpToolsProtocol):
    """uvicorn's HTTP with bounds: heads are short and complete within `HEAD_SECONDS`, and connections are few.

    Beyond the limit of connections, in all or of one address, the one that has been idle longest is dropped. So a
    client that sends requests is answered, whatever the number of connections that send none.
    """

    timer: asyncio.TimerHandle | None = None
    overhead = body = turn = 0
    """Bytes since the last head that were not a body, those of this read that were, and when its last answer was."""
    began = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.turn = next(TURNS)
        self._close_after(HEAD_SECONDS)
        guard: Guard = self.config.app  # type: ignore[assignment]
        most = guard.limits.connections
        open_now = [each for each in self.connections if isinstance(each, Bounded) and not each.transport.is_closing()]
        addresses = Counter(each.address for each in open_now)
        if addresses[self.address] > max(1, most // 2):
            self._make_room(open_now, self.address)
        elif len(open_now) > most:
            self._make_room(open_now, addresses.most_common(1)[0][0])

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """Whether the client's turn is now: to send a request or the rest of one, or to read its answers."""
        cycle, behind = self.cycle, self.flow.write_paused or bool(self.pipeline)
        return cycle is None or cycle.response_complete or cycle.more_body or behind

    def _make_room(self, open_now: list[Bounded], address: str) -> None:
        """Drop the connection of this address that has been idle longest, else this new one."""
        idle = [each for each in open_now if each.address == address and each.idle]
        min(idle, key=lambda each: each.turn, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        self.began, self.body = False, 0
        super().data_received(data)
        if self.timer is None and (self.cycle is None or self.cycle.response_complete):
            self._close_after(HEAD_SECONDS)  # empty lines between requests begin none
        # The head, the marks between chunks, and what follows the last chunk.
        self.overhead = 0 if self.began else self.overhead + len(data) - self.body
        if self.overhead > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of this request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.began = True
        self._close_after(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
            return self.send_400_response("The head of this request is too long.")
        if not self._should_upgrade():
            self._close_after(None)
        elif self.parser.get_method() != b"GET" or any(n in BODY and v.strip() != b"0" for n, v in self.headers):
            return self.send_400_response("A WebSocket is opened by a GET without a body.")
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._close_after(None)
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        self.turn = next(TURNS)
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        self.body += len(body)
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_after(None)
        super().connection_lost(exc)

    def _close_after(self, seconds: float | None) -> None:
        """Close the connection after this number of seconds, unless this is called again before."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.close)


class Server(uvicorn.Server):
    """Calls `ready` once the model can answer: its graph takes a second or two."""

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

    # With few rows a second BLAS thread only costs time. Ctrl-C is how a server ends.
    with threadpool_limits(1, "blas"), contextlib.suppress(KeyboardInterrupt):
        server = Server(settings(app))
        server.ready = ready
        server.run(sockets=[bound])
    return address


def settings(app: Guard) -> uvicorn.Config:
    """uvicorn's settings: quiet, bounded, without trust in proxies' headers. Each connection takes one open file, so a
    low `ulimit -n` lowers the limit of connections."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = files - app.limits.sockets - BACKLOG - OWN_FILES
    if files != resource.RLIM_INFINITY and room < app.limits.connections:
        app.limits = replace(app.limits, connections=max(8, room))
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
        backlog=BACKLOG,
    )


def bind(address: str, port: int) -> socket.socket:
    """A socket bound to this address; an address that is not free is refused."""
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
