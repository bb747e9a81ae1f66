"""Tables with named columns (CSV, Parquet, LeRobot): roles of the columns, and how rows become episodes.

    episode  step  observation.x  observation.y  action.vx  action.vy  battery
    0        0     1.0            2.0            0.3        0.0        0.98
    0        1     1.3            2.0                                  0.98       the last row's action is not read
    1        0     ...

One row per state. Unless `Columns` says otherwise, columns called or beginning with `observation`, `obs` or `state` are
the observation and those with `action` or `act` the action, in the order of the file (`observation.x`, `obs_0`,
`action[1]`). An episode column (`episode`, `episode_index`, `episode_id`) or flags (`terminals`, `timeouts`, true on
last rows) say where episodes end. A step or time column (`step`, `frame_index`, `timestamp`, `time`) must rise within
every episode. Nothing else is read, and a notice says so.

An empty cell is refused or mended (`iel.data.gaps`), except in the action of an episode's last row. CSV files are read
by `iel.data.text`, Parquet and LeRobot by `iel.data.parquet`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from iel.data.gaps import Gaps, mend
from iel.data.resample import resampled
from iel.data.trajectories import Piece, Rows, ends_of_ids, marked, misspelt, rows_from_ends
from iel.errors import DataError
from iel.files import notice
from iel.signals import CONVERSION, Signals
from iel.typed import Positive, violation

EPISODE = ("episode", "episode_index", "episode_id", "episode_ids", "episode_number")
STEP = ("step", "frame_index", "step_index", "timestamp", "time", "t")
FLAGS = ("terminals", "timeouts")
OBSERVATION, ACTION = ("observation", "obs", "state"), ("action", "act")
SHOWN = 12
EVEN = 0.1
"""Logs have a rate if nine of ten steps take as long as the usual one, give or take this share."""
Given = Mapping[str, str | Sequence[str] | float]
"""`Columns` as a mapping, which is how `iel.load` takes them."""


class Columns(Struct, frozen=True, forbid_unknown_fields=True):
    """Roles of the columns of a table; those that are not given are found by their names."""

    observations: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    episode: str | None = None
    step: str | None = None
    rate: Positive | None = None
    """Rows per second to resample to, by the times (dates or seconds) in the column `step`."""
    silence: Positive | None = None
    """Seconds without a row that end an episode then (default: five usual intervals)."""
    gaps: Gaps = "refuse"
    """How empty cells are treated."""

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.observations, *self.actions, *(c for c in (self.episode, self.step) if c))

    @classmethod
    def of(cls, given: Given) -> Columns:
        """From `{"observations": ["x", "y"], "actions": ["vx", "vy"], "episode": "run", "gaps": "cut"}`."""
        lists = {name: (given[name],) for name in ("observations", "actions") if isinstance(given.get(name), str)}
        if wrong := violation({**given, **lists}, cls):
            raise DataError(f"columns: {wrong}; it takes {', '.join(cls.__struct_fields__)}.")
        return msgspec.convert({**given, **lists}, cls)


class Layout(Columns, frozen=True):
    """The columns that were found: all names are in the file."""

    flags: tuple[str, ...] = ()
    inner: Mapping[str, Sequence[str]] = {}
    """Names of the numbers of a column that holds vectors, where they are known."""
    signals: Signals | None = None
    """Names, units and ranges in the file itself."""
    where: Callable[[int], str] = "row {}".format
    """Names a row in messages: "line 5"."""
    ticks: float | None = None
    """A second in units of the step column, if it is known."""

    @property
    def read(self) -> tuple[str, ...]:
        return (*super().read, *self.flags)

    @classmethod
    def find(cls, columns: Columns, names: Sequence[str], source: str, one_episode: bool = False) -> Layout:
        """The layout of a file with columns of these names; with `one_episode` the whole file is one episode."""
        if repeated := next((name for name in names if list(names).count(name) > 1), None):
            raise DataError(f"{source} has two columns called '{repeated}'; rename one of them.")
        for name in columns.read:
            if name not in names:
                raise DataError(f"{source} has no column '{name}'; it has {_listed(names)}.")
        observations = columns.observations or _beginning(names, OBSERVATION, columns.actions)
        actions = columns.actions or _beginning(names, ACTION, observations)
        for kind, chosen, words in (("observation", observations, OBSERVATION), ("action", actions, ACTION)):
            if not chosen:
                raise DataError(
                    f"{source} has no {kind} columns: none begins with {' or '.join(words)}; it has {_listed(names)}. "
                    f"Name them with `iel data convert --{kind}s NAME NAME`, or columns= in Python."
                )
        episode = columns.episode or next((name for name in EPISODE if name in names), None)
        if episode is None:
            misspelt(names, FLAGS, source)
        flags = () if episode else tuple(name for name in FLAGS if name in names)
        if episode is None and not flags and not one_episode:
            raise DataError(
                f"{source} does not say where episodes end; add a column 'episode' (or name yours with --episode), "
                "a column 'terminals' that is 1 on last rows, or give a folder with one file per episode."
            )
        step = columns.step or next((name for name in STEP if name in names), None)
        if columns.rate is not None and step is None:
            raise DataError(f"{source} has no column of time; name it with --time, it has {_listed(names)}.")
        found = cls(observations, actions, episode, step, columns.rate, columns.silence, columns.gaps, flags)
        rest = [name for name in names if name not in found.read]
        if rest:
            notice(f"{source}: not read: {_listed(rest)}.", once=True)
        return found

    def rows(self, table: Piece, name: str, source: str) -> Rows:
        """Rows, from the columns by name: (n,), or (n, k) where one column holds vectors."""
        if len(table[self.observations[0]]) == 0:
            raise DataError(f"{source} has no rows below its header; record some.")
        observations, actions = (
            np.concatenate([table[column].reshape(len(table[column]), -1) for column in own], axis=1)
            for own in (self.observations, self.actions)
        )
        ends = self._ends(table, len(observations), source)
        names = (tuple(self._names(table, own)) for own in (self.observations, self.actions))
        signals = self.signals or Signals(next(names), next(names), conversion=CONVERSION)
        times = None if self.step is None else table[self.step]
        rate = self.rate or signals.rate
        if times is not None and self.rate is None:
            within = np.flatnonzero(~ends[:-1])
            late = within[~(times[1:] > times[:-1])[within].astype(bool)]  # a NaN is late as well
            if len(late):
                raise DataError(
                    f"{source}, {self.where(int(late[0]) + 1)}: '{self.step}' does not rise within the episode (from "
                    f"{times[late[0]]} to {times[late[0] + 1]}); sort the rows by time."
                )
            if rate is None and self.ticks is not None and len(within):
                steps = times[within + 1] - times[within]
                usual = np.median(steps)
                even = np.mean(np.abs(steps - usual) <= EVEN * usual) >= 0.9
                rate = float(f"{self.ticks / usual:.6g}") if even else None
        rows = rows_from_ends(observations, actions, ends, name)._replace(signals=signals.replace(rate=rate))
        rows, times = mend(rows, self.gaps, times, self.where, source)
        if times is None or self.rate is None:
            return rows.without_short() if self.gaps != "refuse" else rows
        seconds = np.asarray(times, np.float64) if self.ticks is None else (times - times.min()) / self.ticks
        found, dropped = resampled(rows, seconds, self.rate, self.silence)
        made = f"{len(times)} rows became {len(found.observations)} at {self.rate:g} per second"
        notice(f"{source}: {made}; {dropped}.")
        return found

    def _names(self, table: Piece, columns: Sequence[str]) -> Iterator[str]:
        """Names of the columns, and of the numbers of those that hold vectors: `inner` if it fits, else `name[0]`."""
        given = [name for column in columns for name in self.inner.get(column, (column,))]
        for column in columns:
            width = table[column].shape[1] if table[column].ndim > 1 else 0
            inner = self.inner.get(column, ()) if len(set(given)) == len(given) else ()
            if len(inner) == max(width, 1):
                yield from inner
            else:
                yield from (f"{column}[{index}]" for index in range(width)) if width else (column,)

    def _ends(self, table: Piece, count: int, source: str) -> NDArray[np.bool_]:
        """True on the last row of every episode."""
        if self.episode is not None:
            return ends_of_ids(table[self.episode], self.episode, source, self.where)
        for flag in self.flags:
            strange = np.flatnonzero(~np.isin(table[flag], (0, 1)))
            if len(strange):
                raise DataError(
                    f"{source}, {self.where(int(strange[0]))}, column '{flag}': the flag is {table[flag][strange[0]]}, "
                    "neither 0 nor 1; give flags, not positions."
                )
        ends = marked(table, self.flags, count, source)
        if self.flags and not ends[-1]:  # a last row without its flag is a file that was cut off
            raise DataError(f"{source}: the last row has no flag in {_listed(self.flags)}; the file is cut off.")
        ends[-1] = True
        return ends


def _beginning(names: Iterable[str], words: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Names that are one of the words, or begin with one that ends there: `obs_0`, `observation.x`, `action[1]`."""
    pattern = re.compile(rf"({'|'.join(words)})s?([^a-zA-Z].*)?", re.IGNORECASE)
    return tuple(name for name in names if pattern.fullmatch(name) and name not in taken)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name[:40] for name in names[:SHOWN]) + more


# --------------------------------------------------------------------------------------------------- files and folders


Reader = Callable[[Path, Columns, bool], tuple[Layout, Piece]]
"""(file, columns, whether it is one episode) -> what its columns are, and their numbers."""


def table_rows(path: Path, name: str, columns: Columns, read: Reader) -> Rows:
    """The rows of one file with an episode column or flags."""
    layout, table = read(path, columns, False)
    return layout.rows(table, name, str(path))


def table_episodes(files: Sequence[Path], columns: Columns, read: Reader) -> Iterator[tuple[str, NDArray, NDArray]]:
    """(name, observations, actions) of every file: one episode each, with equal columns."""
    first = None
    for file in files:
        layout, table = read(file, columns, True)
        first = first or layout
        if (layout.observations, layout.actions) != (first.observations, first.actions):
            raise DataError(f"{file} has other columns than {files[0].name}; all episodes must agree.")
        rows = layout.rows(table, file.name, str(file))
        if len(rows.offsets) != 2 and columns.rate is None:
            raise DataError(
                f"{file} holds several episodes, but in a folder every file is one; give a single file, or one per "
                "episode."
            )
        for start, end in itertools.pairwise(rows.offsets):  # gaps may have cut it
            yield file.name, rows.observations[start:end], rows.actions[start:end]
