"""The store of logged trajectories: flat arrays and explicit episode offsets.

Layout, for two episodes with three and two transitions (T transitions have T + 1 states):

    row            0    1    2    3  |  4    5    6
    observations   s0   s1   s2   s3 |  s0'  s1'  s2'
    actions        a0   a1   a2   0  |  a0'  a1'  0        the last row of an episode holds no action
    offsets        0                    4                  7      episode e = rows offsets[e] .. offsets[e + 1] - 1

Row i and row i + 1 are a transition unless i is the last row of its episode. Boundaries are given by whoever
builds the store and are never guessed from the numbers. `iel.data.rows` is the same as it stands in a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.errors import DataError
from iel.files import writing
from iel.loader import os_errors
from iel.typed import plain_numbers

FloatArray = NDArray[np.float32]
MINIMUM_STEPS = 2
"""An episode of one step has no intermediate state and no goal beyond the next one, so it teaches nothing."""
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
        from iel.data.rows import rows_from_episodes

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
        from iel.data.rows import rows_from_ends

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
