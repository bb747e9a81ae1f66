"""The store of logged trajectories: flat arrays and explicit episode offsets.

Layout, for two episodes with three and two transitions (T transitions have T + 1 states):

    row            0    1    2    3  |  4    5    6
    observations   s0   s1   s2   s3 |  s0'  s1'  s2'
    actions        a0   a1   a2   0  |  a0'  a1'  0        the last row of an episode holds no action
    offsets        0                    4                  7      episode e = rows offsets[e] .. offsets[e + 1] - 1

Row i and row i + 1 are a transition unless i is the last row of its episode. Boundaries are given by whoever
builds the store and are never guessed from the numbers. `Rows` is the same as it stands in a file, not yet checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.errors import DataError
from iel.files import notice, writing
from iel.loader import os_errors
from iel.typed import plain_numbers

FloatArray = NDArray[np.float32]
MINIMUM_STEPS = 2
"""An episode of one step has no intermediate state and no goal beyond the next one, so it teaches nothing."""
CONTINUES = 1e-6
"""A next observation this near to the following row's observation is that row."""
BLOCK = 1 << 16
"""Rows that are compared at a time, so that no comparison needs memory of the size of the data."""


class Episode(NamedTuple):
    """One episode: T + 1 observations and T actions, as views into the store."""

    observations: FloatArray
    actions: FloatArray


class Stored(NamedTuple):
    """What is known of rows that stay on the disk (`iel.data.store`), so that nobody reads them all to learn it."""

    path: Path
    fingerprint: str
    mean: NDArray[np.float64]
    scale: FloatArray
    constant: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Immutable logged trajectories. Build one with `from_episodes` or `from_flat`, or open a store on the disk."""

    observations: FloatArray
    """(states, observation size), all episodes one after another."""
    actions: FloatArray
    """(states, action size); rows at episode ends are zero and never read."""
    offsets: NDArray[np.int64]
    """(episodes + 1,) first row of every episode, and the number of rows."""
    name: str = field(default="data")
    """What error messages, tables and pictures call this data set."""
    checked: bool = field(default=False)
    """Whether it was found in order by the checks of `iel data check`, or its maker asked to leave them out."""
    source: Path | None = field(default=None)
    """The file or folder that `iel.load` read it from; None for what was built in memory."""

    stored: Stored | None = field(default=None)
    """Set where observations and actions are maps of files, which were checked when they were written."""

    def __post_init__(self) -> None:
        if self.stored is not None:
            return
        object.__setattr__(self, "observations", _frozen(self.observations, np.float32))
        object.__setattr__(self, "actions", _frozen(self.actions, np.float32))
        object.__setattr__(self, "offsets", _frozen(self.offsets, np.int64))
        check_arrays(self.observations, self.actions, self.offsets, self.name)

    # ---------------------------------------------------------------- building

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[tuple[ArrayLike, ArrayLike]],
        name: str = "data",
        short: Literal["refuse", "drop"] = "refuse",
        trust: bool = False,
    ) -> Trajectories:
        """From a list of (T + 1 observations, T actions); `short="drop"` skips episodes of fewer than two steps.

        What `iel data check` calls an error is refused, and its warnings are printed, unless `trust` says you know.
        """
        tables = [
            (plain_numbers(states, f"{name}, episode {e}"), plain_numbers(controls, f"{name}, episode {e}"))
            for e, (states, controls) in enumerate(episodes)
        ]
        rows = rows_from_episodes(tables, [f"episode {e}" for e in range(len(tables))], name, equal=False)
        return (rows.without_short() if short == "drop" else rows).trajectories(trust)

    @classmethod
    def from_flat(
        cls,
        observations: ArrayLike,
        actions: ArrayLike,
        terminals: ArrayLike,
        name: str = "data",
        trust: bool = False,
    ) -> Trajectories:
        """From flat arrays with T + 1 rows per episode, `terminals` true on the last row of each (OGBench's layout)."""
        states, controls, ends = (plain_numbers(array, name) for array in (observations, actions, terminals))
        return rows_from_ends(states, controls, ends, name).trajectories(trust)

    def save(self, path: Path | str, **facts: ArrayLike) -> Path:
        """Write an npz file in OGBench's layout, whole or not at all; `iel.load` reads it back to the same bits.

        `facts` are kept as further arrays, such as the version of the recipe it was made by; they are not read back.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise DataError(f"{path} must end in .npz; that is the format it is written in.")
        terminals = np.zeros(self.num_states, bool)
        terminals[self.offsets[1:] - 1] = True
        with os_errors(DataError, path, writing=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path) as file:
                tables = {"observations": self.observations, "actions": self.actions, "terminals": terminals}
                further = {name: np.asarray(value) for name, value in facts.items()}
                np.savez_compressed(file, **{**further, **tables})  # type: ignore[arg-type]
        return path

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(e) for e in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"Trajectories({self.name}: {len(self)} episodes, {self.num_transitions} transitions, "
            f"{self.observation_size} observation and {self.action_size} action columns)"
        )

    def episode(self, index: int) -> Episode:
        """Episode `index` as views: nothing is copied."""
        first, last = self.offsets[index], self.offsets[index + 1]
        return Episode(self.observations[first:last], self.actions[first : last - 1])

    def select(self, episodes: ArrayLike, name: str | None = None) -> Trajectories:
        """A new store with only these episodes, in the given order."""
        chosen = [self.episode(int(e)) for e in np.atleast_1d(episodes)]
        return Trajectories.from_episodes(chosen, name or self.name, trust=self.checked)

    def named(self, name: str) -> Trajectories:
        """The same store under another name."""
        return self._labelled(name=name)

    def read_from(self, source: Path) -> Trajectories:
        """The same store, which was read from this file or folder."""
        return self._labelled(source=source)

    def _labelled(self, **labels: Any) -> Trajectories:
        """A copy that shares the arrays and everything that is known of them."""
        labelled = copy(self)
        for field_name, value in labels.items():
            object.__setattr__(labelled, field_name, value)
        return labelled

    def cut(self, rows: ArrayLike) -> Trajectories:
        """A new store without the transitions that leave these rows; pieces of fewer than two steps are left out."""
        cuts = np.setdiff1d(np.asarray(rows, np.int64), self.offsets[1:] - 1)
        if len(cuts) == 0:
            return self
        bounds = np.union1d(self.offsets, cuts + 1)
        keep = np.setdiff1d(np.arange(len(bounds) - 1), short_episodes(bounds))
        if len(keep) == 0:
            raise DataError(f"{self.name}: cut at {len(cuts)} transitions, no piece has two steps; cut less.")
        spans = [(bounds[piece], bounds[piece + 1]) for piece in keep]
        pieces = [(self.observations[first:end], self.actions[first : end - 1]) for first, end in spans]
        return Trajectories.from_episodes(pieces, self.name, trust=self.checked)

    @property
    def observation_size(self) -> int:
        return self.observations.shape[1]

    @property
    def action_size(self) -> int:
        return self.actions.shape[1]

    @property
    def num_states(self) -> int:
        return len(self.observations)

    @property
    def num_transitions(self) -> int:
        return len(self.observations) - len(self)

    @cached_property
    def final(self) -> NDArray[np.int64]:
        """(states,) the last row of each state's own episode."""
        return np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))

    @cached_property
    def transitions(self) -> NDArray[np.int64]:
        """(transitions,) the rows that have an action and a next row."""
        rows = np.arange(self.num_states)
        return rows[rows != self.final]

    @cached_property
    def scale(self) -> FloatArray:
        """(observation size,) standard deviation of every column, 1 where a column is constant."""
        if self.stored is not None:
            return self.stored.scale
        spread = self.observations.std(axis=0, dtype=np.float64)
        return usable_scale(spread)

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """(observation size,) mean of every column."""
        return self.observations.mean(0, dtype=np.float64) if self.stored is None else self.stored.mean

    @cached_property
    def constant(self) -> NDArray[np.bool_]:
        """(observation size,) whether a column never changes."""
        return np.ptp(self.observations, axis=0) == 0 if self.stored is None else self.stored.constant

    @cached_property
    def position_columns(self) -> tuple[int, ...]:
        """The columns that tell the position (`iel.data.slowness`); none where nothing separates it from the pose."""
        from iel.data.slowness import position_columns

        return position_columns(self)

    def require_position(self) -> tuple[int, ...]:
        """The columns that tell the position; refused, with the reason, where there are none."""
        from iel.data.slowness import place_columns

        return self.position_columns or tuple(place_columns(self))

    @cached_property
    def jumps(self) -> NDArray[np.int64]:
        """Rows from which the position jumps to the next (`iel.data.jumps`)."""
        from iel.data.jumps import jump_rows

        return jump_rows(self, list(self.position_columns))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over shapes and contents: two stores with one fingerprint train the same model."""
        if self.stored is not None:
            return self.stored.fingerprint
        return fingerprint_of(self.observations, self.actions, self.offsets)


def fingerprint_of(*arrays: Any) -> str:
    """sha256 over shapes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        for start in range(0, len(array), BLOCK):
            digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
    return digest.hexdigest()


def usable_scale(spread: NDArray[np.float64]) -> FloatArray:
    """Standard deviations, 1 where a column is constant."""
    return np.where(spread > 1e-8, spread, 1.0).astype(np.float32)


def _frozen(array: ArrayLike, dtype: type) -> NDArray:
    """A read-only array of this type; the caller's own array is never made read-only."""
    with np.errstate(over="ignore"):  # a number too large for the type becomes infinite, which the checks refuse
        view: NDArray = np.asarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view


# ----------------------------------------------------------------------------------- rows, as they stand in a file


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


# ---------------------------------------------------------------------------------------------- what is always refused


def short_episodes(offsets: NDArray) -> NDArray:
    """Indices of the episodes with fewer than two transitions."""
    return np.flatnonzero(np.diff(offsets) < MINIMUM_STEPS + 1)


def check_offsets(offsets: NDArray, states: int, name: str) -> None:
    """Refuse boundaries that do not divide the states into episodes of two steps and more."""
    if offsets[0] != 0 or offsets[-1] != states or np.any(np.diff(offsets) <= 0):
        raise DataError(f"{name}: episode offsets must rise from 0 to the number of states, {states}.")
    short = short_episodes(offsets)
    if len(short):
        steps = int(offsets[short[0] + 1] - offsets[short[0]] - 1)
        raise DataError(
            f"{name}, episode {short[0]}: {steps} step{'s' if steps != 1 else ''}, but an episode needs at least "
            f"{MINIMUM_STEPS} ({len(short)} such episode{'s' if len(short) != 1 else ''}); remove them, "
            'or build the data with short="drop".'
        )


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
    check_offsets(offsets, len(observations), name)
    for kind, array in (("observation", observations), ("action", actions)):
        rows, columns = non_finite(array)
        if len(rows):
            episode = int(np.searchsorted(offsets, rows[0], side="right") - 1)
            raise DataError(
                f"{name}, episode {episode}, step {rows[0] - offsets[episode]}, {kind} column {columns[0]}: the value "
                f"is {array[rows[0], columns[0]]} ({len(rows)} non-finite values in all); correct or drop them."
            )


def non_finite(table: NDArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows, columns) of all entries that are not finite."""
    # A sum is finite only if every entry is: one fast pass in the usual case, the search only when it fails.
    if np.isfinite(table.sum(dtype=np.float64)):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    rows, columns = np.nonzero(~np.isfinite(table))
    return rows, columns
