"""Statistics: known answers, brute force, and intervals that contain the truth as often as they say."""

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest, mannwhitneyu, t, trim_mean

from iel.evaluation.stats import (
    average,
    improvement_interval,
    interquartile_mean,
    mean_and_deviation,
    performance_profile,
    probability_of_improvement,
    profile_band,
    stratified_interval,
    success_interval,
)
from interval_coverage import World, aggregate_coverage, coverage

RNG = np.random.default_rng(0)


def test_mean_and_sample_deviation():
    assert mean_and_deviation([0.1, 0.2, 0.6]) == (pytest.approx(0.3), pytest.approx(np.sqrt(0.07)))
    assert mean_and_deviation([0.4]) == (0.4, None)


@pytest.mark.parametrize("runs", [1, 3, 4, 7, 8, 9, 24])
def test_interquartile_mean_is_the_trimmed_mean(runs):
    scores = RNG.random((5, runs))
    assert interquartile_mean(scores) == pytest.approx(trim_mean(scores, 0.25, axis=1), abs=1e-12)


def test_probability_of_improvement_is_the_mann_whitney_statistic():
    ours, theirs = RNG.integers(0, 5, 8) / 5, RNG.integers(0, 5, 6) / 5  # with ties
    expected = mannwhitneyu(ours, theirs).statistic / (8 * 6)
    assert probability_of_improvement([ours], [theirs]) == pytest.approx(expected, abs=1e-12)
    both = probability_of_improvement([ours, [1.0, 1.0]], [theirs, [0.0]])
    assert both == pytest.approx((expected + 1) / 2)  # every environment counts the same
    assert probability_of_improvement([theirs], [ours]) == pytest.approx(1 - expected)


def test_performance_profile_counts_runs_above_a_score():
    profile = performance_profile([[0.2, 0.6], [0.9, 0.9, 0.1, 0.1]], [0.0, 0.2, 0.5, 0.95])
    assert profile.tolist() == [1.0, 0.5, 0.5, 0.0]
    band = profile_band([[0.2, 0.6], [0.9, 0.9, 0.1, 0.1]], [0.0, 0.2, 0.5, 0.95])
    assert band is not None and (band[0] <= profile).all() and (profile <= band[1]).all()


def test_stratified_bootstrap_is_the_exact_one_of_all_resamples():
    """Two environments of three runs have 27 x 27 resamples; the quantiles of all of them are the plain interval's."""
    groups = [np.array([0.1, 0.4, 0.6]), np.array([0.7, 0.75, 1.0])]
    each = [[np.mean(pick) for pick in itertools.product(group, repeat=3)] for group in groups]
    exact = np.quantile([(a + b) / 2 for a in each[0] for b in each[1]], [0.025, 0.975])
    plain = stratified_interval(groups, resamples=200_000, corrected=False)
    assert plain is not None
    assert plain == pytest.approx(exact, abs=0.01)
    estimate = np.concatenate(groups).mean()
    v, w = (group.var(ddof=1) / 3 for group in groups)
    freedom = (v + w) ** 2 / (v**2 / 2 + w**2 / 2)
    assert 2 < freedom < 4
    factor = np.sqrt(3 / 2) * t.ppf(0.975, freedom) / 1.959964
    stretched = stratified_interval(groups, resamples=200_000)
    expected = np.clip([estimate + factor * (bound - estimate) for bound in plain], 0, 1)
    assert stretched == pytest.approx(expected, abs=1e-6)


def test_runs_of_one_environment_are_not_exchanged_with_anothers():
    assert stratified_interval([[0.0, 0.0], [1.0, 1.0]], average) == (0.5, 0.5)
    assert stratified_interval([[0.3], [0.9]]) is None  # single runs say nothing about another seed


def test_intervals_are_reproducible_and_follow_their_seed():
    groups = [RNG.random(5), RNG.random(5)]
    assert stratified_interval(groups, seed=3) == stratified_interval(groups, seed=3)
    assert stratified_interval(groups, seed=3) != stratified_interval(groups, seed=4)
    assert improvement_interval(groups[:1], groups[1:]) == improvement_interval(groups[:1], groups[1:])


def test_one_seed_one_task_gives_wilsons_interval_of_its_episodes():
    low, high = success_interval([[0.5]], 40)
    wilson = binomtest(20, 40).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((wilson.low, wilson.high), abs=0.002)


def test_total_success_and_failure_still_leave_doubt():
    low, high = success_interval(np.ones((3, 5)), 20)
    assert high == 1.0 and 0.95 < low < 1.0
    assert success_interval(np.zeros((3, 5)), 20) == pytest.approx((1 - high, 1 - low))
    few = success_interval(np.ones((1, 1)), 5)
    assert few[0] < 0.7


def test_seeds_that_differ_widen_the_interval():
    equal = success_interval(np.full((4, 5), 0.5), 20)
    apart = success_interval(np.repeat([[0.1], [0.9], [0.2], [0.8]], 5, axis=1), 20)
    assert apart[1] - apart[0] > 3 * (equal[1] - equal[0])


def test_three_clear_wins_of_three_are_not_certainty():
    interval = improvement_interval([[0.9, 0.8, 0.85]], [[0.1, 0.2, 0.15]])
    assert interval is not None
    low, high = interval
    assert high == 1.0 and 0.3 < low < 0.8


COVERED = [(rate, dispersion) for rate in (0.02, 0.1, 0.5, 0.9, 0.98) for dispersion in (0.0, 0.5)]


@pytest.mark.parametrize("seeds", [3, 5, 8, 10])
def test_the_reports_interval_covers(seeds):
    """Where seeds differ as they usually do: 93 to 97 % at middling rates, and not less at the edges."""
    for rate, dispersion in COVERED:
        share, _ = coverage("score", World(rate, dispersion), seeds, trials=1000)
        assert share >= 0.93, (rate, dispersion)
        if dispersion and 0.1 <= rate <= 0.9:
            assert share <= 0.98, (rate, dispersion)


def test_the_plain_percentile_bootstrap_does_not():
    """Three seeds resampled: the reason why reports use another interval."""
    assert coverage("percentile", World(0.5, 0.5), 3, trials=500)[0] < 0.85
    assert coverage("score", World(0.5, 0.5), 3, trials=500)[0] > 0.93


def test_the_corrected_bootstrap_of_the_interquartile_mean_covers():
    worlds = [World(0.9, 0.5), World(0.3, 0.5), World(0.5, 1.0)]
    shares = aggregate_coverage(worlds, 5, trials=300, resamples=500)
    assert shares["percentile"] < 0.93 < shares["corrected"] <= 0.99
