"""A robot of one's own: logs in a CSV file, an unregistered Gymnasium environment, and every command on the run."""

import itertools
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import iel
from iel.cli import run as main_run
from iel.distances import Displacement
from iel.envs import MazeMap, World
from iel.errors import ConfigError
from iel.evaluation import Protocol, Rollouts
from iel.evaluation.diagnosis import diagnose, fate, routes_finding
from iel.methods import METHODS
from iel.planning import PlanningModel
from tests.test_cli import call

Box = gymnasium.spaces.Box


class Room(gymnasium.Env):
    """A point in a room: x, y and a battery; it moves as commanded."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-1.0, 1.0, (2,), np.float32)
    horizon = 60

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.uniform(0, 10, (2, 2))
        self.left = 1.0
        return self.observation(), {"goal": {0: self.goal[0], 1: self.goal[1]}}

    def step(self, action):
        self.position = np.clip(self.position + 0.5 * np.asarray(action, float), 0, 10)
        self.left -= 0.001
        near = bool(np.linalg.norm(self.position - self.goal) < 0.6)
        return self.observation(), 0.0, False, False, {"success": near}

    def observation(self):
        return np.array([*self.position, self.left], np.float32)


class Mute(Room):
    """The same, but it says nothing about goals and success, and has no horizon."""

    horizon = None

    def reset(self, **arguments):
        return super().reset(**arguments)[0], {}

    def step(self, action):
        return (*super().step(action)[:4], {})


def logs(episodes: int = 30, steps: int = 40, seed: int = 0) -> iel.Trajectories:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(episodes):
        heading = np.cumsum(rng.normal(0, 0.2, steps)) + rng.uniform(0, 6.3)
        pushes = np.stack([np.cos(heading), np.sin(heading)], 1)
        room = Room()
        room.reset(seed=int(rng.integers(1 << 30)))
        rows = [room.observation(), *(room.step(push)[0] for push in pushes)]
        found.append((np.array(rows), pushes.clip(-1, 1)))
    return iel.Trajectories.from_episodes(found, name="room")


TINY = {"steps": 30, "hidden": (16,), "batch_size": 32}


@pytest.fixture(scope="module")
def data() -> iel.Trajectories:
    return logs()


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    """Trained on a CSV file whose columns are found by their names: no environment of ours."""
    here = tmp_path_factory.mktemp("own")
    rows = ["episode,obs_x,obs_y,obs_battery,action_x,action_y"]
    for number, (states, actions) in enumerate(data):
        for state, action in zip(states.tolist(), [*actions.tolist(), ["", ""]], strict=True):
            rows.append(",".join(map(str, [number, *state, *action])))
    (here / "room.csv").write_text("\n".join(rows))
    tiny = ["--algo=iel", "--preset=smoke", "--steps=30", "--hidden=16", "--batch-size=32", "--checkpoint-every=10"]
    main_run(["train", "--data", str(here / "room.csv"), "--out", str(here / "run"), *tiny])
    return here / "run"


# ---------------------------------------------------------------- environments


@pytest.fixture(scope="module")
def in_memory(data, tmp_path_factory) -> Path:
    """A run on data that was built in memory, as in a notebook."""
    out = tmp_path_factory.mktemp("memory") / "run"
    iel.train(data, iel.GCBC.preset("smoke", **TINY), out=out, progress=False)
    return out


@pytest.fixture(scope="module")
def homing(in_memory):
    """A model whose actions head straight for the target's position, to test the environment alone."""
    model = iel.open_run(in_memory).model
    model.mean_action = lambda rows, condition: np.clip(condition[:, :2] - rows[:, :2], -1, 1)
    return model


def test_any_environment_is_evaluated_side_by_side_or_in_turns(homing, data):
    protocol = Protocol(6)
    several = iel.evaluate(homing, data, Room, protocol=protocol, progress=False)["direct"]
    alone = iel.evaluate(homing, data, Room(), protocol=protocol, progress=False)["direct"]
    assert several.success.all() and several.summary()["interval"][0] < 1.0
    for one, other in zip(several.paths, alone.paths, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(several.goals[:, 2]).all() and np.isfinite(several.goals[:, :2]).all()
    whole = {"goal": lambda env, observation, info: [*env.goal, 1.0]}  # without data the rest is unknown
    without_data = iel.evaluate(homing, env=Room, protocol=protocol, progress=False, **whole)
    assert list(without_data) == ["direct"]


def test_what_an_environment_does_not_say_is_requested_for(homing, data):
    goal = {"goal": lambda env, observation, info: {0: env.goal[0], 1: env.goal[1]}}
    protocol = Protocol(2)
    with pytest.raises(ConfigError, match="how long an episode may be; give max_steps"):
        iel.evaluate(homing, data, Mute, protocol=protocol, progress=False)
    with pytest.raises(ConfigError, match=r"gives no goal: reset must return info\['goal'\]"):
        iel.evaluate(homing, data, Mute, protocol=protocol, progress=False, max_steps=60)
    with pytest.raises(ConfigError, match="does not say when a goal is reached"):
        iel.evaluate(homing, data, Mute, protocol=protocol, progress=False, max_steps=60, **goal)
    near = iel.evaluate(homing, data, Mute, protocol=protocol, progress=False, max_steps=60, tolerance=0.6, **goal)
    said = iel.evaluate(
        homing, data, Mute, protocol=protocol, progress=False, max_steps=60, **goal,
        success=lambda env, observation, goal, info: np.linalg.norm(observation[:2] - env.goal) < 0.6,
    )  # fmt: skip
    assert near["direct"].success.all() and np.array_equal(near["direct"].steps, said["direct"].steps)
    with pytest.raises(ConfigError, match="Unknown option of an environment of your own 'tolerence': did you mean tol"):
        iel.evaluate(homing, data, Mute, tolerence=0.6)
    with pytest.raises(ConfigError, match="tolerance is an option of your own environments"):
        iel.evaluate(homing, data, "pointmaze-medium-navigate-v0", tolerance=0.6)


def test_how_many_episodes_and_what_is_printed(homing, data):
    found = iel.evaluate(homing, data, Room, ["direct"], episodes=3, progress=False)["direct"]
    assert repr(found) == "Rollouts(direct: 3 of 3 episodes reached their goals)"
    assert repr(iel.Agent(homing, data, "direct").start(data.observations[3])).startswith("Episode(Direct(")
    trained = iel.train(data, iel.GCBC.preset("smoke", **TINY), seeds=[3], progress=False)
    assert re.fullmatch(r"Trained\(Model\(gcbc, .*\), seeds \[3\], \d+ s\)", repr(trained))


SPACES = {
    "numbered actions": ({"action_space": gymnasium.spaces.Discrete(3)}, "only rows of real numbers"),
    "dictionaries": (
        {"observation_space": gymnasium.spaces.Dict({"x": Box(-1, 1, (2,))})},
        "only rows of real numbers",
    ),
    "pictures": ({"observation_space": Box(0, 255, (8, 8, 3), np.uint8)}, "only rows of real numbers"),
    "large actions": ({"action_space": Box(-2.0, 2.0, (2,))}, "RescaleAction"),
}


@pytest.mark.parametrize("spaces, sentence", SPACES.values(), ids=SPACES)
def test_what_is_not_supported_is_reported(spaces, sentence):
    with pytest.raises(ConfigError, match=sentence):
        World.of(type("Odd", (Room,), spaces)).environment()


def test_factories_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_robot_for_a_test.py").write_text("def make():\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=r"has no reset\(\)"):
        World.from_text("my_robot_for_a_test:make").environment()
    for text, sentence in (("my_robot_for_a_test", "package.module:name"), ("nowhere_at_all:make", "cannot be"),
                           ("my_robot_for_a_test:nothing", "has no attribute 'nothing'")):  # fmt: skip
        with pytest.raises(ConfigError, match=sentence):
            World.from_text(text)
    with pytest.raises(ConfigError, match="give a name"):
        World.of(3)


# ---------------------------------------------------------------- a run on logs of one's own


def test_a_run_keeps_data_that_was_built_in_memory(in_memory, data):
    assert (in_memory / "data.npz").exists()
    assert iel.open_run(in_memory).data().fingerprint == data.fingerprint


def test_every_command_works_on_it(run, capsys, monkeypatch, tmp_path, drawn):
    code, out, _ = call(capsys, "plan", run, "--nodes", 64, "--json")
    assert code == 0 and Path(json.loads(out)["picture"]).exists() and min(drawn[-1]) > 2  # data, graph, route
    code, out, err = call(capsys, "plan", run, "--nodes", 64, "--goal", 999, 999, 1)
    assert code == 0 and err.count("goal is outside of the data") == 1 and "predicted steps" in out
    assert call(capsys, "plan", run, "--nodes", 64, "--goal", 999, 999, 1, "--outside", "refuse")[0] == 2
    code, out, _ = call(capsys, "plan", run, "--nodes", 64, "--goal", "0=5", "1=5")
    assert code == 0 and out.count("steps to go") <= 12
    code, _, err = call(capsys, "plan", run, "--nodes", 64, "--goal", 5, 5)
    assert code == 2 and "--goal 0=8.5 1=2.0" in err
    drawn = []
    monkeypatch.setattr("iel.viz.draw_graph", lambda *given, **_: drawn.append(given[4]))
    call(capsys, "plan", run, "--nodes", 64, "--goal", "0=5", "1=5")
    np.testing.assert_array_equal(drawn[0][-1], [5, 5])  # the star is at the requested goal, not at the last node
    monkeypatch.undo()
    assert call(capsys, "audit", run, "--json")[0] == 0
    code, out, _ = call(capsys, "export", run, "--nodes", 64, "--no-onnx", "--out", tmp_path / "export", "--json")
    assert code == 0 and "support.safetensors" in json.loads(out)["files"]
    exported = iel.load_model(tmp_path / "export", outside="refuse")
    with pytest.raises(iel.errors.GeometryError, match="outside of the data"):
        exported.planner().prepare([999.0, 999.0, 1.0])
    code, _, err = call(capsys, "evaluate", tmp_path / "export")
    assert code == 2 and "is a model" in err
    whole = (run / "model" / "model.safetensors").read_bytes()
    for lost in (max((run / "checkpoints").iterdir()), run / "model"):  # as if it had been stopped before the end
        shutil.rmtree(lost)
    code, out, _ = call(capsys, "train", "--resume", run)
    assert code == 0 and "iel play" in out and (run / "model" / "model.safetensors").read_bytes() == whole
    code, _, err = call(capsys, "evaluate", run)
    assert code == 2 and "--env-factory" in err


def test_it_can_be_played_with(run):
    pytest.importorskip("starlette")
    from iel.serving.engine import Engine, open_served
    from iel.serving.playground import Scene, Session, Stage

    served = replace(open_served(run)[0], options=lambda planner: {"nodes": 64} if planner.endswith("-graph") else {})
    stage = Stage(Engine(served))
    world = stage.describe()
    scene = Scene(id=1, start=world["start"], goal=world["goal"], planner="asym-graph", field="graph")
    assert len(Session(stage).show(scene)["path"]) >= 2 and not world["live"]


def test_evaluation_and_diagnosis_in_ones_own_environment(run, capsys, monkeypatch, tmp_path, drawn):
    (tmp_path / "my_room_for_a_test.py").write_text("from tests.test_own_robot import Room\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent.parent)])
    own = ("--env-factory", "my_room_for_a_test:Room", "--nodes", "64", "--json")
    code, out, _ = call(capsys, "evaluate", run, "--episodes", 3, "--planners", "asym-graph", *own)
    assert code == 0 and json.loads(out)["env"] == "Room" and json.loads(out)["protocol"]["max_steps"] == 60
    picture = run / "plots" / "rollouts.png"
    before = picture.read_bytes()
    call(capsys, "evaluate", run, "--episodes", 1, "--planners", "direct", *own)
    assert picture.read_bytes() == before  # a quick look replaces nothing
    assert len(list((run / "plots").glob("rollouts*.png"))) == 2
    code, out, _ = call(capsys, "diagnose", run, "--episodes", 2, *own)
    found = json.loads(out)
    assert code == 0 and Path(found["picture"]).exists() and min(drawn[-1]) > 0
    topics = {finding["topic"]: finding for finding in found["findings"]}
    assert topics.keys() - {"hops"} == {"coverage", "graph", "steps", "policy", "episodes"}
    assert not topics["policy"]["good"]  # thirty steps of training teach nothing, and it says so
    code, out, _ = call(capsys, "diagnose", run, "--nodes", 64)
    assert code == 0 and "policy:" in out and "episodes:" not in out


def test_a_policy_that_responds_is_reported_from_one_that_does_not(homing):
    """The logged action leads ahead; of the two policies only one looks where it is sent."""
    from iel.evaluation.diagnosis import policy_finding

    rng, episodes = np.random.default_rng(0), []
    for _ in range(20):  # an open field: where the log went is where it was pushed
        heading = rng.uniform(0, 6.3) + np.cumsum(rng.normal(0, 0.1, 30))
        pushes = np.stack([np.cos(heading), np.sin(heading)], 1)
        positions = np.concatenate([np.zeros((1, 2)), np.cumsum(0.5 * pushes, 0)]) + rng.uniform(0, 10, 2)
        episodes.append((np.c_[positions, np.zeros(31)], pushes))
    data = iel.Trajectories.from_episodes(episodes, trust=True)
    unit = lambda rows: rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)  # noqa: E731
    homing.mean_action = lambda rows, condition: unit(condition[:, :2] - rows[:, :2]).astype(np.float32)
    listens = policy_finding(homing, data, np.random.default_rng(0))
    homing.mean_action = lambda rows, condition: np.zeros((len(rows), 2), np.float32)
    deaf = policy_finding(homing, data, np.random.default_rng(0))
    assert listens.good and not deaf.good
    assert listens.numbers["other_command"] > 1.5 * listens.numbers["right_command"]
    assert deaf.numbers["other_command"] == pytest.approx(deaf.numbers["right_command"])


def test_fates(data):
    from iel.model.support import support_of

    support = support_of(data)
    walk = data.episode(0).observations
    assert fate(walk, True, data, support) == "succeeded"
    assert fate(np.repeat(walk[:1], 40, axis=0), False, data, support) == "stuck"
    assert fate(walk, False, data, support) == "slow"
    assert fate(walk + np.float32([50, 0, 0]), False, data, support) == "lost"


class Plane(PlanningModel):
    """A model whose embedding is the position itself."""

    metric = Displacement(0.0, 1.0)

    def embed(self, states):
        return np.asarray(states, np.float32)

    def goals(self, states):
        return self.embed(states), np.tile(np.float32([1, 0]), (len(states), 1))


def test_a_graph_of_two_rooms_falls_into_parts():
    from iel.evaluation.diagnosis import graph_finding

    rng = np.random.default_rng(0)
    near, far = rng.uniform(0, 1, (60, 2)), rng.uniform(100, 101, (60, 2))

    planner = iel.AsymGraph(Plane(), np.concatenate([near, far]).astype(np.float32), neighbours=5)
    _, finding = graph_finding(planner)
    assert not finding.good and finding.numbers["largest_share"] == pytest.approx(0.5, abs=0.05)
    assert graph_finding(iel.AsymGraph(Plane(), near.astype(np.float32), neighbours=8))[1].good


class Corridors(Plane):
    """Two corridors side by side, joined at their right end; the wall between them is thin, or as long as it is."""

    maze = MazeMap(np.array([[1] * 8, [1] + [0] * 6 + [1], [1] * 6 + [0, 1], [1] + [0] * 6 + [1], [1] * 8], bool))
    observations = maze.centre(maze.free).astype(np.float32)

    def __init__(self, thin):
        self.thin = thin

    def embed(self, states):
        (x, y), (end, middle) = np.asarray(states, np.float32).T, self.maze.centre([2, 6])
        unrolled = np.where(y > middle, 2 * end - x, x)
        return np.stack([x, 0.4 * y] if self.thin else [unrolled, y], 1)


@pytest.mark.parametrize("thin", [False, True])
def test_paths_over_a_wall_are_found(thin):
    world = Corridors(thin)
    start, goal = world.maze.centre([[1, 1], [3, 1]]).astype(np.float32)
    one = np.ones(1, int)
    failed = Rollouts("asym-graph", one, one < 1, one, 0.0, 0.0, [start[None]], goal[None])
    finding = routes_finding(iel.AsymGraph(world, world.observations, neighbours=2), failed, world.maze)
    assert finding.good != thin
    assert finding.numbers["longest_hop"] == 12 if thin else finding.numbers["longest_hop"] <= 2
    assert ("task1 hops over walls (12 moves" in str(finding)) == thin


def test_convert_names_columns_and_stretches_actions(data, capsys, tmp_path):
    rows = ["run,x,y,battery,push_x,push_y"]
    for e, (states, actions) in enumerate(data):
        for t, state in enumerate(states.tolist()):
            push = (40 * actions[t] + 10).tolist() if t < len(actions) else ["", ""]
            rows.append(",".join(map(str, [e, *state, *push])))
    (tmp_path / "log.csv").write_text("\n".join(rows))
    named = ("--observations", "x", "y", "battery", "--actions", "push_x", "push_y", "--episode", "run")
    out_file = tmp_path / "log.npz"
    code, _, err = call(capsys, "data", "convert", tmp_path / "log.csv", "--out", out_file, *named)
    assert code == 2 and "--unit-actions" in err and not out_file.exists()
    code, out, _ = call(
        capsys,
        "data",
        "convert",
        tmp_path / "log.csv",
        "--out",
        out_file,
        *named,
        "--unit-actions",
        "--json",
        "--trust",
    )
    facts = json.loads(out)
    assert code == 0 and facts["episodes"] == len(data) and len(facts["action_low"]) == 2
    found = iel.load(out_file, trust=True)
    np.testing.assert_array_equal(found.observations, data.observations)
    low, high = np.array(facts["action_low"]), np.array(facts["action_high"])
    back = low + (found.actions[data.transitions] + 1) * (high - low) / 2
    np.testing.assert_allclose(back, 40 * data.actions[data.transitions] + 10, atol=1e-3)


def test_diagnose_needs_no_graph(data, homing):
    found = diagnose(homing, data, homing.support)
    assert [finding.topic for finding in found.findings] == ["policy"] and found.as_dict()["verdict"]


def test_costs_that_are_no_steps_should_fall_as_well(data):
    """A critic's log-odds: their origin is arbitrary, but towards a later state they fall."""
    algo = METHODS["crl"].preset("smoke", steps=1, hidden=(16,), batch_size=16)
    model = iel.train(data, algo, [0], progress=False).model
    found = {finding.topic: finding for finding in diagnose(model, data, model.support).findings}
    assert found["steps"].numbers.keys() == {"falling_share"}


def test_every_data_command_takes_the_same_columns(capsys, tmp_path):
    rows = [f"{e},{t},{e + 0.1 * t},{0.5 * t % 0.7},{t % 3 / 3}" for e in range(3) for t in range(30)]
    rows[40] = "1,10,,0.1,0.2"
    (tmp_path / "log.csv").write_text("\n".join(["run,tick,x,y,v", *rows]) + "\n")
    named = "--observations", "x", "y", "--actions", "v", "--episode", "run", "--time", "tick"
    code, out, _ = call(capsys, "data", "check", tmp_path / "log.csv", *named)
    assert code == 1 and "line 42, observation column 'x' (0): the cell is empty" in out
    code, out, _ = call(capsys, "data", "check", tmp_path / "log.csv", *named, "--gaps", "interpolate")
    assert code == 0
    code, out, _ = call(capsys, "data", "info", tmp_path / "log.csv", *named, "--gaps", "cut")
    assert code == 0 and "episodes           4" in out
    code, out, _ = call(
        capsys, "data", "store", tmp_path / "log.csv", "--out", tmp_path / "store", *named, "--gaps", "interpolate"
    )
    assert code == 0 and iel.load(tmp_path / "store").signals.observations == ("x", "y")


def corridors(thin):
    """Walks along the two corridors of `Corridors`, a unit a step, and the ends of a plan from one to the other."""
    world = Corridors(thin)
    ends = world.maze.centre([[1, 1], [1, 6], [2, 6], [3, 6], [3, 1]]).astype(np.float32)
    track = np.concatenate([np.linspace(a, b, 20, endpoint=False) for a, b in itertools.pairwise(ends)])
    walks = [track + np.random.default_rng(e).normal(0, 0.01, track.shape) for e in range(4)]
    walks += [walk[::-1] for walk in walks]
    data = iel.Trajectories.from_episodes([(walk, np.zeros((len(walk) - 1, 2))) for walk in walks], trust=True)
    return world, data, data.observations[0], data.observations[len(track) - 1]


@pytest.mark.parametrize("thin", [False, True])
def test_hops_that_no_trajectory_made_are_found_without_a_map(thin):
    """In an embedding in which the wall is thin, routes lead through it; the check needs no map of the wall."""
    from iel.evaluation.diagnosis import hops_finding
    from iel.planning.hops import Hops, route_states

    world, data, start, goal = corridors(thin)
    planner, hops = iel.AsymGraph(world, data, nodes=8, neighbours=2), Hops(data, (0, 1))
    planner.prepare(goal)
    route = planner.path(start)
    line = route_states(planner, start, route)
    assert hops.fastest == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(line[[0, -1]], [start, goal])
    assert hops.doubted(line, route.steps).any() == thin
    # A step of a trajectory is never doubted; one that is twice as fast as ever, or that was never logged, is.
    rows = np.arange(0, 80, 10)
    assert not hops.doubted(data.observations[rows], np.full(7, 20.0)).any()
    assert hops.doubted(data.observations[[0, 60]], np.array([5.0])).all()
    assert hops.doubted(np.stack([start, goal]), np.array([1e6])).tolist() == [False]  # all the way round, in time
    one = np.ones(1, int)
    failed = Rollouts("asym-graph", one, one < 1, one, 0.0, 0.0, [start[None]], goal[None])
    finding = hops_finding(planner, hops, failed, np.random.default_rng(0))
    assert finding.good != thin and ("1 of 1 plans have hops that no trajectory made" in finding.sentence) == thin
    assert Hops.of(iel.AsymGraph(world, data.observations, neighbours=4)) is None  # states alone say nothing
