"""Coresets: exact greedy picks, never twice the same, honest about rank, and even coverage."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_worlds import Instance, instances
from scipy.spatial import cKDTree

from benchmarks.reference import plain_greedy_dpp
from iel.errors import ConfigError, GeometryError
from iel.planning import automatic_sigma, farthest_point, greedy_dpp, select_coreset
from iel.planning.dpp import RANK_TOLERANCE


def kernel_of(points: np.ndarray, sigma: float) -> np.ndarray:
    return np.exp(-np.square(points[:, None] - points[None]).sum(axis=-1) / (2.0 * sigma**2))


def greedy_by_determinants(points: np.ndarray, count: int, sigma: float) -> tuple[list[int], list[float]]:
    """The definition: add the state that makes det K_S largest. Also returns how far ahead each winner was."""
    kernel = kernel_of(points, sigma)
    picks: list[int] = []
    leads: list[float] = []
    previous = 1.0
    for _ in range(count):
        gains = np.full(len(points), -np.inf)
        for state in set(range(len(points))) - set(picks):
            subset = [*picks, state]
            gains[state] = np.linalg.det(kernel[np.ix_(subset, subset)]) / previous
        pick = int(np.argmax(gains))
        leads.append(gains[pick] - np.partition(gains, -2)[-2] if len(points) > 1 else 1.0)
        previous *= gains[pick]
        picks.append(pick)
    return picks, leads


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_picks_maximise_the_determinant_greedily(seed: int, count: int, dimension: int) -> None:
    points = np.random.default_rng(seed).normal(size=(count, dimension))
    expected, leads = greedy_by_determinants(points, min(4, count), 1.0)
    picks = greedy_dpp(points, min(4, count), 1.0)
    # The first pick is a tie between all states, and goes to the first one.
    clear = 1 + next((i for i, lead in enumerate(leads[1:]) if lead < 1e-6), len(leads) - 1)
    clear = min(clear, len(picks))
    assert picks[:clear].tolist() == expected[:clear]


def test_greedy_picks_beat_ninety_nine_of_a_hundred_random_subsets() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(100, 3))
    kernel = kernel_of(points, 1.0)

    def log_determinant(subset: np.ndarray) -> float:
        return float(np.linalg.slogdet(kernel[np.ix_(subset, subset)])[1])

    value = log_determinant(greedy_dpp(points, 10, 1.0))
    others = [log_determinant(generator.choice(100, 10, replace=False)) for _ in range(1000)]
    assert (np.array(others) < value).mean() >= 0.99


@pytest.mark.parametrize(("width", "sigma", "dimension"), [(64, 0.7, 4), (32, 0.3, 3), (256, 1.0, 8), (64, 2.0, 2)])
def test_lazy_blocked_picks_are_those_of_the_plain_recursion(
    width: int, sigma: float, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iel.planning.dpp.BLOCK", width)
    points = np.random.default_rng(1).normal(size=(1500, dimension))
    lazy = greedy_dpp(points, 400, sigma)
    plain = plain_greedy_dpp(points, 400, sigma)
    # Down to residuals of 1e-4 the gaps between candidates are far above rounding.
    factors = np.linalg.cholesky(kernel_of(points[plain], sigma) + 1e-15 * np.eye(len(plain)))
    clear = int((np.diag(factors) ** 2 > 1e-4).sum())
    assert np.array_equal(lazy[:clear], plain[:clear])
    assert abs(len(lazy) - len(plain)) <= 3


@given(instances(most=60), st.floats(0.05, 50.0))
@settings(max_examples=100, deadline=None)
def test_no_state_is_picked_twice_and_picks_stop_at_the_rank(case: Instance, sigma: float) -> None:
    picks = greedy_dpp(case.points, len(case.points), sigma)
    assert len(set(picks.tolist())) == len(picks) >= 1
    distinct = len(np.unique(case.points, axis=0))
    assert len(picks) <= distinct


def test_a_low_rank_kernel_is_filled_up_with_farthest_points() -> None:
    points = np.random.default_rng(0).uniform(0.0, 60.0, size=(3000, 2))
    coreset = select_coreset(points, 600, method="dpp", sigma=20.0)
    assert coreset.rank is not None and coreset.rank < 600
    assert len(np.unique(coreset.indices)) == 600
    assert np.array_equal(coreset.points, points[coreset.indices])
    residuals = np.linalg.eigvalsh(kernel_of(coreset.points, 20.0))
    assert (residuals < RANK_TOLERANCE).sum() > 0


@given(instances(most=60))
@settings(max_examples=100, deadline=None)
def test_every_farthest_point_is_the_farthest_from_those_before(case: Instance) -> None:
    picks = farthest_point(case.points, 20)
    assert len(set(picks.tolist())) == len(picks)
    for number in range(1, len(picks)):
        gaps = np.square(case.points[:, None] - case.points[None, picks[:number]]).sum(axis=-1).min(axis=1)
        assert gaps[picks[number]] == pytest.approx(gaps.max(), rel=1e-9)
    if len(picks) < min(20, len(case.points)):
        assert len(picks) == len(np.unique(case.points, axis=0))


def test_farthest_points_leave_gaps_of_at_most_twice_their_spacing_and_lie_evenly() -> None:
    generator = np.random.default_rng(0)
    dense_corner = np.concatenate([generator.normal(size=(4000, 2)), generator.uniform(-20, 20, size=(1000, 2))])
    coreset = select_coreset(dense_corner, 200)
    sampled = dense_corner[generator.choice(5000, 200, replace=False)]
    (gap, spacing), (other_gap, other_spacing) = (
        (cKDTree(nodes).query(dense_corner)[0].max(), cKDTree(nodes).query(nodes, [2, 3, 4, 5])[0].mean(axis=1))
        for nodes in (coreset.points, sampled)
    )
    assert gap <= spacing.mean() and gap < 0.5 * other_gap
    assert spacing.std() / spacing.mean() < 0.5 * other_spacing.std() / other_spacing.mean()


def test_the_automatic_width_is_half_the_mean_pair_distance() -> None:
    points = np.random.default_rng(0).normal(size=(300, 5))
    gaps = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert automatic_sigma(points) == pytest.approx(0.5 * gaps.sum() / (300 * 299), rel=1e-9)
    assert select_coreset(points, 10, method="dpp").sigma == pytest.approx(automatic_sigma(points))
    assert automatic_sigma(np.ones((5, 2))) == 1.0


def test_selection_is_deterministic_and_defaults_to_all_there_is() -> None:
    points = np.random.default_rng(0).normal(size=(100, 3))
    for method in ("farthest", "dpp"):
        first, second = select_coreset(points, 50, method=method), select_coreset(points, 50, method=method)
        assert np.array_equal(first.indices, second.indices)
    assert len(select_coreset(points)) == 100
    assert len(select_coreset(np.repeat(points[:7], 5, axis=0))) == 7


def test_impossible_coresets_are_refused() -> None:
    points = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(GeometryError, match="only 20 states"):
        select_coreset(points, 21)
    with pytest.raises(GeometryError, match="only 7 embedded states are distinct"):
        select_coreset(np.repeat(points[:7], 3, axis=0), 10)
    with pytest.raises(ConfigError, match="at least 1"):
        select_coreset(points, 0)
    with pytest.raises(ConfigError, match="did you mean farthest"):
        select_coreset(points, 5, method="farthst")
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="sigma"):
            select_coreset(points, 5, method="dpp", sigma=sigma)
    with pytest.raises(GeometryError, match="non-finite"):
        select_coreset(np.full((3, 2), np.nan))
