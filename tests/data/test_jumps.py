"""Jumps: exactly the teleports, and nothing in data without any."""

import os
from pathlib import Path

import numpy as np
import pytest

from iel.data import Trajectories, load
from iel.data.make import make_collector, recipe
from iel.data.make.ant import load_controller, upright
from iel.data.positions import cut_at_jumps, jump_rows
from iel.envs import make_env
from iel.errors import DataError

KITCHEN = Path(os.environ.get("IEL_DATA", "")) / "kitchen-partial-reconstructed.hdf5"


def collect(name: str, episodes: int) -> Trajectories:
    collector = make_collector(recipe(name), seed=0)
    return Trajectories.from_episodes([collector.episode(index, "train") for index in range(episodes)], name)


def moved(data: Trajectories) -> np.ndarray:
    """Distance in the plane of every transition."""
    return np.linalg.norm(np.diff(data.observations[:, :2], axis=0)[data.transitions], axis=1)


@pytest.mark.parametrize(
    "name, episodes, step", [("pointmaze-teleport-stitch-v0", 60, 0.5), ("antmaze-teleport-stitch-v0", 30, 1.5)]
)
def test_teleports_are_found_and_cut(name, episodes, step):
    data = collect(name, episodes)
    teleports = data.transitions[moved(data) > step]  # neither robot moves that far in a step
    assert len(teleports) > 2
    assert np.array_equal(jump_rows(data), teleports) and np.array_equal(data.jumps, teleports)
    assert data.position_columns == data.require_position() == (0, 1)
    assert data.named("other").jumps is data.jumps  # found once
    cut = cut_at_jumps(data)
    assert cut.jumps == len(teleports) and len(cut.data) == episodes + cut.jumps - cut.dropped
    assert moved(cut.data).max() <= step
    assert len(jump_rows(cut.data)) == 0


@pytest.mark.parametrize("name, episodes", [("antmaze-medium-explore-v0", 4), ("pointmaze-medium-navigate-v0", 5)])
def test_data_without_teleports_is_left_alone(name, episodes):
    data = collect(name, episodes)
    cut = cut_at_jumps(data)
    assert cut.jumps == cut.dropped == 0 and cut.data is data


def test_ants_that_fall_are_left_alone():
    """Thrown into the air and spun every hundred steps, the ant turns over; it still is where it was a step ago."""
    env, controller, rng = make_env("antmaze-umaze-play").unwrapped, load_controller(), np.random.default_rng(0)
    env.reset(seed=0)
    states = [env.get_ob()]
    for step in range(1500):
        if step % 100 == 99:
            throw = np.concatenate([[0.0, 0.0, 3.0], rng.uniform(-15, 15, 3), np.zeros(8)])
            env.set_state(env.data.qpos, env.data.qvel + throw)
        angle = 0.02 * step
        env.do_simulation(controller(states[-1], np.array([np.cos(angle), np.sin(angle)])), env.frame_skip)
        states.append(env.get_ob())
    data = Trajectories.from_episodes([(np.array(states), np.zeros((1500, 8)))])
    assert upright(data.observations).min() < -0.5
    assert len(jump_rows(data, [0, 1])) == 0 and len(jump_rows(data)) == 0


def test_noisy_sensors_and_pauses_are_left_alone():
    rng = np.random.default_rng(0)
    position = np.cumsum(np.repeat(rng.uniform(-1, 1, (100, 2)), 50, axis=0), axis=0)
    sensors = rng.standard_t(2, (5000, 4))  # heavy tails
    data = Trajectories(np.concatenate([position, sensors], 1), np.zeros((5000, 1)), [0, 2500, 5000])
    assert len(jump_rows(data)) == 0
    waits = np.repeat(position[:50], 100, axis=0)  # stands still in 99 of 100 steps
    assert len(jump_rows(Trajectories(waits, np.zeros((5000, 1)), [0, 2500, 5000]), [0, 1])) == 0


@pytest.mark.skipif(not KITCHEN.is_file(), reason="IEL_DATA has no reconstructed kitchen data")
def test_the_kitchen_is_left_alone():
    assert len(jump_rows(load(KITCHEN))) == 0 and load(KITCHEN).position_columns == ()


def test_cut_pieces_and_what_is_dropped():
    states, actions = np.arange(20.0).reshape(20, 1), np.arange(1.0, 21.0).reshape(20, 1) / 32
    data = Trajectories(states, actions, [0, 12, 20], "log")
    assert data.cut([]) is data and data.cut([11]) is data  # an episode's last row has no transition
    pieces = data.cut([4, 6, 14])
    assert [piece.observations[:, 0].tolist() for piece in pieces] == [
        [0, 1, 2, 3, 4],
        [7, 8, 9, 10, 11],  # 5, 6 is one step: dropped
        [12, 13, 14],
        [15, 16, 17, 18, 19],
    ]
    assert (32 * pieces.episode(1).actions[:, 0]).tolist() == [8, 9, 10, 11] and pieces.name == "log"
    assert np.all(pieces.actions[pieces.offsets[1:] - 1] == 0.0)
    with pytest.raises(DataError, match="no piece has two steps"):
        data.cut(np.arange(20))
