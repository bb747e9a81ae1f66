"""Costs of a displacement, C_ij = l_ij exp(beta (1 - c_ij)): exact, from the few pairs that matter for some goal.

Preparation finds which edges can be among the k cheapest for any goal (`candidates`); a goal then needs only N
projections and the costs of those candidates, and the result is that of the dense formula (`reference`) to the last
bit. Where candidates are too many, every pair is screened for each goal instead: the same edges, more time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from iel.metrics import (
    FLOOR,
    Booleans,
    Displacement,
    Floats,
    Integers,
    LatentGoal,
    directed_cost,
    floored_root,
    lengths_to,
    pair_lengths,
    projections,
    row_lengths,
    row_products,
)
from iel.planning.neighbours import (
    WIDEN,
    Nearby,
    Pairs,
    Screen,
    TooMany,
    affordable_screen,
    nearest_pairs,
    places,
    rounded_up,
    typical_square,
)
from iel.planning.node_costs import Cheapest, Matcher, NodeCosts, keep_cheapest

MOST_CANDIDATES = 2e7
"""Candidates kept at most when the path is chosen automatically: about 800 MB."""
CHUNK_ELEMENTS = 1 << 16
"""Candidate costs worked on at a time: small enough to stay in a core's cache."""


class DisplacementCosts(NodeCosts):
    """Costs of a `Displacement`; `path` forces the "pruned" or the "dense" computation, "auto" prunes if cheaper."""

    def __init__(self, points: Floats, metric: Displacement, neighbours: int, path: str = "auto"):
        super().__init__(points, metric, neighbours)
        self.beta, self.columns = metric.beta, np.ascontiguousarray(points.T)
        if self.beta > 1.0:
            warnings.warn(
                f"beta is {self.beta:g}: above 1 the directed cost breaks the triangle inequality, so an edge can cost "
                "more than a detour.",
                stacklevel=4,
            )
        self.path = "pruned"
        self.lists: Nearby | None = None
        self._table: NeighbourTable | None = None
        if self.count == 1:
            return
        # Typical distance to the k-th nearest node: the resolution of the graph.
        self.spacing = math.sqrt(max(0.0, typical_square(points, neighbours)))
        if path != "dense":
            # Past a quarter of all pairs pruning gains nothing; past MOST_CANDIDATES it costs too much memory, though
            # of very many nodes 64 candidates each still cost less than looking at all pairs for every goal.
            most = max(MOST_CANDIDATES, 64.0 * self.count)
            useful = min(max(64.0 * self.count, 0.25 * self.count**2), most)
            limit = math.inf if path == "pruned" else useful
            try:
                near, radii = nearest_pairs(points, neighbours, math.exp(2.0 * self.beta), limit)
                self._table = NeighbourTable(near, self.count, neighbours)
                self.lists = Nearby.of(near, radii, self.count)
                self.near, self.candidates = (near, radii), len(near)
            except TooMany:
                pass
        if self._table is None:
            self.path, self._screen = "dense", Screen(points)

    def key(self, goal: LatentGoal) -> bytes:
        """Only omega_g decides."""
        return b"every goal" if self.metric.for_every_goal else goal.key[1]

    def cheapest(self, goal: LatentGoal) -> Cheapest:
        projection = projections(self.points, goal.direction)
        if self._table is not None:
            return self._table.cheapest(projection, self.beta)
        return DirectedRows(self.points, self._screen, projection, self.beta).cheapest(self.neighbours)

    def kept(self, cheapest: Cheapest, sources: Integers, targets: Integers, costs: Floats) -> np.ndarray:
        return cheapest.contains(sources, targets, costs)

    def pair_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        projection = projections(self.points, goal.direction)
        lengths = pair_lengths(self.columns, sources, targets)
        return directed_cost(lengths, projection[targets] - projection[sources], self.beta)

    def costs_to(self, goal: LatentGoal) -> Floats:
        projection = projections(self.points, goal.direction)
        lengths = lengths_to(self.columns, goal.point)
        return directed_cost(lengths, float(goal.point @ goal.direction) - projection, self.beta)

    def matcher(
        self, goals: Sequence[LatentGoal], nodes_off: Booleans | None, around: Callable[[], Integers]
    ) -> Matcher:
        return DisplacementMatcher(self, goals, nodes_off)


class DisplacementMatcher(Matcher):
    """Exact matching: d(x, x_i; g) is least among the nodes with l <= e^{2 beta} l_min.

    A state near the node v it was matched to last time is compared with the list of v first; if that list provably
    holds the best node, nothing else is looked at.
    """

    def __init__(self, nodes: DisplacementCosts, goals: Sequence[LatentGoal], nodes_off: Booleans | None):
        self.nodes, self.beta, self.nodes_off = nodes, nodes.beta, nodes_off
        self.directions = np.array([goal.direction for goal in goals])
        self.projections = np.stack([projections(nodes.points, goal.direction) for goal in goals])
        spacing = nodes.spacing if nodes.count > 1 else 0.0
        self.screen = affordable_screen(nodes.points, spacing**2)
        self.widest = float(np.exp(2.0 * nodes.beta))

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        # A switched-off node makes the least length larger than the distance to it: then look everywhere.
        if self.nodes.lists is None or self.nodes_off is not None:
            return self._match_anywhere(states, goals)
        nodes, costs, certain = self._match_listed(states, goals, memory)
        if not certain.all():
            away = np.flatnonzero(~certain)
            nodes[away], costs[away] = self._match_anywhere(states[away], goals[away])
        return nodes, costs

    def _match_listed(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats, np.ndarray]:
        """The best node in the list of each remembered one, its cost, and whether it is the best of all for certain.

        The best node lies within e^{2 beta} l_min of x, hence within ||x - x_v|| + e^{2 beta} l_min of the node v.
        """
        near = self.nodes.lists
        assert near is not None
        listed, rows = near.nodes[memory], np.arange(len(states))
        difference = self.nodes.points.take(listed, axis=0)
        difference -= states[:, None, :]
        lengths = floored_root(np.einsum("rwd,rwd->rw", difference, difference))
        if self.beta == 0.0:
            costs = lengths
        else:
            rises = self.projections.take(listed + (goals * self.nodes.count)[:, None])
            rises -= row_products(states, self.directions[goals])[:, None]
            costs = directed_cost(lengths, rises, self.beta)
        best = costs.argmin(axis=1)
        reach = (lengths[rows, near.own[memory]] + self.widest * lengths.min(axis=1)) * WIDEN
        return listed[rows, best], costs[rows, best], (memory >= 0) & (reach <= near.radii[memory])

    def _match_anywhere(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        """The best of all nodes: one matrix product finds the few in question."""
        row, node = self._near_anything(states, goals)
        costs = self.costs(states, goals, row, node)
        if self.nodes_off is not None:
            costs[self.nodes_off[goals[row], node]] = np.inf
        cheapest = np.full(len(states), np.inf)
        np.minimum.at(cheapest, row, costs)
        best = costs == cheapest[row]
        nodes = np.full(len(states), self.nodes.count, dtype=np.int64)
        np.minimum.at(nodes, row[best], node[best])
        return nodes, cheapest

    def _near_anything(self, states: Floats, goals: Integers) -> tuple[Integers, Integers]:
        """Pairs (row, node) with l <= e^{2 beta} l_min, from rows of squared distances."""
        left, slack = self.screen.sources(states)
        squares = left @ self.screen.right
        if self.nodes_off is not None:
            squares[self.nodes_off[goals]] = np.inf
        least = squares.min(axis=1).astype(np.float64)
        bound = self.widest**2 * WIDEN * np.maximum(least + slack, FLOOR**2) + slack
        return places(squares <= rounded_up(bound, squares.dtype)[:, None])

    def costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        heights = row_products(states, self.directions[goals])
        rises = self.projections[goals[row], node] - heights[row]
        return directed_cost(row_lengths(states[row], self.nodes.points[node]), rises, self.beta)


class NeighbourTable:
    """Neighbour candidates as a few rectangles: rows of similar length together, padded with infinite lengths."""

    def __init__(self, near: Pairs, count: int, k: int):
        self.count, self.k = count, k
        starts = np.searchsorted(near.first, np.arange(count + 1))
        widths = np.diff(starts)
        order = np.argsort(widths, kind="stable")
        ordered = widths[order]
        self.blocks: list[tuple[Integers, Integers, Floats]] = []
        begin = 0
        while begin < count:
            # Rows are sorted by width: take as many as fit the chunk and waste at most a quarter on padding.
            narrow = max(1, int(ordered[begin]))
            wide_enough = int(np.searchsorted(ordered, narrow * 1.25 + 2, side="right"))
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
        largest = np.empty(self.count)
        for rows, candidates, lengths in self.blocks:
            rises = projection[candidates]
            rises -= projection[rows][:, None]
            block = directed_cost(lengths, rises, beta)
            chosen, largest[rows] = keep_cheapest(block, self.k)
            targets[rows] = candidates.ravel()[chosen].reshape(-1, self.k)
            costs[rows] = block.ravel()[chosen].reshape(-1, self.k)
        return Cheapest(targets, costs, largest)


class DirectedRows:
    """Rows of the directed cost for one goal."""

    def __init__(self, points: Floats, screen: Screen, projection: Floats, beta: float):
        self.columns = np.ascontiguousarray(points.T)
        self.screen, self.projection, self.beta = screen, projection, beta
        self.count = len(points)

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
