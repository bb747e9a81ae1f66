"""Costs of a support function over landmarks, d_ij = max_l (A_jl - A_il): exact nearest nodes without N^2 L numbers.

A = Phi Omega^T is the table of heights (`iel.distances.SupportFunction`). Leaving landmarks out makes a maximum
smaller, so a few well chosen ones give a lower bound for every pair. The nearest nodes of i are found in two passes:

    1. b_ij = maximum over FEW landmarks <= d_ij, for all j
    2. r_i  = the largest d_ij of the k nodes that are smallest in b_i: at least the k-th smallest of all
    3. d_ij for all j with b_ij <= r_i; every other node is further than r_i

Differences and maxima are elementwise, so a cost is the same number however pairs are batched, and the result is that
of the full table to the last bit. d obeys the triangle inequality, which is what matching uses:

    d(x, j) >= d(v, j) - d(v, x):  a list of all nodes within r of v holds the best node of x if d(v, x) + best <= r.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.spatial.distance import cdist

from iel.cores import usable_cores
from iel.distances import FLOOR, Booleans, Floats, Integers, LatentGoal, SupportFunction, largest_rises
from iel.planning.coreset import LISTED
from iel.planning.node_costs import ListedMatcher, NodeCosts

FEW = 24
"""Landmarks of the lower bound."""
ROWS = 16
"""Rows of the lower bound that are worked on at a time: 8,192 nodes then fit a core's cache."""
SAMPLE, NEAR = 256, 32
"""Nodes, and neighbours of each, on which the landmarks of the lower bound are chosen."""


class SupportMatcher(ListedMatcher):
    """l is the metric itself."""

    nodes: SupportCosts

    def __init__(self, nodes: SupportCosts, goals: Sequence[LatentGoal], nodes_off: Booleans | None):
        super().__init__(nodes, goals, nodes_off)
        self.listed, self.radii = nodes.listed, nodes.list_costs[:, -1]

    def lifted(self, states: Floats) -> Floats:
        return self.nodes.metric.heights(states)

    def back(self, nodes: Integers, states: Floats) -> Floats:
        return np.maximum.reduce(states - self.nodes.heights.take(nodes, axis=0, mode="wrap"), axis=-1)

    def listed_costs(self, states: Floats, goals: Integers, listed: Integers) -> Floats:
        if len(states) <= FEW:  # no blocks are needed
            rises = np.maximum.reduce(self.nodes.heights.take(listed, axis=0) - states[:, None], axis=-1)
            return np.maximum(rises.astype(np.float64), FLOOR)
        return np.maximum(largest_rises(states[:, None], self.nodes.heights[listed]), FLOOR)

    def costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        return np.maximum(largest_rises(states[row], self.nodes.heights[node]), FLOOR)

    def match_all(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        off = None if self.nodes_off is None else self.nodes_off[goals]
        best, least, _ = self.nodes.nearest(states, 1, off=off)
        return best[:, 0], least[:, 0]


class SupportCosts(NodeCosts):
    """Costs of a `SupportFunction`: the same for every goal."""

    metric: SupportFunction
    matched_by = SupportMatcher
    path = "support"

    def __init__(self, points: Floats, metric: SupportFunction, neighbours: int):
        super().__init__(points, metric, neighbours)
        self.heights = metric.heights(points)
        """A, (N, L) float32."""
        self.few = self._chosen(points)
        """The landmarks of the lower bound."""
        self.bounding = np.ascontiguousarray(self.heights[:, self.few].T)
        width = min(max(neighbours, LISTED - 1), self.count - 1)
        self.lists, self.list_costs = self._nearest(width)
        """The nearest nodes of every node, nearest first, and their costs: (N, width)."""
        self.listed = np.sort(np.column_stack([np.arange(self.count), self.lists]), axis=1)

    def _chosen(self, points: Floats) -> Integers:
        """The landmarks whose maximum is largest, summed over pairs of near nodes, one after the other."""
        rows = np.unique(np.linspace(0, self.count - 1, min(SAMPLE, self.count)).astype(int))
        near = np.argpartition(cdist(points[rows], points), min(NEAR, self.count - 1), axis=1)[:, : NEAR + 1]
        rises = self.heights[near.ravel()] - np.repeat(self.heights[rows], near.shape[1], axis=0)
        best = np.zeros(len(rises), np.float32)
        chosen: list[int] = []
        for _ in range(min(FEW, self.heights.shape[1])):
            gains = np.maximum(rises - best[:, None], 0.0).sum(axis=0)
            gains[chosen] = -1.0
            chosen.append(int(gains.argmax()))
            np.maximum(best, rises[:, chosen[-1]], out=best)
        return np.array(chosen)

    def _nearest(self, width: int) -> tuple[Integers, Floats]:
        nodes, costs = np.empty((self.count, width), np.int64), np.empty((self.count, width))
        retained = np.zeros(self.count, np.int64)

        def work(start: int) -> None:
            rows = np.arange(start, min(start + ROWS, self.count))
            nodes[rows], costs[rows], retained[rows] = self.nearest(self.heights[rows], width, rows)

        with ThreadPoolExecutor(len(usable_cores())) as pool:
            list(pool.map(work, range(0, self.count, ROWS)))
        self.candidates = int(retained.sum())
        return nodes, costs

    def nearest(
        self, heights: Floats, width: int, own: Integers | None = None, off: Booleans | None = None
    ) -> tuple[Integers, Floats, Integers]:
        """The `width` nearest nodes from some states, given their heights, by (cost, number); their costs, and how many
        were evaluated. `own` is the node that each state is and that is left out, `off` (n, N) are more of them."""
        count = len(heights)
        bound = np.empty((count, self.count), np.float32)
        work = np.empty_like(bound)
        few = heights[:, self.few]
        np.subtract(self.bounding[0], few[:, :1], out=bound)
        for level, row in enumerate(self.bounding[1:], start=1):
            np.subtract(row, few[:, level : level + 1], out=work)
            np.maximum(bound, work, out=bound)
        if own is not None:
            bound[np.arange(count), own] = np.inf
        if off is not None:
            bound[off] = np.inf
        first = np.argpartition(bound, width - 1, axis=1)[:, :width]
        radius = np.maximum(largest_rises(heights[:, None, :], self.heights[first]).max(axis=1), FLOOR)
        radius = np.where(np.isinf(np.take_along_axis(bound, first, axis=1)).any(axis=1), np.inf, radius)
        row, column = np.divmod(np.flatnonzero(bound <= radius[:, None]), self.count)
        exact = np.maximum(largest_rises(heights[row], self.heights[column]), FLOOR)
        exact[np.isinf(bound[row, column])] = np.inf
        starts = np.searchsorted(row, np.arange(count + 1))
        order = np.lexsort((column, exact, row))[starts[:-1, None] + np.arange(width)]
        return column[order], exact[order], np.diff(starts)

    def cheapest(self, goal: LatentGoal) -> tuple[Integers, Floats]:
        order = np.argsort(self.lists[:, : self.neighbours], axis=1)
        return np.take_along_axis(self.lists, order, axis=1), np.take_along_axis(self.list_costs, order, axis=1)

    def pair_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        return np.maximum(largest_rises(self.heights[sources], self.heights[targets]), FLOOR)

    def costs_to(self, goal: LatentGoal) -> Floats:
        return np.maximum(largest_rises(self.heights, self.metric.heights(goal.point[None])), FLOOR)
