"""What a reader hands over: rows and boundaries as they stand in the file, not yet checked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.check import short_episodes
from iel.data.trajectories import Trajectories
from iel.errors import DataError

log = logging.getLogger("iel")
CONTINUES = 1e-6
"""A next observation this near to the following row's observation is that row."""


class Rows(NamedTuple):
    """One row a state; the action of an episode's last row is not read. `iel data check` looks at rows as they are."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    offsets: NDArray[np.int64]
    name: str

    def trajectories(self) -> Trajectories:
        """The checked, immutable store."""
        actions = np.array(self.actions, np.float32)
        if actions.ndim == 2 and len(actions) == len(self.observations) and len(self.offsets) > 1:
            actions[self.offsets[1:] - 1] = 0.0
        return Trajectories(self.observations, actions, self.offsets, self.name)

    def without_short(self) -> Rows:
        """Without episodes of fewer than two steps, which the public files contain; the log says how many."""
        short = short_episodes(self.offsets)
        if len(short) == 0 or len(short) == len(self.offsets) - 1:
            return self
        log.warning("%s: %d episodes of fewer than two steps left out.", self.name, len(short))
        lengths = np.diff(self.offsets)
        keep = ~np.isin(np.arange(len(lengths)), short)
        rows = np.repeat(keep, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths[keep])])
        return Rows(self.observations[rows], self.actions[rows], offsets, self.name)


def rows_from_ends(observations: NDArray, actions: NDArray, ends: ArrayLike, name: str) -> Rows:
    """From flat arrays and a flag a row, true on the last row of every episode."""
    flags = check_table(observations, actions, ends, name)
    if len(flags) and not flags[-1]:
        raise DataError(f"{name}: the last row is not marked terminal, so the file is cut off or has no boundaries.")
    return Rows(observations, actions, np.concatenate([[0], np.flatnonzero(flags) + 1]), name)


def rows_from_pairs(
    observations: NDArray, actions: NDArray, following: NDArray, ends: ArrayLike | None, name: str
) -> Rows:
    """From transitions (s, a, s'): an episode ends where s' is not the next row's s, or where it is said to end.

    Every episode gets one row more than it has transitions: its last s'.
    """
    flags = check_table(observations, actions, np.zeros(len(observations)) if ends is None else ends, name)
    if following.shape != observations.shape:
        raise DataError(
            f"{name}: next_observations have the shape {following.shape}, observations {observations.shape}; "
            "they must be equal."
        )
    if len(observations) == 0:
        return Rows(observations, actions, np.zeros(1, np.int64), name)
    # Not `distance > CONTINUES`: a NaN is no continuation either.
    flags = flags | np.append(~(np.abs(observations[1:] - following[:-1]).max(1) <= CONTINUES), True)
    last = np.flatnonzero(flags)
    # Where row i of the transitions goes: one place further for every episode that ended before it.
    place = np.arange(len(flags)) + np.concatenate([[0], np.cumsum(flags)[:-1]])
    states = np.empty((len(flags) + len(last), observations.shape[1]), observations.dtype)
    controls = np.zeros((len(states), actions.shape[1]), actions.dtype)
    states[place], controls[place] = observations, actions
    states[place[last] + 1] = following[last]
    return Rows(states, controls, np.concatenate([[0], place[last] + 2]), name)


def rows_from_episodes(episodes: Sequence[tuple[NDArray, NDArray]], names: Sequence[str], name: str) -> Rows:
    """From (observations, actions) of every episode, with T + 1 or T observations for T actions."""
    if not episodes:
        raise DataError(f"{name} has no episodes; give at least one with two or more steps.")
    widths = None
    for (states, controls), label in zip(episodes, names, strict=True):
        if states.ndim != 2 or controls.ndim != 2:
            raise DataError(
                f"{name}, {label}: observations and actions must be tables (steps, columns), but have the shapes "
                f"{states.shape} and {controls.shape}; reshape them."
            )
        if len(states) - len(controls) not in (0, 1):
            raise DataError(
                f"{name}, {label}: {len(states)} observations do not fit {len(controls)} actions; "
                "an episode of T actions has T + 1 observations."
            )
        widths = widths or (states.shape[1], controls.shape[1])
        if (states.shape[1], controls.shape[1]) != widths:
            raise DataError(
                f"{name}, {label}: {states.shape[1]} observation and {controls.shape[1]} action columns, but "
                f"{names[0]} has {widths[0]} and {widths[1]}; all episodes must agree."
            )
    offsets = np.concatenate([[0], np.cumsum([len(states) for states, _ in episodes])])
    observations = np.concatenate([states for states, _ in episodes])
    actions = np.zeros((len(observations), episodes[0][1].shape[1]), np.result_type(*(a.dtype for _, a in episodes)))
    for (_, controls), first in zip(episodes, offsets, strict=False):
        actions[first : first + len(controls)] = controls
    return Rows(observations, actions, offsets, name)


def check_table(observations: NDArray, actions: NDArray, ends: ArrayLike, name: str) -> NDArray[np.bool_]:
    """The flags as bools, after the arrays have been found to be tables of equally many rows."""
    flags = np.asarray(ends)
    if flags.ndim == 2 and flags.shape[1] == 1:
        flags = flags[:, 0]
    for kind, array in (("observations", observations), ("actions", actions)):
        if array.ndim != 2 or array.shape[1] == 0:
            raise DataError(f"{name}: {kind} must be a table (rows, columns), but the shape is {array.shape}; reshape.")
    if flags.ndim != 1 or not len(observations) == len(actions) == len(flags):
        raise DataError(
            f"{name}: observations, actions and terminals have {len(observations)}, {len(actions)} and "
            f"{flags.shape[0] if flags.ndim else 0} rows; they must have equally many."
        )
    if flags.dtype != bool and not np.isin(flags, (0, 1)).all():
        raise DataError(f"{name}: an end-of-episode flag is neither 0 nor 1; give flags, not positions.")
    return flags.astype(bool)
