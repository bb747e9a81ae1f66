"""Which edges can be among the cheapest for *some* goal: computed once per coreset, exact, without N^2 numbers.

With l the floored length and beta the sharpness (notation of `iel.metrics`), the k cheapest out-edges of node i lie,
for any goal, in

    { j : l_ij <= e^{2 beta} l_i(k) },   l_i(k) = k-th smallest length from i,

because the k nearest nodes cost at most e^{2 beta} l_i(k) each, and every edge costs at least its length.
"""

from __future__ import annotations

import numpy as np

from iel.metrics import FLOOR, Floats, Integers, pair_lengths
from iel.planning.screen import WIDEN, Screen, affordable_screen, places, rounded_up
from iel.planning.tree import Pairs


class TooMany(Exception):
    """Pruning keeps so many pairs that the dense path is cheaper."""


def nearest_pairs(points: Floats, neighbours: int, factor: float, limit: float) -> tuple[Pairs, Floats]:
    """All pairs (i, j) with l_ij <= factor * l_i(k), and the radius factor * l_i(k) of each row.

    A row knows *every* node within its radius. Raises `TooMany` as soon as more than `limit` pairs are certain.
    """
    count = len(points)
    nearest = min(neighbours, count - 1)
    columns = np.ascontiguousarray(points.T)
    screen = affordable_screen(points, typical_square(points, nearest))
    firsts, seconds, lengths = [], [], []
    radii = np.empty(count)
    kept = 0
    for rows, squares in screen.blocks():
        squares[np.arange(len(rows)), rows] = np.inf
        kth = np.partition(squares, nearest - 1, axis=1)[:, nearest - 1].astype(np.float64)
        bound = factor**2 * np.maximum(kth + screen.slack, FLOOR**2) * WIDEN + screen.slack
        row, second = places(squares <= rounded_up(bound, squares.dtype)[:, None])
        first = rows[row]
        exact = pair_lengths(columns, first, second)
        starts = np.searchsorted(row, np.arange(len(rows)))
        radius = factor * kth_smallest(exact, row, starts, nearest) * WIDEN
        keep = exact <= radius[row]
        radii[rows] = radius
        firsts.append(first[keep].astype(np.int32))
        seconds.append(second[keep].astype(np.int32))
        lengths.append(exact[keep])
        kept += int(keep.sum())
        if kept > limit:
            raise TooMany
    return Pairs(np.concatenate(firsts), np.concatenate(seconds), np.concatenate(lengths)), radii


def typical_square(points: Floats, nearest: int) -> float:
    """Median squared distance to the k-th nearest node over a few rows, to choose the precision of the screen."""
    rows = np.unique(np.linspace(0, len(points) - 1, min(64, len(points))).astype(int))
    screen = Screen(points)
    squares = screen.left[rows] @ screen.right
    return float(np.median(np.partition(squares, nearest, axis=1)[:, nearest]))


def kth_smallest(values: Floats, row: Integers, starts: Integers, k: int) -> Floats:
    """The k-th smallest value of each row of a ragged table whose rows all hold at least k values."""
    return values[np.lexsort((values, row))][starts + k - 1]
