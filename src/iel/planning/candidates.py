"""Which edges can matter for *some* goal: computed once per coreset, exact, without a table of N^2 numbers.

With l the floored length and beta the sharpness (notation of `geometry`):

Neighbours. The k cheapest out-edges of node i, for any goal, lie in

    { j : l_ij <= e^{2 beta} l_i(k) },   l_i(k) = k-th smallest length from i,

because the k nearest nodes cost at most e^{2 beta} l_i(k) each, and every edge costs at least its length.

Tree. An edge of the minimum spanning tree of S = (C + C^T)/2 satisfies, for any goal,

    l_ij <= cosh(beta) b_ij,   b_ij = smallest possible longest edge on a way from i to j (the bottleneck),

because e^beta l <= S <= e^beta cosh(beta) l: were it longer, every edge of the bottleneck way would be cheaper than it,
and a tree edge is never the dearest of a cycle. `bottleneck` finds b from the Euclidean spanning tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from iel.planning.bottleneck import Line, Pairs, euclidean_tree, line_of
from iel.planning.geometry import FLOOR, Floats, Integers, pair_lengths
from iel.planning.screen import BLOCK_ELEMENTS, WIDEN, Screen, affordable_screen, places, rounded_up


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


def tree_pairs(points: Floats, near: Pairs, radii: Floats, beta: float, limit: float) -> Pairs:
    """All pairs i < j with l_ij <= cosh(beta) b_ij: a superset of the spanning tree of S for every goal.

    `near` and `radii` come from `nearest_pairs`, with any factor of at least one. Raises `TooMany` as soon as more than
    `limit` pairs are certain.
    """
    count = len(points)
    columns = np.ascontiguousarray(points.T)
    line = line_of(euclidean_tree(points, near, radii), count)
    stretch = math.cosh(beta) * WIDEN
    listed = near.lengths <= stretch * line.bottlenecks(near.first, near.second)
    codes = [pair_codes(near.first[listed], near.second[listed], count)]
    kept = int(listed.sum()) // 2
    for first, second in unlisted_pairs(points, line, radii, stretch):
        short = pair_lengths(columns, first, second) <= stretch * line.bottlenecks(first, second)
        codes.append(pair_codes(first[short], second[short], count))
        kept += int(short.sum())
        if kept > 2 * limit:
            raise TooMany
    code = np.unique(np.concatenate(codes))
    if len(code) > limit:
        raise TooMany
    first, second = code // count, code % count
    return Pairs(first.astype(np.int32), second.astype(np.int32), pair_lengths(columns, first, second))


def pair_codes(first: Integers, second: Integers, count: int) -> Integers:
    """One number per unordered pair, increasing with (smaller, larger)."""
    return np.minimum(first, second).astype(np.int64) * count + np.maximum(first, second)


def unlisted_pairs(points: Floats, line: Line, radii: Floats, stretch: float) -> Iterator[tuple[Integers, Integers]]:
    """Pairs that may pass the bottleneck test, found in rectangles of the line.

    For rows [a, m) and columns [m, n) of the line, b_uv = max(largest gap in [u, m), largest gap in [m, v)), so two
    running maxima bound a whole rectangle. A rectangle in which stretch * b stays within every row's radius is skipped:
    its pairs are in the lists already.
    """
    order, count = line.order, len(line.order)
    radius = radii[order]
    screen = affordable_screen(points[order], float(np.median(radii)) ** 2)
    gaps = np.append(line.gaps, 0.0)
    height = 1024
    width = BLOCK_ELEMENTS // height
    for start in range(0, count, height):
        middle = min(start + height, count)
        narrowest = radius[start:middle].min()
        inside = gaps[start : middle - 1].max(initial=0.0)
        if stretch * inside > narrowest:
            squares = screen.left[start:middle] @ screen.right[:, start:middle]
            row, column = places(np.triu(squares <= squared_bound(inside, stretch, screen), 1))
            yield order[start + row], order[start + column]
        before = np.maximum.accumulate(gaps[start:middle][::-1])[::-1]
        after = 0.0
        for left in range(middle, count, width):
            right = min(left + width, count)
            reached = np.maximum.accumulate(np.append(after, gaps[left : right - 1]))
            after = max(float(reached[-1]), float(gaps[right - 1]))
            if stretch * max(float(before[0]), float(reached[-1])) <= narrowest:
                continue
            squares = screen.left[start:middle] @ screen.right[:, left:right]
            short = squares <= squared_bound(before, stretch, screen)[:, None]
            short |= squares <= squared_bound(reached, stretch, screen)[None, :]
            row, column = places(short)
            yield order[start + row], order[left + column]


def squared_bound(bottleneck: Floats | float, stretch: float, screen: Screen) -> Floats:
    """The screen's version of l <= stretch * b, wide enough for its rounding."""
    return rounded_up(stretch**2 * np.square(bottleneck) * WIDEN + screen.slack, screen.left.dtype)
