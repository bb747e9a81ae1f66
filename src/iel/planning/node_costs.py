"""What edges between the nodes of a graph cost, and which node a state is matched to: one class per kind of metric.

    NodeCosts           any metric: rows of costs in blocks
    DisplacementCosts   the distance of IEL, HILP and GAS: exact, from a few candidates per node
    SupportCosts        a support function over landmarks: exact, filtered               (`landmarks`)

Out-edges of a node are ordered by (cost, target). The order is total, so the k cheapest are unique, whatever method
finds them.

A displacement costs C_ij = l_ij exp(beta (1 - c_ij)). Preparation finds which edges can be among the k cheapest for any
goal (`coreset.nearest_pairs`); a goal then needs only N projections and the costs of those candidates, and the result
is that of the dense formula to the last bit. Where candidates are too many, rows of all costs are computed for each
goal instead: the same edges, more time.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from iel.distances import (
    Booleans,
    Displacement,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    checked_costs,
    directed_cost,
    lengths_between,
    pair_lengths,
    projections,
    row_lengths,
    row_products,
)
from iel.planning.coreset import BLOCK_ELEMENTS, NodeTree, Pairs, TooMany, nearest_pairs

CHUNK_ELEMENTS = 1 << 16
"""Candidate costs worked on at a time: small enough to stay in a core's cache."""
SLACK = 1e-5
"""Relative rounding of a sum of two costs, widened."""


# ---------------------------------------------------------------- matching states to nodes


class Matcher:
    """Matches states to nodes, for goals that were prepared together; goals are numbered.

    Where every cost is a network evaluation, a state is compared with the nodes around its last one along the graph,
    then with those around the best of them, until a node is the best of all around it. The first match looks at all
    nodes, as every match does with a metric of which nothing is known.
    """

    around: Integers | None = None
    """Lists of the nodes around every node, if matching is to be local."""

    def __init__(self, nodes: NodeCosts, goals: Sequence[LatentGoal], nodes_off: Booleans | None):
        """`nodes_off` (m, N) are the nodes not used per goal."""
        self.nodes, self.goals, self.nodes_off = nodes, goals, nodes_off

    def lifted(self, states: Floats) -> Floats:
        """What costs from the states are computed from, (n, any); the other methods take it in place of states."""
        return states

    def costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        """d(x, x_i; g) for pairs of a row (a state and its goal) and a node."""
        wanted = [self.goals[goals[r]] for r in row]
        costs = self.nodes.metric.row_costs(states[row], self.nodes.points[node], wanted)
        return checked_costs(costs, (len(row),))

    def listed_costs(self, states: Floats, goals: Integers, listed: Integers) -> Floats:
        """d(x, x_i; g) from every state to the nodes of its own list, (n, width)."""
        rows = np.repeat(np.arange(len(states)), listed.shape[1])
        return self.costs(states, goals, rows, listed.ravel()).reshape(listed.shape)

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        """argmin_i d(x, x_i; g) over the nodes in use, the smallest index among equals, and its cost.

        memory[r] is the node that row r was matched to last time, or -1; it only saves time, except where nodes
        `around` are given.
        """
        moving, first = np.flatnonzero(memory >= 0), np.flatnonzero(memory < 0)
        if self.around is None or not len(moving):
            return self.match_all(states, goals)
        near = self.around
        nodes, costs = memory.copy(), np.empty(len(states))
        if len(first):
            nodes[first], costs[first] = self.match_all(states[first], goals[first])
        costs[moving], listed = np.inf, near[nodes[moving]]
        fresh = np.ones(listed.shape, bool)
        while fresh.any():
            row, column = np.nonzero(fresh)
            table = np.full(listed.shape, np.inf)
            table[row, column] = self.costs(states, goals, moving[row], listed[row, column])
            best, least = table.argmin(axis=1), table.min(axis=1)
            better = np.flatnonzero(least < costs[moving])
            before, moving = listed[better], moving[better]
            nodes[moving], costs[moving] = before[np.arange(len(better)), best[better]], least[better]
            listed = near[nodes[moving]]
            fresh = (listed[:, :, None] != before[:, None, :]).all(axis=2)  # those just evaluated are not better
        return nodes, costs

    def match_all(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        """The best of all nodes: one table for all states where goals do not matter, otherwise one per goal."""
        table = np.empty((len(states), self.nodes.count))
        groups = (
            [np.arange(len(states))]
            if self.nodes.metric.for_every_goal
            else [np.flatnonzero(goals == goal) for goal in np.unique(goals)]
        )
        for group in groups:
            costs = self.nodes.metric.costs(states[group], self.nodes.points, self.goals[goals[group[0]]])
            table[group] = checked_costs(costs, (len(group), self.nodes.count))
        if self.nodes_off is not None:
            table[self.nodes_off[goals]] = np.inf
        nodes = np.argmin(table, axis=1)
        return nodes, table[np.arange(len(states)), nodes]


class ListedMatcher(Matcher):
    """Exact matching by the list of nodes near the last one, v, where the triangle inequality proves it right:

        d(x, j) >= l(v, j) - l(v, x) > best     for every j outside of the list, l(v, j) >= radius(v)

    with a quasimetric l <= d. Elsewhere all nodes are looked at.
    """

    listed: Integers
    """Per node itself and the nodes near it, ascending, (N, width)."""
    radii: Floats
    """l to the nearest node outside of the list, at least: (N,)."""

    @abstractmethod
    def back(self, nodes: Integers, states: Floats) -> Floats:
        """l(v, x) row by row."""

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        if self.nodes_off is not None or memory.max(initial=-1) < 0:
            return self.match_all(states, goals)
        listed = self.listed.take(memory, axis=0, mode="wrap")
        table = self.listed_costs(states, goals, listed)
        best = np.arange(len(states)) * listed.shape[1] + table.argmin(axis=1)
        nodes, costs = listed.take(best), table.take(best)
        near = (self.back(memory, states) + costs) * (1.0 + SLACK) < self.radii.take(memory, mode="wrap")
        doubtful = np.flatnonzero(~near | (memory < 0))
        if len(doubtful):
            nodes[doubtful], costs[doubtful] = self.match_all(states[doubtful], goals[doubtful])
        return nodes, costs


# ---------------------------------------------------------------- any metric


class NodeCosts:
    """Costs between the nodes of one graph. Nothing is known of the metric, so rows come in blocks, and no N^2 numbers
    are ever held."""

    matched_by: ClassVar[type[Matcher]] = Matcher
    path: str = "metric"
    """How the cheapest edges are found, for reports."""
    candidates: int = 0
    """Pairs that preparation stored."""
    tree: NodeTree | None = None
    """A tree of the points, where preparation needed one."""

    def __init__(self, points: Floats, metric: Metric, neighbours: int):
        self.points, self.metric, self.neighbours = points, metric, neighbours
        self.count = len(points)

    def key(self, goal: LatentGoal) -> bytes:
        """Equal for goals whose edges cost the same."""
        return b"every goal" if self.metric.for_every_goal else b"".join(goal.key)

    def cheapest(self, goal: LatentGoal) -> tuple[Integers, Floats]:
        """The k cheapest out-edges of every node: targets, ascending, and their costs, (N, k)."""
        count, k = self.count, self.neighbours
        targets, costs = np.empty((count, k), dtype=np.int64), np.empty((count, k))
        height = max(1, BLOCK_ELEMENTS // count)
        for start in range(0, count, height):
            block = np.arange(start, min(start + height, count))
            table = checked_costs(self.metric.costs(self.points[block], self.points, goal), (len(block), count))
            table[np.arange(len(block)), block] = np.inf
            chosen = keep_cheapest(table, k)
            targets[block], costs[block] = chosen % count, table.ravel()[chosen]
        return targets, costs

    def pair_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        """Costs of listed edges between nodes."""
        rows = self.metric.row_costs(self.points[sources], self.points[targets], [goal] * len(sources))
        return checked_costs(rows, (len(sources),))

    def costs_to(self, goal: LatentGoal) -> Floats:
        """d(x_i, g; g) from every node, (N,)."""
        return checked_costs(self.metric.costs(self.points, goal.point[None, :], goal), (self.count, 1))[:, 0]


def keep_cheapest(costs: Floats, k: int) -> Integers:
    """Positions (in the flattened table) of the k cheapest entries of each row, in the order of columns, (n, k); among
    equal costs the first columns win."""
    kth = np.partition(costs, k - 1, axis=1)[:, k - 1]
    chosen = costs <= kth[:, None]
    if np.count_nonzero(chosen) > k * len(costs):
        tied = np.flatnonzero(chosen.sum(axis=1) > k)
        order = np.argsort(costs[tied], axis=1, kind="stable")[:, :k]
        chosen[tied] = False
        chosen[tied[:, None], order] = True
    return np.flatnonzero(chosen).reshape(-1, k)


# ---------------------------------------------------------------- displacements


class DisplacementMatcher(ListedMatcher):
    """l is the length: d(x, x_i; g) is least among the nodes with l <= e^{2 beta} l_min, which a k-d tree finds."""

    nodes: DisplacementCosts

    def __init__(self, nodes: DisplacementCosts, goals: Sequence[LatentGoal], nodes_off: Booleans | None):
        super().__init__(nodes, goals, nodes_off)
        self.listed, self.radii = nodes.listed, nodes.radii
        self.directions = np.array([goal.direction for goal in goals])
        self.projections = np.stack([projections(nodes.points, goal.direction) for goal in goals])

    def back(self, nodes: Integers, states: Floats) -> Floats:
        return row_lengths(self.nodes.points[nodes], states)

    def match_all(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        if self.nodes_off is None:
            row, node = self.nodes.tree.candidates(states, 1, math.exp(2.0 * self.nodes.beta))
        else:
            row, node = np.nonzero(~self.nodes_off[goals])
        costs = self.costs(states, goals, row, node)
        best = np.lexsort((node, costs, row))[np.searchsorted(row, np.arange(len(states)))]
        return node[best], costs[best]

    def costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        heights = row_products(states, self.directions[goals])
        rises = self.projections[goals[row], node] - heights[row]
        return directed_cost(row_lengths(states[row], self.nodes.points[node]), rises, self.nodes.beta)


class DisplacementCosts(NodeCosts):
    """Costs of a `Displacement`, pruned to a few candidates per node where that is cheaper."""

    metric: Displacement
    tree: NodeTree
    matched_by = DisplacementMatcher

    def __init__(self, points: Floats, metric: Displacement, neighbours: int):
        super().__init__(points, metric, neighbours)
        self.beta, self.columns = metric.beta, np.ascontiguousarray(points.T)
        if self.beta > 1.0:
            warnings.warn(
                f"beta is {self.beta:g}: above 1 the directed cost breaks the triangle inequality, so an edge can cost "
                "more than a detour.",
                stacklevel=4,
            )
        self.tree = NodeTree(points)
        lengths, listed = self.tree.listed
        self.listed, self.radii = np.sort(listed, axis=1), lengths[:, -1]
        self.path = "pruned"
        self.blocks: list[tuple[Integers, Integers, Floats]] = []
        """Candidates as a few rectangles: nodes, their candidates, and the lengths to them."""
        if self.count == 1:
            return
        try:
            near = nearest_pairs(points, self.tree, neighbours, math.exp(2.0 * self.beta), most_pairs(self.count))
        except TooMany:
            self.path = "dense"
            return
        self.blocks, self.candidates = rectangles(near, self.count), len(near)

    def key(self, goal: LatentGoal) -> bytes:
        """Only omega_g decides."""
        return b"every goal" if self.metric.for_every_goal else goal.key[1]

    def cheapest(self, goal: LatentGoal) -> tuple[Integers, Floats]:
        if self.path == "dense":
            return super().cheapest(goal)
        projection = projections(self.points, goal.direction)
        targets = np.empty((self.count, self.neighbours), dtype=np.int64)
        costs = np.empty((self.count, self.neighbours))
        for rows, candidates, lengths in self.blocks:
            rises = projection[candidates]
            rises -= projection[rows][:, None]
            block = directed_cost(lengths, rises, self.beta)
            chosen = keep_cheapest(block, self.neighbours)
            targets[rows], costs[rows] = candidates.ravel()[chosen], block.ravel()[chosen]
        return targets, costs

    def pair_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        projection = projections(self.points, goal.direction)
        lengths = pair_lengths(self.columns, sources, targets)
        return directed_cost(lengths, projection[targets] - projection[sources], self.beta)

    def costs_to(self, goal: LatentGoal) -> Floats:
        projection = projections(self.points, goal.direction)
        lengths = lengths_between(self.columns.T, goal.point[None])[:, 0]
        return directed_cost(lengths, float(goal.point @ goal.direction) - projection, self.beta)


def most_pairs(count: int) -> float:
    """Candidates from which on the dense computation is used: past a quarter of all pairs pruning gains nothing, and
    past 2e7 (800 MB) it needs too much memory, though 64 per node always cost less than all pairs for every goal."""
    return max(64.0 * count, min(0.25 * count**2, 2e7))


def rectangles(near: Pairs, count: int) -> list[tuple[Integers, Integers, Floats]]:
    """Rows of similar length together, padded with the row itself at infinite length."""
    starts = np.searchsorted(near.first, np.arange(count + 1))
    widths = np.diff(starts)
    order = np.argsort(widths, kind="stable")
    ordered = widths[order]
    blocks: list[tuple[Integers, Integers, Floats]] = []
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
        blocks.append((rows, targets, lengths))
        begin = end
    return blocks
