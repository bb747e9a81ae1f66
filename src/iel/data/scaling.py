"""Columns in other units: observations (x - m) / s, m and s their mean and standard deviation; actions in [-1, 1]."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import Trajectories


class Scaling(NamedTuple):
    """Mean and standard deviation of every observation column."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """(x - m) / s, row by row."""
        return ((observations - self.mean) / self.std).astype(np.float32)


def scaling_of(data: Trajectories) -> Scaling:
    """Mean and standard deviation of the columns; a constant column is measured by its own size.

    (It is 0 after standardising either way, but a large constant times a weight would have to cancel later.)
    """
    size = np.where(data.constant, np.maximum(1.0, np.abs(data.mean)), data.scale.astype(np.float64))
    return Scaling(data.mean, size)


def standardised(data: Trajectories, scaling: Scaling) -> Trajectories:
    """Trajectories with observations (x - m) / s."""
    return Trajectories(scaling(data.observations), data.actions, data.offsets, data.name, signals=data.signals)


def unit_actions(data: Trajectories) -> Trajectories:
    """Trajectories with every action column rescaled to [-1, 1], for logs in other units:

        a = 2 (u - low) / (high - low) - 1,      u = low + (a + 1) (high - low) / 2

    A robot is sent u, made from the policy's a by the second formula (`Signals.in_units`), so low and high are stored
    in the data's `signals`. A constant column becomes 0.
    """
    used = data.actions[data.transitions]
    low, high = used.min(axis=0), used.max(axis=0)
    ends = data.signals.in_units(np.stack([low, high]), "robot" if data.signals.action_low else "unit").tolist()
    flat = high == low
    actions = 2.0 * (data.actions - low) / np.where(flat, 1.0, high - low) - 1.0
    actions = np.where(flat, 0.0, np.clip(actions, -1.0, 1.0)).astype(np.float32)
    actions[data.offsets[1:] - 1] = 0.0
    signals = data.signals.replace(action_low=tuple(ends[0]), action_high=tuple(ends[1]))
    return Trajectories(data.observations, actions, data.offsets, data.name, data.checked, signals=signals)
