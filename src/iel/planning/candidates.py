"""Which edges can be among the cheapest for *some* goal: computed once per coreset, exact, without N^2 numbers.

With l the floored length and beta the sharpness (notation of `iel.metrics`), the k cheapest out-edges of node i lie,
for any goal, in

    { j : l_ij <= e^{2 beta} l_i(k) },   l_i(k) = k-th smallest length from i,

because the k nearest nodes cost at most e^{2 beta} l_i(k) each, and every edge costs at least its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from iel.metrics import FLOOR, Floats, Integers, pair_lengths
from iel.planning.boxes import SIZE, Boxes
from iel.planning.screen import WIDEN, Screen, affordable_screen, places, rounded_up
from iel.planning.search import Edges
from iel.planning.tree import Pairs

MANY = 20_000
"""From so many points on they are looked at box by box; the pairs are the same."""
FEW = 6
"""Boxes that are opened first."""
TRIAL, HOPELESS = 50, 0.3
"""After so many boxes, boxes are given up if this share of all points was looked at."""


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
    boxed = count >= MANY
    for rows, others, squares in _box_blocks(points, screen, nearest, factor) if boxed else _all_blocks(screen):
        kth = np.partition(squares, nearest - 1, axis=1)[:, nearest - 1].astype(np.float64)
        row, column = places(squares <= rounded_up(_bound(kth, factor, screen.slack), squares.dtype)[:, None])
        first, second = rows[row], others[column]
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
    pairs = Pairs(np.concatenate(firsts), np.concatenate(seconds), np.concatenate(lengths))
    return (_in_order(pairs, count) if boxed else pairs), radii


def _bound(kth: Floats, factor: float, slack: float) -> Floats:
    """Screened squares above this are surely beyond factor times the k-th length."""
    return factor**2 * np.maximum(kth + slack, FLOOR**2) * WIDEN + slack


def _all_blocks(screen: Screen, chosen: Integers | None = None) -> Iterator[tuple[Integers, Integers, Floats]]:
    """(rows, all others, screened squares between them); a row is infinitely far from itself."""
    everyone = np.arange(screen.count)
    for rows, squares in screen.blocks(chosen):
        squares[np.arange(len(rows)), rows] = np.inf
        yield rows, everyone, squares


def _box_blocks(
    points: Floats, screen: Screen, nearest: int, factor: float
) -> Iterator[tuple[Integers, Integers, Floats]]:
    """The same for a box of rows at a time, with only those others that can be within their radii.

    The nearest few boxes give an upper bound of each row's k-th length; boxes further than the largest radius are left
    closed. Where that opens most boxes, as of points that fill their space, all others are looked at after all.
    """
    boxes = Boxes(points)
    few = min(len(boxes), FEW + nearest // (SIZE // 4))
    opened = 0
    for box in range(len(boxes)):
        if box >= TRIAL and opened > HOPELESS * box * screen.count:
            rest = np.sort(boxes.members(np.arange(box, len(boxes))))
            yield from _all_blocks(screen, rest)
            return
        rows, gaps = boxes.members(np.array([box])), boxes.gaps(box)
        others = boxes.members(np.argpartition(gaps, few - 1)[:few])
        kth = np.partition(_squares(screen, rows, others), nearest - 1, axis=1)[:, nearest - 1].astype(np.float64)
        others = np.sort(boxes.members(np.flatnonzero(gaps <= _bound(kth, factor, screen.slack).max())))
        opened += len(others)
        yield rows, others, _squares(screen, rows, others)


def _squares(screen: Screen, rows: Integers, others: Integers) -> Floats:
    """Screened squares from rows to others, infinite from a row to itself."""
    squares = screen.left[rows] @ screen.right[:, others]
    squares[rows[:, None] == others[None, :]] = np.inf
    return squares


def _in_order(pairs: Pairs, count: int) -> Pairs:
    """Ordered by first, then second."""
    order = np.argsort(pairs.first.astype(np.int64) * count + pairs.second)
    return Pairs(pairs.first[order], pairs.second[order], pairs.lengths[order])


def typical_square(points: Floats, nearest: int) -> float:
    """Median squared distance to the k-th nearest node over a few rows, to choose the precision of the screen."""
    rows = np.unique(np.linspace(0, len(points) - 1, min(64, len(points))).astype(int))
    screen = Screen(points)
    squares = screen.left[rows] @ screen.right
    return float(np.median(np.partition(squares, nearest, axis=1)[:, nearest]))


def kth_smallest(values: Floats, row: Integers, starts: Integers, k: int) -> Floats:
    """The k-th smallest value of each row of a ragged table whose rows all hold at least k values."""
    return values[np.lexsort((values, row))][starts + k - 1]


@dataclass(frozen=True)
class Nearby:
    """Lists of near nodes, one width for all: nodes[i] holds i and, ascending, every node within radii[i] of it.

    Short lists are filled up with i itself. A list too long for the width has radius -1 and holds nothing for certain.
    """

    nodes: Integers
    radii: Floats
    own: Integers
    """The column in which i stands in its own list."""

    @classmethod
    def of(cls, near: Pairs, radii: Floats, count: int) -> Nearby:
        """`near` lists all pairs within radii[first], ordered by first, then second."""
        starts = np.searchsorted(near.first, np.arange(count + 1))
        sizes = np.diff(starts)
        # Nearly all lists; but where a few are long, the table may not grow far beyond the lists themselves.
        width = min(int(np.quantile(sizes, 0.98, method="higher")), 2 * len(near) // count + 8)
        place = np.arange(width)
        inside = place < sizes[:, None]
        everyone = np.arange(count)
        nodes = np.repeat(everyone[:, None], width + 1, axis=1)
        nodes[:, :-1][inside] = near.second[(starts[:-1, None] + place)[inside]]
        nodes.sort(axis=1)
        return cls(nodes, np.where(sizes <= width, radii, -1.0), (nodes < everyone[:, None]).sum(axis=1))


def around(edges: Edges, count: int, width: int = 64) -> Integers:
    """The `width` nodes that are nearest to each one along a graph, there or back, itself among them: (N, width).

    Ascending; where fewer can be reached, i itself fills the row up.
    """
    width, everyone = min(width, count), np.arange(count)
    graph = coo_array((edges.cost, (edges.source, edges.target)), shape=(count, count)).tocsr()
    nodes = np.empty((count, width), np.int64)
    for start in range(0, count, 256):  # no N^2 numbers are held
        rows = everyone[start : start + 256]
        ways = dijkstra(graph, directed=False, indices=rows)
        order = np.argsort(ways, axis=1, kind="stable")[:, :width]
        nodes[rows] = np.where(np.isfinite(np.take_along_axis(ways, order, axis=1)), order, rows[:, None])
    nodes.sort(axis=1)
    return nodes
