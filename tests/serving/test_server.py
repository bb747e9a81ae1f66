"""The policy server: answers are those of the library, and whatever is wrong gets a 4xx and one sentence."""

import json

import numpy as np
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from iel.errors import ConfigError
from iel.planning import Region
from iel.serving import engine as engine_module
from iel.serving.app import create_app, static_files
from iel.serving.engine import Engine
from iel.serving.guard import AccessPolicy, Limits, Rates, host_name, is_loopback, same_origin
from iel.serving.schemas import ActQuery
from tests.serving.conftest import served

TOKEN = "a-long-enough-token"
HERE = "http://127.0.0.1:8420"


def client(*models, policy: AccessPolicy | None = None, limits: Limits | None = None, **settings) -> TestClient:
    app = create_app(models or [served()], policy, limits, **settings)
    return TestClient(app, base_url=HERE, client=("127.0.0.1", 5000), raise_server_exceptions=True)


@pytest.fixture(scope="module")
def http(model):
    with client(model) as opened:
        yield opened


# ---------------------------------------------------------------- answers


def test_act_is_the_planners_own_action(http, model):
    for name in model.planners:
        planner = model.agent(name).planner
        for row, target in ((5, 300), (40, 41)):
            observation, goal = model.states[row], model.states[target]
            planner.prepare(goal)
            body = {"observation": observation.tolist(), "goal": goal.tolist(), "planner": name, "steps": True}
            answer = http.post("/v1/act", json=body).json()
            np.testing.assert_allclose(answer["action"], planner.act(observation), atol=1e-6)
            np.testing.assert_allclose(answer["steps"], planner.predicted_steps(observation), rtol=1e-6)


def test_batches_answer_row_by_row(http, model):
    observations, goals = model.states[10:18], model.states[[100, 100, 200, 300, 200, 100, 400, 500]]
    together = http.post("/v1/act", json={"observations": observations.tolist(), "goals": goals.tolist()}).json()
    alone = [
        http.post("/v1/act", json={"observation": x.tolist(), "goal": g.tolist()}).json()["action"]
        for x, g in zip(observations, goals, strict=True)
    ]
    np.testing.assert_allclose(together["actions"], alone, atol=1e-6)
    one_goal = http.post("/v1/act", json={"observations": observations.tolist(), "goal": goals[0].tolist()}).json()
    np.testing.assert_allclose(one_goal["actions"][0], alone[0], atol=1e-6)
    assert len(one_goal["actions"]) == 8


def test_plan_and_steps_are_the_librarys(http, model):
    x, g = model.states[5], model.states[400]
    planner = model.agent("asym-graph").planner
    planner.prepare(g)
    route = planner.path(x)
    body = {"observation": x.tolist(), "goal": g.tolist()}
    answer = http.post("/v1/plan", json=body).json()
    np.testing.assert_allclose(answer["waypoints"], route.observations, atol=1e-6)
    np.testing.assert_allclose(answer["predicted_steps"], route.total, rtol=1e-6)
    straight = http.post("/v1/steps", json=body).json()["steps"]
    np.testing.assert_allclose(straight, model.model.steps(x[None], g[None])[0], rtol=1e-5)
    along = http.post("/v1/steps", json={**body, "planner": "asym-graph"}).json()["steps"]
    np.testing.assert_allclose(along, planner.predicted_steps(x), rtol=1e-6)
    several = http.post("/v1/plan", json={"observation": x.tolist(), "goals": [g.tolist(), x.tolist()]}).json()
    assert len(several["plans"]) == 2 and several["plans"][0] == answer


def test_a_model_without_distances_only_acts():
    with client(served("goal")) as http:
        assert http.get("/v1/model").json()["planners"] == ["direct"]
        body = {"observation": [0, 0], "goal": [1, 1]}
        assert len(http.post("/v1/act", json=body).json()["action"]) == 2
        for path in ("/v1/steps", "/v1/plan"):
            answer = http.post(path, json=body)
            assert answer.status_code == 422 and "learned no distances" in answer.json()["error"]
        assert http.post("/v1/act", json={**body, "steps": True}).status_code == 422


def test_a_control_loop_pursues_and_unsticks(http, model):
    x, g = model.states[5], model.states[400]
    planner = model.agent("asym-graph").planner
    planner.prepare(g)
    with http.websocket_connect(f"{HERE}/v1/control".replace("http", "ws")) as socket:
        socket.send_json({"observation": x.tolist()})
        assert "send a goal first" in socket.receive_json()["error"]
        socket.send_json({"goal": g.tolist(), "observation": x.tolist(), "steps": True})
        answer = socket.receive_json()
        np.testing.assert_allclose(answer["action"], planner.act(x), atol=1e-6)
        np.testing.assert_allclose(answer["steps"], planner.predicted_steps(x), rtol=1e-6)
        socket.send_json({"goal": [1.0], "planner": "asym-graph"})
        assert "has shape" in socket.receive_json()["error"]
        node = planner.path(x).observations[1:2]
        socket.send_json({"avoid": node.tolist(), "radius": 1e-3})
        assert socket.receive_json()["nodes_off"] == len(planner.switch_off_near(node, 1e-3)) > 0
        socket.send_json({"observation": x.tolist()})
        np.testing.assert_allclose(socket.receive_json()["action"], planner.act(x), atol=1e-6)
        socket.send_json({"avoid": []})
        assert socket.receive_json()["nodes_off"] == 0
        socket.send_text("{")
        assert "error" in socket.receive_json()
        actions = []
        for _ in range(2):  # the same seed, the same sample
            socket.send_json({"goal": g.tolist(), "acting": "sample", "seed": 3, "observation": x.tolist()})
            actions.append(socket.receive_json()["action"])
        assert actions[0] == actions[1] != planner.act(x).tolist()


def test_loops_do_not_disturb_each_other(http, model):
    """Obstacles of one loop change no other client's plan."""
    x, g = model.states[5].tolist(), model.states[400].tolist()
    before = http.post("/v1/plan", json={"observation": x, "goal": g}).json()
    with http.websocket_connect(f"{HERE}/v1/control".replace("http", "ws")) as socket:
        socket.send_json({"goal": g, "avoid": before["waypoints"][2:3], "radius": 1e-3})
        assert socket.receive_json()["nodes_off"] > 0
        assert http.post("/v1/plan", json={"observation": x, "goal": g}).json() == before


# ---------------------------------------------------------------- refusals


GOOD = {"observation": [0.0, 0.0], "goal": [1.0, 1.0]}
BAD = {
    "empty": "",
    "no object": "[]",
    "half a body": '{"observation": [0, 0], "go',
    "no goal": '{"observation": [0, 0]}',
    "both": '{"observation": [0, 0], "observations": [[0, 0]], "goal": [1, 1]}',
    "text": '{"observation": ["0", 0], "goal": [1, 1]}',
    "true": '{"observation": [true, 0], "goal": [1, 1]}',
    "nan": '{"observation": [NaN, 0], "goal": [1, 1]}',
    "infinity": '{"observation": [0, 0], "goal": [1, -Infinity]}',
    "too large": '{"observation": [1e400, 0], "goal": [1, 1]}',
    "too large for float32": '{"observation": [1e300, 0], "goal": [1, 1]}',
    "absurd": '{"observation": [3e38, 3e38], "goal": [-3e38, 1]}',
    "huge integer": '{"observation": [1' + "0" * 400 + ', 0], "goal": [1, 1]}',
    "too short": '{"observation": [0], "goal": [1, 1]}',
    "too long": '{"observation": [0, 0, 0], "goal": [1, 1]}',
    "empty row": '{"observation": [], "goal": [1, 1]}',
    "ragged": '{"observations": [[0, 0], [0]], "goal": [1, 1]}',
    "counts": '{"observations": [[0, 0], [1, 1], [2, 2]], "goals": [[1, 1], [2, 2]]}',
    "rows": json.dumps({"observations": [[0, 0]] * 257, "goal": [1, 1]}),
    "planner": '{"observation": [0, 0], "goal": [1, 1], "planner": "asym-grap"}',
    "misspelt": '{"observation": [0, 0], "goal": [1, 1], "plannr": "direct"}',
    "null": '{"observation": null, "goal": [1, 1]}',
    "deep": "[" * 5000 + "]" * 5000,
    "deep inside": '{"observation": ' + "[" * 5000 + "]" * 5000 + ', "goal": [1, 1]}',
    "a lone surrogate": '{"observation": [0, 0], "goal": [1, 1], "planner": "\\ud800"}',
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("path", ["/v1/act", "/v1/plan", "/v1/steps"])
def test_bad_request_bodies_get_one_sentence(http, path):
    for name, body in BAD.items():
        answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, (name, answer.status_code, answer.text)
        sentence = answer.json()["error"]
        assert sentence.endswith((".", "?")) and "\n" not in sentence and len(sentence) <= 500, (name, sentence)
        assert "Traceback" not in sentence and "site-packages" not in sentence
    assert http.post(path, json=GOOD).status_code == 200  # and nothing is broken by it


def test_too_many_goals_are_refused_where_each_is_a_search(http, model):
    goals = model.states[:40].tolist()
    answer = http.post("/v1/act", json={"observation": [0, 0], "goals": goals})
    assert answer.status_code == 422 and "at most 16" in answer.json()["error"]
    assert http.post("/v1/act", json={"observation": [0, 0], "goals": goals, "planner": "direct"}).status_code == 200
    assert http.post("/v1/plan", json={"observation": [0, 0], "goals": goals}).status_code == 422


def test_request_bodies_are_json_short_and_expected(http):
    assert http.post("/v1/act", content="{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert (
        http.post("/v1/act", content=b" " * (1 << 21), headers={"Content-Type": "application/json"}).status_code == 413
    )

    def chunks():
        for _ in range(64):
            yield b" " * 65536

    assert http.post("/v1/act", content=chunks(), headers={"Content-Type": "application/json"}).status_code == 413
    assert http.get("/v1/act").status_code == 405 and http.put("/health", json={}).status_code == 405
    assert "see /docs" in http.get("/nothing").json()["error"]


def test_only_our_own_files_can_be_reached(http):
    for path in (
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/__init__.py",
        "/static//etc/passwd",
        "/static/",
        "/static/..\\app.py",
        "/etc/passwd",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/static/page.css%00.py",
    ):
        answer = http.get(path)
        assert answer.status_code == 404 and "root:" not in answer.text, path
    for name, (content, _) in static_files().items():
        assert http.get(f"/static/{name}").content == content


def test_pages_load_nothing_from_the_network():
    for name, (content, _) in static_files().items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, name
        if name.endswith(".html"):
            assert "<style" not in text and "onclick" not in text  # the policy of the page forbids them


# ---------------------------------------------------------------- access control


@pytest.mark.parametrize(
    "host", ["evil.com", "127.0.0.1.evil.com", "", "localhost@evil.com", "10.0.0.1", "[::2]", "a b"]
)
def test_foreign_hosts_are_refused(http, host):
    for path in ("/health", "/v1/model", "/"):
        assert http.get(path, headers={"Host": host}).status_code == 421


def test_own_hosts_are_not(http):
    for host in ("localhost", "LOCALHOST:8420", "127.0.0.1:1", "[::1]:8420"):
        assert http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.com", "null", "http://127.0.0.1:8421", "file://", "http://localhost:8420"]
)
def test_foreign_origins_are_refused(http, origin):
    assert http.post("/v1/act", json=GOOD, headers={"Origin": origin}).status_code == 403
    with (
        pytest.raises(WebSocketDisconnect),
        http.websocket_connect(f"{HERE}/v1/control".replace("http", "ws"), headers={"Origin": origin}),
    ):
        pass
    assert http.post("/v1/act", json=GOOD, headers={"Origin": HERE}).status_code == 200


def test_other_addresses_need_a_token(model):
    for address in ("0.0.0.0", "192.168.1.7", "::", "robot.local"):
        with pytest.raises(ConfigError, match="a token is needed"):
            AccessPolicy(address)
    for weak in ("short", "spaces are not allowed", "é" * 20):
        with pytest.raises(ConfigError, match="at least 16"):
            AccessPolicy("0.0.0.0", token=weak)
    with client(model, policy=AccessPolicy("0.0.0.0", token=TOKEN), play=True) as http:
        assert http.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": "iel_token=no"}):
            for path in ("/", "/v1/model", "/metrics", "/static/play.js", "/play/models", "/openapi.json"):
                assert http.get(path, headers=headers).status_code == 401
        assert http.get("/v1/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert http.get("/health", headers={"Host": "192.168.1.7:8420"}).status_code == 200
        assert http.get("/health", headers={"Host": "evil.com"}).status_code == 421
        with pytest.raises(WebSocketDisconnect), http.websocket_connect(f"{HERE}/v1/control".replace("http", "ws")):
            pass
        assert http.get("/?token=wrong").status_code == 401
        page = http.get(f"/?token={TOKEN}", follow_redirects=False)
        assert page.status_code == 303 and page.headers["location"] == "/"
        assert "HttpOnly" in page.headers["set-cookie"] and "SameSite=Strict" in page.headers["set-cookie"]
        assert http.get("/v1/model").status_code == 200  # by the cookie


def test_rates_are_bounded(model):
    with client(model, limits=Limits(rate=5.0)) as http:
        codes = [http.get("/v1/model").status_code for _ in range(20)]
        assert http.get("/health").status_code == 200  # whether the server lives is answered all the same
    assert codes[:10] == [200] * 10 and codes[-1] == 429
    rates = Rates(1.0)
    for number in range(5000):
        assert rates.take(f"10.0.{number % 256}.{number // 256}")
    assert len(rates._buckets) <= 1024


def test_sockets_are_bounded_and_messages_too(model):
    address = f"{HERE}/v1/control".replace("http", "ws")
    with client(model, limits=Limits(sockets=1, rate=6.0)) as http, http.websocket_connect(address) as socket:
        with pytest.raises(WebSocketDisconnect), http.websocket_connect(address):
            pass
        with pytest.raises(WebSocketDisconnect):
            for _ in range(30):
                socket.send_text("{}")
                socket.receive_json()
    with client(model) as http, http.websocket_connect(address) as socket:
        socket.send_bytes(b"{}")
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()


def test_a_flood_is_refused(model, monkeypatch):
    monkeypatch.setattr(engine_module, "WAITING", 0)
    app = create_app([model])
    http = TestClient(app, base_url=HERE)  # not started: the graph is not built
    assert http.post("/v1/act", json=GOOD).status_code == 429


def test_names_and_addresses():
    assert is_loopback("127.0.0.3") and is_loopback("::1") and is_loopback("localhost")
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.com")))
    assert host_name("a.b:80") == "a.b" and host_name("[::1]:80") == "::1"
    assert host_name("a@b") is None and host_name("a:b") is None and host_name("a/b") is None
    assert same_origin("http://a:1", "a:1") and not same_origin("http://a:1", "a:2") and not same_origin("null", "null")
    assert AccessPolicy(names=("robot.local",)).knows("robot.local:80")
    with pytest.raises(ConfigError, match="without a port"):
        AccessPolicy(names=("robot.local:80",))


# ---------------------------------------------------------------- what it says about itself


def test_health_model_metrics_and_description(http):
    assert http.get("/health").json()["status"] == "ok"
    assert http.get("/v1/model").json()["observation_size"] == 2
    http.post("/v1/act", json=GOOD)
    http.get("/nothing/at/all")
    text = http.get("/metrics").text
    assert 'iel_requests_total{route="/v1/act",status="2xx"}' in text and 'route="other",status="4xx"' in text
    assert "nothing/at/all" not in text
    assert int(text.split("\niel_memory_bytes ")[1].split()[0]) > 1e6
    spec = http.get("/openapi.json").json()
    reference = spec["paths"]["/v1/act"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = spec["components"]["schemas"][reference.rpartition("/")[2]]
    assert {"observation", "observations", "goal", "goals", "planner", "steps", "units"} == schema["properties"].keys()
    assert all(field["description"] for field in schema["properties"].values())
    assert "policy server" in http.get("/docs").text
    for header in ("content-security-policy", "x-content-type-options", "x-frame-options"):
        assert header in http.get("/docs").headers


def test_forks_share_nodes_but_not_obstacles(model):
    planner = model.agent("asym-graph").planner
    planner.prepare(Region(model.states[:3]))
    fork = planner.fork()
    with pytest.raises(ConfigError, match="No goal is prepared"):
        fork.act(model.states[0])
    fork.prepare(model.states[400])
    fork.switch_off(nodes=[1, 2], edges=[(3, 4)])
    assert fork.graph is planner.graph and not planner.nodes_off.any() and not planner.edges_off


def test_plans_are_remembered_and_forgotten(model):
    engine = Engine(model)
    for number in range(100):
        goal = model.states[number].tolist()
        engine.act(ActQuery(observation=model.states[0].tolist(), goal=goal, planner="direct"))
    assert len(engine._plans) == engine_module.PLANS
    engine.close()
