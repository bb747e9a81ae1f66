"""Tables with named columns (CSV, Parquet, LeRobot): which columns are what, and how rows become episodes.

    episode  step  observation.x  observation.y  action.vx  action.vy  battery
    0        0     1.0            2.0            0.3        0.0        0.98
    0        1     1.3            2.0                                  0.98       the last row's action is not read
    1        0     ...

One row per state. Unless `Columns` says otherwise, columns called or beginning with `observation`, `obs` or `state` are
the observation and those with `action` or `act` the action, in the order of the file (`observation.x`, `obs_0`,
`action[1]`). An episode column (`episode`, `episode_index`, `episode_id`) or flags (`terminals`, `timeouts`, true on
last rows) say where episodes end. A step or time column (`step`, `frame_index`, `timestamp`, `time`) must rise within
every episode. Nothing else is read, and a notice says so.

CSV files have a header with these names, then commas, semicolons or tabs; UTF-8. An empty cell is refused, except in
the action of an episode's last row. Names of episodes are text (`1` and `01` are two).
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import Piece, Rows, ends_of_ids, marked, misspelt, rows_from_ends
from iel.errors import DataError
from iel.files import notice
from iel.loader import check_budget, open_regular

EPISODE = ("episode", "episode_index", "episode_id", "episode_ids", "episode_number")
STEP = ("step", "frame_index", "step_index", "timestamp", "time", "t")
FLAGS = ("terminals", "timeouts")
OBSERVATION, ACTION = ("observation", "obs", "state"), ("action", "act")
SHOWN = 12
LINE = 1 << 20
"""Longest header that is looked at."""
EXPANSION = 6
"""Bytes of memory per byte of text: two letters are at least a number of eight, and of four as float32."""
Given = Mapping[str, str | Sequence[str]]
"""Columns as people give them."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are what; what is left out is told by the names."""

    observations: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    episode: str | None = None
    step: str | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.observations, *self.actions, *(c for c in (self.episode, self.step) if c))

    @classmethod
    def of(cls, given: Given) -> Columns:
        """From `{"observations": ["x", "y"], "actions": ["vx", "vy"], "episode": "run"}`."""
        known = [field.name for field in fields(Columns)]
        if wrong := [name for name in given if name not in known]:
            raise DataError(f"columns has no entry '{wrong[0]}'; it takes {', '.join(known)}.")
        lists = ([given.get(key, ())] if isinstance(given.get(key), str) else given.get(key, ()) for key in known)
        observations, actions, episode, step = (tuple(map(str, names)) for names in lists)
        return cls(observations, actions, next(iter(episode), None), next(iter(step), None))


@dataclass(frozen=True)
class Layout(Columns):
    """The columns that were found: all names are in the file."""

    flags: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        return (*super().read, *self.flags)

    @classmethod
    def find(cls, columns: Columns, names: Sequence[str], source: str, one_episode: bool = False) -> Layout:
        """`one_episode` says that the file is a single episode, as in a folder of files."""
        repeated = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
        if repeated:
            raise DataError(f"{source} has two columns called '{repeated[0]}'; rename one of them.")
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
        found = cls(tuple(observations), tuple(actions), episode, step, flags)
        rest = [name for name in names if name not in found.read]
        if rest:
            notice(f"{source}: not read: {_listed(rest)}.", once=True)
        return found

    def rows(self, table: Piece, name: str, source: str) -> Rows:
        """Rows of the store, from the columns by name: (n,), or (n, k) where one column holds vectors."""
        if len(table[self.observations[0]]) == 0:
            raise DataError(f"{source} has no rows below its header; record some.")
        observations, actions = (
            np.concatenate([table[column].reshape(len(table[column]), -1) for column in own], axis=1)
            for own in (self.observations, self.actions)
        )
        ends = self._ends(table, len(observations), source)
        if self.step is not None:
            times = np.asarray(table[self.step], np.float64)
            late = np.flatnonzero(~(np.diff(times) > 0) & ~ends[:-1])
            if len(late):
                raise DataError(
                    f"{source}: '{self.step}' does not rise from row {late[0]} to {late[0] + 1} "
                    f"({times[late[0]]:g}, {times[late[0] + 1]:g}) within an episode; sort the rows by time."
                )
        return rows_from_ends(observations, actions, ends, name)

    def _ends(self, table: Piece, count: int, source: str) -> NDArray[np.bool_]:
        """True on the last row of every episode."""
        if self.episode is not None:
            ids = table[self.episode]
            if ids.dtype.kind == "f" and np.isnan(ids).any():
                raise DataError(f"{source}: column '{self.episode}' is empty in row {int(np.isnan(ids).argmax())}.")
            return ends_of_ids(ids, self.episode, source)
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
        if len(rows.offsets) != 2:
            raise DataError(
                f"{file} holds several episodes, but in a folder every file is one; give a single file, or one per "
                "episode."
            )
        yield file.name, rows.observations, rows.actions


def read_csv(path: Path, columns: Columns, one_episode: bool) -> tuple[Layout, Piece]:
    """The columns of a CSV file that are read."""
    with open_regular(path, DataError) as (file, size):
        check_budget(path, EXPANSION * size)
        try:
            with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                header, separator = _header(text, path)
                layout = Layout.find(columns, header, str(path), one_episode)
                table = _numbers(csv.reader(text, delimiter=separator), header, layout, path)
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save it as UTF-8.") from None
        except csv.Error as problem:
            raise DataError(f"{path} is not a CSV file ({problem}); save it anew.") from None
    return layout, dict(zip(layout.read, table.T, strict=True))


def _header(file: TextIO, path: Path) -> tuple[list[str], str]:
    line = file.readline(LINE)
    if not line.strip() or "\0" in line:
        raise DataError(f"{path} has no header; the first line must name the columns.")
    separator = max(",;\t", key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    if all(_number(name) is not None for name in names):
        raise DataError(f"{path} begins with numbers; add a first line that names the columns.")
    return names, separator


def _numbers(lines: Iterable[list[str]], header: list[str], layout: Layout, path: Path) -> NDArray[np.float64]:
    """(rows, columns that are read): empty cells are NaN, episodes may have names, times may be dates."""
    places = [(header.index(name), name) for name in layout.read]
    episodes: dict[str, float] = {}
    numbers = array("d")
    for line, cells in enumerate(lines, start=2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}, line {line}: {len(cells)} cells for {len(header)} columns; correct the line.")
        for place, column in places:
            text = cells[place].strip()
            if column == layout.episode and text:
                value: float | None = episodes.setdefault(text, len(episodes))
            else:
                value = _number(text) if text else float("nan")
            if value is None and column == layout.step:
                value = _date(text)
            if value is None:
                raise DataError(
                    f"{path}, line {line}, column '{column[:40]}': '{text[:40]}' is not a number; "
                    "correct it (decimal points, no units)."
                )
            numbers.append(value)
    return np.array(numbers).reshape(-1, len(places))


def _date(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _number(text: str) -> float | None:
    """What numpy's own reader takes for a number; Python would also take 1_0 for ten."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None
