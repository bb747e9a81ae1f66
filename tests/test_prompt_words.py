"""Goals, regions and rewards as they are typed, and the two commands that take them."""

import json
import math
from functools import partial

import numpy as np
import pytest

import iel
from iel.cli import run as execute
from iel.commands.prompts import parse_goal, parse_region, parse_reward, parse_weighted
from iel.errors import ConfigError, DataError
from iel.signals import Signals

MAZE = "pointmaze-medium-navigate-v0"


def test_words_become_goals_regions_and_rewards(tmp_path):
    assert parse_goal(["1.5", "-2"]).tolist() == [1.5, -2.0]
    assert parse_goal(["0=8.5", "1=-2:6"]) == {0: 8.5, 1: (-2.0, 6.0)}
    assert parse_region("0=4:,1=:6") == {0: (4.0, math.inf), 1: (-math.inf, 6.0)}
    named = Signals(("x", "y", "0"))
    assert parse_goal(["x=8.5", "1=2"], named) == {0: 8.5, 1: 2.0} and parse_region("y=4:,0=1", named) == {
        1: (4.0, math.inf),
        2: 1.0,
    }
    assert parse_reward(["x=0:2@1"], named)(np.array([[1.0, 9.0], [3.0, 9.0]])).tolist() == [1.0, 0.0]
    states, weights = parse_weighted(["8.5,2@1", "20,4@-0.5"])
    assert states.tolist() == [[8.5, 2.0], [20.0, 4.0]] and weights == [1.0, -0.5]
    reward = parse_reward(["0=0:2,1=0:2@1", "1=1:9@-0.5"])
    assert reward(np.array([[1.0, 0.5], [1.0, 1.5], [9.0, 5.0], [9.0, 0.0]])).tolist() == [1.0, 0.5, -0.5, 0.0]
    np.savez(tmp_path / "r.npz", rewards=np.arange(3.0))
    assert parse_reward([str(tmp_path / "r.npz")]).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("parse", "words"),
    [
        (parse_region, "x=3"),
        (parse_region, "0=3,4"),
        (parse_region, "0=a"),
        (parse_region, "0=1:nan"),
        (parse_goal, ["1", "two"]),
        (parse_weighted, ["1,2"]),
        (parse_weighted, ["1,2@1", "1@1"]),
        (parse_reward, ["0=1:2@one"]),
        (parse_reward, ["0=1@1"]),
        (parse_reward, ["0=1:2@1", "file.npz"]),
    ],
)
def test_other_words_are_refused_in_a_sentence(parse, words):
    with pytest.raises(ConfigError, match=r"^[^\n]*\.$"):
        parse(words)


def test_a_file_without_rewards_says_so(tmp_path):
    np.savez(tmp_path / "r.npz", reward=np.arange(3.0))
    with pytest.raises(DataError, match="holds no array 'rewards'"):
        parse_reward([str(tmp_path / "r.npz")])


@pytest.fixture(scope="module")
def run(tmp_path_factory, maze_data):
    out = tmp_path_factory.mktemp("prompts") / "run"
    iel.train(maze_data, iel.IEL.preset("smoke", steps=60, hidden=(16,), batch_size=16), out=out, progress=False)
    return out


def printed(capsys, *words):
    execute([str(word) for word in words])
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_plan_takes_every_prompt(capsys, run, maze_data, tmp_path, drawn):
    plan = partial(printed, capsys, "plan", run, "--nodes", 200, "--json")
    assert plan("--goal", "-0.5", "0")["goal"] == [-0.5, 0.0]
    wanted = maze_data.observations[100]
    found = plan("--goal", f"0={wanted[0]}", f"1={wanted[1]}", "--start", *wanted)
    assert found["goal"] == f"0={wanted[0]} 1={wanted[1]}" and found["predicted_steps"] < 30
    far = plan("--goal", f"0={wanted[0]}", "--via", "0=0:4,1=0:4", "--start", *wanted)
    assert np.isfinite(far["predicted_steps"])
    reward = plan("--reward", "0=0:4,1=0:4@1")
    assert -5 < reward["in_span"] <= 1 and reward["goal"] == "0=0:4,1=0:4@1"
    np.savez(tmp_path / "r.npz", rewards=maze_data.observations[:, 0])
    by_column = plan("--reward", tmp_path / "r.npz")
    assert by_column["waypoints"][-1][0] > 10  # large x is worth most
    assert plan("--weighted", "0,0@-1", "20,20@1")["in_span"] is None
    route = plan("--goal", f"0={wanted[0]}", f"1={wanted[1]}", "--avoid", "0=100:200", "--picture", tmp_path / "p.png")
    assert route["waypoints"] and (tmp_path / "p.png").exists() and min(drawn[-1]) > 2  # a maze, its graph, the route


@pytest.mark.slow
def test_two_goal_specs_at_once_are_refused(run):
    with pytest.raises(ConfigError, match="exclude each other"):
        execute(["plan", str(run), "--goal", "1", "2", "--reward", "0=1:2@1"])
    with pytest.raises(ConfigError, match="leave --goal-columns out"):
        execute(["evaluate", str(run), "--goal-columns", "0", "--reward", "0=1:2@1"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The")
def test_evaluate_says_what_was_requested(capsys, run):
    small = ("--max-steps", 30, "--episodes", 1, "--tasks", 1, "--nodes", 64, "--no-pictures", "--json")
    found = printed(capsys, "evaluate", run, "--goal-columns", 0, 1, *small)
    assert found["protocol"]["request"] == "columns 0, 1 of each goal" and len(found["planners"]) == 4
    found = printed(capsys, "evaluate", run, "--reward", "0=0:4@1", "--avoid", "0=100:200", *small)
    assert set(found["planners"]) == {"sym-graph", "asym-graph"}
    for numbers in found["planners"].values():
        assert 0.0 <= numbers["reward_per_step"] <= 1.0 and numbers["share_in_avoided"] == 0.0
