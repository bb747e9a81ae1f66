"""Standardised observations: x~ = (x - m) / s with m and s the mean and standard deviation of every column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import Trajectories


class Scaling(NamedTuple):
    """Mean and standard deviation of every observation column."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """(x - m) / s, row by row."""
        return ((observations - self.mean) / self.spread).astype(np.float32)


def scaling_of(data: Trajectories) -> Scaling:
    """Mean and standard deviation of the columns; a constant column is measured by its own size.

    (It is 0 after standardising either way, but a large constant times a weight would have to cancel later.)
    """
    size = np.where(data.constant, np.maximum(1.0, np.abs(data.mean)), data.scale.astype(np.float64))
    return Scaling(data.mean, size)


def standardised(data: Trajectories, scaling: Scaling) -> Trajectories:
    """The same trajectories with observations (x - m) / s."""
    return Trajectories(scaling(data.observations), data.actions, data.offsets, data.name)
