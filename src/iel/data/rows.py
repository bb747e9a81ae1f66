"""Rows as they stand in a file, not yet checked, and how the layouts of files become rows.

rows_from_ends        flat arrays with flags on last rows
rows_from_pairs       transitions (s, a, s')
rows_from_episodes    one pair of arrays per episode
whole_episodes        any of these, a piece of the file at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.trajectories import BLOCK, Trajectories, short_episodes
from iel.errors import DataError
from iel.files import notice

CONTINUES = 1e-6
"""A next observation this near to the following row's observation is that row."""


class Rows(NamedTuple):
    """One row per state; the action of an episode's last row is not read. `iel data check` sees rows as they are."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    offsets: NDArray[np.int64]
    name: str

    def trajectories(self, trust: bool = False) -> Trajectories:
        """The immutable store. Without `trust`, what `iel data check` calls an error is refused."""
        from iel.data.examine import judge

        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
            actions = np.array(self.actions, np.float32)
        if actions.ndim == 2 and len(actions) == len(self.observations) and len(self.offsets) > 1:
            actions[self.offsets[1:] - 1] = 0.0
        data = Trajectories(self.observations, actions, self.offsets, self.name, checked=trust)
        judge(data)
        return data

    @property
    def jumps(self) -> NDArray[np.int64]:
        """Rows from which the position jumps to the next; none where a number is not finite."""
        from iel.data.jumps import jump_rows

        return jump_rows(self) if np.isfinite(self.observations).all() else np.zeros(0, np.int64)

    def without_short(self) -> Rows:
        """Without episodes of fewer than two steps, which the public files contain; a notice says how many."""
        short = short_episodes(self.offsets)
        if len(short) == 0 or len(short) == len(self.offsets) - 1:
            return self
        notice(f"{self.name}: {len(short)} episodes of fewer than two steps left out.")
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
    flags = flags | breaks(observations, following)
    last = np.flatnonzero(flags)
    # Where row i of the transitions goes: one place further for every episode that ended before it.
    place = np.arange(len(flags)) + np.concatenate([[0], np.cumsum(flags)[:-1]])
    states = np.empty((len(flags) + len(last), observations.shape[1]), np.float32)
    controls = np.zeros((len(states), actions.shape[1]), np.float32)
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
        states[place], controls[place] = observations, actions
        states[place[last] + 1] = following[last]
    return Rows(states, controls, np.concatenate([[0], place[last] + 2]), name)


def whole_episodes(
    pieces: Iterable[tuple[dict[str, NDArray], bool]], ends: Callable[[dict[str, NDArray]], NDArray], peek: bool
) -> Iterator[dict[str, NDArray]]:
    """Consecutive rows of arrays, given in pieces, as pieces that end where episodes do; what is left over is carried.

    `ends` tells the last rows. With `peek` it needs the next row for that, so the last row of a piece is not believed
    until the next piece, or the end (a true second value), has come.
    """
    carried: dict[str, NDArray] = {}
    for piece, last in pieces:
        arrays = {name: np.concatenate([carried[name], rows]) if carried else rows for name, rows in piece.items()}
        flags = np.asarray(ends(arrays)).reshape(-1) != 0
        usable = flags[:-1] if peek and not last else flags
        stop = len(flags) if last else int(np.flatnonzero(usable)[-1]) + 1 if usable.any() else 0
        if stop:
            yield {name: rows[:stop] for name, rows in arrays.items()}
        carried = {name: rows[stop:] for name, rows in arrays.items()}


def rows_from_episodes(
    episodes: Sequence[tuple[NDArray, NDArray]], names: Sequence[str], name: str, equal: bool = True
) -> Rows:
    """From (observations, actions) of every episode, T + 1 (or, if `equal`, also T) observations for T actions."""
    if not episodes:
        raise DataError(f"{name} has no episodes; give at least one with two or more steps.")
    widths = None
    for (states, controls), label in zip(episodes, names, strict=True):
        for kind, array in (("observations", states), ("actions", controls)):
            if array.ndim != 2:
                raise DataError(not_a_table(f"{name}, {label}", kind, array))
        if len(states) - len(controls) not in ((0, 1) if equal else (1,)):
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
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
        observations = np.concatenate([np.asarray(states, np.float32) for states, _ in episodes])
        actions = np.zeros((len(observations), episodes[0][1].shape[1]), np.float32)
        for (_, controls), first in zip(episodes, offsets, strict=False):
            actions[first : first + len(controls)] = controls
    return Rows(observations, actions, offsets, name)


def check_table(observations: NDArray, actions: NDArray, ends: ArrayLike, name: str) -> NDArray[np.bool_]:
    """The flags as bools, after the arrays have been found to be tables of equally many rows."""
    flags = np.asarray(ends)
    for kind, array in (("observations", observations), ("actions", actions)):
        if array.ndim != 2 or array.shape[1] == 0:
            raise DataError(not_a_table(name, kind, array))
    if flags.ndim == 2 and flags.shape[1] == 1:
        flags = flags[:, 0]
    if flags.ndim != 1 or not len(observations) == len(actions) == len(flags):
        raise DataError(
            f"{name}: observations, actions and terminals have {len(observations)}, {len(actions)} and "
            f"{flags.shape[0] if flags.ndim else 0} rows; they must have equally many."
        )
    return check_flags(flags, name)


def not_a_table(place: str, kind: str, array: NDArray) -> str:
    """The sentence about observations or actions that are no table (steps, columns)."""
    if array.ndim > 2:
        remedy = "pictures and other arrays per step are not supported, so turn each step into a row of numbers first"
    elif kind == "actions" and array.ndim == 1 and array.dtype.kind in "iub":
        remedy = "numbered (discrete) actions are not supported, only real numbers within [-1, 1]"
    else:
        remedy = "give one row per step (a single column is array[:, None])"
    return f"{place}: {kind} must be a table (steps, columns), but have the shape {array.shape}; {remedy}."


def check_flags(flags: NDArray, name: str) -> NDArray[np.bool_]:
    """End-of-episode flags as bools; whatever is neither 0 nor 1 is refused."""
    if flags.dtype != bool and not ((flags == 0) | (flags == 1)).all():
        raise DataError(f"{name}: an end-of-episode flag is neither 0 nor 1; give flags, not positions.")
    return flags.astype(bool)


def misspelt(present: Iterable[str], known: Sequence[str], source: str) -> None:
    """Refuse a name that is nearly one of those that say where episodes end: a damaged one would glue them together."""
    names = set(present)
    absent = [name for name in known if name not in names]
    for name in sorted(names - set(known)):
        for near in absent:
            damaged = len(name) == len(near) and sum(a != b for a, b in zip(name, near, strict=True)) <= 2
            if damaged or name in (near[:-1], near + "s"):
                raise DataError(f"{source} holds '{name}' and no {near}; rename it to {near}, or remove it.")


def breaks(observations: NDArray, following: NDArray) -> NDArray[np.bool_]:
    """Whether the transition of each row is not continued by the next row; a NaN is no continuation."""
    broken = np.ones(len(observations), bool)
    with np.errstate(all="ignore"):
        for start in range(0, len(observations) - 1, BLOCK):
            here = slice(start, min(start + BLOCK, len(observations) - 1))
            after = np.asarray(observations[start + 1 : here.stop + 1], np.float64)
            broken[here] = ~(np.abs(after - np.asarray(following[here], np.float64)).max(1) <= CONTINUES)
    return broken
