"""The kitchen: D4RL's goals, subtasks and noise, checked against the reconstructed data where it is at hand."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from iel.envs import make_env
from iel.envs.kitchen import ELEMENTS, TARGETS, distances, goal_state
from iel.errors import ConfigError

FILE = Path(os.environ.get("IEL_DATA", "")) / "kitchen-partial-reconstructed.hdf5"


@pytest.fixture(scope="module")
def env():
    return make_env("kitchen-partial")


def test_goal_is_the_targets_and_the_first_joints():
    goal = goal_state("mixed")
    assert goal[11:13].tolist() == [-0.88, -0.01] and goal[22] == -0.75 and goal[19] == 0.0
    assert goal_state("partial")[19] == 0.37 and goal_state("complete")[11] == 0.0
    joints = np.linspace(-1, 1, 30)
    _, info = make_env("kitchen-mixed", reference=joints).reset(seed=0)
    assert np.array_equal(info["goal"][:9], joints[:9]) and np.array_equal(info["goal"][9:], goal[9:])
    with pytest.raises(ConfigError, match="29 numbers instead of 30"):
        make_env("kitchen-mixed", reference=np.zeros(29))


def test_noise_is_d4rls(env):
    """A tenth of the robot specification's amplitudes: 0.01 on robot joints, microwave and cabinets; less elsewhere."""
    start = env.unwrapped.robot.init_qpos
    noise = np.array([env.reset(seed=seed)[0] - start for seed in range(200)])
    widest = np.abs(noise).max(0)
    assert widest[:9].max() <= 0.01 and widest[:9].min() > 0.009
    bounds = {9: 5e-4, 12: 5e-5, 19: 5e-4, 20: 1e-2, 22: 1e-2, 24: 5e-4, 27: 1e-2, 29: 5e-4}
    for column, bound in bounds.items():
        assert 0.9 * bound < widest[column] <= bound


def test_subtasks_count_once_and_four_are_success(env):
    kitchen = env.unwrapped
    state = kitchen.robot.init_qpos.copy()
    env.reset(seed=0)
    for number, element in enumerate(ELEMENTS["partial"], start=1):
        columns, target = TARGETS[element]
        state[columns] = target
        kitchen.restore(state)
        _, reward, terminated, _, info = env.step(np.zeros(9))
        assert reward == number and info["subtasks"] == number
        assert info["success"] == terminated == (number == 4)
    env.reset(seed=0)
    kitchen.restore(state)
    env.step(np.zeros(9))
    kitchen.restore(kitchen.robot.init_qpos)  # undone again: no reward, but it has been done
    _, reward, _, _, info = env.step(np.zeros(9))
    assert reward == 0 and info["subtasks"] == 4


def test_distances_are_euclidean():
    states = np.zeros((2, 30))
    columns, target = TARGETS["kettle"]
    states[:, columns] = target
    states[1, 23] += 0.2
    measured = distances(states, "partial")
    assert measured[:, 1] == pytest.approx([0.0, 0.2])
    assert measured[0, 2] == pytest.approx(np.hypot(0.69, 0.05))


@pytest.mark.skipif(not FILE.is_file(), reason="IEL_DATA has no reconstructed kitchen data")
def test_stored_actions_replay_to_stored_states(env):
    """Action scale and column order: from an episode's first row, its actions lead along its rows."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(FILE) as file:
        states, actions = file["observations"][:1300], file["actions"][:1300]
        rewards, ends = file["rewards"][:1300], np.flatnonzero(file["terminals"][:1300])
    assert np.array_equal((distances(states, "partial") < 0.3).sum(1), rewards)
    kitchen = env.unwrapped
    for start in (0, *(ends[:3] + 1)):
        env.reset(seed=int(start))
        kitchen.restore(states[start])
        for step in range(20):
            observation, *_ = env.step(actions[start + step])
            error = np.abs(observation - states[start + step + 1, :30])
            assert error.max() < (0.04 if step == 0 else 0.08)
        moved = np.abs(states[start + 20, :9] - states[start, :9]).max()
        assert moved > 5 * error[:9].max()  # the robot went somewhere, and so did ours
