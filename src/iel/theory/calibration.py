"""The measuring instruments of an audit: latent dynamics, undiscounting, calibration, order.

Each is a plain function of arrays; `audit.py` points them at a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from iel.errors import ChainError
from iel.theory.operators import spectral_radius


def undiscounted_steps(values: np.ndarray, discount: float) -> np.ndarray:
    """H = log(1 - (1 - gamma) h) / log(gamma) for discounted times h = (1 - gamma^H) / (1 - gamma).

    Discounting saturates at 1 / (1 - gamma); a prediction at or beyond that is an infinite number of steps.
    """
    if not 0.0 < discount < 1.0:
        raise ChainError(f"The discount is {discount}: choose a number strictly between 0 and 1.")
    left = 1.0 - (1.0 - discount) * np.asarray(values, dtype=np.float64)
    steps = np.full(left.shape, np.inf)
    np.log(left, out=steps, where=left > 0)
    return np.where(left > 0, steps / math.log(discount), np.inf)


def discounted_steps(steps: np.ndarray, discount: float) -> np.ndarray:
    """h = (1 - gamma^H) / (1 - gamma), the discounted hitting time of H steps."""
    return (1.0 - discount ** np.asarray(steps, dtype=np.float64)) / (1.0 - discount)


@dataclass(frozen=True)
class LatentDynamics:
    """phi' ~ A phi + B a + c, fitted by ridge, judged on episodes it has not seen."""

    state_matrix: np.ndarray
    action_matrix: np.ndarray
    offset: np.ndarray
    errors: np.ndarray
    """epsilon of every held-out step."""
    step_size: float
    """Median length of one latent step, the natural unit of epsilon."""

    @property
    def spectral_radius(self) -> float:
        return spectral_radius(self.state_matrix)

    @property
    def horizon_factor(self) -> float:
        radius = self.spectral_radius
        return 1.0 / (1.0 - radius) if radius < 1.0 else math.inf

    def epsilon(self, quantile: float) -> float:
        return float(np.quantile(self.errors, quantile))


def fit_latent_dynamics(
    embeddings: np.ndarray, actions: np.ndarray, offsets: np.ndarray, held_out: np.ndarray, ridge: float = 1e-6
) -> LatentDynamics:
    """Ridge regression of the next embedding on embedding and action; `held_out` is a mask over episodes.

    Columns are centred and scaled first, so that `ridge` has no unit: it is relative to the number of steps.
    """
    now = step_rows(offsets)
    episode = np.searchsorted(offsets, now, side="right") - 1
    test = held_out[episode]
    if not test.any() or test.all():
        raise ChainError(
            "The audit needs episodes to fit and episodes to test on: pass at least two episodes with steps."
        )
    inputs = np.hstack([embeddings[now], actions[now]])
    targets = embeddings[now + 1]
    centre, scale = inputs[~test].mean(axis=0), inputs[~test].std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    table = (inputs[~test] - centre) / scale
    gram = table.T @ table / len(table) + ridge * np.eye(table.shape[1])
    mean = targets[~test].mean(axis=0)
    weights = np.linalg.solve(gram, table.T @ (targets[~test] - mean) / len(table)).T / scale
    constant = mean - weights @ centre
    errors = np.linalg.norm(targets[test] - inputs[test] @ weights.T - constant, axis=1)
    size = float(np.median(np.linalg.norm(targets[test] - embeddings[now[test]], axis=1)))
    width = embeddings.shape[1]
    return LatentDynamics(weights[:, :width], weights[:, width:], constant, errors, size)


def step_rows(offsets: np.ndarray) -> np.ndarray:
    """Rows that have a successor in the same episode."""
    last = np.zeros(offsets[-1], dtype=bool)
    last[offsets[1:] - 1] = True
    return np.flatnonzero(~last)


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions for pairs whose reference distance lies in (low, high]."""

    low: float
    high: float
    farthest: float
    """Largest reference distance in the bin."""
    count: int
    reference: float
    """Mean reference distance in the bin."""
    predicted_low: float
    predicted_median: float
    predicted_high: float
    above: float
    """Share of predictions larger than the reference."""
    order: float
    """Probability that a pair of this bin is predicted farther than one of the bin before (half as far); NaN first."""


def calibration_table(reference: np.ndarray, predicted: np.ndarray, least: int = 20) -> list[CalibrationBin]:
    """Doubling bins (0, 1], (1, 2], (2, 4], ...; bins with fewer than `least` pairs end the table."""
    table: list[CalibrationBin] = []
    before: np.ndarray | None = None
    low, high = 0.0, 1.0
    farthest = float(reference[np.isfinite(reference)].max(initial=0.0))
    while low < farthest:
        inside = (reference > low) & (reference <= high)
        if inside.sum() >= least:
            values = predicted[inside]
            order = math.nan if before is None else _ranked_above(values, before)
            quantiles = [_order_statistic(values, q) for q in (0.1, 0.5, 0.9)]
            above = float((values > reference[inside] * (1 + 1e-9)).mean())
            table.append(
                CalibrationBin(
                    low=low,
                    high=high,
                    farthest=float(reference[inside].max()),
                    count=int(inside.sum()),
                    reference=float(reference[inside].mean()),
                    predicted_low=quantiles[0],
                    predicted_median=quantiles[1],
                    predicted_high=quantiles[2],
                    above=above,
                    order=order,
                )
            )
            before = values
        elif table:
            break
        low, high = high, 2.0 * high
    return table


def trusted_horizon(table: list[CalibrationBin], confidence: float = 0.7) -> float:
    """The farthest pair of the last bin before the order of neighbouring bins drops below `confidence`; 0 if none."""
    horizon = 0.0
    for row in table[1:]:
        if not row.order >= confidence:
            break
        horizon = row.farthest
    return horizon


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation; infinite values rank last, NaN is refused."""
    if np.isnan(first).any() or np.isnan(second).any():
        raise ChainError("Predictions or reference times contain NaN: mend the model before auditing it.")
    x, y = rankdata(first), rankdata(second)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _ranked_above(values: np.ndarray, before: np.ndarray) -> float:
    """P(a random element of `values` exceeds one of `before`), ties counting half."""
    ranks = rankdata(np.concatenate([values, before]))
    return float((ranks[: len(values)].sum() - len(values) * (len(values) + 1) / 2) / (len(values) * len(before)))


def _order_statistic(values: np.ndarray, quantile: float) -> float:
    """A quantile that is one of the values, so that infinities do not turn into NaN."""
    return float(np.sort(values)[round(quantile * (len(values) - 1))])
