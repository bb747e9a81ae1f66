"""What edges between the nodes of a graph cost, and which node a state is matched to: one class per kind of metric.

    MetricCosts         any metric: rows of costs in blocks                              (this file)
    DisplacementCosts   IEL's and HILP's distance: exact, from a few candidates per node (`displacement`)
    SupportCosts        a support function over landmarks: exact, filtered               (`landmarks`)

Out-edges of a node are ordered by (cost, target). The order is total, so the k cheapest are unique, whatever method
finds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from iel.metrics import Booleans, Floats, Integers, LatentGoal, Metric, checked_costs
from iel.planning.neighbours import BLOCK_ELEMENTS, Pairs


@dataclass(frozen=True)
class Cheapest:
    """The k cheapest out-edges of every node: targets and costs, (N, k), targets ascending."""

    targets: Integers
    costs: Floats
    largest: Floats
    """The largest of each row's costs, (N,)."""

    def contains(self, sources: Integers, targets: Integers, costs: Floats) -> np.ndarray:
        """Whether these edges, with these costs, were kept: by the tie rule two numbers per row decide."""
        bound = self.largest[sources]
        kept = costs < bound
        level = np.flatnonzero(costs == bound)
        if len(level):
            rows = sources[level]
            last = np.where(self.costs[rows] == bound[level, None], self.targets[rows], -1).max(axis=1)
            kept[level] = targets[level] <= last
        return kept


class Matcher(ABC):
    """Matches states to nodes, for goals that were prepared together; goals are numbered."""

    @abstractmethod
    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        """argmin_i d(x, x_i; g) over the nodes in use, the smallest index among equals, and its cost.

        memory[r] is the node that row r was matched to last time, or -1; it only saves time, except where a metric
        says that its costs are expensive (`MetricMatcher`).
        """

    @abstractmethod
    def costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        """d(x, x_i; g) for pairs of a row (a state and its goal) and a node."""


class NodeCosts(ABC):
    """Costs between the nodes of one graph."""

    path: str
    """How the cheapest edges are found, for reports."""
    candidates: int = 0
    """Pairs that preparation kept."""
    near: tuple[Pairs, Floats] | None = None
    """Euclidean neighbours and radii, where preparation needed them anyway."""

    def __init__(self, points: Floats, metric: Metric, neighbours: int):
        self.points, self.metric, self.neighbours = points, metric, neighbours
        self.count = len(points)

    def key(self, goal: LatentGoal) -> bytes:
        """Equal for goals whose edges cost the same."""
        return b"every goal" if self.metric.for_every_goal else b"".join(goal.key)

    @abstractmethod
    def cheapest(self, goal: LatentGoal) -> Cheapest:
        """The k cheapest out-edges of every node."""

    @abstractmethod
    def pair_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        """Costs of listed edges between nodes."""

    @abstractmethod
    def costs_to(self, goal: LatentGoal) -> Floats:
        """d(x_i, g; g) from every node, (N,)."""

    @abstractmethod
    def matcher(
        self, goals: Sequence[LatentGoal], nodes_off: Booleans | None, around: Callable[[], Integers]
    ) -> Matcher:
        """Matches states to nodes on the way to these goals; `nodes_off` (m, N) are the nodes not used per goal.

        `around` lists the nodes around every node along the graph, if they are needed.
        """

    def kept(self, cheapest: Cheapest, sources: Integers, targets: Integers, costs: Floats) -> np.ndarray:
        """Whether these edges are among the cheapest; a metric's tables and rows may differ in the last bit."""
        listed = np.repeat(np.arange(self.count), cheapest.targets.shape[1]) * self.count + cheapest.targets.ravel()
        return np.isin(sources.astype(np.int64) * self.count + targets, listed)


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


# ---------------------------------------------------------------- any metric


class MetricCosts(NodeCosts):
    """Any metric: nothing can be pruned, so rows come in blocks, and no N^2 numbers are ever held."""

    path = "metric"

    def cheapest(self, goal: LatentGoal) -> Cheapest:
        count, k = self.count, self.neighbours
        targets, costs, largest = np.empty((count, k), dtype=np.int64), np.empty((count, k)), np.empty(count)
        height = max(1, BLOCK_ELEMENTS // count)
        for start in range(0, count, height):
            block = np.arange(start, min(start + height, count))
            table = checked_costs(self.metric.costs(self.points[block], self.points, goal), (len(block), count))
            table[np.arange(len(block)), block] = np.inf
            chosen, largest[block] = keep_cheapest(table, k)
            targets[block] = (chosen % count).reshape(-1, k)
            costs[block] = table.ravel()[chosen].reshape(-1, k)
        return Cheapest(targets, costs, largest)

    def pair_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        rows = self.metric.row_costs(self.points[sources], self.points[targets], [goal] * len(sources))
        return checked_costs(rows, (len(sources),))

    def costs_to(self, goal: LatentGoal) -> Floats:
        return checked_costs(self.metric.costs(self.points, goal.point[None, :], goal), (self.count, 1))[:, 0]

    def matcher(
        self, goals: Sequence[LatentGoal], nodes_off: Booleans | None, around: Callable[[], Integers]
    ) -> Matcher:
        local = self.metric.dear and self.metric.for_every_goal and self.count > 1 and nodes_off is None
        return MetricMatcher(self, goals, nodes_off, around() if local else None)


class MetricMatcher(Matcher):
    """Matching by rows of costs.

    Where every cost is a network evaluation, a state is compared with the nodes around its last one along the graph,
    then with those around the best of them, until a node is the best of all around it. The first match looks at all
    nodes, as every match does with a metric that is cheap to evaluate.
    """

    def __init__(
        self, nodes: MetricCosts, goals: Sequence[LatentGoal], nodes_off: Booleans | None, around: Integers | None
    ):
        self.nodes, self.goals, self.nodes_off, self.around = nodes, goals, nodes_off, around

    def costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        wanted = [self.goals[goals[r]] for r in row]
        costs = self.nodes.metric.row_costs(states[row], self.nodes.points[node], wanted)
        return checked_costs(costs, (len(row),))

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        moving, first = np.flatnonzero(memory >= 0), np.flatnonzero(memory < 0)
        if self.around is None or not len(moving):
            return self.match_rows(states, goals)
        near = self.around
        nodes, costs = memory.copy(), np.empty(len(states))
        if len(first):
            nodes[first], costs[first] = self.match_rows(states[first], goals[first])
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

    def match_rows(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
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
