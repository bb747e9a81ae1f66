"""Actions in other units than [-1, 1]: stretched for policies, and back for the robot."""

from __future__ import annotations

import numpy as np

from iel.data.trajectories import FloatArray, Trajectories


def unit_actions(data: Trajectories) -> tuple[Trajectories, FloatArray, FloatArray]:
    """(the same data with every action column stretched to [-1, 1], lowest, highest), for logs in other units:

        a = 2 (u - low) / (high - low) - 1,      u = low + (a + 1) (high - low) / 2

    A robot is sent u, made from the policy's a by the second formula. A constant column becomes 0.
    """
    used = data.actions[data.transitions]
    low, high = used.min(axis=0), used.max(axis=0)
    flat = high == low
    actions = 2.0 * (data.actions - low) / np.where(flat, 1.0, high - low) - 1.0
    actions = np.where(flat, 0.0, np.clip(actions, -1.0, 1.0)).astype(np.float32)
    actions[data.offsets[1:] - 1] = 0.0
    return Trajectories(data.observations, actions, data.offsets, data.name, data.checked), low, high
