"""How fast and how sturdy the policy server is: latency beside the bare call, fuzzed requests, memory.

    iel bench serving --json
    iel bench serving --run runs/demo-001 --requests 100000

The server is a process of its own, on loopback, and so are its clients. The bare call is the same query to the same
engine without any network. Fuzzed requests follow from a seed: valid ones, mutated ones, bytes, wrong types, paths,
methods and headers. A request counts as answered by its status; memory and processor time are what the server itself
reports. Processor time stands beside the clock's, for machines that have other work to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runtime import random_model
from iel.commands.common import Output
from iel.errors import RunError
from iel.planning import Atlas
from iel.serving.client import Client
from iel.serving.engine import Engine, Served, open_served
from iel.serving.schemas import ActQuery

JSON = "application/json"
CONNECTIONS = 8
"""Connections that fuzzed requests come from."""
WARM = 5000
"""Fuzzed requests before memory is first looked at: caches fill."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Latency of the policy server beside the bare call, and 100,000 fuzzed requests."""

    run: Path | None = None
    """Run or export to serve (default: a random model as large as the demo's, over 20,000 states)."""
    requests: int = 100_000
    """Fuzzed requests."""
    clients: int = 50
    """Clients that request actions at the same time."""
    calls: int = 100
    """Requests of each of them."""
    seed: int = 0
    """Seed of the fuzzed requests."""


def command(options: Options) -> dict[str, Any]:
    """`iel bench serving`."""
    served = model_of(options.run)
    program = "import sys; from benchmarks.serving import serve; serve(*sys.argv[1:])"
    arguments = [] if options.run is None else [str(options.run)]
    root = str(Path(__file__).parent.parent)
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stderr is not None
        address = process.stderr.readline().strip()
        if not address.startswith("http://"):
            raise RunError(f"The server did not start ({address}); run `iel serve` to see why.")
        result = asyncio.run(measure(options, served, address))
    finally:
        process.terminate()
        process.wait(20)
    if not options.json:
        show(result)
    return result


def model_of(run: Path | None) -> Served:
    """What is served: a run, or a random model of the demo's size."""
    if run is not None:
        return open_served(run)[0]
    states = np.random.default_rng(0).uniform(0, 30, (20_000, 2)).astype(np.float32)
    return Served("random", random_model("directed", (256, 256), 2, 2, 16), Atlas(states))


def serve(run: str | None = None) -> None:
    """The server's process. No limit of rates: what is measured is how fast it could be."""
    from iel.serving.app import create_app
    from iel.serving.guard import Limits
    from iel.serving.listen import listen

    app = create_app([model_of(None if run is None else Path(run))], limits=Limits(rate=1e9), play=True)
    listen(app, 0, browse=False, quiet=True, play=True)


async def measure(options: Options, served: Served, address: str) -> dict[str, Any]:
    """Everything, one thing after another."""
    port = int(address.rpartition(":")[2])
    bare = bare_seconds(served)
    body = json.dumps({"observation": served.states[0].tolist(), "goal": served.states[-1].tolist()})
    request = post("/v1/act", body.encode(), port)
    alone = await load(port, request, 1, 20 * options.calls)
    together = await load(port, request, options.clients, options.calls)
    before = await reported(port, "iel_cpu_seconds_total")
    times, whole = await asyncio.to_thread(loop_latency, address, served, 20 * options.calls)
    looped = times, whole, await reported(port, "iel_cpu_seconds_total") - before
    doors = {
        name: (await Connection(port).call(raw))[0]
        for name, raw in {
            "foreign Host": get("/v1/model", port, host="evil.example"),
            "foreign Origin": post("/v1/act", body.encode(), port, extra="Origin: http://evil.example\r\n"),
            "file of the machine": get("/static/../../../../etc/passwd", port),
            "own": request,
        }.items()
    }
    return {
        "bare_ms": round(1000 * bare[0], 4),
        "bare_cpu_ms": round(1000 * bare[1], 4),
        "one_client": describe(alone, bare),
        f"{options.clients}_clients": describe(together, bare),
        "websocket": describe(looped, bare),
        "playground": await playground_latency(address, served),
        "refused": doors,
        "fuzz": await fuzz(options, served, port, address),
    }


def bare_seconds(served: Served) -> tuple[float, float]:
    """One call of the engine with a prepared goal: the median by the clock, the mean by the processor."""
    from threadpoolctl import threadpool_limits

    engine = Engine(served)
    query = ActQuery(observation=served.states[0].tolist(), goal=served.states[-1].tolist())
    engine.act(query)
    times = []
    with threadpool_limits(1, "blas"):  # as the server has it
        busy = time.process_time()
        for _ in range(1000):
            started = time.perf_counter()
            engine.act(query)
            times.append(time.perf_counter() - started)
        busy = (time.process_time() - busy) / len(times)
    engine.close()
    return float(np.median(times)), busy


# ---------------------------------------------------------------- requests


def post(path: str, body: bytes, port: int, extra: str = "", kind: str = JSON) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\n{extra}"
    return head.encode("latin-1", "replace") + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str, port: int, host: str | None = None, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{port}'}\r\n\r\n".encode("latin-1", "replace")


class Connection:
    """A persistent connection; one that the server closes is opened again."""

    def __init__(self, port: int):
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, request: bytes) -> tuple[int, bytes]:
        """(status, response body); status 0 if the server answered nothing."""
        for _ in range(2):
            fresh = self.streams is None
            if self.streams is None:
                self.streams = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                return await self._exchange(request, *self.streams)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if fresh:
                    break
        return 0, b""

    async def _exchange(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes]:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        status = int(lines[0].split()[1])
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        body = b"" if request.startswith(b"HEAD") else await reader.readexactly(length)
        if b"connection: close" in lines:
            self.close()
        return status, body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


Load = tuple[np.ndarray, float, float]


async def load(port: int, request: bytes, clients: int, calls: int) -> Load:
    """(seconds of every request, of all, of the server's processor): each client has one request open."""
    connections = [Connection(port) for _ in range(clients)]
    for connection in connections:
        assert (await connection.call(request))[0] == 200
    times: list[float] = []

    async def client(connection: Connection) -> None:
        for _ in range(calls):
            started = time.perf_counter()
            status, _ = await connection.call(request)
            times.append(time.perf_counter() - started)
            assert status == 200, status

    busy, started = await reported(port, "iel_cpu_seconds_total"), time.perf_counter()
    await asyncio.gather(*map(client, connections))
    whole = time.perf_counter() - started
    busy = await reported(port, "iel_cpu_seconds_total") - busy
    for connection in connections:
        connection.close()
    return np.array(times), whole, busy


def describe(measured: Load, bare: tuple[float, float]) -> dict[str, float]:
    """Latency, rate, and both as ratios to the bare call."""
    times, whole, busy = measured
    rate = len(times) / whole
    return {
        "p50_ms": round(1000 * float(np.quantile(times, 0.5)), 3),
        "p99_ms": round(1000 * float(np.quantile(times, 0.99)), 3),
        "per_second": round(rate, 1),
        "ratio_to_bare": round(rate * bare[0], 4),
        "cpu_ms": round(1000 * busy / len(times), 4),
        "cpu_ratio_to_bare": round(bare[1] * len(times) / busy, 4),
    }


def loop_latency(address: str, served: Served, calls: int) -> tuple[np.ndarray, float]:
    """A control loop over a WebSocket."""
    from iel.serving.client import Loop

    times = []
    with Loop(address, served.states[-1]) as loop:
        started = time.perf_counter()
        for number in range(calls):
            began = time.perf_counter()
            loop.act(served.states[number % len(served.states)])
            times.append(time.perf_counter() - began)
    return np.array(times), time.perf_counter() - started


async def playground_latency(address: str, served: Served, moves: int = 100) -> dict[str, float]:
    """A goal that is moved: path and field, there and back, as the page sees it."""
    import urllib.request

    from websockets.asyncio.client import connect

    with urllib.request.urlopen(f"{address}/play/world/0") as answer:
        world = json.loads(answer.read().decode())
    left, right, bottom, top = world["view"]["extent"]
    generator, times = np.random.default_rng(0), []
    async with connect(f"{address.replace('http', 'ws')}/play/ws/0", compression=None, proxy=None) as socket:
        for number in range(moves + 5):
            goal = [float(generator.uniform(left, right)), float(generator.uniform(bottom, top))]
            scene = {"id": number, "start": world["start"], "goal": goal, "planner": world["planner"], "field": "graph"}
            started = time.perf_counter()
            await socket.send(json.dumps({"scene": scene}))
            assert json.loads(await socket.recv())["id"] == number
            times.append(time.perf_counter() - started)
    return {
        "p50_ms": round(1000 * float(np.quantile(times[5:], 0.5)), 2),
        "p99_ms": round(1000 * float(np.quantile(times[5:], 0.99)), 2),
    }


# ---------------------------------------------------------------- fuzz


class Fuzz:
    """Requests of all kinds, each a function of the generator."""

    WORDS = (
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "null",
        "true",
        '"1"',
        "{}",
        "[]",
        "[[]]",
        "-0.0",
        "1e38",
        "1" * 400,
    )
    PATHS: tuple[str, ...] = (
        "/", "/v1/act", "/v1/plan", "/v1/steps", "/v1/model", "/health", "/metrics", "/docs", "/openapi.json",
        "/static/play.js", "/play/models", "/play/world/0", "/play/world/99", "/play/ws/0", "/v1/control",
        "/../etc/passwd", "/static/..%2f..%2fapp.py", "/%00", "/" + "a" * 3000, "/v1/act?x=%ff", "//", "/~root/",
    )  # fmt: skip
    METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO")
    HOSTS = (
        "evil.example",
        "localhost",
        "127.0.0.1",
        "",
        "[::1]",
        "a:b:c",
        "localhost:99999",
        "127.0.0.1@evil.example",
    )

    def __init__(self, seed: int, served: Served, port: int):
        self.random, self.port = np.random.default_rng(seed), port
        self.rows, self.planners = served.states[:500], served.planners
        self.makers = (
            self.valid,
            self.valid,
            self.mutated,
            self.mutated,
            self.shaped,
            self.noise,
            self.path,
            self.headers,
        )

    def pick(self, values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def request(self) -> bytes:
        return self.pick(self.makers)()

    def body(self) -> dict[str, Any]:
        """A question that is right."""
        rows = int(self.random.integers(1, 6))
        many = self.random.random() < 0.4
        goal = self.pick(self.rows[:60]).tolist()  # goals come back, as a robot's do
        known: dict[str, Any] = {"goal": goal}
        known |= (
            {"observations": [self.pick(self.rows).tolist() for _ in range(rows)]}
            if many
            else {"observation": self.pick(self.rows).tolist()}
        )
        if self.random.random() < 0.5:
            known["planner"] = self.pick([name for name in self.planners if name != "rec-mid"])
        return known

    def valid(self) -> bytes:
        path = self.pick(("/v1/act", "/v1/act", "/v1/act", "/v1/steps", "/v1/plan"))
        return post(path, json.dumps(self.body()).encode(), self.port)

    def mutated(self) -> bytes:
        """A right question with something wrong in its text."""
        text = bytearray(json.dumps(self.body()).encode())
        for _ in range(int(self.random.integers(1, 5))):
            text = text or bytearray(b" ")
            offset = int(self.random.integers(len(text)))
            kind = self.random.integers(4)
            if kind == 0:
                text[offset] = int(self.random.integers(256))
            elif kind == 1:
                del text[offset : offset + int(self.random.integers(1, 8))]
            elif kind == 2:
                text[offset:offset] = self.pick(self.WORDS).encode()
            else:
                text = text[:offset]
        return post(self.pick(self.PATHS[1:4]), bytes(text), self.port)

    def shaped(self) -> bytes:
        """Right JSON of the wrong shape."""
        body = self.body()
        for _ in range(int(self.random.integers(1, 3))):
            key = self.pick(("goal", "goals", "observation", "observations", "planner", "steps", "seed", "x"))
            body[key] = self.pick(
                (None, 1, "a", [], [[]], [1], [1e300, -1e300], [[1.0] * 7], {"a": [1]}, True, [None], ["1", "2"], -1)
            )
        if self.random.random() < 0.02:
            body["observations"] = [[0.5, 0.5]] * int(self.random.integers(200, 2000))
        return post(self.pick(self.PATHS[1:4]), json.dumps(body).encode(), self.port)

    def noise(self) -> bytes:
        size = int(self.random.integers(0, 400)) if self.random.random() < 0.99 else (1 << 20) + 10
        return post(
            self.pick(self.PATHS[1:4]), self.random.bytes(size), self.port, kind=self.pick((JSON, JSON, "text/plain"))
        )

    def path(self) -> bytes:
        return get(
            self.pick(self.PATHS),
            self.port,
            method=self.pick(self.METHODS[:2] if self.random.random() < 0.7 else self.METHODS),
        )

    def headers(self) -> bytes:
        if self.random.random() < 0.4:
            return get(self.pick(self.PATHS), self.port, host=self.pick(self.HOSTS))
        extra = self.pick(
            (
                "Origin: http://evil.example\r\n",
                "Origin: null\r\n",
                "Authorization: Bearer x\r\n",
                "Cookie: a=b;;=\r\n",
                "X-Long: " + "a" * 5000 + "\r\n",
                "Upgrade: websocket\r\n",
                "Host: twice\r\n",
                "Expect: nothing\r\n",
            )
        )
        return post("/v1/act", json.dumps(self.body()).encode(), self.port, extra=extra)


async def fuzz(options: Options, served: Served, port: int, address: str) -> dict[str, Any]:
    """Statuses of all requests, and the server's memory meanwhile."""
    source, statuses, wrong = Fuzz(options.seed, served, port), Counter[str](), []
    memory: list[tuple[int, float]] = []
    done, started = 0, time.perf_counter()
    every = max(1, options.requests // 10)

    async def asker() -> None:
        nonlocal done
        connection = Connection(port)
        while done < options.requests:
            done += 1
            number = done
            request = source.request()
            status, _ = await connection.call(request)
            statuses[f"{status // 100}xx" if status else "closed"] += 1
            if not (200 <= status < 300 or 400 <= status < 500):
                wrong.append((status, request[:200].decode("latin-1")))
            if number == min(WARM, every) or number % every == 0:
                memory.append((number, await reported(port, "iel_memory_bytes")))
        connection.close()

    await asyncio.gather(*(asker() for _ in range(CONNECTIONS)))
    seconds = time.perf_counter() - started
    with Client(address) as client:
        alive = client.health()
    memory.sort()
    return {
        "requests": options.requests,
        "statuses": dict(sorted(statuses.items())),
        "other_than_2xx_4xx": wrong[:5],
        "seconds": round(seconds, 1),
        "per_second": round(options.requests / seconds, 1),
        "memory_mb": [[number, round(value / 1e6, 1)] for number, value in memory],
        "alive_afterwards": alive,
    }


async def reported(port: int, name: str) -> float:
    """One number of the server's /metrics."""
    connection = Connection(port)
    _, text = await connection.call(get("/metrics", port))
    connection.close()
    return float(text.decode().split(f"\n{name} ")[1].split()[0])


def show(result: dict[str, Any]) -> None:
    """For people."""
    print(f"bare call         {result['bare_ms']:.3f} ms")
    for name in [key for key in result if key.endswith(("client", "clients"))] + ["websocket"]:
        row = result[name]
        print(
            f"{name.replace('_', ' '):<17} p50 {row['p50_ms']:.2f} ms   p99 {row['p99_ms']:.2f} ms   "
            f"{row['per_second']:.0f} a second, {row['ratio_to_bare']:.3f} of the bare call's   "
            f"{row['cpu_ms']:.2f} ms of the processor, bare {result['bare_cpu_ms']:.2f}"
        )
    print(f"moved goal        p50 {result['playground']['p50_ms']} ms   p99 {result['playground']['p99_ms']} ms")
    print("refused           " + ", ".join(f"{name}: {status}" for name, status in result["refused"].items()))
    found = result["fuzz"]
    print(f"fuzz              {found['requests']:,} requests in {found['seconds']} s: {found['statuses']}")
    print("memory            " + ", ".join(f"{value:.0f} MB after {number:,}" for number, value in found["memory_mb"]))
