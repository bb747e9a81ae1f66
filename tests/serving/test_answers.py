"""What answers hold beside actions: goals on some columns, units of the robot, warnings, and a watchdog's reasons."""

import json
from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

from iel.data import Trajectories
from iel.errors import ConfigError, IELError
from iel.model.support import support_of
from iel.serving.app import create_app
from iel.serving.client import Client, Loop
from iel.serving.engine import Control, Engine
from iel.serving.schemas import ControlMessage, parse
from iel.signals import Signals
from tests.serving.conftest import Running, served, walk

HERE = "http://127.0.0.1:8420"
SIGNALS = Signals(
    observations=("battery", "x", "y"), actions=("v", "w"), action_low=(0.0, -1.6), action_high=(0.6, 1.6), rate=10.0
)


@pytest.fixture(scope="module")
def robot():
    """Three named columns, of which the last two are a walk, and the range of its actions."""
    source = served(columns=3)
    observations, offsets = walk(columns=3)
    model = source.model
    model.signals = SIGNALS
    model.support = support_of(Trajectories(observations, np.zeros((len(observations), 1)), offsets, checked=True))
    return source


@pytest.fixture(scope="module")
def http(robot):
    with TestClient(create_app([robot]), base_url=HERE) as opened:
        yield opened


@pytest.mark.parametrize("planner", ["direct", "rec-mid", "sym-graph", "asym-graph"])
def test_goals_on_some_columns_are_the_planners_own(http, robot, planner):
    own = robot.agent(planner).planner
    x, y = (float(value) for value in robot.states[400, 1:])
    here = robot.states[5].tolist()
    for goal, by_number in (
        ({"x": x, "y": y}, {1: x, 2: y}),
        ({"1": x}, {1: x}),
        ({"x": [x - 0.5, x + 0.5]}, {1: (x - 0.5, x + 0.5)}),
    ):
        own.prepare(by_number)
        body = {"observation": here, "goal": goal, "planner": planner}
        answer = http.post("/v1/act", json={**body, "steps": True}).json()
        np.testing.assert_allclose(answer["action"], own.act(here), atol=1e-6)
        np.testing.assert_allclose(answer["steps"], own.predicted_steps(here), rtol=1e-6)
        np.testing.assert_allclose(http.post("/v1/steps", json=body).json()["steps"], answer["steps"], rtol=1e-6)
        route = http.post("/v1/plan", json=body).json()
        np.testing.assert_allclose(np.reshape(route["waypoints"], (-1, 3)), own.path(here).observations, atol=1e-6)
        with http.websocket_connect("ws://127.0.0.1:8420/v1/control") as loop:
            loop.send_json({"goal": goal, "planner": planner, "observation": here})
            np.testing.assert_allclose(loop.receive_json()["action"], answer["action"], atol=1e-6)
    mixed = {"observation": here, "goals": [{"x": x}, robot.states[400].tolist()], "planner": planner}
    assert len(http.post("/v1/act", json=mixed).json()["actions"]) == 2


def test_columns_that_are_not_there_are_refused(http, robot):
    for goal, said in (
        ({"z": 1.0}, "Unknown observation column 'z'"),
        ({"7": 1.0}, "7"),
        ({"x": 1.0, "1": 1.0}, "given twice"),
        ({"x": [2.0, 1.0]}, "low <= high"),
        ({"x": 1e30}, "No state of the data"),
        ({"x": "1"}, "goal"),
        ({"x": None}, "goal"),
        ({}, "goal"),
    ):
        answer = http.post("/v1/act", json={"observation": robot.states[5].tolist(), "goal": goal})
        assert answer.status_code == 422 and said in answer.json()["error"], (goal, answer.text)


def test_actions_in_the_units_of_the_robot(http, robot):
    body = {"observation": robot.states[5].tolist(), "goal": robot.states[400].tolist()}
    unit = np.array(http.post("/v1/act", json=body).json()["action"])
    answer = http.post("/v1/act", json={**body, "units": "robot"}).json()["action"]
    np.testing.assert_allclose(answer, [0.3 * (unit[0] + 1.0), 1.6 * unit[1]], rtol=1e-5)
    assert http.get("/v1/model").json()["signals"]["action_high"] == [0.6, 1.6]
    assert http.post("/v1/act", json={**body, "units": "m/s"}).status_code == 422
    with TestClient(create_app([served()]), base_url=HERE) as unnamed:
        refused = unnamed.post("/v1/act", json={"observation": [0, 0], "goal": [1, 1], "units": "robot"})
        assert refused.status_code == 422 and "not known" in refused.json()["error"]


def test_what_lies_outside_of_the_data_is_reported_in_the_answer(http, robot):
    inside, far = robot.states[5].tolist(), [0.0, 500.0, 500.0]
    for path in ("/v1/act", "/v1/plan", "/v1/steps"):
        assert "warnings" not in http.post(path, json={"observation": inside, "goal": inside}).json()
        (goal,) = http.post(path, json={"observation": inside, "goal": far}).json()["warnings"]
        (own,) = http.post(path, json={"observation": far, "goal": inside}).json()["warnings"]
        assert goal.startswith("The goal is outside of the data") and own.startswith("The observation is outside")
        for _ in range(2):  # not only for the first client
            assert len(http.post(path, json={"observation": far, "goal": far}).json()["warnings"]) == 2
    with http.websocket_connect("ws://127.0.0.1:8420/v1/control") as loop:
        loop.send_json({"goal": far})
        assert "goal" in loop.receive_json()["warnings"][0]
        for _ in range(2):
            loop.send_json({"observation": far})
            assert len(loop.receive_json()["warnings"]) == 2
        loop.send_json({"goal": inside})
        assert "warnings" not in loop.receive_json()
    model = replace(robot, model=robot.model.replaced(robot.model.networks, robot.model.conditioning))
    model.model.outside = "refuse"
    with TestClient(create_app([model]), base_url=HERE) as strict:
        for body in ({"observation": far, "goal": inside}, {"observation": inside, "goal": far}):
            assert strict.post("/v1/act", json=body).status_code == 422


REFUSED = [
    {"goal": [0.0, 1.0, 2.0], "observation": [0.0]},
    {"goal": [0.0, 1.0, 2.0], "avoid": [[0.0, 0.0, 0.0]], "radius": 1e9},
    {"goal": [0.0, 1.0, 2.0], "avoid": [[0.0]]},
    {"goal": [0.0, 1.0, 2.0], "planner": "asym-grap"},
    {"goal": [0.0, 1.0, 2.0], "planner": "direct", "avoid": []},
    {"goal": {"z": 1.0}},
    {"goal": [0.0, 1.0, 2.0], "watchdog": {"stop": [0.0]}},
    {"goal": [0.0, 1.0, 2.0], "watchdog": {"stop": [0.0, 0.0], "stck": 3}},
    {"goal": [0.0, 1.0, 2.0], "watchdog": {"stop": [0.0, 0.0], "stuck": 0}},
    {"goal": [0.0, 1.0, 2.0], "watchdog": {}},
    {"observation": [0.0]},
    {"observation": [1e300, 0.0, 0.0]},
    {"avoid": [[0.0, 0.0, 0.0]], "radius": 1e9},
]


@pytest.mark.parametrize("message", REFUSED)
def test_a_refused_message_changes_nothing(robot, message):
    engine = Engine(robot)
    loop, same = Control(engine), Control(engine)
    node = robot.states[engine.agent("asym-graph").planner.states[7]].tolist()
    for each in (loop, same):
        goal = {"goal": robot.states[400].tolist(), "avoid": [node], "radius": 1e-4, "planner": "asym-graph"}
        each.answer(ControlMessage(**goal))
    with pytest.raises(IELError):
        loop.answer(parse(ControlMessage, json.dumps(message)))
    for row in robot.states[5:60:5].tolist():
        here = ControlMessage(observation=row, steps=True)
        assert loop.answer(here) == same.answer(here)
    assert loop.planner.nodes_off.sum() == 1
    engine.close()


def test_a_watchdog_on_the_server(robot):
    states, stop = robot.states, {"stop": [0.0, 0.5], "repeats": 3}
    with Running(robot) as server, Loop(server.url, {"x": float(states[400, 1])}, watchdog=stop) as loop:
        assert loop.act(states[5]).shape == (2,) and loop.stopped is None
        for row, reason in (([0.0, 500.0, 500.0], "outside"), ([1e300, 0.0, 0.0], "not finite"), ([1.0], "refused")):
            np.testing.assert_array_equal(loop.act(row), [0.0, 0.5])
            assert loop.stopped.startswith(reason)
        for number in range(3):
            loop.act(states[6], stamp=number)
        assert loop.stopped.startswith("repeated")
        loop.act(states[7], stamp=1)
        assert loop.stopped.startswith("stale")
        assert loop.act_and_steps(states[8])[1] > 0 and loop.stopped is None
        loop.head_for(states[300])
        loop.act(states[9], stamp=1)
        assert loop.stopped is None
    with pytest.raises(ConfigError, match="send both"):
        parse(ControlMessage, '{"observation": [0], "watchdog": {"stop": [0]}}')


def test_the_client_takes_columns_and_units(robot):
    x = float(robot.states[400, 1])
    with Running(robot) as server, Client(server.url) as client:
        own = robot.agent("asym-graph").planner
        own.prepare({1: x})
        unit = client.act(robot.states[5], {"x": x})
        np.testing.assert_allclose(unit, own.act(robot.states[5]), atol=1e-6)
        np.testing.assert_array_equal(client.act(robot.states[5], {1: x}), unit)
        assert client.act(robot.states[5], {"x": x}, units="robot")[0] == pytest.approx(0.3 * (unit[0] + 1.0))
        assert client.warnings == []
        client.act([0.0, 900.0, 0.0], robot.states[3])
        assert len(client.warnings) == 1
