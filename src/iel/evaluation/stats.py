"""Statistics of success rates, reproducible from a seed. numpy and scipy's special functions only.

Two kinds of chance are separate: which episodes an agent met, and which training seed it came from. Tables compare
methods, so their intervals are about new training seeds:

    success_interval     one method in one environment: (seeds, tasks) success rates; of a single seed, its episodes
                         are all that is known, and it says nothing about another training seed
    bootstrap_interval   a mean that is not a rate (such as collected reward), of one trained agent's episodes
    stratified_interval  any statistic of several environments' scores, such as their interquartile mean

How often each of them contains the truth is measured by scripts/interval_coverage.py.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

RESAMPLES, PROFILES = 10_000, 2_000
LEVEL = 0.95
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
SUCCESS_INTERVAL = "95 % score interval over training seeds"
"""What tables call `success_interval`."""
EPISODE_INTERVAL = "95 % score interval over episodes"
"""What tables call the `success_interval` of a single training seed."""

Floats = NDArray[np.float64]
Interval = tuple[float, float]
Statistic = Callable[[Floats], Floats]
"""(..., runs) scores of all environments -> (...)."""


def bootstrap_interval(strata: Sequence[ArrayLike]) -> Interval:
    """Stratified percentile bootstrap of the mean of stratum means.

    Each stratum (a task, or a task of one training seed) is resampled with replacement on its own:

        m* = mean_k mean(x_k*),   interval = quantiles 0.025 and 0.975 of m*

    Episodes are all it knows: it says nothing about another training seed.
    """
    values, rng = _arrays(strata), np.random.default_rng(0)
    low, high = np.quantile(sum(resample([own], rng, RESAMPLES).mean(1) for own in values) / len(values), TAILS)
    return float(low), float(high)


# ---------------------------------------------------------------- one environment


def mean_and_deviation(scores: ArrayLike) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1) across seeds, as tables print them; one seed has no deviation."""
    values = np.asarray(scores, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


def success_interval(rates: ArrayLike, episodes: int) -> Interval:
    """Interval of the expected success rate of a newly trained agent, from (seeds, tasks) rates of `episodes` each."""
    low, high = score_bounds(np.asarray(rates, np.float64)[None], episodes)
    return float(low[0]), float(high[0])


def score_bounds(rates: Floats, episodes: int) -> tuple[Floats, Floats]:
    """`success_interval` for (..., seeds, tasks) rates at once.

    A score interval (Wilson's): all theta for which the mean m of n seeds is not too far away, with the variance that
    theta itself implies, times the dispersion seen between seeds:

        (m - theta)^2 <= t^2 (f / n) theta (1 - theta),   f = s^2 / (m~ (1 - m~)),   t Student's with n - 1

    It stays within [0, 1] and is not empty of width at 0 or 1. Seeds that agree by luck could make it too narrow, so
    the same interval with the dispersion of independent episodes and the normal quantile is always contained in it.
    """
    seeds, tasks = rates.shape[-2:]
    scores = rates.mean(-1)
    mean, trials = scores.mean(-1), seeds * tasks * episodes
    inner = (mean * trials + 1) / (trials + 2)  # away from 0 and 1, where the dispersion would be 0
    unit = inner * (1 - inner)
    task_rates = (rates.mean(-2) * seeds * episodes + 0.5) / (seeds * episodes + 1)
    by_chance = (task_rates * (1 - task_rates)).sum(-1) / (tasks**2 * episodes) / unit
    if tasks == 1:  # exactly Wilson's: one task has no variance between tasks
        by_chance = np.full(mean.shape, 1.0 / episodes)
    low, high = _wilson(mean, ndtri(TAILS[1]) ** 2 * by_chance / seeds)
    if seeds > 1:
        between = scores.var(-1, ddof=1) / unit
        wide = _wilson(mean, stdtrit(seeds - 1, TAILS[1]) ** 2 * between / seeds)
        low, high = np.minimum(low, wide[0]), np.maximum(high, wide[1])
    return low, high


def _wilson(mean: Floats, a: Floats) -> tuple[Floats, Floats]:
    """The two roots theta of (m - theta)^2 = a theta (1 - theta)."""
    half = np.sqrt(a * mean * (1 - mean) + a**2 / 4)
    return np.clip((mean + a / 2 - half) / (1 + a), 0, 1), np.clip((mean + a / 2 + half) / (1 + a), 0, 1)


# ---------------------------------------------------------------- several environments


def average(scores: Floats) -> Floats:
    """The mean over the last axis."""
    return scores.mean(-1)


def interquartile_mean(scores: ArrayLike) -> Floats:
    """IQM over the last axis: the mean without the lowest and the highest quarter (rounded down) of the runs."""
    values = np.sort(np.asarray(scores, np.float64), axis=-1)
    cut = values.shape[-1] // 4
    return values[..., cut : values.shape[-1] - cut].mean(-1)


def stratified_interval(
    groups: Sequence[ArrayLike],
    statistic: Statistic = average,
    seed: int = 0,
    resamples: int = RESAMPLES,
    *,
    corrected: bool = True,
) -> Interval | None:
    """Bootstrap interval of a statistic of all runs; the runs (seeds) of each environment are resampled on their own.

    The plain percentile interval is too short with few seeds: resampled runs vary by (n - 1) / n of the variance, and
    normal quantiles do not know how uncertain it is. `corrected` stretches it around the estimate by

        sqrt(n / (n - 1)) t_nu / z,   n runs an environment, nu degrees of freedom (Welch and Satterthwaite's)

    None where no environment has two runs.
    """
    values = _arrays(groups)
    if max(map(len, values)) < 2:
        return None
    drawn = resample(values, np.random.default_rng(seed), resamples)
    factor = stretch(values) if corrected else 1.0
    return _stretched(statistic(np.concatenate(values)), statistic(drawn), factor)


def resample(groups: Sequence[Floats], rng: np.random.Generator, resamples: int) -> Floats:
    """(resamples, runs): every group drawn with replacement from itself."""
    return np.concatenate([group[rng.integers(len(group), size=(resamples, len(group)))] for group in groups], axis=1)


def stretch(groups: Sequence[Floats]) -> float:
    """How much a percentile interval of these groups is too short.

    With v_e the variance of environment e's runs, nu = (sum v_e / n_e)^2 / sum (v_e / n_e)^2 / (n_e - 1): where one
    environment varies most, the others' runs tell nothing about how much.
    """
    several = [group for group in groups if len(group) > 1]
    sizes = np.array([len(group) for group in several])
    parts = np.array([group.var(ddof=1) for group in several]) / sizes
    dispersion = (parts**2 / (sizes - 1)).sum()
    freedom = parts.sum() ** 2 / dispersion if dispersion > 0 else float((sizes - 1).sum())
    size = sizes.mean()
    return float(np.sqrt(size / (size - 1)) * stdtrit(freedom, TAILS[1]) / ndtri(TAILS[1]))


def _arrays(groups: Sequence[ArrayLike]) -> list[Floats]:
    return [np.asarray(group, np.float64) for group in groups]


def _stretched(estimate: Floats, drawn: Floats, factor: float) -> Interval:
    low, high = np.clip(estimate + factor * (np.quantile(drawn, TAILS) - estimate), 0, 1)
    return float(low), float(high)


def performance_profile(groups: Sequence[ArrayLike], thresholds: ArrayLike) -> Floats:
    """Share of runs whose score is above each threshold, every environment counting the same."""
    levels = np.asarray(thresholds, np.float64)
    return np.mean([(group[:, None] > levels).mean(0) for group in _arrays(groups)], axis=0)


def profile_band(groups: Sequence[ArrayLike], thresholds: ArrayLike) -> tuple[Floats, Floats] | None:
    """Pointwise corrected bootstrap band of the performance profile.

    Where all runs lie on one side of a threshold, resampling sees no variation; the band always contains the score
    interval of as many independent runs.
    """
    values, levels = _arrays(groups), np.asarray(thresholds, np.float64)
    if max(map(len, values)) < 2:
        return None
    rng, drawn = np.random.default_rng(0), np.zeros((PROFILES, len(levels)))
    for group in values:
        picks = rng.integers(len(group), size=(PROFILES, len(group)))
        drawn += (group[:, None] > levels)[picks].mean(1) / len(values)
    centre = performance_profile(values, levels)
    low, high = np.clip(centre + stretch(values) * (np.quantile(drawn, TAILS, axis=0) - centre), 0, 1)
    shares = np.stack([(group[:, None] > levels).mean(0) for group in values], axis=-1)  # (thresholds, environments)
    few_low, few_high = score_bounds(shares[:, None], min(map(len, values)))
    return np.minimum(low, few_low), np.maximum(high, few_high)


def probability_of_improvement(ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> float:
    """P(X > Y) + P(X = Y) / 2 for a run X of ours and a run Y of theirs, averaged over environments."""
    return float(np.mean([_wins(x, y).mean() for x, y in zip(_arrays(ours), _arrays(theirs), strict=True)]))


def improvement_interval(ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> Interval | None:
    """Corrected bootstrap interval of the probability of improvement; runs of both sides are resampled.

    Where all runs of one side are better, resampling sees no variation at all. The interval therefore always contains
    the score interval of min(n, m) independent comparisons an environment, whose variance P (1 - P) / min(n, m) is the
    largest that P(X > Y) can have.
    """
    x, y = _arrays(ours), _arrays(theirs)
    sizes = [len(group) for group in (*x, *y)]
    if max(sizes) < 2:
        return None
    rng, drawn = np.random.default_rng(0), np.zeros(RESAMPLES)
    wins = [_wins(mine, other) for mine, other in zip(x, y, strict=True)]
    for table in wins:
        rows, columns = (rng.integers(size, size=(RESAMPLES, size)) for size in table.shape)
        drawn += table[rows[:, :, None], columns[:, None, :]].mean((1, 2)) / len(x)
    shares = np.array([float(table.mean()) for table in wins])
    low, high = _stretched(shares.mean(), drawn, stretch([*x, *y]))
    few_low, few_high = success_interval(shares[None], min(sizes))
    return min(low, few_low), max(high, few_high)


def _wins(x: Floats, y: Floats) -> Floats:
    """(runs of x, runs of y): 1 where x is better, 1/2 where both are equal."""
    return (x[:, None] > y) + 0.5 * (x[:, None] == y)
