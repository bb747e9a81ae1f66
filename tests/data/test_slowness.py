"""Slow columns are the positions of ants and points; a kitchen has no position columns."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from iel.data import Trajectories, load
from iel.data.examine import examine_rows
from iel.data.make import make_collector, recipe
from iel.data.positions import (
    find_position_columns,
    monotone_columns,
    one_way_passages,
    orientation_columns,
    slow_directions,
    slowness,
    typical_reach,
)
from iel.data.trajectories import Rows
from iel.errors import DataError

KITCHEN = Path(os.environ.get("IEL_DATA", "")) / "kitchen-partial-reconstructed.hdf5"


def store(columns: np.ndarray, episodes: int = 1) -> Trajectories:
    """A table as equally long episodes."""
    return Trajectories.from_episodes(
        [(part, np.zeros((len(part) - 1, 1))) for part in np.split(np.asarray(columns, np.float32), episodes)], "made"
    )


def test_the_ratio_of_known_processes():
    rng, n = np.random.default_rng(0), 40_000
    steps = rng.standard_normal((n, 2))
    table = np.stack([steps[:, 0], np.cumsum(steps[:, 1]), np.arange(n), np.ones(n), 0.02 * np.cumsum(steps[:, 1])], 1)
    noise, walk, speed, still, scaled = slowness(store(table))
    assert noise == pytest.approx(1.0, abs=0.03)
    assert walk == pytest.approx(40.0, rel=0.1) and scaled == pytest.approx(walk, rel=1e-3)
    assert speed == pytest.approx(1600.0, rel=1e-3)
    assert still == 0.0


def test_the_reach_of_a_policys_waypoints():
    line = np.stack([3.0 * np.arange(1000), np.zeros(1000)], 1)  # 3 units a step, one long episode
    assert typical_reach(store(line), [0, 1], 20) == pytest.approx(3.0 * 10.5, rel=0.02)  # the end shortens a few
    assert typical_reach(store(line), [0, 1], 20, [3.0, 1.0]) == pytest.approx(10.5, rel=0.02)
    short = typical_reach(store(line, 250), [0], 20)  # min(k, 3), min(k, 2) and 1 steps ahead; not from the last state
    assert short == pytest.approx(3.0 * (2.85 + 1.95 + 1.0) / 3.0)


def test_pairs_stay_within_an_episode_and_jumps_do_not_count():
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.uniform(-1, 1, (40, 200, 1)), axis=1)
    plain = slowness(store(walk.reshape(-1, 1), 40))
    apart = slowness(store((walk + 1e4 * np.arange(40)[:, None, None]).reshape(-1, 1), 40))
    assert_allclose(apart, plain, rtol=0.02)
    walk[:, 100:] += 50.0  # every episode jumps once
    assert_allclose(slowness(store(walk.reshape(-1, 1), 40)), plain, rtol=0.2)
    with pytest.raises(DataError, match="no episode is longer than 40 steps"):
        slowness(store(walk[:, :30].reshape(-1, 1), 40))


@pytest.mark.parametrize(
    "name, episodes",
    [
        ("antmaze-medium-navigate-v0", 4),
        ("antmaze-umaze-diverse-v2", 4),
        ("pointmaze-teleport-stitch-v0", 20),
        ("pointmaze-medium-explore-v0", 4),
    ],
)
def test_the_position_of_ants_and_points_is_x_and_y(name, episodes):
    collector = make_collector(recipe(name), seed=0)
    data = Trajectories.from_episodes([collector.episode(index, "train") for index in range(episodes)], name)
    assert find_position_columns(data) == [0, 1]
    if data.observation_size == 29:
        assert orientation_columns(data.observations) == [3, 4, 5, 6]
        rng = np.random.default_rng(0)
        noisy = np.concatenate([1000 * data.observations[:, ::-1], rng.standard_normal((data.num_states, 3))], 1)
        noisy[:, 22:26] /= 1000  # an orientation has no unit
        assert find_position_columns(Trajectories(noisy, data.actions, data.offsets)) == [27, 28]


def test_where_nothing_separates_it_is_refused():
    rng = np.random.default_rng(0)
    speeds = np.repeat(rng.standard_normal((200, 6)), 100, axis=0)
    mixed = np.cumsum(speeds, 0) + rng.standard_normal((20_000, 6)) * np.geomspace(0.1, 8, 6)  # from slow to trembling
    with pytest.raises(
        DataError, match=r"made: nothing separates position from pose \(columns of ratio .* name the position columns"
    ):
        find_position_columns(store(mixed))
    with pytest.raises(DataError, match="no column goes anywhere in 40 steps"):
        find_position_columns(store(rng.standard_normal((2000, 3))))
    with pytest.raises(DataError, match="nothing separates"):
        store(mixed).require_position()
    assert store(mixed).position_columns == () and len(store(mixed).jumps) == 0


@pytest.mark.skipif(not KITCHEN.is_file(), reason="IEL_DATA has no reconstructed kitchen data")
def test_nothing_separates_in_the_kitchen():
    with pytest.raises(DataError, match="nothing separates"):
        find_position_columns(load(KITCHEN))


def test_slow_directions_of_a_mixed_process():
    """A slow walk and fast oscillations, mixed by a random matrix: the first direction finds the walk."""
    rng, n = np.random.default_rng(0), 20_000
    drift = np.cumsum(np.repeat(rng.standard_normal(n // 50), 50)) * 0.1
    fast = 5.0 * rng.standard_normal((n, 3))
    mixing = rng.standard_normal((4, 4))
    phi = np.concatenate([drift[:, None], fast], 1) @ mixing
    found = slow_directions(phi, [0, n // 2, n])
    slow = phi @ found.directions[:, 0]
    assert abs(np.corrcoef(slow, drift)[0, 1]) > 0.999
    assert found.ratios[0] > 50 and np.abs(found.ratios[1:] - 1.0).max() < 0.1
    # The equation itself: A v = lambda B v, and v^T B v = 1.
    halves = phi[: n // 2], phi[n // 2 :]
    moves = [np.concatenate([half[k:] - half[: n // 2 - k] for half in halves]) for k in range(41)]
    covariance = [np.cov(move, rowvar=False, bias=True) for move in (*moves[1:6], moves[40])]
    fast_one = np.mean(covariance[:5], axis=0)
    assert_allclose(covariance[5] @ found.directions, fast_one @ found.directions * found.ratios, rtol=1e-4)
    assert_allclose(np.diag(found.directions.T @ fast_one @ found.directions), 1.0, rtol=1e-4)
    with pytest.raises(DataError, match="40 steps apart"):
        slow_directions(phi[:30], [0, 30])


def test_a_clock_and_a_battery_are_not_positions():
    """They are as slow as positions, but no robot can return there; `data check` warns."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(np.cumsum(rng.normal(size=(6, 400, 2)), axis=1), axis=1)
    clock = np.tile(np.arange(400.0), (6, 1))
    battery = 1.0 - np.cumsum(rng.uniform(0, 1e-3, (6, 400)), axis=1)
    table = np.concatenate([walks, clock[..., None], battery[..., None]], axis=2)
    data = store(table.reshape(-1, 4), 6)
    r = slowness(data)
    assert r[2:].min() > r[:2].max() / 3  # by their slowness alone they would be
    assert find_position_columns(data) == [0, 1] and monotone_columns(data) == {2: True, 3: False}
    named = data.described(observations=("x", "y", "stamp", "battery"))
    rows = Rows(named.observations, named.actions, named.offsets, "a", named.signals)
    found = [finding for finding in examine_rows(rows, "a") if finding.kind == "one-way-column"]
    assert [finding.column for finding in found] == [
        "observation column 'stamp' (2)",
        "observation column 'battery' (3)",
    ]
    assert "only falls within episodes (battery? clock?); leave it out" in found[1].message
    assert monotone_columns(store(walks[0])) == {}  # a single drive may well go one way


@pytest.mark.parametrize("door, expected", [(False, False), (True, True)])
def test_passages_that_lead_one_way_are_found(door, expected):
    """Agents go round a ring of twelve cells, in both directions; with a door that opens one way, in one."""
    rng, episodes = np.random.default_rng(0), []
    for episode in range(40):
        direction = 1 if door or episode % 2 else -1
        angle = rng.uniform(0, 2 * np.pi) + direction * 0.05 * np.arange(200)
        rows = 3.0 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.01 * rng.standard_normal((200, 2))
        episodes.append((np.hstack([rows, 0.1 * rng.standard_normal((200, 4))]), np.zeros((199, 1))))
    data = Trajectories.from_episodes(episodes, trust=True)
    assert (one_way_passages(data, (0, 1)) > 0) is expected
