"""`iel serve`, `iel play`, the client and the example, as users start them."""

import json
import signal
import socket as sockets
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import iel
from iel.cli import run as iel_command
from iel.errors import ConfigError, RunError
from iel.export import export_run
from iel.model import save_model
from iel.serving import listen
from iel.serving.client import Client, Loop, ServerError
from iel.serving.engine import open_served
from iel.serving.guard import AccessPolicy
from iel.serving.listen import bind
from iel.training import open_run
from iel.training.run import create_run
from tests.serving.conftest import Running, nodes, served, walk
from tests.test_imports import REFUSE, REFUSED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on logs of one's own and its exports, as training leaves them; the weights are random."""
    folder = tmp_path_factory.mktemp("serving")
    states, offsets = walk(columns=4)
    ends = np.zeros(len(states))
    ends[offsets[1:] - 1] = 1.0
    np.savez(folder / "logs.npz", observations=states, actions=np.zeros((len(states), 2), np.float32), terminals=ends)
    logs = iel.load(folder / "logs.npz", trust=True)
    facts = {"name": "logs", "fingerprint": logs.fingerprint, "episodes": len(logs), "file": str(folder / "logs.npz")}
    config = {"env": "own-logs", "algo": "iel", "settings": {}, "seed": 3, "status": "finished", "data": facts}
    run = create_run(folder / "run", config)
    save_model(served("directed", columns=4).model, run.path / "model")
    run = open_run(run.path)
    export_run(run, folder / "export", data=logs, nodes=50, onnx=False)
    export_run(run, folder / "bare", onnx=False)
    return folder


def test_runs_and_exports_are_opened(folder, capsys):
    export = open_served(folder / "export")[0]
    assert export.states.shape == (50, 4) and export.atlas.trajectories is None and export.env is None
    assert export.planners == ("direct", "rec-mid", "sym-graph", "asym-graph")
    assert export.agent("asym-graph").planner.graph.count == 50
    for location in ("bare", "run/model"):
        bare = open_served(folder / location)[0]
        assert bare.atlas is None and bare.planners == ("direct",)
        bare.agent("direct").planner.prepare(np.ones(4))
    whole = replace(open_served(folder / "bare", data=folder / "logs.npz")[0], options=nodes(40))
    assert whole.atlas.trajectories is not None and whole.agent("sym-graph").planner.graph.count == 40
    run = replace(open_served(folder / "run")[0], options=nodes(30))
    assert run.seed == 3 and len(run.states) == 600 and run.agent("asym-graph").planner.graph.count == 30
    with pytest.raises(RunError, match="does not exist"):
        open_served(folder / "nothing")
    (folder / "logs.npz").rename(folder / "gone.npz")
    try:
        assert open_served(folder / "run")[0].planners == ("direct",)
        assert "only the planner `direct`" in capsys.readouterr().err
    finally:
        (folder / "gone.npz").rename(folder / "logs.npz")
    with pytest.raises(ConfigError, match="no states to draw"):
        iel_command(["play", str(folder / "bare"), "--port", "0"])


def test_the_client_gets_the_librarys_answers(model):
    x, g = model.states[5], model.states[400]
    planner = model.agent("asym-graph").planner
    planner.prepare(g)
    with Running(model) as server, Client(server.url) as client:
        assert client.health() and client.model()["action_size"] == 2
        np.testing.assert_allclose(client.act(x, g), planner.act(x), atol=1e-6)
        assert client.act(model.states[:7], g).shape == (7, 2)
        np.testing.assert_allclose(client.plan(x, g)["waypoints"], planner.path(x).observations, atol=1e-6)
        assert client.steps(x, g, planner="asym-graph") == pytest.approx(planner.predicted_steps(x))
        with pytest.raises(ServerError, match="non-finite") as caught:
            client.act(np.array([1e300, 0]), g)
        assert caught.value.status == 422
        with Loop(server.url, g) as loop:
            np.testing.assert_allclose(loop.act(x), planner.act(x), atol=1e-6)
            assert loop.act_and_steps(x)[1] == pytest.approx(planner.predicted_steps(x))
            assert loop.avoid(planner.path(x).observations[1:2], 1e-3) >= 1
            loop.head_for(model.states[3])
            with pytest.raises(ServerError, match="shape"):
                loop.head_for([1.0])
    with pytest.raises(ServerError, match="does not answer"):
        client.act(x, g)
    with pytest.raises(ServerError, match="cannot be opened"):
        Loop(server.url, g)
    with pytest.raises(ConfigError, match="give one such as"):
        Client("ftp://somewhere")


def test_a_token_opens_the_door(model):
    token = "a-long-enough-token"
    with Running(model, policy=AccessPolicy("0.0.0.0", token=token)) as server:
        with Client(server.url) as foreign, pytest.raises(ServerError, match="token is needed"):
            foreign.model()
        with pytest.raises(ServerError, match="cannot be opened"):
            Loop(server.url, model.states[0])
        with Client(server.url, token=token) as friend, Loop(server.url, model.states[0], token=token) as loop:
            assert friend.model()["name"] == "walk" and loop.act(model.states[9]).shape == (2,)


def test_what_uvicorn_itself_refuses_is_a_4xx(model):
    """Requests that are not HTTP never reach the application."""
    with Running(model) as server:
        port = int(server.url.rpartition(":")[2])
        for request in (
            b"NONSENSE\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"POST /v1/act HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        ):
            with sockets.create_connection(("127.0.0.1", port), timeout=5) as raw:
                raw.sendall(request)
                assert raw.recv(200).split()[1].startswith(b"4")


def test_heads_are_bounded_too(model, monkeypatch):
    """Endless headers, request lines and chunk marks are cut off; silent connections are closed."""
    monkeypatch.setattr(listen, "HEAD_SECONDS", 0.3)
    begins = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
        b"GET /",
        b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5;",
    )
    with Running(model) as server:
        port = int(server.url.rpartition(":")[2])
        for begin in begins:
            with sockets.create_connection(("127.0.0.1", port), timeout=5) as raw, pytest.raises(OSError):
                raw.sendall(begin)
                for _ in range(2000):
                    raw.sendall(b"a" * 65536)
        with sockets.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(b"GET / HTT")
            assert raw.recv(100) == b""  # closed without a word
        for size, status in ((60_000, b"200"), (100_000, b"400")):  # in one piece
            with sockets.create_connection(("127.0.0.1", port), timeout=5) as raw:
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * size + b"\r\n\r\n")
                assert raw.recv(200).split()[1] == status
        with Client(server.url) as client:
            body = model.states[:250]
            assert client.act(body, model.states[9]).shape == (250, 2)  # the limit of heads leaves request bodies alone


def test_options_are_checked_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.delenv("IEL_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="a token is needed"):
        iel_command(["serve", str(tmp_path), "--host", "0.0.0.0"])
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        iel_command(["play", str(tmp_path), "--port", "70000"])
    with pytest.raises(ConfigError, match="positive number"):
        iel_command(["serve", str(tmp_path), "--rate", "0"])
    with pytest.raises(ConfigError, match="host name"):
        iel_command(["serve", str(tmp_path), "--allow-host", "a:1"])
    with pytest.raises(RunError):
        iel_command(["serve", str(tmp_path / "nothing")])
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_a_command_serves_an_export_without_jax(folder):
    """In a process of its own that refuses to import JAX, ended by Ctrl-C's signal."""
    refuse = REFUSE.replace(str(REFUSED), str(("jax", "equinox", "optax", "matplotlib", "mujoco", "ogbench")))
    program = [sys.executable, "-c", refuse + "from iel.cli import main; main(sys.argv[1:])"]
    process = subprocess.Popen(
        [*program, "serve", str(folder / "export"), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    address = process.stderr.readline().strip()
    assert address.startswith("http://127.0.0.1:"), process.stderr.read()
    with Client(address) as client:
        while not client.health():
            time.sleep(0.05)
        assert client.act(np.zeros(4), np.ones(4)).shape == (2,)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and json.loads(out.splitlines()[-1])["models"][0]["algo"] == "directed"


def test_a_served_model_describes_itself():
    assert served("goal").describe()["predicts_steps"] is False
    assert served(states=False).describe()["planners"] == ["direct"]
