"""Statistics of success rates, reproducible from a seed. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 10_000


def bootstrap_interval(
    strata: Sequence[ArrayLike], level: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Stratified percentile bootstrap of the mean of stratum means.

    Each stratum (a task, or a task of one training seed) is resampled with replacement on its own:

        m* = mean_k mean(x_k*),   interval = quantiles (1 - level)/2 and (1 + level)/2 of m*
    """
    rng = np.random.default_rng(seed)
    means = np.zeros(resamples)
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        means += values[rng.integers(len(values), size=(resamples, len(values)))].mean(1)
    low, high = np.quantile(means / len(strata), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
