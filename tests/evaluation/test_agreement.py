"""Predicted against exact steps over all ordered pairs, on tables whose figures are known."""

import numpy as np
import pytest

import iel
from iel.errors import ConfigError
from iel.evaluation.agreement import KnownMaze, agreement

RING = np.mod(np.arange(20)[None, :] - np.arange(20)[:, None], 20).astype(float)
"""Steps on a ring that is walked one way: 1 to the next state, 19 to the one before."""


def of(predicted, exact=RING, **more):
    return agreement(predicted, exact, np.random.default_rng(0), **more)


def test_the_exact_table_agrees_with_itself_in_every_figure():
    found = of(RING)
    assert found.pairs == 380 and found.order.value == pytest.approx(1.0)
    # k steps there and 20 - k back: more than five times as many for k = 17, 18, 19
    assert found.one_way == 60 and found.seen.value == 1.0
    assert found.ratio.value == found.shorter.value == found.longer.value == 1.0


def test_directions_are_reported_apart():
    """The mean of both directions sees no one-way pair; the transposed table is in reverse order."""
    mean = (RING + RING.T) / 2
    found = of(mean)
    assert found.seen.value == 0.0 and found.shorter.value > 1.5 and found.longer.value < 0.75
    assert of(RING.T).order.value == pytest.approx(-1.0) and of(RING.T).seen.value == 0.0
    assert of(3.0 * RING).ratio.value == pytest.approx(3.0) and of(3.0 * RING).order.value == pytest.approx(1.0)


def test_a_reversible_world_has_no_one_path_pairs_and_costs_have_no_ratios():
    line = np.abs(np.arange(9.0)[:, None] - np.arange(9.0))
    found = of(line, line)
    assert (found.one_way, found.seen, found.shorter, found.longer) == (0, None, None, None)
    assert of(np.exp(RING), in_steps=False).ratio is None and of(np.exp(RING), in_steps=False).order.value > 0.999


def test_pairs_without_a_path_rank_last_and_spoil_no_figure():
    cut = RING.copy()
    cut[:10, 10:] = np.inf
    found = of(cut, cut)
    assert found.order.value == pytest.approx(1.0)
    assert found.ratio.value == found.shorter.value == found.longer.value == 1.0
    with pytest.raises(ConfigError, match="square tables"):
        of(RING[:5], RING[:5])


def test_the_interval_contains_what_other_states_give():
    """States of a noisy world drawn anew: the interval of one draw covers the figure of nearly all others."""
    generator = np.random.default_rng(1)

    def draw():
        positions = generator.uniform(size=(40, 2))
        exact = np.abs(positions[:, None] - positions).max(-1) * 100
        return exact * np.exp(0.5 * generator.normal(size=exact.shape)), exact

    interval = of(*draw()).order
    values = [of(*draw()).order.value for _ in range(20)]
    assert interval.high - interval.low < 0.2
    assert np.mean([interval.low <= value <= interval.high for value in values]) >= 0.75


@pytest.mark.parametrize("name", ["pointmaze-medium-doors-navigate-v0", "antmaze-umaze-v2"])
def test_the_maze_of_an_environment_has_its_doors_and_its_positions(name):
    known, cells = KnownMaze.of(name), iel.make_env(name).map
    centres = cells.centre(cells.free)
    first, second = np.divmod(np.arange(len(centres) ** 2), len(centres))
    steps = known.steps(centres[first], centres[second]).reshape(len(centres), -1)
    neighbours = cells.cell_distances == 1
    assert np.allclose(steps[neighbours & neighbours.T], 20.0)  # 4 units at 0.2 a step
    assert known.in_steps == name.startswith("pointmaze") and KnownMaze.of("kitchen-mixed-v0") is None
    for front, back in cells.doors:
        i, j = cells.number[front], cells.number[back]
        assert steps[i, j] == pytest.approx(20.0) and steps[j, i] > 100.0
