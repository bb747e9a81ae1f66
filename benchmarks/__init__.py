"""Timed comparisons: ratios against a baseline measured in the same run. `iel bench NAME` runs `command` of NAME.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Rows of one shape as an aligned table."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row_cells in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row_cells, widths, strict=True)))
