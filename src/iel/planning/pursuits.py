"""Three ways to approach a goal: straight, over recursive midpoints, and along a graph.

Straight:    the target is phi(g).
Midpoints:   starting from t = phi(g), repeat R times: among all states w take the 50 that are smallest in
             max(||phi(w) - phi(x)||, ||phi(w) - t||) and let t be their mean (the planner of HILP).
Graph:       match x to the node argmin_i d(x, x_i; g), head for the node's next hop; at the goal's own node for phi(g).
"""

from __future__ import annotations

import numpy as np

from iel.planning.geometry import FLOOR, Floats, Integers, directed_cost, floored_root
from iel.planning.graph import NO_HOP, Field, PlanningGraph
from iel.planning.plan import Aim
from iel.planning.screen import WIDEN, Screen, affordable_screen, places, rounded_up
from iel.planning.usercost import CostRows


def row_lengths(first: Floats, second: Floats) -> Floats:
    """Floored lengths between corresponding rows."""
    difference = first - second
    difference *= difference
    return floored_root(np.add.reduce(difference, axis=1))


def row_products(first: Floats, second: Floats) -> Floats:
    """<first_r, second_r> for corresponding rows."""
    return np.add.reduce(first * second, axis=1)


def smallest_columns(table: Floats, count: int) -> Integers:
    """Columns of the `count` smallest entries of each row, smallest first, the first column among equals.

    Every 16th column suffices to guess a bound that about four times as many entries meet; only those are sorted.
    """
    sample = table[:, ::16]
    rank = min(count // 4 + 8, sample.shape[1] - 1)
    bound = np.partition(sample, rank, axis=1)[:, rank]
    row, column = places(table <= bound[:, None])
    if np.bincount(row, minlength=len(table)).min() < count:
        return np.argsort(table, axis=1, kind="stable")[:, :count]
    order = np.lexsort((table[row, column], row))
    return column[order[np.searchsorted(row, np.arange(len(table)))[:, None] + np.arange(count)]]


class Straight:
    """Direct pursuit of phi(g)."""

    def __init__(self, goals: Floats, directions: Floats, beta: float):
        self.goals, self.directions, self.beta = goals, directions, beta

    def direct_costs(self, states: Floats, goals: Integers) -> Floats:
        """d(x, g; g) = l exp(beta (1 - c))."""
        ends, ways = self.goals[goals], self.directions[goals]
        return directed_cost(row_lengths(states, ends), row_products(ends - states, ways), self.beta)

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The goal itself."""
        return Aim(self.goals[goals], self.direct_costs(states, goals), np.full(len(states), -1, dtype=np.int64))


class Midpoints(Straight):
    """Recursive midpoints among a pool of states, in the Euclidean metric."""

    def __init__(
        self, goals: Floats, directions: Floats, beta: float, pool: Floats, screen: Screen, rounds: int, average: int
    ):
        super().__init__(goals, directions, beta)
        self.pool, self.screen, self.rounds, self.average = pool, screen, rounds, average

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The last midpoint; the cost is that of the straight way, which is what this planner believes in."""
        targets = self.goals[goals]
        here = self.screen.sources(states)[0] @ self.screen.right
        for _ in range(self.rounds):
            there = self.screen.sources(targets)[0] @ self.screen.right
            np.maximum(there, here, out=there)
            targets = self.pool[smallest_columns(there, self.average)].mean(axis=1)
        return Aim(targets, self.direct_costs(states, goals), np.full(len(states), -1, dtype=np.int64))


class AlongGraph(Straight):
    """Next hops of prepared fields, re-matched at every call.

    Matching is exact: d(x, x_i; g) is least among the nodes with l <= e^{2 beta} l_min. A state near the node v it was
    matched to last time is compared with the list of v first; if that list provably holds the best node, nothing else
    is looked at.

    With hysteresis h an episode stays at its node until another one is cheaper by more than the fraction h.
    """

    def __init__(self, graph: PlanningGraph, fields: list[Field], nodes_off: np.ndarray | None, hysteresis: float):
        super().__init__(
            np.array([field.goal for field in fields]), np.array([field.direction for field in fields]), graph.beta
        )
        self.graph, self.fields, self.hysteresis = graph, fields, hysteresis
        self.nodes_off = nodes_off
        self.projections = np.stack([field.projection for field in fields])
        self.next_hops = np.stack([field.next_hop for field in fields])
        self.distances = np.stack([field.distance for field in fields])
        self.goal_nodes = np.array([field.node for field in fields])
        self.last_costs = np.array([field.last_cost for field in fields])
        self.screen = affordable_screen(graph.points, graph.spacing**2)
        self.spread = float(np.exp(2.0 * graph.beta))

    def direct_costs(self, states: Floats, goals: Integers) -> Floats:
        """As on the straight way, in the graph's own geometry."""
        if self.graph.cost is None:
            return super().direct_costs(states, goals)
        rows = [CostRows(self.graph.points, self.graph.cost, self.goals[g], self.directions[g]) for g in goals]
        pairs = zip(rows, states, goals, strict=True)
        return np.array([row.between(state[None, :], self.goals[[goal]])[0, 0] for row, state, goal in pairs])

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The next hop from the matched node, or the goal from the goal's own node."""
        nodes, costs = self.match(states, goals, memory)
        if self.hysteresis > 0.0:
            nodes, costs = self._stay(states, goals, memory, nodes, costs)
        place = goals * self.graph.count + nodes
        hops = self.next_hops.take(place)
        targets = self.graph.points.take(hops, axis=0, mode="wrap")
        totals = costs + self.distances.take(place) + self.last_costs[goals]
        last = np.flatnonzero(hops == NO_HOP)
        if len(last):
            targets[last] = self.goals[goals[last]]
            # Standing at the goal's own node there is no detour over it.
            arrived = last[(nodes[last] == self.goal_nodes[goals[last]]) & np.isfinite(totals[last])]
            totals[arrived] = self.direct_costs(states[arrived], goals[arrived])
        return Aim(targets, totals, nodes)

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        """argmin_i d(x, x_i; g) over the nodes in use, the smallest index among equals, and its cost."""
        if self.graph.cost is not None:
            return self._match_user(states, goals)
        # A switched-off node makes the least length larger than the distance to it: then look everywhere.
        if self.graph.near is None or self.nodes_off is not None:
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
        near = self.graph.near
        assert near is not None
        listed, rows = near.nodes[memory], np.arange(len(states))
        difference = self.graph.points.take(listed, axis=0)
        difference -= states[:, None, :]
        lengths = floored_root(np.einsum("rwd,rwd->rw", difference, difference))
        if self.beta == 0.0:
            costs = lengths
        else:
            rises = self.projections.take(listed + (goals * self.graph.count)[:, None])
            rises -= row_products(states, self.directions[goals])[:, None]
            costs = directed_cost(lengths, rises, self.beta)
        best = costs.argmin(axis=1)
        reach = (lengths[rows, near.own[memory]] + self.spread * lengths.min(axis=1)) * WIDEN
        return listed[rows, best], costs[rows, best], (memory >= 0) & (reach <= near.radii[memory])

    def _match_anywhere(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        """The same over all nodes: one matrix product finds the few in question."""
        row, node = self._near_anything(states)
        costs = self._costs(states, goals, row, node)
        if self.nodes_off is not None:
            costs[self.nodes_off[node]] = np.inf
        cheapest = np.full(len(states), np.inf)
        np.minimum.at(cheapest, row, costs)
        best = costs == cheapest[row]
        nodes = np.full(len(states), self.graph.count, dtype=np.int64)
        np.minimum.at(nodes, row[best], node[best])
        return nodes, cheapest

    def _near_anything(self, states: Floats) -> tuple[Integers, Integers]:
        """Pairs (row, node) with l <= e^{2 beta} l_min, from rows of squared distances."""
        left, slack = self.screen.sources(states)
        squares = left @ self.screen.right
        if self.nodes_off is not None:
            squares[:, self.nodes_off] = np.inf
        least = squares.min(axis=1).astype(np.float64)
        bound = self.spread**2 * WIDEN * np.maximum(least + slack, FLOOR**2) + slack
        return places(squares <= rounded_up(bound, squares.dtype)[:, None])

    def _costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        """d(x, x_i; g) for pairs of a row (a state and its goal) and a node."""
        if self.graph.cost is not None:
            every = [self._user_row(states[r], int(goals[r])) for r in row]
            return np.array([costs[n] for costs, n in zip(every, node, strict=True)])
        heights = row_products(states, self.directions[goals])
        rises = self.projections[goals[row], node] - heights[row]
        return directed_cost(row_lengths(states[row], self.graph.points[node]), rises, self.beta)

    def _user_row(self, state: Floats, goal: int) -> Floats:
        """A user's cost from one state to every node."""
        assert self.graph.cost is not None
        rows = CostRows(self.graph.points, self.graph.cost, self.goals[goal], self.directions[goal])
        return rows.between(state[None, :], self.graph.points)[0]

    def _match_user(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        every = np.array([self._user_row(state, int(goal)) for state, goal in zip(states, goals, strict=True)])
        if self.nodes_off is not None:
            every[:, self.nodes_off] = np.inf
        nodes = np.argmin(every, axis=1)
        return nodes, every[np.arange(len(states)), nodes]

    def _stay(
        self, states: Floats, goals: Integers, memory: Integers, nodes: Integers, costs: Floats
    ) -> tuple[Integers, Floats]:
        """Keep the remembered node unless the new one is cheaper by more than the fraction `hysteresis`."""
        known = memory >= 0
        if self.nodes_off is not None:
            known &= ~self.nodes_off[memory]
        if not known.any():
            return nodes, costs
        kept = np.flatnonzero(known)
        old = self._costs(states[kept], goals[kept], np.arange(len(kept)), memory[kept])
        stay = costs[kept] >= (1.0 - self.hysteresis) * old
        nodes, costs = nodes.copy(), costs.copy()
        nodes[kept[stay]], costs[kept[stay]] = memory[kept[stay]], old[stay]
        return nodes, costs
