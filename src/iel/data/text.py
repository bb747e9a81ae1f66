"""CSV files: a header with the names of the columns, then numbers. What the columns mean is in `iel.data.columns`.

Commas, semicolons or tabs; UTF-8. An empty cell is a missing number: fine in the action of an episode's last row, which
is not read, and refused anywhere else. A file may take six times its length in memory, which is held against the
budget.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from iel.data.columns import Columns, Layout
from iel.data.rows import Rows
from iel.errors import DataError
from iel.loader import check_budget, memory_budget, open_regular

LINE = 1 << 20
"""Longest header that is looked at."""
EXPANSION = 6
"""Bytes of memory per byte of text: two letters are at least a number of eight, and of four as float32."""


def csv_rows(path: Path, name: str, columns: Columns) -> Rows:
    """The rows of one CSV file with an episode column or flags."""
    layout, table = _read(path, columns, None, False)
    return layout.rows(table, name, str(path))


def csv_episodes(files: Sequence[Path], columns: Columns) -> list[tuple[NDArray, NDArray]]:
    """(observations, actions) of every file: one episode each, with equal columns."""
    episodes, budget, first = [], memory_budget(), None
    for file in files:
        layout, table = _read(file, columns, budget, True)
        if layout.episode is not None:
            raise DataError(
                f"{file} has a column '{layout.episode}', but in a folder every file is one episode; give a single "
                "file, or remove the column."
            )
        first = first or layout
        if (layout.observations, layout.actions) != (first.observations, first.actions):
            raise DataError(f"{file} has other columns than {files[0].name}; all episodes must agree.")
        rows = layout.rows(table, file.name, str(file))
        budget -= 2 * sum(array.nbytes for array in table.values())
        if len(rows.offsets) != 2:
            raise DataError(f"{file} marks several episodes, but in a folder every file is one; give a single file.")
        episodes.append((rows.observations, rows.actions))
    return episodes


def _read(
    path: Path, columns: Columns, budget: int | None, one_episode: bool
) -> tuple[Layout, dict[str, NDArray[np.float64]]]:
    with _text(path, budget) as file:
        header, separator = _header(file, path)
        layout = Layout.find(columns, header, str(path), one_episode)
        places = [header.index(name) for name in layout.read]
        start = file.tell()
        try:
            if not file.readline().strip():
                raise ValueError  # loadtxt would print a warning of its own
            file.seek(start)
            table = np.loadtxt(
                file, delimiter=separator, usecols=places, ndmin=2, comments=None, quotechar='"', dtype=np.float64
            )
        except (ValueError, IndexError, OverflowError):
            file.seek(start)  # slower, but it knows about empty cells and says where the trouble is
            table = np.array(list(_numbers(file, separator, header, places, layout, path)), np.float64)
    table = table.reshape(-1, len(places))
    return layout, {name: table[:, number] for number, name in enumerate(layout.read)}


@contextmanager
def _text(path: Path, budget: int | None) -> Iterator[TextIO]:
    with open_regular(path, DataError) as (file, size):
        check_budget(path, EXPANSION * size, budget, DataError)
        try:
            with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                yield text
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save it as UTF-8.") from None
        except csv.Error as problem:
            raise DataError(f"{path} is not a CSV file ({problem}); save it anew.") from None


def _header(file: TextIO, path: Path) -> tuple[list[str], str]:
    line = file.readline(LINE)
    if not line.strip() or "\0" in line:
        raise DataError(f"{path} has no header; the first line must name the columns.")
    separator = max(",;\t", key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    if all(_number(name) is not None for name in names):
        raise DataError(f"{path} begins with numbers; add a first line that names the columns.")
    return names, separator


def _numbers(
    file: TextIO, separator: str, header: Sequence[str], places: Sequence[int], layout: Layout, path: Path
) -> Iterator[list[float]]:
    """Line by line: empty cells are NaN, episodes may have names, times may be dates."""
    episodes: dict[str, float] = {}
    for line, cells in enumerate(csv.reader(file, delimiter=separator), start=2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}, line {line}: {len(cells)} cells for {len(header)} columns; correct the line.")
        row = []
        for place in places:
            text, column = cells[place].strip(), header[place]
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
            row.append(value)
        yield row


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
