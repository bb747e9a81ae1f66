"""What stands between the network and the application.

- **Host**: only names of this machine, so that a page elsewhere cannot make a browser talk to us under its own name.
- **Origin**: a browser says which page is asking; only our own pages may.
- **Token**: asked for on any address but loopback, as `Authorization: Bearer ...` or as the page's cookie.
- **Bounds**: bytes of a body, seconds until it is there, requests per second and address, open WebSockets.

Whatever is refused is answered by a 4xx and one sentence.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from iel.errors import ConfigError
from iel.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

COOKIE = "iel_token"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16
ADDRESSES = 1024
"""Addresses whose rates are remembered."""
HEADERS = {
    b"content-security-policy": b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    b"frame-ancestors 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class Limits:
    """What one client may ask for."""

    body: int = 1 << 20
    """Bytes of a request's body, and of a WebSocket's message."""
    seconds: float = 10.0
    """Time a body may take to arrive."""
    rate: float = 5000.0
    """Requests and messages per second and address, over some seconds."""
    sockets: int = 64
    """WebSockets open at a time."""


@dataclass
class Door:
    """Who may come in: the names this server answers to, and the token it asks for."""

    address: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    """Further host names it is known by."""
    token: str | None = None
    hosts: frozenset[str] = field(init=False)
    any_address: bool = field(init=False)

    def __post_init__(self) -> None:
        if not is_loopback(self.address) and self.token is None:
            raise ConfigError(
                f"{self.address} can be reached by other machines, so a token is needed; "
                f"set IEL_TOKEN to a secret of at least {SHORTEST_TOKEN} characters, or listen on 127.0.0.1."
            )
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not _plain(self.token)):
            raise ConfigError(
                f"The token in IEL_TOKEN must have at least {SHORTEST_TOKEN} letters, digits, - or _; choose another."
            )
        own = () if is_loopback(self.address) else (self.address, socket.gethostname())
        self.hosts = frozenset(name.lower() for name in (*LOOPBACK, *own, *self.names))
        # A rebound name is a name; an address in the Host header cannot be someone else's.
        self.any_address = not is_loopback(self.address) and ipaddress_or_none(self.address) in _EVERYWHERE

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = host_name(host)
        if name is None:
            return False
        return name in self.hosts or (self.any_address and ipaddress_or_none(name) is not None)

    def admits(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the token is there, if one is needed."""
        if self.token is None:
            return True
        given = headers.get(b"authorization", b"")
        shown = given[7:] if given[:7].lower() == b"bearer " else _cookie(headers.get(b"cookie", b""))
        return hmac.compare_digest(shown, self.token.encode())


class Rates:
    """Token buckets: `rate` a second, and as many at once as in two seconds."""

    def __init__(self, rate: float):
        self.rate, self.most = rate, 2.0 * rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Whether this address may ask once more now."""
        now = time.monotonic()
        left, then = self._buckets.pop(address, (self.most, now))
        left = min(self.most, left + (now - then) * self.rate)
        allowed = left >= 1.0
        self._buckets[address] = left - 1.0 if allowed else left, now
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


class Refused(Exception):
    """A status and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: Any, door: Door, limits: Limits, metrics: Metrics):
        self.app, self.door, self.limits, self.metrics = app, door, limits, metrics
        self.rates = Rates(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 0

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name.lower() for name, _ in message["headers"]}
                extra = [(name, value) for name, value in HEADERS.items() if name not in known]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            headers = self._checked(scope)
            if await self._cookie_redirect(scope, seen):
                return
            self._authorised(scope, headers)
            body = await self._body(headers, receive) if scope["method"] in ("POST", "PUT", "PATCH", "DELETE") else b""
            await self.app(scope, _replay(body, receive), seen)
        except Refused as refusal:
            await _answer(seen, refusal.status, {"error": str(refusal)})
        finally:
            self.metrics.request(scope["path"], status, time.perf_counter() - started)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._authorised(scope, self._checked(scope))
            if self.metrics.sockets >= self.limits.sockets:
                raise Refused(429, "Too many WebSockets are open.")
        except Refused:
            await receive()  # the connection is announced, and closed before it is accepted: a 403
            await send({"type": "websocket.close", "code": 1008})
            self.metrics.request(scope["path"], 403, 0.0)
            return
        self.metrics.sockets += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.metrics.sockets -= 1

    def _checked(self, scope: Scope) -> dict[bytes, bytes]:
        """The headers, after Host, Origin and rate were looked at."""
        if not self.rates.take(address_of(scope)):
            raise Refused(429, f"More than {self.limits.rate:g} requests a second; slow down.")
        pairs = scope["headers"]
        headers = dict(pairs)
        host = headers.get(b"host", b"").decode("latin-1")
        if sum(name == b"host" for name, _ in pairs) != 1 or not self.door.knows(host):
            raise Refused(421, "This server is not known by the name in the Host header; add it with --allow-host.")
        origin = headers.get(b"origin")
        if origin is not None and not same_origin(origin.decode("latin-1"), host):
            raise Refused(403, "Pages of other origins may not use this server.")
        return headers

    def _authorised(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if scope["path"] != "/health" and not self.door.admits(headers):
            raise Refused(401, "A token is needed: send it as 'Authorization: Bearer TOKEN'.")

    async def _cookie_redirect(self, scope: Scope, send: Send) -> bool:
        """/?token=... gives the browser its cookie and goes on to / , so that the token leaves the address bar."""
        if self.door.token is None or scope["path"] != "/" or not scope["query_string"].startswith(b"token="):
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.door.token.encode()):
            raise Refused(401, "That is not this server's token.")
        cookie = f"{COOKIE}={self.door.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return True

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, if it is JSON, short and comes in time."""
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refused(415, "Send JSON, with the header 'Content-Type: application/json'.")
        declared, limit = headers.get(b"content-length", b"0"), self.limits.body
        too_long = Refused(413, f"The body is longer than {limit:,} bytes; send fewer rows.")
        if declared.isdigit() and (len(declared) > 12 or int(declared) > limit):
            raise too_long
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "The body ended early.")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_long
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, f"The body took longer than {self.limits.seconds:g} s to arrive.") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever else comes."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(send: Send, status: int, content: dict[str, str]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 413:
        headers.append((b"connection", b"close"))  # nobody reads the rest
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ---------------------------------------------------------------- names and addresses


_EVERYWHERE = (ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::"))


def address_of(scope: Any) -> str:
    """The client's address."""
    return scope["client"][0] if scope.get("client") else "unknown"


def ipaddress_or_none(name: str) -> Any:
    """The address that a name is, if it is one."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    own = ipaddress_or_none(address)
    return address.lower() == "localhost" if own is None else bool(own.is_loopback)


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port: `localhost:8000`, `[::1]:8000`."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    plain = parts.username is None and not (parts.path or parts.query or parts.fragment)
    return parts.hostname if plain else None


def same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin came from the server that the Host header names."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _plain(text: str) -> bool:
    return all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in text)


def _cookie(header: bytes) -> bytes:
    try:
        morsel = SimpleCookie(header.decode("latin-1")).get(COOKIE)
    except CookieError:
        return b""
    return b"" if morsel is None else morsel.value.encode()


def names_of(names: Iterable[str]) -> tuple[str, ...]:
    """Further host names, checked."""
    for name in names:
        if host_name(name) != name.lower() or not name:
            raise ConfigError(f"--allow-host is '{name[:80]}'; give a host name such as robot.local, without a port.")
    return tuple(names)
