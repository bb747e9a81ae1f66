"""Affine readouts by ridge regression: what of a quantity can be read off a table of features?

    min_{W, b}  mean_i || y_i - x_i W - b ||^2 + ridge || S W ||^2,      S = diag(standard deviations of the columns)

Columns are standardised for the fit, so the ridge means the same for features of any scale, and the answer is given for
the columns as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def affine_readout(inputs: Floats, targets: Floats, ridge: float = 1e-8) -> tuple[Floats, Floats]:
    """(W, b) for inputs (n, d) and targets (n, k): (d, k) and (k,)."""
    centre, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    table, mean = (inputs - centre) / scale, targets.mean(axis=0)
    gram = table.T @ table / len(table) + ridge * np.eye(table.shape[1])
    weights = np.linalg.solve(gram, table.T @ (targets - mean) / len(table)) / scale[:, None]
    return weights, mean - centre @ weights


def unexplained(missed: Floats, targets: Floats) -> float:
    """1 - R^2: squared errors over the squared spread of the targets; 0 is perfect, 1 is as good as the mean."""
    spread = float(((targets - targets.mean(axis=0)) ** 2).sum())
    return float((missed**2).sum()) / spread if spread > 0 else 0.0
