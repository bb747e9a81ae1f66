"""The measuring instruments of an audit: latent dynamics, calibration by distance, order, and their intervals.

Each is a plain function of arrays; `audit.py` points them at a model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree
from scipy.stats import binom, rankdata

from iel.errors import ChainError
from iel.readout import affine_readout

PairFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Two index arrays in, one number per pair out."""
DRAWS = 200
"""Bootstrap draws behind every interval."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def __format__(self, code: str) -> str:
        return f"{self.value:{code}} ({self.low:{code}} to {self.high:{code}})"

    def within(self, low: float, high: float) -> bool:
        """Whether the whole interval lies in [low, high]."""
        return low <= self.low and self.high <= high


def bootstrap(
    statistic: Callable[[np.ndarray], ArrayLike], clusters: np.ndarray, generator: np.random.Generator
) -> list[Interval]:
    """Percentile intervals of statistic(rows) when whole clusters (episodes, goals) are drawn with replacement.

    Rows of one cluster depend on each other, so drawing rows one by one would give intervals that are too short.
    """
    order = np.argsort(clusters, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    centre = np.atleast_1d(statistic(np.arange(len(clusters))))
    draws = []
    for _ in range(DRAWS):
        chosen = generator.integers(len(members), size=len(members))
        draws.append(np.atleast_1d(statistic(np.concatenate([members[c] for c in chosen]))))
    table = np.sort(np.array(draws), axis=0)  # order statistics, so that infinities do not turn into NaN
    low, high = table[round(0.025 * (DRAWS - 1))], table[round(0.975 * (DRAWS - 1))]
    return [Interval(float(c), float(a), float(b)) for c, a, b in zip(centre, low, high, strict=True)]


def mean_interval(values: np.ndarray, clusters: np.ndarray, generator: np.random.Generator) -> Interval:
    """The mean with its interval."""
    return bootstrap(lambda rows: values[rows].mean(), clusters, generator)[0]


def step_rows(offsets: np.ndarray) -> np.ndarray:
    """Rows that have a successor in the same episode."""
    return np.setdiff1d(np.arange(offsets[-1]), offsets[1:] - 1)


def episode_of(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The episode each row belongs to."""
    return np.searchsorted(offsets, rows, side="right") - 1


class LatentDynamics(NamedTuple):
    """phi' ~ K_a phi fitted by ridge on some episodes and tested on others, with noise separated from misfit.

    A held-out squared error is epsilon^2 + noise^2: Definition 2.1 is about the mean next embedding, and a single next
    state scatters around it. The scatter is estimated from pairs of nearest neighbours in (phi, a), whose means are
    nearly the same: noise^2 = mean |r_i - r_j|^2 / 2. Far neighbours make it too large and epsilon too small.
    """

    predict: PairFunction  # (phi, a) -> the predicted next embedding
    errors: np.ndarray  # length of every held-out error
    epsilon: Interval  # root mean square of what is left when the noise is taken out
    noise: Interval
    step: float  # root mean square length of a held-out latent step, the unit of both


def fit_latent_dynamics(
    embeddings: np.ndarray, actions: np.ndarray, offsets: np.ndarray, generator: np.random.Generator
) -> LatentDynamics:
    """Ridge regression of the next embedding on (phi, a) and their products, so that every action has its own K_a.

    A fifth of the episodes is held out. The products are left out when there are too few steps to fit them.
    """
    now = step_rows(offsets)
    episode = episode_of(now, offsets)
    episodes = np.unique(episode)
    if len(episodes) < 2:
        raise ChainError("The audit needs episodes to fit and episodes to test on: pass at least two with steps.")
    test = np.isin(episode, generator.permutation(episodes)[: max(1, len(episodes) // 5)])
    products = (embeddings.shape[1] + 1) * (actions.shape[1] + 1) * 5 <= (~test).sum()

    def columns(phi: np.ndarray, action: np.ndarray) -> np.ndarray:
        plain = np.hstack([phi, action])
        if not products:
            return plain
        return np.hstack([plain, np.einsum("md,ma->mda", phi, action).reshape(len(phi), -1)])

    inputs, targets = columns(embeddings[now], actions[now]), embeddings[now + 1]
    weights, intercept = affine_readout(inputs[~test], targets[~test])

    def predict(phi: np.ndarray, action: np.ndarray) -> np.ndarray:
        return columns(phi, action) @ weights + intercept

    missed = targets[test] - predict(embeddings[now[test]], actions[now[test]])
    position = np.hstack([embeddings, actions])[now[test]]
    nearest = _nearest_other(position / np.where(position.std(axis=0) > 0, position.std(axis=0), 1.0), generator)
    total, scatter = (missed**2).sum(axis=1), ((missed - missed[nearest]) ** 2).sum(axis=1) / 2.0

    def parts(rows: np.ndarray) -> np.ndarray:
        noise = min(float(scatter[rows].mean()), float(total[rows].mean()))
        return np.sqrt([total[rows].mean() - noise, noise])

    epsilon, noise = bootstrap(parts, episode[test], generator)
    step = float(np.sqrt(((targets[test] - embeddings[now[test]]) ** 2).sum(axis=1).mean()))
    return LatentDynamics(predict, np.sqrt(total), epsilon, noise, step)


def _nearest_other(points: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The nearest other point of each point; equal points are paired at random, by a tiny shift."""
    if len(points) < 2:
        return np.zeros(len(points), dtype=np.int64)
    points = points + 1e-7 * generator.normal(size=points.shape)
    first, second = cKDTree(points).query(points, k=2)[1].T
    return np.where(first == np.arange(len(points)), second, first)


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions for pairs whose reference distance lies in (low, high]."""

    low: float
    high: float
    farthest: float  # largest reference distance in the bin
    count: int
    reference: float  # mean reference distance in the bin
    predicted: tuple[float, float, float]  # quantiles 10 %, 50 % and 90 % of the predictions
    above: float  # share of predictions larger than the reference
    ratio: Interval  # median of predicted / reference
    order: Interval  # P(a pair is predicted farther than one of the bin before, half as far); NaN in the first bin


def calibration_table(
    reference: np.ndarray, predicted: np.ndarray, clusters: np.ndarray, generator: np.random.Generator, least: int = 20
) -> list[CalibrationBin]:
    """Doubling bins (0, 1], (1, 2], (2, 4], ...; after the first that holds `least` pairs, one with fewer ends it."""
    table: list[CalibrationBin] = []
    before = np.zeros(0, dtype=np.int64)
    low, high = 0.0, 1.0
    while low < float(reference[np.isfinite(reference)].max(initial=0.0)):
        rows = np.flatnonzero((reference > low) & (reference <= high))
        if len(rows) >= least:
            both = np.concatenate([rows, before])
            facts = partial(_ratio_and_order, predicted[both], predicted[rows] / reference[rows])
            ratio, order = bootstrap(facts, clusters[both], generator)
            lowest, middle, highest = (_order_statistic(predicted[rows], q) for q in (0.1, 0.5, 0.9))
            farthest, mean = float(reference[rows].max()), float(reference[rows].mean())
            above = float((predicted[rows] > reference[rows] * (1 + 1e-9)).mean())
            row = low, high, farthest, len(rows), mean, (lowest, middle, highest), above, ratio, order
            table.append(CalibrationBin(*row))
            before = rows
        elif table:
            break
        low, high = high, 2.0 * high
    return table


def _ratio_and_order(predicted: np.ndarray, ratios: np.ndarray, picked: np.ndarray) -> list[float]:
    """Median ratio of the picked far rows, which come first, and P(a far prediction exceeds a near one)."""
    far, near = picked[picked < len(ratios)], picked[picked >= len(ratios)]
    if not len(far):
        return [math.nan, math.nan]
    wins = rankdata(predicted[np.concatenate([far, near])])[: len(far)].sum() - len(far) * (len(far) + 1) / 2
    return [_order_statistic(ratios[far], 0.5), float(wins / (len(far) * len(near))) if len(near) else math.nan]


CONFIDENCE = 0.7
"""Share of pairs twice as far apart that must get the larger prediction where predictions are trusted."""
FACTOR = 1.5
"""How far off the median prediction may be there; one step is always forgiven."""


def trusted_bins(table: list[CalibrationBin], end: str = "value", upper_only: bool = False) -> list[bool]:
    """Which bins are both calibrated and in order, by the estimates or by the `worse` or `better` ends of intervals.

    `upper_only`: the reference is itself only an upper bound, so predictions below it are not held against the model.
    The order of the first bin is not known.
    """
    answer = []
    for number, row in enumerate(table):
        ratio, order = row.ratio, row.order
        least, most, ordered = {
            "value": (ratio.value, ratio.value, order.value),
            "worse": (ratio.low, ratio.high, order.low),
            "better": (ratio.high, ratio.low, order.high),
        }[end]
        calibrated = most <= max(FACTOR, 1.0 + 1.0 / row.reference)
        calibrated &= upper_only or least >= min(1.0 / FACTOR, 1.0 - 1.0 / row.reference)
        answer.append(bool(calibrated and (number == 0 or ordered >= CONFIDENCE)))
    return answer


def trusted_horizon(table: list[CalibrationBin], upper_only: bool = False) -> Interval:
    """The farthest pair of the last bin before trust ends; 0 unless two bins can be trusted."""

    def reach(end: str) -> float:
        trusted = [*trusted_bins(table, end, upper_only), False].index(False)
        return table[trusted - 1].farthest if trusted > 1 else 0.0

    value = reach("value")
    return Interval(value, min(reach("worse"), value), max(reach("better"), value))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation; infinite values rank last, NaN is refused."""
    if np.isnan(first).any() or np.isnan(second).any():
        raise ChainError("Predictions or reference times contain NaN: fix the model before auditing it.")
    x, y = rankdata(first), rankdata(second)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _order_statistic(values: np.ndarray, quantile: float) -> float:
    """A quantile that is one of the values, so that infinities do not turn into NaN."""
    return float(np.sort(values)[round(quantile * (len(values) - 1))])


@dataclass(frozen=True)
class ErrorCertificate:
    """With `confidence`, at least a share `share` of new pairs has relative error at most `bound`."""

    bound: float
    share: float
    confidence: float
    pairs: int

    @property
    def sentence(self) -> str:
        """The promise, or how many pairs it needs."""
        promise = f"With {100 * self.confidence:g} % confidence at least {100 * self.share:g} % of predictions"
        if math.isinf(self.bound):
            needed = math.ceil(math.log(1.0 - self.confidence) / math.log(self.share))
            return f"{promise} cannot be bounded from {self.pairs} pairs: measure at least {needed}."
        return (
            f"{promise} are off by at most {100 * self.bound:.0f} % of the true steps, if new starts and goals are "
            f"drawn like the {self.pairs} measured ones and independently of training."
        )


def error_certificate(predicted: np.ndarray, actual: np.ndarray) -> ErrorCertificate:
    """A 95 % upper confidence bound for the 90 % quantile of |predicted - actual| / actual over independent pairs.

    No assumption on the model or the world: of n sorted errors P(e_(k) < q_share) = P(Binomial(n, share) >= k).
    """
    share, confidence = 0.9, 0.95
    guess, truth = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    if guess.shape != truth.shape or guess.ndim != 1 or not np.all(truth > 0) or np.isnan(guess).any():
        raise ChainError("A certificate needs one prediction and one true time above zero per pair: leave others out.")
    with np.errstate(invalid="ignore"):
        errors = np.sort(np.where(np.isinf(guess) & np.isinf(truth), 0.0, np.abs(guess - truth) / truth))
    rank = int(binom.ppf(confidence, len(errors), share)) + 1 if len(errors) else 1
    bound = float(errors[rank - 1]) if rank <= len(errors) else math.inf
    return ErrorCertificate(bound, share, confidence, len(errors))
