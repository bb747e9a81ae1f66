"""Environments by name: every family keeps the same contract, and its episodes follow from their seeds."""

import importlib.util
import warnings

import numpy as np
import pytest

from iel.envs import GoalEnv, canonical_name, environment_names, make_env
from iel.errors import ConfigError

ROBOTICS = importlib.util.find_spec("gymnasium_robotics") is not None
needs_robotics = pytest.mark.skipif(not ROBOTICS, reason="gymnasium-robotics is not installed")
# name, observation size, action size, tasks, horizon, has a map
FAMILIES = [
    ("pointmaze-giant-stitch-v0", 2, 2, 5, 1000, True),
    ("antmaze-medium-navigate-v0", 29, 8, 5, 1000, True),
    ("antmaze-teleport-explore-v0", 29, 8, 5, 1000, True),
    ("humanoidmaze-giant-navigate-v0", 69, 21, 5, 4000, True),
    ("antsoccer-arena-navigate-v0", 42, 8, 5, 1000, True),
    ("cube-single-play-v0", 28, 5, 5, 200, False),
    ("scene-noisy-v0", 40, 5, 5, 750, False),
    ("puzzle-3x3-play-v0", 55, 5, 5, 500, False),
    ("antmaze-large-diverse-v2", 29, 8, 1, 1000, True),
    ("antmaze-ultra-play-v0", 29, 8, 1, 2000, True),
    pytest.param("kitchen-partial-v0", 30, 9, 1, 280, False, marks=needs_robotics),
]


def drive(env, seed: int, steps: int = 6) -> np.ndarray:
    observation, info = env.reset(seed=seed, options={"task_id": 1})
    states, actions = [info["goal"], observation], np.random.default_rng(seed)
    for _ in range(steps):
        np.random.rand(3)  # noqa: NPY002  what a careless neighbour does
        observation, *_ = env.step(actions.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        states.append(observation)
    return np.array(states)


@pytest.mark.parametrize(("name", "size", "actions", "tasks", "horizon", "mapped"), FAMILIES)
def test_every_family_keeps_the_contract(name, size, actions, tasks, horizon, mapped):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no message that a user could do nothing about
        env = make_env(name)
        assert isinstance(env, GoalEnv) and env.name == name
        assert (env.num_tasks, env.horizon, env.map is not None) == (tasks, horizon, mapped)
        assert env.action_space.shape == (actions,)
        observation, info = env.reset(seed=1, options={"task_id": tasks})
        assert observation.shape == info["goal"].shape == (size,)
        assert np.isfinite(info["goal"]).all()
        *_, terminated, truncated, info = env.step(np.zeros(actions, np.float32))
        assert not info["success"] and not terminated and not truncated
        with pytest.raises(ConfigError, match=f"{name} has tasks 1 to {tasks}"):
            env.reset(seed=0, options={"task_id": tasks + 1})
        first = drive(env, seed=7)
        assert np.array_equal(first, drive(env, seed=7))  # the goal's pose included
        assert not np.array_equal(first[1], drive(env, seed=8, steps=1)[1])


@pytest.mark.parametrize("name", ["antmaze-umaze-diverse", pytest.param("kitchen-mixed", marks=needs_robotics)])
def test_another_instance_repeats_the_episode(name):
    assert np.array_equal(drive(make_env(name), seed=3), drive(make_env(name), seed=3))


def test_names():
    names = environment_names()
    assert len(names) == len(set(names)) == 12 + 12 + 24 + 6 + 4 + 2 * 10 + 8 + 3
    for name in ("antmaze-large-navigate-v0", "cube-triple-noisy-v0", "puzzle-4x6-play-v0", "scene-play-v0"):
        assert name in names
    for given, canonical in {
        "antmaze-large-diverse": "antmaze-large-diverse-v2",
        "antmaze-large-diverse-v0": "antmaze-large-diverse-v2",
        "antmaze-ultra-play-v2": "antmaze-ultra-play-v0",
        "antmaze-umaze-v2": "antmaze-umaze-play-v2",
        "antmaze-umaze-diverse-v1": "antmaze-umaze-diverse-v2",
        "kitchen-mixed": "kitchen-mixed-v0",
        "antmaze-large-v0": "antmaze-large-v0",
    }.items():
        assert canonical_name(given) == canonical


def test_unknown_and_visual_names_are_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="did you mean antmaze-large-diverse"):
        make_env("antmaze-large-divers")
    with pytest.raises(ConfigError, match="use antmaze-large-navigate-v0"):
        make_env("visual-antmaze-large-navigate-v0")


def test_episodes_are_cut_at_the_horizon():
    env = make_env("pointmaze-medium-v0")
    env.reset(seed=0, options={"task_id": 1})
    cut = [env.step(np.zeros(2, np.float32))[3] for _ in range(env.horizon)]
    assert cut[-1] and not any(cut[:-1])
    env.reset(seed=0, options={"task_id": 1})
    assert not env.step(np.zeros(2, np.float32))[3]


def test_teleports_never_draw_from_the_callers_generator():
    """Also where the ant walks into one, which is where the generator must have been lent."""
    env = make_env("antmaze-teleport-v0")
    simulator = env.unwrapped
    env.reset(seed=2, options={"task_id": 1})
    entry = np.array(simulator._teleport_info["teleport_in_xys"][0])
    for distance in (1.4, 3.0, 5.4, 8.0):
        simulator.set_xy(entry + np.array([distance, 0.0]))
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        env.step(np.zeros(8, np.float32))
        assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_missing_robotics_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium_robotics.envs.franka_kitchen.kitchen_env", None)
    with pytest.raises(ConfigError, match=r"\.\[kitchen\]"):
        make_env("kitchen-partial")
