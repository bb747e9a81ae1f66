"""Squared distances by matrix products, with a bound on their error.

    ||x - y||^2 = <(-2x, ||x||^2, 1), (y, 1, ||y||^2)>

is one product of augmented tables: fast, but rounded differently for every block shape. So these numbers only ever
*screen* pairs: whoever uses them widens the test by `slack`, which bounds their absolute error, and takes the exact
length (`geometry.pair_lengths`) of the survivors. No table of N^2 numbers is ever held: rows come in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from iel.metrics import Floats, Integers

BLOCK_ELEMENTS = 1 << 22
"""Numbers in one block of distances: about what two cores digest without waiting for memory."""

WIDEN = 1.0 + 1e-9
"""Every bound is widened by this factor, far more than the rounding of a cost and far less than a candidate."""


class Screen:
    """Approximate squared distances from any points to the rows of a table, and between its rows."""

    def __init__(self, points: Floats, dtype: Any = np.float64):
        self.dtype = np.dtype(dtype)
        self.centre = points.mean(axis=0)
        moved = points - self.centre  # rounding is least near the origin
        squares = np.einsum("nd,nd->n", moved, moved)
        self.largest = float(squares.max())
        table = np.column_stack([moved, np.ones(len(moved)), squares]).astype(self.dtype)
        self.right = np.ascontiguousarray(table.T)
        self.left, self.slack = self.sources(points)

    @property
    def count(self) -> int:
        return self.right.shape[1]

    def sources(self, points: Floats) -> tuple[Floats, float]:
        """The left factor of the product for these points, and the slack of its result.

        Each of the d + 2 products and sums is off by at most a unit in the last place of the largest partial sum.
        """
        moved = points - self.centre
        squares = np.einsum("nd,nd->n", moved, moved)
        left = np.column_stack([-2.0 * moved, squares, np.ones(len(moved))]).astype(self.dtype)
        scale = self.largest + float(squares.max(initial=0.0))
        return left, 4.0 * (moved.shape[1] + 4) * float(np.finfo(self.dtype).eps) * scale

    def blocks(self, rows: Integers | None = None) -> Iterator[tuple[Integers, Floats]]:
        """The chosen rows of the table (all by default) in blocks, each with its squared distances to every row."""
        chosen = np.arange(self.count) if rows is None else rows
        height = max(1, BLOCK_ELEMENTS // self.count)
        for start in range(0, len(chosen), height):
            block = chosen[start : start + height]
            yield block, self.left[block] @ self.right


def affordable_screen(points: Floats, typical_square: float) -> Screen:
    """A float32 screen where its slack is small against the squared lengths of interest, otherwise a float64 one."""
    double = Screen(points, np.float64)
    if double.largest > 1e30:  # near the end of float32's range
        return double
    single = Screen(points, np.float32)
    return single if single.slack <= 0.02 * typical_square else double


def rounded_up(bound: Any, dtype: np.dtype) -> Floats:
    """A bound in the screen's own precision, never below the bound itself."""
    return np.nextafter(np.asarray(bound).astype(dtype), dtype.type(np.inf))


def places(mask: np.ndarray) -> tuple[Integers, Integers]:
    """Rows and columns where a table is true, row by row: np.nonzero, several times faster on sparse tables."""
    return np.divmod(np.flatnonzero(mask), mask.shape[1])
