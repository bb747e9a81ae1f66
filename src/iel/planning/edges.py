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
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

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
    dearest: Floats
    """The largest of each row's costs, (N,)."""

    def contains(self, sources: Integers, targets: Integers, costs: Floats) -> np.ndarray:
        """Whether these edges, with these costs, are among the kept ones: by the tie rule two numbers a row decide."""
        bound = self.dearest[sources]
        kept = costs < bound
        level = np.flatnonzero(costs == bound)
        if len(level):
            rows = sources[level]
            last = np.where(self.costs[rows] == bound[level, None], self.targets[rows], -1).max(axis=1)
            kept[level] = targets[level] <= last
        return kept


def keep_cheapest(costs: Floats, k: int) -> tuple[Integers, Floats]:
    """Places (in the flattened table) of the k cheapest entries of each row, in the order of columns, and the largest
    kept cost of each row; among equal costs the first columns win."""
    kth = np.partition(costs, k - 1, axis=1)[:, k - 1]
    chosen = costs <= kth[:, None]
    if np.count_nonzero(chosen) > k * len(costs):
        tied = np.flatnonzero(chosen.sum(axis=1) > k)
        order = np.argsort(costs[tied], axis=1, kind="stable")[:, :k]
        chosen[tied] = False
        chosen[tied[:, None], order] = True
    return np.flatnonzero(chosen), kth


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
        dearest = np.empty(self.count)
        for rows, candidates, lengths in self.blocks:
            rises = projection[candidates]
            rises -= projection[rows][:, None]
            block = directed_cost(lengths, rises, beta)
            chosen, dearest[rows] = keep_cheapest(block, self.k)
            targets[rows] = candidates.ravel()[chosen].reshape(-1, self.k)
            costs[rows] = block.ravel()[chosen].reshape(-1, self.k)
        return Cheapest(targets, costs, dearest)


class TreeTable:
    """Tree candidates (pairs i < j, ordered by i, then j), those that are in every spanning tree set apart.

    A candidate on no cycle of candidates is a bridge: without it there is no way across, so it belongs to the tree of
    every goal. Once the nodes that bridges join are merged, only the few candidates on cycles are left to compare.
    """

    def __init__(self, candidates: Pairs, count: int):
        bridge = bridges(candidates, count)
        self.candidates = candidates
        self.certain = np.flatnonzero(bridge)
        doubtful = np.flatnonzero(~bridge)
        joined = coo_array(
            (np.ones(len(self.certain)), (candidates.first[self.certain], candidates.second[self.certain])),
            shape=(count, count),
        )
        self.groups, group = connected_components(joined, directed=False)
        first, second = group[candidates.first[doubtful]], group[candidates.second[doubtful]]
        by_row = np.argsort(first, kind="stable")
        self.doubtful, self.by_row = doubtful, by_row
        self.columns = second[by_row].astype(np.int32)
        self.starts = np.searchsorted(first[by_row], np.arange(self.groups + 1)).astype(np.int32)

    def tree(self, projection: Floats, beta: float) -> Pairs:
        """The spanning tree of S for one goal.

        It is computed on ranks in the order (S, i, j): distinct integers leave scipy nothing to decide.
        """
        chosen = self.certain
        if len(self.doubtful):
            first, second = self.candidates.first[self.doubtful], self.candidates.second[self.doubtful]
            rises = projection[second] - projection[first]
            order = np.argsort(symmetric_cost(self.candidates.lengths[self.doubtful], rises, beta), kind="stable")
            ranks = np.empty(len(order))
            ranks[order] = np.arange(1.0, len(order) + 1.0)
            graph = csr_array((ranks[self.by_row], self.columns, self.starts), shape=(self.groups, self.groups))
            # Not overwrite=True: that would compress our own index table in place.
            ranked = minimum_spanning_tree(graph).data.astype(np.int64) - 1
            chosen = np.concatenate([chosen, self.doubtful[order[ranked]]])
        return Pairs(self.candidates.first[chosen], self.candidates.second[chosen], self.candidates.lengths[chosen])


def bridges(pairs: Pairs, count: int) -> np.ndarray:
    """Mask of the pairs on no cycle: the edges of a spanning tree that no other pair's way through the tree uses.

    With more pairs outside the tree than in it hardly any bridge is left, and none is looked for.
    """
    numbers = np.arange(1.0, len(pairs) + 1.0)
    graph = coo_array((numbers, (pairs.first, pairs.second)), shape=(count, count)).tocsr()
    spanning = minimum_spanning_tree(graph)
    inside = np.zeros(len(pairs), dtype=bool)
    inside[spanning.data.astype(np.int64) - 1] = True
    if len(pairs) > 2 * count:
        return np.zeros(len(pairs), dtype=bool)
    order, parent = breadth_first_order(spanning, 0, directed=False)
    depth = np.zeros(count, dtype=np.int64)
    for node in order[1:]:
        depth[node] = depth[parent[node]] + 1
    crossed = np.zeros(count, dtype=bool)
    """Whether the tree edge from a node to its parent lies on a cycle."""
    low, high = pairs.first[~inside].astype(np.int64), pairs.second[~inside].astype(np.int64)
    while len(low):
        climb = depth[low] >= depth[high]
        crossed[np.where(climb, low, high)] = True
        low, high = np.where(climb, parent[low], low), np.where(climb, high, parent[high])
        apart = low != high
        low, high = low[apart], high[apart]
    child = np.where(parent[pairs.first] == pairs.second, pairs.first, pairs.second)
    return inside & ~crossed[child]


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
        return Cheapest(targets, costs, costs.max(axis=1))

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
