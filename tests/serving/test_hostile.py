"""Connections that send no requests are bounded, timed and dropped, so that requests are answered."""

import http.client
import json
import logging
import select
import socket as sockets
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack

import pytest
from websockets.sync.client import connect

from iel.serving import listen
from iel.serving.guard import AccessPolicy, Limits
from tests.serving.conftest import Running, maze_model

TOKEN = "a-long-enough-token"
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJ\r\n"


def port_of(server: Running) -> int:
    return int(server.url.rpartition(":")[2])


def connected(port: int) -> sockets.socket:
    return sockets.create_connection(("127.0.0.1", port), timeout=5)


def healthy(port: int, seconds: float = 1.0) -> bool:
    """Whether a new client gets an answer from /health in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().read().startswith(b'{"status":"ok"')
    except OSError:
        return False
    finally:
        connection.close()


def dripped(raw: sockets.socket, drop: bytes, seconds: float) -> bool:
    """Whether the server closes the connection while bytes keep dripping in."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            raw.sendall(drop)
            if select.select([raw], [], [], 0.05)[0] and raw.recv(4096) == b"":
                return True
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    "request_line, more",
    [
        (b"POST /v1/control", UPGRADE + b"Content-Length: 3\r\n"),
        (b"POST /v1/control", UPGRADE),
        (b"GET /v1/control", UPGRADE + b"Content-Length: 3\r\n"),
        (b"GET /v1/control", UPGRADE + b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_a_websocket_is_opened_by_a_get_without_a_request_body(model, request_line, more):
    with Running(model, policy=AccessPolicy("0.0.0.0", token=TOKEN)) as server, connected(port_of(server)) as raw:
        raw.sendall(request_line + b" HTTP/1.1\r\n" + HOST + more + b"\r\nabc")
        assert raw.recv(200).startswith(b"HTTP/1.1 4")
        assert dripped(raw, b"x", 2.0)


@pytest.mark.parametrize(
    "request_line, headers, status",
    [
        (b"GET /health", b"Content-Length: 1000\r\n", 200),
        (b"POST /v1/act", JSON + b"Content-Length: 1000\r\n", 408),
        (b"POST /v1/act", JSON + b"Transfer-Encoding: chunked\r\n", 408),
        (b"POST /v1/act", b"Content-Type: text/plain\r\nContent-Length: 1000\r\n", 415),
        (b"POST /v1/act", JSON + b"X-Forwarded-Host: evil\r\nOrigin: http://evil\r\nContent-Length: 1000\r\n", 403),
        (b"POST /nothing", JSON + b"Content-Length: 1000\r\n", 404),
    ],
)
def test_a_request_body_that_is_not_read_closes_the_connection(model, request_line, headers, status):
    with Running(model, limits=Limits(seconds=0.3)) as server, connected(port_of(server)) as raw:
        raw.sendall(request_line + b" HTTP/1.1\r\n" + HOST + headers + b"\r\n")
        answer = raw.recv(4096)
        assert answer.split()[1] == str(status).encode() and b"connection: close" in answer
        assert dripped(raw, b"1\r\n", 2.0)


def test_a_request_body_that_is_read_keeps_the_connection(model):
    with Running(model) as server:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=10)
        connection.connect()
        opened = connection.sock
        for _ in range(3):
            body = b'{"observation": [0, 0], "goal": [1, 1]}'
            connection.request("POST", "/v1/act", body, {"Content-Type": "application/json"})
            assert connection.getresponse().read().startswith(b'{"action":[') and connection.sock is opened
        connection.close()


def test_empty_lines_are_no_request(model, monkeypatch):
    monkeypatch.setattr(listen, "HEAD_SECONDS", 0.3)
    with Running(model) as server, connected(port_of(server)) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")
        assert dripped(raw, b"\r\n", 2.0)


def test_connections_are_few_and_requests_are_answered(model):
    """Six kinds that send no request or read no answer, seven times the limit."""
    with Running(model, limits=Limits(connections=16)) as server, ExitStack() as held:
        port = port_of(server)
        clients = [held.enter_context(connected(port)) for _ in range(8)]
        for number in range(48):
            raw = held.enter_context(connected(port))
            raw.sendall(HOSTILE[number % len(HOSTILE)])
            clients.append(raw)
            assert healthy(port)
        time.sleep(0.3)
        assert len(server.server.server_state.connections) <= 8, "half of all of them may be of one address"


def test_pages_that_close_during_an_answer_leave_no_traceback(caplog):
    """Answers to several messages are under way when the page shuts its socket down."""
    pytest.importorskip("ogbench")
    logger = logging.getLogger("uvicorn.error")
    with Running(maze_model(), play=True) as server:
        logger.addHandler(caplog.handler)
        world = json.loads(urllib.request.urlopen(f"{server.url}/play/world/0").read())
        scene = {"id": 1, "start": world["start"], "goal": world["goal"], "planner": "asym-graph", "field": "graph"}
        address = server.url.replace("http", "ws") + "/play/ws/0"
        for number in range(40):
            with connect(address, compression=None, close_timeout=0) as page:
                page.send(json.dumps({"scene": scene, "agent": "step", "speed": 1}))
                page.recv()
                for _ in range(1 + number % 8):
                    page.send(json.dumps({"scene": scene, "agent": "step"}))
                page.socket.shutdown(sockets.SHUT_RDWR)
        assert healthy(port_of(server))
    logger.removeHandler(caplog.handler)
    # This test shuts its own sockets down, which websockets' client may log as an error of the client.
    assert not [record for record in caplog.records if record.name != "websockets.client"]


HOSTILE = (
    b"",
    b"GET / HT",
    b"POST /v1/act HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 100\r\n\r\n",
    b"POST /v1/control HTTP/1.1\r\n" + HOST + UPGRADE + b"Content-Length: 3\r\n\r\nabc",
    b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n\r\n",
    (b"GET /docs HTTP/1.1\r\n" + HOST + b"\r\n") * 200,
)
"""Silent, half a head, a body that never comes, an upgrade with a body, empty lines, answers that are never read."""


@pytest.mark.faults
def test_a_thousand_hostile_connections_and_few_files(tmp_path, model):
    """`ulimit -n 256`: /health answers within a second throughout."""
    with fewer_files(tmp_path, model) as port, ExitStack() as held:
        checks = [healthy(port)]
        for number in range(1000):
            try:
                raw = held.enter_context(connected(port))
                raw.sendall(HOSTILE[number % len(HOSTILE)])
            except OSError:  # dropped before it was done
                continue
            if number % 20 == 0:
                checks.append(healthy(port))
        for _ in range(60):
            checks.append(healthy(port))
            time.sleep(0.25)
        assert checks.count(True) == len(checks) >= 100


class fewer_files(ExitStack):
    """`iel serve` of an export in a process that may open 256 files; its port."""

    def __init__(self, tmp_path, model):
        super().__init__()
        from iel.agent import Agent

        Agent(model.model, model.atlas, nodes=40).save(tmp_path / "agent")
        command = f"ulimit -n 256; exec {sys.executable} -m iel.cli serve {tmp_path / 'agent'} --port 0 --json"
        self.process = subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def __enter__(self) -> int:
        assert self.process.stderr is not None
        self.callback(self.process.wait, 10)
        self.callback(self.process.terminate)
        return int(self.process.stderr.readline().rpartition(b":")[2])
