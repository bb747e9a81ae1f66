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
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.data.rows import Rows, check_flags, misspelt, rows_from_ends
from iel.errors import DataError
from iel.files import notice

EPISODE = ("episode", "episode_index", "episode_id", "episode_ids", "episode_number")
STEP = ("step", "frame_index", "step_index", "timestamp", "time", "t")
FLAGS = ("terminals", "timeouts")
OBSERVATION, ACTION = ("observation", "obs", "state"), ("action", "act")
SHOWN = 12


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are what; what is left out is told by the names."""

    observations: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    episode: str | None = None
    step: str | None = None

    @classmethod
    def of(cls, given: Columns | Mapping[str, Any] | None) -> Columns:
        """From `{"observations": ["x", "y"], "actions": ["vx", "vy"], "episode": "run"}`."""
        if given is None or isinstance(given, Columns):
            return given or cls()
        known = [field.name for field in fields(cls)]
        wrong = [name for name in given if name not in known]
        if wrong:
            raise DataError(f"columns has no entry '{wrong[0]}'; it takes {', '.join(known)}.")
        values: dict[str, Any] = {k: v if k in ("episode", "step") else _names(v) for k, v in given.items()}
        return cls(**values)


@dataclass(frozen=True)
class Layout:
    """The columns that were found: all names are in the file."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    episode: str | None
    step: str | None
    flags: tuple[str, ...]

    @classmethod
    def find(cls, columns: Columns, names: Sequence[str], source: str, one_episode: bool = False) -> Layout:
        """`one_episode` says that the file is a single episode, as in a folder of files."""
        repeated = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
        if repeated:
            raise DataError(f"{source} has two columns called '{repeated[0]}'; rename one of them.")
        wanted = [*columns.observations, *columns.actions, *(c for c in (columns.episode, columns.step) if c)]
        for name in wanted:
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

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.observations, *self.actions, *(c for c in (self.episode, self.step) if c), *self.flags)

    def rows(self, table: Mapping[str, NDArray], name: str, source: str) -> Rows:
        """Rows of the store, from the columns by name: (n,), or (n, k) where one column holds vectors."""
        if len(table[self.observations[0]]) == 0:
            raise DataError(f"{source} has no rows below its header; record some.")
        observations, actions = (_side_by_side([table[c] for c in own]) for own in (self.observations, self.actions))
        ends = self._ends(table, len(observations), source)
        if self.step is not None:
            self._check_order(np.asarray(table[self.step], np.float64), ends, source)
        return rows_from_ends(observations, actions, ends, name)

    def _ends(self, table: Mapping[str, NDArray], count: int, source: str) -> NDArray[np.bool_]:
        """True on the last row of every episode."""
        ends = np.zeros(count, bool)
        ends[-1] = True
        if self.episode is not None:
            ids = table[self.episode]
            if ids.dtype.kind == "f" and np.isnan(ids).any():
                raise DataError(f"{source}: column '{self.episode}' is empty in row {int(np.isnan(ids).argmax())}.")
            ends[:-1] = ids[1:] != ids[:-1]
            if len(np.unique(ids)) != np.count_nonzero(ends):
                raise DataError(
                    f"{source}: the rows of an episode are not together; sort them by '{self.episode}', then by time."
                )
        elif self.flags:
            for flag in self.flags:
                ends |= check_flags(table[flag], f"{source}, column '{flag}'")
            # A last row without its flag is a file that was cut off.
            if not any(table[flag][-1] for flag in self.flags):
                raise DataError(f"{source}: the last row has no flag in {_listed(self.flags)}; the file is cut off.")
        return ends

    def _check_order(self, times: NDArray, ends: NDArray[np.bool_], source: str) -> None:
        late = np.flatnonzero(~(np.diff(times) > 0) & ~ends[:-1])
        if len(late):
            raise DataError(
                f"{source}: '{self.step}' does not rise from row {late[0]} to {late[0] + 1} "
                f"({times[late[0]]:g}, {times[late[0] + 1]:g}) within an episode; sort the rows by time."
            )


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(str(name) for name in value)


def _beginning(names: Iterable[str], words: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Names that are one of the words, or begin with one that ends there: `obs_0`, `observation.x`, `action[1]`."""
    pattern = re.compile(rf"({'|'.join(words)})s?([^a-zA-Z].*)?", re.IGNORECASE)
    return tuple(name for name in names if pattern.fullmatch(name) and name not in taken)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name[:40] for name in names[:SHOWN]) + more


def _side_by_side(columns: Sequence[NDArray]) -> NDArray:
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
