"""CSV files: a header with the names of columns, then commas, semicolons or tabs; UTF-8.

Every line has as many cells as the header. Names of episodes are text: `1`, `01` and `1.0` are three. Times are
compared as they are written, to the last digit; dates (ISO 8601) without a time zone are UTC, wherever they are read.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from iel.data.tables import Columns, Layout
from iel.data.trajectories import Piece
from iel.errors import DataError
from iel.loader import check_budget, open_regular

LINE = 1 << 20
"""Longest header that is looked at."""
EXPANSION = 6
"""Bytes of memory per byte of text: two letters are at least a number of eight, and of four as float32."""
BLOCK = 1 << 13
"""Lines that are looked at together."""
SECOND = 10**9
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FRACTION = re.compile(r"(?<=\d\d:\d\d:\d\d)[.,](\d{1,9})(?!\d)")


def read_csv(path: Path, columns: Columns, one_episode: bool) -> tuple[Layout, Piece]:
    """The columns of a CSV file that are read."""
    with open_regular(path, DataError) as (file, size):
        check_budget(path, EXPANSION * size)
        try:
            with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                header, separator = _header(text, path)
                layout = Layout.find(columns, header, str(path), one_episode)
                cells = _Cells(path, header, layout)
                cells.read(csv.reader(text, delimiter=separator, strict=True))
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save it as UTF-8.") from None
        except csv.Error as problem:
            raise DataError(f"{path} is not a CSV file ({problem}); save it anew.") from None
    return cells.table()


def _header(file: TextIO, path: Path) -> tuple[list[str], str]:
    line = file.readline(LINE)
    if not line.strip() or "\0" in line:
        raise DataError(f"{path} has no header; the first line must name the columns.")
    separator = max(",;\t", key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator, strict=True))]
    if _floats(names) is not None:
        raise DataError(f"{path} begins with numbers; add a first line that names the columns.")
    return names, separator


class _Cells:
    """The columns that are read, as they grow: numbers, a number for every name of an episode, times as text."""

    def __init__(self, path: Path, header: list[str], layout: Layout):
        self.path, self.header, self.rows = path, header, 0
        lines = self.lines = array("q")
        self.layout = structs.replace(layout, where=lambda row: f"line {lines[row]}")
        self.codes: dict[str, int] = {}
        self.times: list[str] = []
        self.values: dict[str, array[float]] = {name: array("d") for name in layout.read}

    def read(self, lines: Any) -> None:
        """All rows, a block at a time."""
        width, seen = len(self.header), 0
        while block := [(lines.line_num + 1, cells) for cells in islice(lines, BLOCK)]:
            rows = [cells for _, cells in block if cells]
            self.lines.extend(line for line, cells in block if cells)
            for number, cells in enumerate(rows):
                if len(cells) != width:
                    raise self.wrong(number, f"{len(cells)} cells for {width} columns; correct the line")
            seen += len(block)
            if lines.line_num != seen:
                number = next(n for n, cells in enumerate(rows) if any(set("\r\n") & set(cell) for cell in cells))
                raise self.wrong(number, "a quoted cell goes on in the next line; correct the quotes")
            for name, texts in zip(self.header, zip(*rows, strict=True), strict=False):
                if name == self.layout.step:
                    self.times.extend(texts)
                elif name == self.layout.episode:
                    self.values[name].extend(self._ids(texts))
                elif name in self.values:
                    self.values[name].extend(self._numbers(name, texts))
            self.rows += len(rows)

    def wrong(self, number: int, what: str, column: str | None = None) -> DataError:
        """The sentence about a row of this block."""
        cell = f", column '{column[:40]}'" if column else ""
        return DataError(f"{self.path}, {self.layout.where(self.rows + number)}{cell}: {what}.")

    def _ids(self, texts: Iterable[str]) -> list[int]:
        names = [text.strip() for text in texts]
        if "" in names:
            raise self.wrong(names.index(""), "the cell is empty; say which episode the row is of", self.layout.episode)
        return [self.codes.setdefault(name, len(self.codes)) for name in names]

    def _numbers(self, column: str, texts: Sequence[str]) -> array[float]:
        values = _floats(texts)
        if values is None:  # some are empty, or one is wrong
            texts = [text.strip() or "nan" for text in texts]
            values = _floats(texts)
        if values is None:
            number = next(n for n, text in enumerate(texts) if _floats([text]) is None)
            what = f"'{texts[number][:40]}' is not a number; correct it (decimal points, no units)"
            raise self.wrong(number, what, column)
        return values

    def table(self) -> tuple[Layout, Piece]:
        """The layout, and the numbers of the columns."""
        table: Piece = {name: np.array(values) for name, values in self.values.items()}
        if self.layout.step is None:
            return self.layout, table
        self.rows = 0
        table[self.layout.step], dates = self._exact(self.layout.step)
        return structs.replace(self.layout, ticks=SECOND if dates else None), table

    def _exact(self, column: str) -> tuple[NDArray, bool]:
        """Times that differ where the text does; whether they are dates, in nanoseconds."""
        texts = [text.strip() for text in self.times]
        if (values := _floats(texts)) is not None:
            times = np.array(values)
            strange = np.flatnonzero(~np.isfinite(times))
            if len(strange):
                raise self.wrong(int(strange[0]), f"'{texts[strange[0]][:40]}' is not a time; correct it", column)
            tied = bool((np.diff(times) == 0).any())  # perhaps as float64 only
            return np.array([Decimal(text) for text in texts]) if tied else times, False
        dates, kind = array("q"), "a date" if _date(texts[0]) else "a number"
        zoned: bool | None = None
        for number, text in enumerate(texts):
            if (date := _date(text)) is None:
                raise self.wrong(number, f"'{text[:40]}' is not {kind}, as the first one is; correct it", column)
            if zoned not in (None, date[1]):
                raise self.wrong(number, "a date has a time zone and another has none; say it everywhere", column)
            zoned = date[1]
            dates.append(date[0])
        return np.array(dates), True


def _floats(texts: Sequence[str]) -> array[float] | None:
    """The cells as numbers, if all of them are; Python alone would also take 1_0 for ten, and digits of any script."""
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        return None
    try:
        return array("d", map(float, texts))
    except ValueError:
        return None


def _date(text: str) -> tuple[int, bool] | None:
    """(nanoseconds since 1970, whether it says its time zone); None if it is not a date."""
    fraction = FRACTION.search(text)
    try:
        moment = datetime.fromisoformat(FRACTION.sub("", text, count=1))
    except ValueError:
        return None
    zoned = moment.tzinfo is not None
    seconds = ((moment if zoned else moment.replace(tzinfo=UTC)) - EPOCH) // timedelta(seconds=1)
    return seconds * SECOND + (int(fraction[1].ljust(9, "0")) if fraction else 0), zoned
