"""Refuses arrays nobody can train on, with the place: episode, step, column, and what to do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iel.errors import DataError

MINIMUM_STEPS = 2
"""An episode of one step has no intermediate state and no goal beyond the next one, so it teaches nothing."""


def short_episodes(offsets: NDArray) -> NDArray:
    """Indices of the episodes with fewer than two transitions."""
    return np.flatnonzero(np.diff(offsets) < MINIMUM_STEPS + 1)


def check_arrays(observations: NDArray, actions: NDArray, offsets: NDArray, name: str) -> None:
    """Refuse arrays nobody can train on. Cheap: two passes over the data, no copies."""
    for kind, array in (("observations", observations), ("actions", actions)):
        if array.ndim != 2 or array.shape[1] == 0:
            raise DataError(f"{name}: {kind} must be a table (states, columns), but the shape is {array.shape}.")
    if offsets.ndim != 1 or len(offsets) < 2 or len(observations) == 0:
        raise DataError(f"{name} has no episodes; give at least one with two or more steps.")
    if len(actions) != len(observations):
        raise DataError(
            f"{name}: {len(actions)} rows of actions do not fit {len(observations)} states; "
            "the store keeps one action row per state, unused at episode ends."
        )
    if offsets[0] != 0 or offsets[-1] != len(observations) or np.any(np.diff(offsets) <= 0):
        raise DataError(f"{name}: episode offsets must rise from 0 to the number of states, {len(observations)}.")
    short = short_episodes(offsets)
    if len(short):
        steps = int(offsets[short[0] + 1] - offsets[short[0]] - 1)
        raise DataError(
            f"{name}, episode {short[0]}: {steps} step{'s' if steps != 1 else ''}, but an episode needs at least "
            f"{MINIMUM_STEPS} ({len(short)} such episode{'s' if len(short) != 1 else ''}); remove them, "
            'or build the data with short="drop".'
        )
    for kind, array in (("observation", observations), ("action", actions)):
        _check_finite(kind, array, offsets, name)


def _check_finite(kind: str, array: NDArray, offsets: NDArray, name: str) -> None:
    # A sum is finite only if every entry is: one fast pass in the usual case, the search only when it fails.
    if np.isfinite(array.sum(dtype=np.float64)):
        return
    rows, columns = np.nonzero(~np.isfinite(array))
    if len(rows) == 0:
        return
    episode = int(np.searchsorted(offsets, rows[0], side="right") - 1)
    raise DataError(
        f"{name}, episode {episode}, step {rows[0] - offsets[episode]}, {kind} column {columns[0]}: "
        f"the value is {array[rows[0], columns[0]]} ({len(rows)} non-finite values in all); mend or drop them."
    )
