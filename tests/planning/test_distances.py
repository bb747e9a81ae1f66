"""The directed cost is what the paper says it is, and its bounds and its triangle inequality hold."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_worlds import Instance, instances

from benchmarks.reference import cost_matrix
from iel.distances import (
    FLOOR,
    Displacement,
    LatentGoal,
    checked_points,
    directed,
    directed_cost,
    lengths_between,
    longest_steps,
    pair_lengths,
    projections,
    unit,
)
from iel.errors import ConfigError, GeometryError

seeds = st.integers(0, 2**32 - 1)


def triple(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    dimension = int(generator.integers(1, 6))
    direction = generator.normal(size=dimension)
    return generator.normal(size=(3, dimension)), direction / np.linalg.norm(direction)


@given(instances())
@settings(max_examples=100, deadline=None)
def test_the_closed_form_equals_the_papers_formula_pair_by_pair(case: Instance) -> None:
    costs = cost_matrix(case.points, case.direction, case.beta)
    for i in range(min(5, len(case.points))):
        for j in range(len(case.points)):
            move = case.points[j] - case.points[i]
            length = math.sqrt(max(float(move @ move), FLOOR**2))
            expected = length * math.exp(case.beta * (1.0 - float(move @ case.direction) / length))
            # A cosine is a difference of projections over a length: far from the origin short moves lose digits.
            rounding = 1e-15 * np.abs(case.points).max() * len(case.direction) / length
            assert costs[i, j] == pytest.approx(expected, rel=1e-9 + 10.0 * rounding)


@given(instances())
@settings(max_examples=100, deadline=None)
def test_costs_lie_between_the_length_and_its_stretch(case: Instance) -> None:
    lengths = lengths_between(case.points, case.points)
    costs = cost_matrix(case.points, case.direction, case.beta, lengths)
    symmetric = (costs + costs.T) * 0.5
    slack = 1.0 + 1e-12
    assert (lengths <= costs * slack).all()
    assert (costs <= math.exp(2.0 * case.beta) * lengths * slack).all()
    assert (math.exp(case.beta) * lengths <= symmetric * slack).all()
    assert (symmetric <= math.exp(case.beta) * math.cosh(case.beta) * lengths * slack).all()


@given(seeds, st.floats(0.0, 1.0))
@settings(max_examples=300, deadline=None)
def test_the_triangle_inequality_holds_up_to_beta_one(seed: int, beta: float) -> None:
    points, direction = triple(seed)
    costs = cost_matrix(points, direction, beta)
    assert costs[0, 2] <= (costs[0, 1] + costs[1, 2]) * (1.0 + 1e-12)


def test_the_triangle_inequality_fails_for_some_triple_above_beta_one() -> None:
    broken = 0
    for seed in range(2000):
        points, direction = triple(seed)
        costs = cost_matrix(points, direction, 1.2)
        broken += bool(costs[0, 2] > (costs[0, 1] + costs[1, 2]) * (1.0 + 1e-9))
    assert broken > 0


@given(seeds, st.floats(0.0, 2.0))
@settings(max_examples=100, deadline=None)
def test_there_and_back_differ_by_twice_beta_times_the_cosine(seed: int, beta: float) -> None:
    points, direction = triple(seed)
    costs = cost_matrix(points, direction, beta)
    move = points[1] - points[0]
    assume(np.linalg.norm(move) > 2 * FLOOR)  # nearer points count as so far apart
    cosine = float(move @ direction) / float(np.linalg.norm(move))
    assert costs[1, 0] / costs[0, 1] == pytest.approx(math.exp(2.0 * beta * cosine), rel=1e-9)


def test_beta_zero_is_the_euclidean_distance() -> None:
    points, direction = triple(3)
    assert np.array_equal(cost_matrix(points, direction, 0.0), lengths_between(points, points))


@given(instances())
@settings(max_examples=50, deadline=None)
def test_a_length_is_the_same_number_however_pairs_are_batched(case: Instance) -> None:
    first, second = np.nonzero(np.ones((len(case.points), len(case.points))))
    listed = pair_lengths(np.ascontiguousarray(case.points.T), first, second)
    assert np.array_equal(listed, lengths_between(case.points, case.points).ravel())
    to_last = lengths_between(case.points, case.points[-1:])[:, 0]
    assert np.array_equal(to_last, lengths_between(case.points, case.points)[:, -1])
    alone = pair_lengths(np.ascontiguousarray(case.points.T), first[-1:], second[-1:])
    assert alone[0] == listed[-1]


def test_duplicates_cost_the_floor_and_never_zero() -> None:
    points = np.zeros((2, 3))
    cost = directed_cost(lengths_between(points, points), np.zeros((2, 2)), 0.1)
    assert np.allclose(cost, FLOOR * math.exp(0.1))
    assert projections(points, np.ones(3)).tolist() == [0.0, 0.0]


def test_a_zero_vector_takes_the_first_fallback_with_a_direction() -> None:
    zero, other = np.zeros((1, 3)), np.array([[0.0, 2.0, 0.0]])
    assert unit(zero, lambda: zero, lambda: other).tolist() == [[0.0, 1.0, 0.0]]
    assert unit(zero).tolist() == [[1.0, 0.0, 0.0]]


def test_bad_numbers_are_refused_with_their_row() -> None:
    table = np.ones((4, 2))
    table[2, 1] = np.nan
    with pytest.raises(GeometryError, match="row 2"):
        checked_points(table)
    with pytest.raises(GeometryError, match="table of embeddings is empty"):
        checked_points(np.empty((0, 2)))
    with pytest.raises(GeometryError, match="shape"):
        checked_points(np.ones(3))
    for beta in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="beta"):
            Displacement(beta)


@given(instances())
@settings(max_examples=50, deadline=None)
def test_planning_and_losses_share_one_formula(case: Instance) -> None:
    """`iel.distances.directed`, which losses and models use, and the batch-independent version of planning."""
    goal = LatentGoal(case.points[0], case.direction)
    targets = np.roll(case.points, 1, axis=0)
    shared = directed(case.points, targets, case.direction, case.beta)
    rows = Displacement(case.beta).row_costs(case.points, targets, [goal] * len(case.points))
    lengths = np.sqrt(np.maximum(np.square(targets - case.points).sum(1), FLOOR**2))
    rounding = 1e-15 * np.abs(case.points).max() * len(case.direction) / lengths
    assert (np.abs(rows / shared - 1.0) <= 1e-9 + 10.0 * rounding).all()
    table = Displacement(case.beta).costs(case.points, targets, goal)
    assert (np.abs(np.diagonal(table) / shared - 1.0) <= 1e-9 + 10.0 * rounding).all()


def test_costs_become_steps_and_a_metric_without_units_says_so() -> None:
    metric = Displacement(0.1, 0.9)
    assert metric.steps(np.array([1.0, 1.9, 10.0, np.inf])) == pytest.approx([1.0, 2.0, longest_steps(0.9), np.inf])
    assert Displacement(0.1, 1.0).steps(np.array([7.5]))[0] == 7.5
    with pytest.raises(GeometryError, match="not in steps"):
        Displacement(0.1, None).steps(np.ones(1))
    back = Displacement(0.3).symmetric()
    assert isinstance(back, Displacement) and back.beta == 0.0 and back.for_every_goal
