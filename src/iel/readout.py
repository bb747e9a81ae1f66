"""Affine readouts by ridge regression: what of a quantity can be read off a table of features?

    min_{W, b}  mean_i || y_i - x_i W - b ||^2 + ridge || S W ||^2

S is the diagonal of the columns' standard deviations, so that the ridge means the same for features of any scale; or
their root mean square times the identity where the columns are coordinates of one space: then directions in which the
inputs do not vary get no weight.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def affine_readout(
    inputs: Floats, targets: Floats, ridge: float = 1e-8, one_space: bool = False
) -> tuple[Floats, Floats]:
    """(W, b) for inputs (n, d) and targets (n, k): (d, k) and (k,)."""
    centre, scale = inputs.mean(axis=0), inputs.std(axis=0)
    if one_space:
        scale = np.full_like(scale, np.sqrt((scale**2).mean()))
    scale = np.where(scale > 0, scale, 1.0)
    table, mean = (inputs - centre) / scale, targets.mean(axis=0)
    gram = table.T @ table / len(table) + ridge * np.eye(table.shape[1])
    weights = np.linalg.solve(gram, table.T @ (targets - mean) / len(table)) / scale[:, None]
    return weights, mean - centre @ weights


def unexplained(missed: Floats, targets: Floats) -> float:
    """1 - R^2: squared errors over the variance of the targets; 0 is perfect, 1 is as good as the mean."""
    dispersion = float(((targets - targets.mean(axis=0)) ** 2).sum())
    return float((missed**2).sum()) / dispersion if dispersion > 0 else 0.0
