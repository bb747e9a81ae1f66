"""Empty cells of tables: refused, cut out, or filled.

    row            0    1    2    3    4    5    6    7
    x              .    .         .    .    .    .    .
    action         .    .    .    .         .    .    0

    cut            0    1  |      3    4  |  5    6    7      a state that is not known is left out; an unknown action
                                                              leads nowhere, so an episode ends before it and after it

`interpolate` fills up to `LONGEST` consecutive empty cells of an observation column, linearly in time, between two
known ones of the same episode; an action is never made up. What is left is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import Rows, rows_from_ends
from iel.errors import DataError
from iel.files import notice
from iel.signals import Kind

Gaps = Literal["refuse", "cut", "interpolate"]
FLOAT32 = float(np.finfo(np.float32).max)
LONGEST = 5
"""Consecutive empty cells that are filled at most."""


def mend(
    rows: Rows, gaps: Gaps, times: NDArray | None, where: Callable[[int], str], source: str
) -> tuple[Rows, NDArray | None]:
    """The rows without their gaps, and their times; `where` names a row of the file in messages."""
    last = rows.offsets[1:] - 1
    states, idle = _empty(rows, "observation", where, source), _empty(rows, "action", where, source)
    idle[last] = False  # not read
    if not (states.any() or idle.any()):
        return rows, times
    said = " and ".join(_counts(rows, states, idle))
    if gaps == "refuse":
        row = int(np.flatnonzero(states.any(1) | idle.any(1))[0])
        kind: Kind = "observation" if states[row].any() else "action"
        column = rows.signals.label(int(np.argmax((states if kind == "observation" else idle)[row])), kind)
        raise DataError(
            f"{source}, {where(row)}, {column}: the cell is empty ({said}); fill them in, or choose --gaps cut (rows "
            f"with them are left out) or --gaps interpolate (up to {LONGEST} in a row are filled); in Python "
            "columns={'gaps': 'cut'}."
        )
    observations = np.asarray(rows.observations, np.float64).copy()
    filled = _fill(observations, states, rows.offsets, times) if gaps == "interpolate" else 0
    lost = np.asarray(np.isnan(observations).any(1))
    ends = np.asarray(idle.any(1))
    ends[last] = True
    ends[:-1] |= lost[1:]
    known = ~lost
    if not known.any():
        raise DataError(f"{source}: every row has an empty cell ({said}); leave such columns out.")
    mended = rows_from_ends(observations[known], rows.actions[known], ends[known], rows.name)
    notice(
        f"{source}: empty cells: {said}; {filled} filled, {int(lost.sum())} rows left out, {len(last)} episodes became "
        f"{len(mended.offsets) - 1} pieces.",
        once=True,
    )
    return mended._replace(signals=rows.signals), None if times is None else times[known]


def _empty(rows: Rows, kind: Kind, where: Callable[[int], str], source: str) -> NDArray[np.bool_]:
    """Which cells are empty (NaN); numbers that float32 cannot hold are refused."""
    table = np.asarray(rows.observations if kind == "observation" else rows.actions)
    if table.dtype.kind != "f":
        return np.zeros(table.shape, bool)
    wild = np.abs(table) > FLOAT32
    if kind == "action":
        wild[rows.offsets[1:] - 1] = False  # not read
    huge, columns = np.nonzero(wild)
    if len(huge):
        row, column = int(huge[0]), int(columns[0])
        raise DataError(
            f"{source}, {where(row)}, {rows.signals.label(column, kind)}: the value is {table[row, column]:g}, which "
            "is not a number to learn from; correct it, or leave the cell empty."
        )
    return np.asarray(np.isnan(table))


def _counts(rows: Rows, states: NDArray[np.bool_], idle: NDArray[np.bool_]) -> Iterator[str]:
    """How many cells are empty, column by column."""
    tables: tuple[tuple[Kind, NDArray[np.bool_]], ...] = ("observation", states), ("action", idle)
    for kind, empty in tables:
        for column in np.flatnonzero(empty.any(0)):
            yield f"{empty[:, column].sum()} in {rows.signals.label(int(column), kind)}"


def _fill(table: NDArray, empty: NDArray[np.bool_], offsets: NDArray[np.int64], times: NDArray | None) -> int:
    """Fill short gaps of a table in place, linearly in time; returns how many cells."""
    when = np.arange(len(table)) if times is None else times
    filled = 0
    for column in np.flatnonzero(empty.any(0)):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], empty[:, column], [0]])))
        for first, end in edges.reshape(-1, 2):
            episode = np.searchsorted(offsets, first, side="right") - 1
            if offsets[episode] < first and end < offsets[episode + 1] and end - first <= LONGEST:
                before, after = table[[first - 1, end], column]
                past = (when[first:end] - when[first - 1]).astype(np.float64)
                table[first:end, column] = before + (after - before) * past / float(when[end] - when[first - 1])
                filled += end - first
    return int(filled)
