"""A robot with wheels in an office: what its owner does first, and what is evaluated is what is deployed."""

import numpy as np
import pytest

import iel
from iel.data.scaling import unit_actions
from iel.envs import World
from iel.evaluation.rollout import Arena, TaskRequest
from iel.model.atlas import Atlas
from office import COLUMNS, HIGH, LOW, RATE, Office, crossings, write_logs

NAMED = {"observations": COLUMNS, "actions": ("v", "w"), "episode": "run", "step": "stamp"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> iel.Trajectories:
    path = write_logs(tmp_path_factory.mktemp("office") / "log.csv")
    return unit_actions(iel.load(path, columns=NAMED, trust=True))


@pytest.fixture(scope="module")
def model(data):
    """Hardly trained: what is compared here holds for any weights."""
    return iel.train(data, iel.HTP.preset("smoke", steps=2, policy=iel.Waypoints(steps=2)), progress=False).model


def test_the_logs_say_what_they_are(data):
    assert data.signals.observations == COLUMNS and data.signals.rate == RATE and data.position_columns == (0, 1)
    np.testing.assert_allclose([data.signals.action_low, data.signals.action_high], [LOW, HIGH], atol=1e-6)
    walls = [crossings(episode.observations[:, :2]) for episode in data]
    assert sum(walls) == 0 and crossings(np.array([[2.0, 1.0], [6.0, 1.0]])) == 1


def test_a_battery_is_no_position(data, tmp_path):
    path = write_logs(tmp_path / "log.csv", episodes=12)
    everything = iel.load(path, columns={**NAMED, "observations": (*COLUMNS, "battery", "rssi")}, trust=True)
    assert everything.position_columns == (0, 1)


def test_what_is_evaluated_is_what_is_deployed(data, model, capsys):
    """A hundred goals of an evaluation are accepted by `prepare`, and lead to the same targets."""
    planner = iel.AsymGraph(model, data, nodes=400)
    arena = Arena(World.of(Office), iel.Protocol(100, seed=11))
    distant = 0
    for first in range(0, 100, arena.num_envs):
        chosen = range(first, min(first + arena.num_envs, 100))
        observations, goals = arena.reset(chosen)
        together = planner.plan(TaskRequest().specifications(goals)).target(model.embed(observations))
        for row, (observation, goal) in enumerate(zip(observations, goals, strict=True)):
            capsys.readouterr()
            planner.prepare({"x": float(goal[0]), "y": float(goal[1])})
            distant += "No state of the data" in capsys.readouterr().err
            np.testing.assert_array_equal(planner.target(observation).observation[0], together.observation[row])
    assert distant > 5  # these were refused


def test_actions_are_right_at_the_wheel(data, model):
    """The robot is sent v in [0, 0.6] m/s: no command makes it reverse."""
    agent, robot = iel.Agent(model, data, nodes=400), Office()
    observation, info = robot.reset(seed=1)
    episode = agent.start(info["goal"], rate=RATE)
    unit = episode.act(observation)
    sent = agent.act(observation, info["goal"], units="robot")
    np.testing.assert_allclose(sent, LOW + (unit + 1) * (HIGH - LOW) / 2, atol=1e-6)
    assert 0.0 <= sent[0] <= 0.6 and -1.6 <= sent[1] <= 1.6


def test_the_planner_suits_a_robot_that_turns(data, model, tmp_path):
    """Every passage of the office was made both ways, so what turning costs does not choose routes; exports know it."""
    agent = iel.Agent(model, data, nodes=200)
    assert not data.one_way and type(agent.planner) is iel.SymGraph
    agent.planner.node_atlas().save(model, tmp_path / "planner.safetensors")
    nodes = Atlas.load(model, tmp_path / "planner.safetensors")
    assert not nodes.one_way and type(iel.Agent(model, nodes).planner) is iel.SymGraph
    assert type(iel.Agent(model, data.observations, nodes=200).planner) is iel.AsymGraph  # states alone do not tell


def test_the_first_command_takes_what_suits_the_robot(data, tmp_path):
    """`iel train --data FILE` alone trains what `iel.fit` trains; options override it."""
    from iel.agent import suited
    from iel.commands.train import Train

    file = ["--data", str(data.save(tmp_path / "robot.npz"))]

    for words, expected in (
        ([], suited(data)),
        ([], iel.HTP.preset("laptop-robot", steps=2895)),  # few logs are not learned by heart
        (["--preset", "laptop"], iel.HTP.preset("laptop")),
        (["--algo", "hilp"], iel.HILP.preset("laptop")),
    ):
        assert Train.for_arguments([*file, *words])(algo=expected.name).method() == expected
