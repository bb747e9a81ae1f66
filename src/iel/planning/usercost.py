"""A geometry of the user's own: any function cost(sources, targets, goal, direction) that is finite and positive.

Nothing is known about its bounds, so nothing can be pruned: rows come in blocks through the dense path.
"""

from __future__ import annotations

import numpy as np

from iel.planning.edges import Cheapest, block_height, keep_cheapest
from iel.planning.geometry import CostFunction, Floats, Integers, checked_costs


class CostRows:
    """Rows of a user's cost for one goal."""

    def __init__(self, points: Floats, cost: CostFunction, goal: Floats, direction: Floats):
        self.points, self.cost, self.goal, self.direction = points, cost, goal, direction
        self.count = len(points)

    def between(self, sources: Floats, targets: Floats) -> Floats:
        """Costs from every source to every target; zero is allowed, because a state may sit on a node."""
        costs = np.asarray(self.cost(sources, targets, self.goal, self.direction), dtype=np.float64)
        tiny = np.finfo(np.float64).tiny
        return checked_costs(np.where(costs == 0.0, tiny, costs), (len(sources), len(targets)))

    def rows(self, block: Integers) -> Floats:
        """Costs from some nodes to all nodes, infinite from a node to itself."""
        costs = self.cost(self.points[block], self.points, self.goal, self.direction)
        return checked_costs(costs, (len(block), self.count), own=(np.arange(len(block)), block))

    def cheapest(self, k: int) -> Cheapest:
        """The k cheapest out-edges of every node."""
        targets, costs = np.empty((self.count, k), dtype=np.int64), np.empty((self.count, k))
        dearest = np.empty(self.count)
        height = block_height(self.count)
        for start in range(0, self.count, height):
            block = np.arange(start, min(start + height, self.count))
            table = self.rows(block)
            chosen, dearest[block] = keep_cheapest(table, k)
            targets[block] = (chosen % self.count).reshape(-1, k)
            costs[block] = table.ravel()[chosen].reshape(-1, k)
        return Cheapest(targets, costs, dearest)

    def symmetric_row(self, node: int) -> Floats:
        """S from one node to all: the mean of the ways there and back."""
        here = np.array([node])
        back = self.cost(self.points, self.points[here], self.goal, self.direction)
        weights = self.rows(here)[0]
        weights += checked_costs(back, (self.count, 1), own=(here, np.zeros(1, dtype=np.int64)))[:, 0]
        weights *= 0.5
        return weights


def edge_costs(
    points: Floats, cost: CostFunction, sources: Integers, targets: Integers, goal: Floats, direction: Floats
) -> Floats:
    """Costs of listed edges: one call per distinct source."""
    rows = CostRows(points, cost, goal, direction)
    result = np.empty(len(sources))
    order = np.argsort(sources, kind="stable")
    starts = np.flatnonzero(np.diff(sources[order], prepend=-1))
    for group in np.split(order, starts[1:]):
        result[group] = rows.between(points[sources[group[:1]]], points[targets[group]])[0]
    return result
