"""How often do the intervals contain the truth? Simulated comparisons whose truth is known.

Seed i has a quality u_i ~ N(0, 1); its success rate in task k is sigmoid(logit(rate) + offset_k + sigma u_i), and each
of its episodes succeeds with that probability. The truth is the mean over all seeds there could be.

    python scripts/interval_coverage.py       prints the table of docs/comparing.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit, logit

from iel.evaluation.stats import (
    Floats,
    Statistic,
    average,
    interquartile_mean,
    score_bounds,
    stratified_interval,
    stretch,
)

METHODS = ("percentile", "hierarchical", "corrected", "score")
SEEDS = (3, 5, 8, 10)
TRIALS = 2000


@dataclass(frozen=True)
class World:
    """One method in one environment."""

    rate: float
    """Success rate of a middling seed in a middling task."""
    deviation: float
    """How much seeds differ, in logits: 0 not at all, 0.5 as a rule, 1 a lot (at rate 0.5 a deviation of 20 %)."""
    tasks: int = 5
    episodes: int = 20
    offsets: float = 1.0
    """Tasks lie evenly between this many logits below and above the rate."""

    @property
    def _logits(self) -> Floats:
        return logit(self.rate) + np.linspace(-self.offsets, self.offsets, self.tasks)

    @property
    def truth(self) -> float:
        """E over seeds of the mean over tasks, by Gauss-Hermite quadrature."""
        nodes, weights = hermegauss(81)
        rates = expit(self._logits + self.deviation * nodes[:, None]).mean(1)
        return float(weights @ rates / weights.sum())

    def draw(self, rng: np.random.Generator, trials: int, seeds: int) -> Floats:
        """(trials, seeds, tasks) success rates."""
        rates = expit(self._logits + self.deviation * rng.standard_normal((trials, seeds, 1)))
        return rng.binomial(self.episodes, rates) / self.episodes


def bounds_of(method: str, world: World, rates: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Bounds of 95 % intervals of every trial, by one of METHODS.

    percentile     bootstrap over seeds, plain quantiles
    hierarchical   bootstrap over seeds, then over episodes within tasks, plain quantiles
    corrected      the percentile interval, stretched as in `stratified_interval`
    score          `success_interval`
    """
    if method == "score":
        return score_bounds(rates, world.episodes)
    seeds = rates.shape[1]
    resamples = 1000 if method == "hierarchical" else 4000
    picks = rng.integers(seeds, size=(resamples, seeds))
    if method == "hierarchical":
        drawn = np.stack([rng.binomial(world.episodes, trial[picks]).mean((1, 2)) for trial in rates])
        drawn = drawn / world.episodes
    else:
        weights = (picks[:, :, None] == np.arange(seeds)).mean(1)
        drawn = rates.mean(2) @ weights.T
    mean = rates.mean((1, 2))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    if method == "corrected":
        factor = stretch([np.arange(seeds, dtype=float)])  # of one group, only its size matters
        low, high = np.clip(mean + factor * (low - mean), 0, 1), np.clip(mean + factor * (high - mean), 0, 1)
    return low, high


def coverage(method: str, world: World, seeds: int, trials: int = TRIALS, seed: int = 0) -> tuple[float, float]:
    """(share of simulated comparisons whose interval contains the truth, mean width of the interval)."""
    rng = np.random.default_rng([seed, seeds])
    low, high = bounds_of(method, world, world.draw(rng, trials, seeds), rng)
    truth = world.truth
    return float(((low <= truth) & (truth <= high)).mean()), float((high - low).mean())


def aggregate_coverage(
    worlds: list[World],
    seeds: int,
    statistic: Statistic = interquartile_mean,
    trials: int = TRIALS,
    seed: int = 0,
    resamples: int = 1000,
) -> dict[str, float]:
    """Coverage of `stratified_interval` for a statistic of several environments, plain and corrected.

    The truth is the statistic of endlessly many runs in each environment.
    """
    rng = np.random.default_rng([seed, seeds])
    endless = [world.draw(rng, 1, 100_000)[0].mean(1) for world in worlds]
    truth = float(statistic(np.concatenate(endless)))
    hits = {"percentile": 0, "corrected": 0}
    for trial in range(trials):
        groups = [world.draw(rng, 1, seeds)[0].mean(1) for world in worlds]
        for name in hits:
            interval = stratified_interval(
                groups, statistic, seed=trial, resamples=resamples, corrected=name == "corrected"
            )
            assert interval is not None
            hits[name] += interval[0] <= truth <= interval[1]
    return {name: count / trials for name, count in hits.items()}


def table() -> Iterator[str]:
    """The lines of the Markdown table of docs/comparing.md: coverage in per cent with 3 / 5 / 8 / 10 seeds."""
    yield "| seeds differ | success rate | " + " | ".join(METHODS) + " | width of score |"
    yield "|---|---|" + "---|" * (len(METHODS) + 1)
    for name, deviation in (("not", 0.0), ("usually", 0.5), ("much", 1.0), ("some fail altogether", 2.0)):
        for rate in (0.005, 0.02, 0.1, 0.5, 0.9, 0.98):
            world = World(rate, deviation)
            numbers = {method: [coverage(method, world, seeds) for seeds in SEEDS] for method in METHODS}
            cells = [_listed([share for share, _ in numbers[method]]) for method in METHODS]
            widths = _listed([width for _, width in numbers["score"]])
            yield f"| {name} | {100 * world.truth:.1f} | {' | '.join(cells)} | {widths} |"
    worlds = [World(0.9, 0.5), World(0.3, 0.5), World(0.5, 1.0)]
    for name, statistic in (("mean", average), ("IQM", interquartile_mean)):
        shares = [aggregate_coverage(worlds, seeds, statistic) for seeds in SEEDS]
        plain, corrected = (_listed([share[method] for share in shares]) for method in ("percentile", "corrected"))
        yield f"| {name} of three environments | 30, 50, 90 | {plain} | – | {corrected} | – | – |"


def _listed(shares: list[float]) -> str:
    return " / ".join(f"{100 * share:.0f}" for share in shares)


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
