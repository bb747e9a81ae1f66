"""Access control and bounds around the application.

- **Host**: only names of this machine, so that a page elsewhere cannot reach the server under a name of its own.
- **Origin**: a browser states which page a request comes from; only the server's own pages may send any.
- **Token**: required on any address but loopback, as `Authorization: Bearer ...` or as the page's cookie.
- **Bounds**: bytes of a body, seconds to receive it, requests per second and address, and open WebSockets.
  Connections and heads are bounded before any of this (`iel.serving.listen`).

Every refusal is a 4xx and one sentence; every request is counted for /metrics.
"""

import asyncio
import hmac
import ipaddress
import os
import re
import socket
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from iel.errors import ConfigError

COOKIE = "iel_token"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16
ADDRESSES = 1024
"""Addresses whose rates are remembered."""
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper ends of the bins of request times, in seconds."""


@dataclass(frozen=True)
class Limits:
    """Bounds of requests and connections."""

    body: int = 1 << 20
    """Bytes of a request body, and of a WebSocket's message."""
    seconds: float = 10.0
    """Seconds until a body must be complete."""
    rate: float = 5000.0
    """Requests and messages per second and address, over some seconds."""
    sockets: int = 64
    """WebSockets open at a time."""
    connections: int = 256
    """Other connections open at a time, half of them of one address."""


@dataclass
class AccessPolicy:
    """Who may use the server: the names it answers to, and the token it requires."""

    address: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    """Further host names it is known by."""
    token: str | None = None

    def __post_init__(self) -> None:
        local, own = is_loopback(self.address), ip_address(self.address)
        if not local and self.token is None:
            raise ConfigError(
                f"{self.address} can be reached by other machines, so a token is needed; "
                f"set IEL_TOKEN to a secret of at least {SHORTEST_TOKEN} characters, or use 127.0.0.1."
            )
        if self.token is not None and not re.fullmatch(f"[a-zA-Z0-9_-]{{{SHORTEST_TOKEN},}}", self.token):
            raise ConfigError(
                f"The token in IEL_TOKEN must have at least {SHORTEST_TOKEN} letters, digits, - or _; choose another."
            )
        for name in self.names:
            if not name or host_name(name) != name.lower():
                raise ConfigError(
                    f"--allow-host is '{name[:80]}'; give a host name such as robot.local, without a port."
                )
        further = () if local else (self.address, socket.gethostname())
        self._hosts = frozenset(name.lower() for name in (*LOOPBACK, *further, *self.names))
        # A rebound name is a name; an address in the Host header cannot be someone else's.
        self._any_address = own is not None and own.is_unspecified

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = host_name(host)
        return name is not None and (name in self._hosts or (self._any_address and ip_address(name) is not None))


class Rates:
    """Token buckets: `rate` a second, and as many at once as in two seconds."""

    def __init__(self, rate: float):
        self.rate, self.most = rate, 2.0 * rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Whether one more request of this address is within its rate."""
        now = time.monotonic()
        left, then = self._buckets.pop(address, (self.most, now))
        left = min(self.most, left + (now - then) * self.rate)
        allowed = left >= 1.0
        self._buckets[address] = left - 1.0 if allowed else left, now
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


class Metrics:
    """Counts and times. Routes that do not exist are counted together, so no client can make it grow."""

    def __init__(self) -> None:
        self.routes: frozenset[str] = frozenset()
        self.started = time.monotonic()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.bins: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.rows = self.messages = self.sockets = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        route = path if path in self.routes else "other"
        self.requests[route, f"{status // 100}xx"] += 1
        self.bins[route][bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds

    def text(self) -> str:
        """All of it, in the text format that Prometheus reads."""
        lines = ["# TYPE iel_requests_total counter"]
        for (route, kind), count in sorted(self.requests.items()):
            lines.append(f'iel_requests_total{{route="{route}",status="{kind}"}} {count}')
        lines.append("# TYPE iel_request_seconds histogram")
        for route, bins in sorted(self.bins.items()):
            for end, total in zip((*BUCKETS, "+Inf"), accumulate(bins), strict=True):
                lines.append(f'iel_request_seconds_bucket{{route="{route}",le="{end}"}} {total}')
            lines.append(f'iel_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}')
            lines.append(f'iel_request_seconds_count{{route="{route}"}} {sum(bins)}')
        for name, kind, value in (
            ("iel_rows_total", "counter", self.rows),
            ("iel_websocket_messages_total", "counter", self.messages),
            ("iel_cpu_seconds_total", "counter", round(time.process_time(), 3)),
            ("iel_websockets", "gauge", self.sockets),
            ("iel_uptime_seconds", "gauge", round(time.monotonic() - self.started, 3)),
            ("iel_memory_bytes", "gauge", memory()),
        ):
            lines += [f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"


class Guard:
    """ASGI middleware around the whole application: admits, bounds and counts."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, limits: Limits, metrics: Metrics):
        self.app, self.policy, self.limits, self.metrics = app, policy, limits, metrics
        self.rates = Rates(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = {"http": self._request, "websocket": self._socket}.get(scope["type"], self.app)
        await handle(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 0
        client = HTTPConnection(scope)
        body = Body(client.headers, receive, self.limits)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if not body.whole:  # the rest is not read
                    headers["connection"] = "close"
            await send(message)

        try:
            handle = self._admit(client)
            kind = client.headers.get("content-type", "").split(";")[0].strip().lower()
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE") and kind != "application/json":
                raise HTTPException(415, "Send JSON, with the header 'Content-Type: application/json'.")
        except HTTPException as refusal:
            handle = refused(refusal.status_code, refusal.detail, refusal.headers)
        try:
            await handle(scope, body.receive, answer)
        finally:
            self.metrics.request(scope["path"], status, time.perf_counter() - started)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._admit(HTTPConnection(scope))
            if self.metrics.sockets >= self.limits.sockets:
                raise HTTPException(429, "Too many WebSockets are open.")
        except HTTPException:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403
            self.metrics.request(scope["path"], 403, 0.0)
            return
        self.metrics.sockets += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.metrics.sockets -= 1

    def _admit(self, client: HTTPConnection) -> ASGIApp:
        """What answers this client: the application, or for /?token=... a redirect to / that gives the browser its
        cookie, so that the token leaves the address bar."""
        path = client.scope["path"]
        # A probe of whether the server lives is cheap, and answered whatever else its address requests.
        if path != "/health" and not self.rates.take(address_of(client)):
            raise HTTPException(429, f"More than {self.limits.rate:g} requests a second; slow down.")
        hosts, origin = client.headers.getlist("host"), client.headers.get("origin")
        if len(hosts) != 1 or not self.policy.knows(hosts[0]):
            raise HTTPException(421, "This server has another name than the Host header; add it with --allow-host.")
        if origin is not None and not same_origin(origin, hosts[0]):
            raise HTTPException(403, "Pages of other origins may not use this server.")
        if self.policy.token is None or path == "/health":
            return self.app
        by_page = path == "/" and "token" in client.query_params
        scheme, _, token = client.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = client.query_params["token"] if by_page else client.cookies.get(COOKIE, "")
        if not hmac.compare_digest(token.encode(), self.policy.token.encode()):
            raise HTTPException(401, "A token is needed: send it as 'Authorization: Bearer TOKEN'.")
        cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
        return RedirectResponse("/", 303, {"set-cookie": cookie}) if by_page else self.app


class Body:
    """A request's body as it is received: bounded in bytes and in seconds; `whole` is whether all of it was read."""

    def __init__(self, headers: Headers, receive: Receive, limits: Limits):
        self.limits, self._receive = limits, receive
        self.left = limits.body
        self.deadline = asyncio.get_running_loop().time() + limits.seconds
        self.whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"The body was not complete after {self.limits.seconds:g} s.") from None
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "The body ended early.")
        self.left -= len(message.get("body", b""))
        if self.left < 0:
            raise HTTPException(413, f"The body is longer than {self.limits.body:,} bytes; send fewer rows.")
        self.whole = not message.get("more_body", False)
        return message


def refused(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer to whatever is refused."""
    return JSONResponse({"error": sentence[:500]}, status, headers)


def memory() -> int:
    """Bytes of memory this process holds now, 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# ---------------------------------------------------------------- names and addresses


def address_of(client: HTTPConnection) -> str:
    """The client's address."""
    return client.client.host if client.client else "unknown"


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a name is, if it is one."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    own = ip_address(address)
    return address.lower() == "localhost" if own is None else own.is_loopback


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port: `localhost:8000`, `[::1]:8000`."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s\[\]:/?#@\\]+))(?::\d*)?", host)
    return (found[1] or found[2]).lower() if found else None


def same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin came from the server that the Host header names."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
