"""Logged trajectories: flat arrays and explicit episode offsets.

Layout, for two episodes with three and two transitions (T transitions have T + 1 states):

    row            0    1    2    3  |  4    5    6
    observations   s0   s1   s2   s3 |  s0'  s1'  s2'
    actions        a0   a1   a2   0  |  a0'  a1'  0        the last row of an episode holds no action
    offsets        0                    4                  7      episode e = rows offsets[e] .. offsets[e + 1] - 1

Row i and row i + 1 are a transition unless i is the last row of its episode. Boundaries are given, never guessed from
the numbers.

`Rows` have this layout too and are not checked yet. Layouts of files become rows by

    rows_from_ends        flat arrays with flags on last rows
    rows_from_pairs       transitions (s, a, s')
    rows_in_windows       either, a piece of the file at a time
    rows_from_episodes    one pair of arrays per episode
    episodes_in_windows   some episodes at a time
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.distances import plain_numbers
from iel.errors import DataError
from iel.files import notice, writing
from iel.loader import JSON_BYTES, check_budget, os_errors, parse_json, read_limited
from iel.signals import UNNAMED, Kind, Signals
from iel.typed import as_struct

if TYPE_CHECKING:
    from iel.data.store import RowReader

FloatArray = NDArray[np.float32]
Piece = dict[str, NDArray]
"""Some rows of the arrays of a file, by their names."""
MINIMUM_STEPS = 2
"""An episode of one step has no intermediate state and no goal beyond the next one, so it teaches nothing."""
SIGNALS = "signals.json"
"""The array of an npz file that holds `Trajectories.signals`."""
SIGNALS_FILE = "iel.json"
"""The file that holds them in the directories that `iel.data.writers` makes."""
BLOCK = 1 << 16
"""Rows that are compared at a time, so that no comparison needs memory of the size of the data."""
CONTINUES = 1e-6
"""A next observation this near to the following row's observation is that row."""


class Episode(NamedTuple):
    """One episode: T + 1 observations and T actions, as views into the store."""

    observations: FloatArray
    actions: FloatArray


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Immutable logged trajectories. Build one with `from_episodes` or `from_flat`, or open a store on the disk."""

    observations: FloatArray
    """(states, observation size), all episodes one after another."""
    actions: FloatArray
    """(states, action size); rows at episode ends are zero and never read."""
    offsets: NDArray[np.int64]
    """(episodes + 1,) first row of every episode, and the number of rows."""
    name: str = "data"
    """Name of the data set in errors, tables and pictures."""
    checked: bool = False
    """Whether the checks of `iel data check` passed, or were left out on request."""
    source: Path | None = None
    """The file or folder that `iel.load` read it from; None for what was built in memory."""
    stored: Path | None = None
    """The store on the disk that observations and actions are maps of; its rows were checked when it was written."""
    signals: Signals = UNNAMED
    """Names, units and ranges of the columns and the recording rate, as far as they are known."""

    def __post_init__(self) -> None:
        if self.stored is not None:
            return
        self._set(
            observations=_frozen(self.observations, np.float32),
            actions=_frozen(self.actions, np.float32),
            offsets=_frozen(self.offsets, np.int64),
        )
        check_tables(self.observations, self.actions, self.name)
        self.signals.require(self.observation_size, self.action_size, self.name, DataError)
        if self.offsets.ndim != 1 or len(self.offsets) < 2 or len(self.observations) == 0:
            raise DataError(f"{self.name} has no episodes; give at least one with two or more steps.")
        check_offsets(self.offsets, len(self.observations), self.name)
        tables: tuple[tuple[Kind, FloatArray], ...] = ("observation", self.observations), ("action", self.actions)
        for kind, array in tables:
            rows, columns = non_finite(array)
            if len(rows):
                row, column = int(rows[0]), int(columns[0])
                episode = int(np.searchsorted(self.offsets, row, side="right") - 1)
                raise DataError(
                    f"{self.name}, episode {episode}, step {row - self.offsets[episode]}, "
                    f"{self.signals.label(column, kind)}: the value is {array[row, column]} ({len(rows)} non-finite "
                    "values in all); correct or drop them."
                )

    def _set(self, **values: object) -> Trajectories:
        """Fields, or cached facts, of a new object; nothing changes later."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        return self

    # ---------------------------------------------------------------- building

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[tuple[ArrayLike, ArrayLike]],
        name: str = "data",
        short: Literal["refuse", "drop"] = "refuse",
        trust: bool = False,
    ) -> Trajectories:
        """Trajectories of a list of (T + 1 observations, T actions), each a table (steps, columns).

        Episodes of fewer than two steps are refused, or left out with `short="drop"`. What `iel data check` calls an
        error raises DataError and its warnings are printed, unless `trust` is true.
        """
        tables = []
        for e, (states, controls) in enumerate(episodes):
            where = f"{name}, episode {e}"
            tables.append((f"episode {e}", plain_numbers(states, where), plain_numbers(controls, where)))
        rows = rows_from_episodes(tables, name, equal=False)
        return (rows.without_short() if short == "drop" else rows).trajectories(trust)

    @classmethod
    def from_flat(
        cls, observations: ArrayLike, actions: ArrayLike, terminals: ArrayLike, name: str = "data", trust: bool = False
    ) -> Trajectories:
        """Trajectories of flat arrays with T + 1 rows per episode; `terminals` is true on the last row of each."""
        states, controls, ends = (plain_numbers(array, name) for array in (observations, actions, terminals))
        return rows_from_ends(states, controls, ends, name).trajectories(trust)

    def save(self, path: Path | str, **facts: ArrayLike) -> Path:
        """Write an npz file in OGBench's layout, whole or not at all; `iel.load` reads it back to the same bits.

        `signals` are written as JSON in an array of bytes, `facts` as further arrays, which are not read back.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise DataError(f"{path} must end in .npz; that is the format it is written in.")
        terminals = np.zeros(self.num_states, bool)
        terminals[self.offsets[1:] - 1] = True
        with os_errors(DataError, path, writing=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.signals != UNNAMED:
                facts[SIGNALS] = np.frombuffer(msgspec.json.encode(self.signals), np.uint8)
            facts |= {"observations": self.observations, "actions": self.actions, "terminals": terminals}
            with writing(path) as file:
                np.savez_compressed(file, **{name: np.asarray(value) for name, value in facts.items()})  # type: ignore[arg-type]
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
        return Trajectories.from_episodes(chosen, name or self.name, trust=self.checked)._set(signals=self.signals)

    def named(self, name: str) -> Trajectories:
        """These trajectories under another name."""
        return copy(self)._set(name=name)

    def described(self, **changes: Any) -> Trajectories:
        """These trajectories with other entries of `signals`: `data.described(units={"x": "m"}, rate=10.0)`."""
        signals = self.signals.replace(**changes)
        return copy(self)._set(signals=signals.require(self.observation_size, self.action_size, self.name, DataError))

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
        return Trajectories.from_episodes(pieces, self.name, trust=self.checked)._set(signals=self.signals)

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

    # The next four are in the manifest of a store, and `open_store` sets them.

    @cached_property
    def scale(self) -> FloatArray:
        """(observation size,) standard deviation of every column, 1 where a column is constant."""
        return usable_scale(self.observations.std(axis=0, dtype=np.float64))

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """(observation size,) mean of every column."""
        return self.observations.mean(0, dtype=np.float64)

    @cached_property
    def constant(self) -> NDArray[np.bool_]:
        """(observation size,) whether a column never changes."""
        return np.ptp(self.observations, axis=0) == 0

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over shapes and contents: two stores with one fingerprint train the same model."""
        return fingerprint_of(self.observations, self.actions, self.offsets)

    @cached_property
    def position_columns(self) -> tuple[int, ...]:
        """The position columns (`iel.data.positions`); none where nothing separates position from pose."""
        from iel.data.positions import position_columns

        return position_columns(self)

    def require_position(self) -> tuple[int, ...]:
        """The position columns; DataError with the reason where there are none."""
        from iel.data.positions import find_position_columns

        return self.position_columns or tuple(find_position_columns(self))

    @cached_property
    def jumps(self) -> NDArray[np.int64]:
        """Rows from which the position jumps to the next (`iel.data.positions`)."""
        from iel.data.positions import jump_rows

        return jump_rows(self, list(self.position_columns))

    @cached_property
    def one_way(self) -> bool:
        """Whether the position columns show passages that were made one way only (`iel.data.positions`)."""
        from iel.data.positions import one_way_passages

        return bool(self.position_columns) and one_way_passages(self, self.position_columns) > 0

    def require_memory(self, purpose: str) -> None:
        """Refuse to read all rows of a store at once where they do not fit into the memory budget."""
        if self.stored is not None:
            needed = self.observations.nbytes + self.actions.nbytes + 40 * self.num_states
            check_budget(f"{self.stored}, to {purpose},", needed)


def fingerprint_of(*arrays: NDArray | RowReader) -> str:
    """sha256 over shapes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        for start in range(0, len(array), BLOCK):
            digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
    return digest.hexdigest()


def usable_scale(deviation: NDArray[np.float64]) -> FloatArray:
    """Standard deviations, 1 where a column is constant."""
    return np.where(deviation > 1e-8, deviation, 1.0).astype(np.float32)


def _frozen(array: ArrayLike, dtype: type) -> NDArray:
    """A read-only array of this type; the caller's own array is never made read-only."""
    with np.errstate(over="ignore"):  # a number too large for the type becomes infinite, which the checks refuse
        view: NDArray = np.asarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view


def short_episodes(offsets: NDArray) -> NDArray:
    """Indices of the episodes with fewer than two transitions."""
    return np.flatnonzero(np.diff(offsets) < MINIMUM_STEPS + 1)


def check_offsets(offsets: NDArray, states: int, name: str) -> None:
    """Refuse boundaries that do not divide the states into episodes of at least two steps."""
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


def non_finite(table: NDArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows, columns) of all entries that are not finite."""
    # A sum is finite only if every entry is: one fast pass in the usual case, the search only when it fails.
    if np.isfinite(table.sum(dtype=np.float64)):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    rows, columns = np.nonzero(~np.isfinite(table))
    return rows, columns


# ------------------------------------------------------------------------------------- rows as they stand in a file


class Rows(NamedTuple):
    """One row per state, as in a file and not checked; the action of an episode's last row is not read."""

    observations: NDArray
    actions: NDArray
    offsets: NDArray[np.int64]
    name: str
    signals: Signals = UNNAMED

    def trajectories(self, trust: bool = False) -> Trajectories:
        """Immutable trajectories. Without `trust`, what `iel data check` calls an error is refused."""
        from iel.data.examine import validate

        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
            actions = np.array(self.actions, np.float32)
        check_tables(self.observations, actions, self.name)
        actions[self.offsets[1:] - 1] = 0.0
        data = Trajectories(self.observations, actions, self.offsets, self.name, trust, signals=self.signals)
        validate(data)
        return data

    @property
    def jumps(self) -> NDArray[np.int64]:
        """Rows from which the position jumps to the next; none where a number is not finite."""
        from iel.data.positions import jump_rows

        return jump_rows(self) if np.isfinite(self.observations).all() else np.zeros(0, np.int64)

    def require_memory(self, purpose: str) -> None:
        """Nothing: rows are in memory."""

    def without_short(self) -> Rows:
        """The rows without episodes of fewer than two steps, which public files contain; a notice counts them."""
        short = short_episodes(self.offsets)
        if len(short) == 0 or len(short) == len(self.offsets) - 1:
            return self
        notice(f"{self.name}: {len(short)} episodes of fewer than two steps left out.")
        lengths = np.diff(self.offsets)
        keep = ~np.isin(np.arange(len(lengths)), short)
        rows = np.repeat(keep, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths[keep])])
        return self._replace(observations=self.observations[rows], actions=self.actions[rows], offsets=offsets)


def parse_signals(text: bytes, where: str) -> Signals:
    """Names, units, ranges and rate of the columns, from JSON."""
    return as_struct(parse_json(text, where, DataError), Signals, where, DataError)


def signals_beside(folder: Path) -> Signals | None:
    """Names, units, ranges and rate from a directory that `iel.data.writers` made; None in others."""
    file = folder / SIGNALS_FILE
    return parse_signals(read_limited(file, JSON_BYTES, DataError), str(file)) if file.exists() else None


def rows_from_ends(observations: NDArray, actions: NDArray, ends: ArrayLike, name: str) -> Rows:
    """Rows of flat arrays, with flags that are true on the last row of every episode."""
    check_tables(observations, actions, name)
    flags = check_flags(ends, len(observations), name)
    if len(flags) and not flags[-1]:
        raise DataError(f"{name}: the last row is not marked terminal, so the file is cut off or has no boundaries.")
    return Rows(observations, actions, np.concatenate([[0], np.flatnonzero(flags) + 1]), name)


def rows_from_pairs(observations: NDArray, actions: NDArray, following: NDArray, ends: ArrayLike, name: str) -> Rows:
    """Rows of transitions (s, a, s'): an episode ends where s' is not the next row's s, or where `ends` is true.

    Every episode gets one row more than it has transitions: its last s'.
    """
    check_tables(observations, actions, name)
    if following.shape != observations.shape:
        raise DataError(
            f"{name}: next_observations have the shape {following.shape}, observations {observations.shape}; "
            "they must be equal."
        )
    if len(observations) == 0:
        return Rows(observations, actions, np.zeros(1, np.int64), name)
    flags = check_flags(ends, len(observations), name) | breaks(observations, following)
    last = np.flatnonzero(flags)
    # The row of transition i: one further for every episode that ended before it.
    where = np.arange(len(flags)) + np.concatenate([[0], np.cumsum(flags)[:-1]])
    states = np.empty((len(flags) + len(last), observations.shape[1]), np.float32)
    controls = np.zeros((len(states), actions.shape[1]), np.float32)
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
        states[where], controls[where] = observations, actions
        states[where[last] + 1] = following[last]
    return Rows(states, controls, np.concatenate([[0], where[last] + 2]), name)


def rows_in_windows(
    pieces: Iterable[tuple[Piece, bool]], ends: Callable[[Piece], NDArray[np.bool_]], name: str, closed: bool = False
) -> Iterator[Rows]:
    """Rows of arrays that come in consecutive pieces, in windows of whole episodes; leftovers are carried.

    `ends` flags last rows; with `closed`, the end of the last piece (its second value is true) ends an episode too.
    """
    carried: Piece = {}
    for piece, last in pieces:
        arrays = {key: np.concatenate([carried[key], rows]) if carried else rows for key, rows in piece.items()}
        flags, pairs = ends(arrays), "next_observations" in arrays
        stop = len(flags)
        if not last:
            # The row after a transition decides whether the transition is the last one; the last row is still open.
            known = (flags | breaks(arrays["observations"], arrays["next_observations"]))[:-1] if pairs else flags
            stop = int(np.flatnonzero(known)[-1]) + 1 if known.any() else 0
        elif closed:
            flags[-1:] = True
        if stop or last:
            states, actions = arrays["observations"][:stop], arrays["actions"][:stop]
            if pairs:
                yield rows_from_pairs(states, actions, arrays["next_observations"][:stop], flags[:stop], name)
            else:
                yield rows_from_ends(states, actions, flags[:stop], name)
        carried = {key: rows[stop:] for key, rows in arrays.items()}


def equally_many(lengths: Mapping[str, int], source: Path | str) -> int:
    """The number of rows that all arrays of a file have."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise DataError(f"{source}: {counts}; its arrays must have equally many rows.")
    return max(lengths.values(), default=0)


def episodes_in_windows(
    episodes: Iterable[tuple[str, NDArray, NDArray]], name: str, size: int | None
) -> Iterator[Rows]:
    """Rows of (label, observations, actions) per episode: of all, or in windows of at least `size` rows."""
    window: list[tuple[str, NDArray, NDArray]] = []
    rows = cost = 0
    for episode in episodes:
        window.append(episode)
        rows += len(episode[1]) if episode[1].ndim else 0
        cost += sum(array.nbytes + 4 * array.size for array in episode[1:])  # as stored, and as float32
        check_budget(name, cost)
        if size is not None and rows >= size:
            yield rows_from_episodes(window, name)
            window, rows, cost = [], 0, 0
    if window or size is None:
        yield rows_from_episodes(window, name)


def rows_from_episodes(episodes: Sequence[tuple[str, NDArray, NDArray]], name: str, equal: bool = True) -> Rows:
    """Rows of (label, observations, actions) per episode: T + 1 observations for T actions, or T with `equal`."""
    if not episodes:
        raise DataError(f"{name} has no episodes; give at least one with two or more steps.")
    for label, states, controls in episodes:
        for kind, array in (("observations", states), ("actions", controls)):
            if array.ndim != 2:
                raise DataError(not_a_table(f"{name}, {label}", kind, array))
        if len(states) - len(controls) not in ((0, 1) if equal else (1,)):
            raise DataError(
                f"{name}, {label}: {len(states)} observations do not fit {len(controls)} actions; "
                "an episode of T actions has T + 1 observations."
            )
        widths = states.shape[1], controls.shape[1]
        first = episodes[0][1].shape[1], episodes[0][2].shape[1]
        if widths != first:
            raise DataError(
                f"{name}, {label}: {widths[0]} observation and {widths[1]} action columns, but {episodes[0][0]} has "
                f"{first[0]} and {first[1]}; all episodes must agree."
            )
    offsets = np.concatenate([[0], np.cumsum([len(states) for _, states, _ in episodes])])
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
        observations = np.concatenate([np.asarray(states, np.float32) for _, states, _ in episodes])
        actions = np.zeros((len(observations), first[1]), np.float32)
        for (_, _, controls), start in zip(episodes, offsets, strict=False):
            actions[start : start + len(controls)] = controls
    return Rows(observations, actions, offsets, name)


def check_tables(observations: NDArray, actions: NDArray, name: str) -> None:
    """Refuse arrays that are not tables with equally many rows."""
    for kind, array in (("observations", observations), ("actions", actions)):
        if array.ndim != 2 or array.shape[1] == 0:
            raise DataError(not_a_table(name, kind, array))
    if len(observations) != len(actions):
        raise DataError(
            f"{name}: observations and actions have {len(observations)} and {len(actions)} rows; they must have "
            "equally many (the action of an episode's last row is not used)."
        )


def not_a_table(where: str, kind: str, array: NDArray) -> str:
    """The error for observations or actions that are not a table (steps, columns)."""
    if array.ndim > 2:
        remedy = "pictures and other arrays per step are not supported, so turn each step into a row of numbers first"
    elif kind == "actions" and array.ndim == 1 and array.dtype.kind in "iub":
        remedy = "numbered (discrete) actions are not supported, only real numbers within [-1, 1]"
    else:
        remedy = "give one row per step (a single column is array[:, None])"
    return f"{where}: {kind} must be a table (steps, columns), but have the shape {array.shape}; {remedy}."


def check_flags(values: ArrayLike, rows: int, source: str) -> NDArray[np.bool_]:
    """(rows,) end-of-episode flags; values other than 0 and 1 are refused."""
    flags = np.asarray(values)
    if flags.size != rows:
        raise DataError(f"{source}: {flags.size} end-of-episode flags for {rows} rows; give one per row.")
    if flags.dtype != bool and not ((flags == 0) | (flags == 1)).all():
        raise DataError(f"{source}: an end-of-episode flag is neither 0 nor 1; give flags, not positions.")
    return flags.reshape(-1).astype(bool)


def marked(arrays: Piece, fields: Iterable[str], rows: int, source: str) -> NDArray[np.bool_]:
    """(rows,) the union of those arrays of flags among `fields` that there are."""
    flags = [check_flags(arrays[field], rows, source) for field in fields if field in arrays]
    return np.any(flags, axis=0) if flags else np.zeros(rows, bool)


def ends_of_ids(
    ids: NDArray, column: str, source: str, where: Callable[[int], str] = "row {}".format
) -> NDArray[np.bool_]:
    """(rows,) flags on last rows, from the number of every row's episode."""
    if ids.dtype.kind == "f":  # beyond 2^53 (of float64) two numbers may have become one
        vague = np.flatnonzero(~(np.abs(ids) < 2.0 ** (1 + np.finfo(ids.dtype).nmant)))
        if len(vague):
            raise DataError(
                f"{source}, {where(int(vague[0]))}: '{column}' is {ids[vague[0]]}, which does not tell episodes apart; "
                "number them with whole numbers."
            )
    ends = np.ones(len(ids), bool)
    ends[:-1] = ids[1:] != ids[:-1]
    if len(np.unique(ids)) != np.count_nonzero(ends):
        starts = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
        _, first = np.unique(ids[starts], return_index=True)
        row = int(starts[np.setdiff1d(np.arange(len(starts)), first)[0]])  # it goes on with an episode that had ended
        raise DataError(
            f"{source}, {where(row)}: the rows of an episode are not together; sort them by '{column}', then by time."
        )
    return ends


def misspelt(present: Iterable[str], known: Sequence[str], source: str) -> None:
    """Refuse a name that is nearly a known one: without a damaged `timeouts`, episodes would be glued together."""
    names = set(present)
    absent = [name for name in known if name not in names]
    for name in sorted(names - set(known)):
        for near in absent:
            damaged = len(name) == len(near) and sum(a != b for a, b in zip(name, near, strict=True)) <= 2
            if damaged or name in (near[:-1], near + "s"):
                raise DataError(f"{source} holds '{name}' and no {near}; rename it to {near}, or remove it.")


def breaks(observations: NDArray, following: NDArray) -> NDArray[np.bool_]:
    """(rows,) whether s' of a transition differs from s of the next row; NaN differs."""
    broken = np.ones(len(observations), bool)
    with np.errstate(all="ignore"):
        for start in range(0, len(observations) - 1, BLOCK):
            here = slice(start, min(start + BLOCK, len(observations) - 1))
            after = np.asarray(observations[start + 1 : here.stop + 1], np.float64)
            broken[here] = ~(np.abs(after - np.asarray(following[here], np.float64)).max(1) <= CONTINUES)
    return broken
