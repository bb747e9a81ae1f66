"""Hitting-time programming with matrices: the programme, the support function, what slack costs, and luck."""

from __future__ import annotations

import numpy as np
import pytest

from iel.theory import ControlledProcess, optimal_hitting_times
from iel.theory.builders import corridor, directed_ring, grid, moving
from iel.theory.programming import (
    fewest_steps,
    gamble,
    linear_means,
    longest_step,
    low_rank,
    programme,
    programmes,
    programmes_within,
    random_world,
    sampled_means,
    support_distance,
    value_iteration,
)


def test_the_programme_of_a_ring_is_its_directed_distance():
    x = np.arange(5)
    around = (x[None] - x[:, None]) % 5
    ring = directed_ring(5)
    assert np.allclose(programmes(ring), around) and np.allclose(fewest_steps(ring), around)
    assert not np.allclose(around, around.T)  # a transposed constraint would show


def test_the_programme_needs_a_path_to_the_goal():
    one_way = corridor(4)
    assert programme(one_way, 3) == pytest.approx([3, 2, 1, 0])
    assert np.isinf(programme(one_way, 0)).all()


def test_every_feasible_value_is_below_the_optimum():
    generator = np.random.default_rng(0)
    for _ in range(20):
        world = random_world(generator)
        times = fewest_steps(world)
        values = generator.normal(size=times.shape) * 3
        values -= np.diag(values)  # V(g, g) = 0
        # The largest one-step progress is scaled to one: feasible then, and so never above the fewest steps.
        progress = max((values - chain @ values).max() for chain in world.transitions)
        assert np.all(values / max(progress, 1e-9) <= times + 1e-9)


def test_the_support_function_is_directed_and_reads_from_the_first_state_to_the_second():
    line, forward = np.arange(4.0)[:, None], np.ones((1, 1))
    ahead = np.arange(4)[None] - np.arange(4)[:, None]
    assert np.array_equal(support_distance(line, forward), ahead)
    assert np.array_equal(support_distance(line, np.array([[1.0], [0.0]])), np.maximum(ahead, 0))


def test_exact_values_need_landmarks_and_fall_short_without_them():
    times = fewest_steps(directed_ring(6))
    assert np.array_equal(support_distance(-times, np.eye(6)), times)
    some = support_distance(-times, np.eye(6)[[0, 3]])
    assert np.array_equal(some[:, [0, 3]], times[:, [0, 3]])
    assert np.all(some <= times) and some[0, 5] < times[0, 5]
    assert not np.array_equal(support_distance(times, np.eye(6)), times)  # phi = -V, not V


def test_the_slack_bound_needs_every_transition():
    """A mean over transitions is not enough: one long step in a hundred is 99 steps too far for the pair behind it."""
    line = np.append(np.arange(100.0), 199.0)[:, None]
    world = moving(np.minimum(np.arange(101) + 1, 100)[:, None])
    distances, times = support_distance(line, np.ones((1, 1))), fewest_steps(world)
    mean = np.diff(line[:, 0]).mean()
    assert mean < 2.0 and distances[99, 100] > mean * times[99, 100]
    reachable = np.isfinite(times)
    assert np.all(distances[reachable] <= longest_step(world, distances) * times[reachable])
    assert longest_step(world, distances) == 100.0


def test_the_rank_bound_holds_and_full_rank_is_exact():
    generator = np.random.default_rng(1)
    for _ in range(50):
        times = fewest_steps(random_world(generator))
        for rank in range(1, len(times) + 1):
            features, omegas, error = low_rank(times, rank)
            assert features.shape == (len(times), rank)
            assert np.abs(support_distance(features, omegas) - times).max() <= 2.0 * error + 1e-9
        assert error < 1e-9


@pytest.mark.parametrize(("luck", "best"), [(0.1, 6.0), (0.9, 1.0 / 0.9 + 0.1 * 6 / 0.9)])
def test_luck_is_believed_by_single_transitions_and_priced_by_expectations(luck, best):
    """Six sure steps, or a bet: lost, it costs six steps back. B = 1 + (1 - p) (6 + B) is better than 6 for large p."""
    world = gamble(luck=luck)
    assert programme(world, 6, sampled=True)[0] == pytest.approx(1.0)
    assert programme(world, 6)[0] == pytest.approx(best)
    assert value_iteration(world)[:, 6] == pytest.approx(optimal_hitting_times(world, 6).values)
    assert value_iteration(world)[:, 6] == pytest.approx(programme(world, 6))


def test_the_expectation_is_over_next_states_and_the_minimum_over_actions():
    """One action with slip 1/2 takes two steps; a second, surer one is the better policy, not their mean."""
    slow, fast = (np.array([[stay, 1 - stay], [0.0, 1.0]]) for stay in (0.5, 0.2))
    assert programme(ControlledProcess.of([slow]), 1)[0] == pytest.approx(2.0)
    assert programme(ControlledProcess.of([slow, fast]), 1)[0] == pytest.approx(1.25)


def test_a_slip_of_one_half_doubles_the_steps_and_single_transitions_do_not_see_it():
    """On a ring V = 2 (g - x); one dimension short of full rank is enough, as only displacements count."""
    ring = directed_ring(5, slip=0.5)
    around = (np.arange(5)[None] - np.arange(5)[:, None]) % 5
    assert np.allclose(value_iteration(ring), 2 * around, atol=1e-6)
    assert np.allclose(programmes(ring, sampled=True), around)
    features = -2.0 * around  # phi = -V*
    assert np.allclose(programmes_within(features, ring.expected(features)), 2 * around)


def test_fewer_dimensions_and_wrong_means_fall_short_or_are_infeasible():
    times = value_iteration(grid(3, 3, slip=0.4))
    means = [grid(3, 3, slip=0.4).expected(low_rank(times, d)[0]) for d in (3, 8)]
    small, full = (programmes_within(low_rank(times, d)[0], m) for d, m in zip((3, 8), means, strict=True))
    assert np.allclose(full, times) and (small <= times + 1e-6).all() and small.sum() < 0.9 * times.sum()
    features = low_rank(times, 8)[0]
    assert np.allclose(linear_means(features, means[1]), means[1]), "full rank: any mean is linear in phi"
    narrow = low_rank(times, 2)[0]
    assert not np.allclose(linear_means(narrow, grid(3, 3).expected(narrow)), grid(3, 3).expected(narrow), atol=1e-3)


def test_sampled_means_are_frequencies_of_the_right_row():
    process, generator = grid(2, 3, slip=0.3), np.random.default_rng(4)
    single = sampled_means(process, 1, generator).dense()
    assert np.isin(single, (0.0, 1.0)).all() and np.array_equal(single.sum(axis=2), np.ones((4, 6)))
    assert (process.dense()[single > 0] > 0).all(), "only what can happen"
    assert np.abs(sampled_means(process, 200_000, generator).dense() - process.dense()).max() < 0.01
