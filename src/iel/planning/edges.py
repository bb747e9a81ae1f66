"""Per goal: the k cheapest out-edges of every node and the spanning tree, pruned or dense, with one tie rule.

Tie rule. Out-edges of a node are ordered by (cost, target); tree edges i < j by (S_ij, i, j). Both orders are total, so
the chosen edges are unique, whatever method finds them.

Pruned: costs of the candidates only (`candidates`). Dense: every pair, in blocks of rows for the neighbours and row by
row for the tree (Prim), for a beta or an intrinsic dimension that leaves nothing to prune, and for a user's own cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree

from iel.planning.bottleneck import Pairs
from iel.planning.geometry import (
    FLOOR,
    Floats,
    Integers,
    directed_cost,
    pair_lengths,
    symmetric_cost,
)
from iel.planning.screen import BLOCK_ELEMENTS, WIDEN, Screen, places

CHUNK_ELEMENTS = 1 << 16
"""Candidate costs worked on at a time: small enough to stay in a core's cache."""


@dataclass(frozen=True)
class Cheapest:
    """The k cheapest out-edges of every node: targets and costs, (N, k), targets ascending."""

    targets: Integers
    costs: Floats

    def contains(self, sources: Integers, targets: Integers, costs: Floats) -> np.ndarray:
        """Whether these edges, with these costs, are among the kept ones: by the tie rule two numbers a row decide."""
        dearest = self.costs.max(axis=1)
        last = np.where(self.costs == dearest[:, None], self.targets, -1).max(axis=1)
        return (costs < dearest[sources]) | ((costs == dearest[sources]) & (targets <= last[sources]))


def keep_cheapest(costs: Floats, k: int) -> np.ndarray:
    """Mask of the k cheapest entries of each row; among equal costs the first columns win."""
    kth = np.partition(costs, k - 1, axis=1)[:, k - 1]
    chosen = costs <= kth[:, None]
    tied = np.flatnonzero(chosen.sum(axis=1) > k)
    if len(tied):
        order = np.argsort(costs[tied], axis=1, kind="stable")[:, :k]
        chosen[tied] = False
        chosen[tied[:, None], order] = True
    return chosen


class NeighbourTable:
    """Neighbour candidates as a few rectangles: rows of similar length together, padded with infinite lengths."""

    def __init__(self, near: Pairs, count: int, k: int):
        self.count, self.k = count, k
        starts = np.searchsorted(near.first, np.arange(count + 1))
        widths = np.diff(starts)
        order = np.argsort(widths, kind="stable")
        self.blocks: list[tuple[Integers, Integers, Floats]] = []
        begin = 0
        while begin < count:
            # Rows are sorted by width: take as many as fit the chunk and waste at most a quarter on padding.
            narrow = max(1, int(widths[order[begin]]))
            wide_enough = int(np.searchsorted(widths[order], narrow * 1.25 + 2, side="right"))
            end = max(begin + 1, min(wide_enough, begin + max(1, CHUNK_ELEMENTS // narrow)))
            rows = order[begin:end]
            width = int(widths[rows].max())
            inside = np.arange(width) < widths[rows][:, None]
            source = (starts[rows][:, None] + np.arange(width))[inside]
            targets = np.broadcast_to(rows[:, None], inside.shape).copy()
            targets[inside] = near.second[source]
            lengths = np.full(inside.shape, np.inf)
            lengths[inside] = near.lengths[source]
            self.blocks.append((rows, targets, lengths))
            begin = end

    def cheapest(self, projection: Floats, beta: float) -> Cheapest:
        """The k cheapest out-edges of every node for one goal."""
        targets = np.empty((self.count, self.k), dtype=np.int64)
        costs = np.empty((self.count, self.k))
        for rows, candidates, lengths in self.blocks:
            rises = projection[candidates]
            rises -= projection[rows][:, None]
            block = directed_cost(lengths, rises, beta)
            chosen = keep_cheapest(block, self.k)
            targets[rows] = candidates[chosen].reshape(-1, self.k)
            costs[rows] = block[chosen].reshape(-1, self.k)
        return Cheapest(targets, costs)


def pruned_tree(candidates: Pairs, count: int, projection: Floats, beta: float) -> Pairs:
    """The spanning tree of S among the candidates (ordered by i, then j), as pairs i < j.

    The tree is computed on ranks in the order (S, i, j): distinct integers leave scipy nothing to decide.
    """
    rises = projection[candidates.second] - projection[candidates.first]
    weights = symmetric_cost(candidates.lengths, rises, beta)
    order = np.argsort(weights, kind="stable")
    ranks = np.empty(len(weights))
    ranks[order] = np.arange(1.0, len(weights) + 1.0)
    starts = np.searchsorted(candidates.first, np.arange(count + 1)).astype(np.int32)
    graph = csr_array((ranks, candidates.second, starts), shape=(count, count))
    # Not overwrite=True: that would compress the candidates' own index table in place.
    chosen = order[minimum_spanning_tree(graph).data.astype(np.int64) - 1]
    return Pairs(candidates.first[chosen], candidates.second[chosen], candidates.lengths[chosen])


class DenseRows(Protocol):
    """Costs of whole rows of pairs, for the dense path: infinite from a node to itself."""

    def cheapest(self, k: int) -> Cheapest: ...

    def symmetric_row(self, node: int) -> Floats:
        """S from one node to all."""


class DirectedRows:
    """Rows of the directed cost for one goal."""

    def __init__(self, points: Floats, screen: Screen, projection: Floats, beta: float):
        self.columns = np.ascontiguousarray(points.T)
        self.screen, self.projection, self.beta = screen, projection, beta
        self.count = len(points)
        self.everyone = np.arange(self.count)

    def cheapest(self, k: int) -> Cheapest:
        """As `NeighbourTable.cheapest`, over all pairs: screened costs choose who gets an exact one.

        A relative error r of a length is at most a relative error (1 + beta) r of its cost.
        """
        targets = np.empty((self.count, k), dtype=np.int64)
        costs = np.empty((self.count, k))
        for rows, squares in self.screen.blocks():
            own = np.arange(len(rows))
            squares[own, rows] = np.inf
            least = np.maximum(squares.min(axis=1) - self.screen.slack, FLOOR**2)
            np.maximum(squares, FLOOR**2, out=squares)
            lengths = np.sqrt(squares, out=squares)
            rises = self.projection[None, :] - self.projection[rows][:, None]
            block = directed_cost(lengths, rises, self.beta)
            # Where rounding swamps the lengths everyone passes; e^99 is as good as infinity.
            error = np.exp(np.minimum((1.0 + self.beta) * self.screen.slack / least, 99.0)) * WIDEN
            kth = np.partition(block, k - 1, axis=1)[:, k - 1] * error
            row, column = places(block <= (kth * error)[:, None])
            exact_lengths = pair_lengths(self.columns, rows[row], column)
            exact = directed_cost(exact_lengths, self.projection[column] - self.projection[rows[row]], self.beta)
            chosen = np.lexsort((column, exact, row))[np.searchsorted(row, own)[:, None] + np.arange(k)]
            chosen.sort(axis=1)
            targets[rows], costs[rows] = column[chosen], exact[chosen]
        return Cheapest(targets, costs)

    def symmetric_row(self, node: int) -> Floats:
        lengths = pair_lengths(self.columns, np.array([node]), self.everyone)
        weights = symmetric_cost(lengths, self.projection - self.projection[node], self.beta)
        weights[node] = np.inf
        return weights


def dense_tree(symmetric_row: Callable[[int], Floats], count: int) -> tuple[Integers, Integers]:
    """Prim's spanning tree over all pairs in the order (S, i, j): N rows of costs, one at a time."""
    weight, link = np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    waiting = np.ones(count, dtype=bool)
    everyone = np.arange(count)
    node = 0
    first, second = np.empty(count - 1, dtype=np.int64), np.empty(count - 1, dtype=np.int64)
    for step in range(count - 1):
        waiting[node] = False
        weight[node] = np.inf
        fresh = symmetric_row(node)
        better = fresh < weight
        equal = fresh == weight
        if equal.any():
            low, high = np.minimum(everyone, node), np.maximum(everyone, node)
            old_low, old_high = np.minimum(everyone, link), np.maximum(everyone, link)
            better |= equal & ((low < old_low) | ((low == old_low) & (high < old_high)))
        better &= waiting
        weight[better], link[better] = fresh[better], node
        least = weight.min()
        nearest = np.flatnonzero((weight == least) & waiting)
        if len(nearest) > 1:
            low, high = np.minimum(nearest, link[nearest]), np.maximum(nearest, link[nearest])
            nearest = nearest[np.lexsort((high, low))]
        node = int(nearest[0])
        first[step], second[step] = min(node, link[node]), max(node, link[node])
    return first, second


def block_height(count: int) -> int:
    """Rows of a dense block."""
    return max(1, BLOCK_ELEMENTS // count)
