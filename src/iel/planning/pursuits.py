"""Three ways to approach a goal: straight, over recursive midpoints, and along a graph.

Straight:    the target is phi(g).
Midpoints:   starting from t = phi(g), repeat R times: among all states w take the 50 that are smallest in
             max(||phi(w) - phi(x)||, ||phi(w) - t||) and let t be their mean (the planner of HILP).
Graph:       match x to the node argmin_i d(x, x_i; g), head for its next hop or a later one; at the goal's for phi(g).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from iel.metrics import FLOOR, Booleans, Floats, Integers, LatentGoal, Metric, checked_costs, row_products
from iel.planning.field import NO_HOP, Field
from iel.planning.graph import PlanningGraph
from iel.planning.plan import Aim
from iel.planning.screen import Screen, places


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

    def __init__(self, goals: list[LatentGoal], metric: Metric | None):
        self.goals, self.metric = goals, metric
        self.points = np.array([goal.point for goal in goals])
        self.directions = np.array([goal.direction for goal in goals])
        self.collects = np.array([goal.rewards is not None for goal in goals])

    def direct_costs(self, states: Floats, goals: Integers) -> Floats:
        """d(x, g; g); infinite for a method that has no distances: it can be pursued, but nothing is known.

        For a reward: how much higher <phi, z> is where the data has it highest.
        """
        if self.metric is None:
            return np.full(len(states), np.inf)
        wanted = [self.goals[goal] for goal in goals]
        costs = checked_costs(self.metric.row_costs(states, self.points[goals], wanted), (len(states),))
        climb = np.maximum(row_products(self.points[goals] - states, self.directions[goals]), FLOOR)
        return np.where(self.collects[goals], climb, costs)

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The goal itself; for a reward whatever lies ahead along z."""
        nowhere = np.full(len(states), -1, dtype=np.int64)
        points = np.where(self.collects[goals, None], states + self.directions[goals], self.points[goals])
        return Aim(points, nowhere, self.direct_costs(states, goals), nowhere)

    def steps(self, states: Floats, goals: Integers, aim: Aim) -> Floats:
        """Predicted steps to the goal from each state."""
        assert self.metric is not None
        return self.metric.steps(aim.costs)


class Midpoints(Straight):
    """Recursive midpoints among a pool of states, in the Euclidean metric."""

    def __init__(
        self,
        goals: list[LatentGoal],
        metric: Metric | None,
        pool: Floats,
        states: Integers,
        screen: Screen,
        rounds: int,
        average: int,
    ):
        super().__init__(goals, metric)
        self.pool, self.pool_states, self.screen, self.rounds, self.average = pool, states, screen, rounds, average

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The last midpoint, for which its most central state stands; the cost is that of the straight way, which is
        what this planner believes in."""
        targets = self.points[goals]
        here = self.screen.sources(states)[0] @ self.screen.right
        for _ in range(self.rounds):
            there = self.screen.sources(targets)[0] @ self.screen.right
            np.maximum(there, here, out=there)
            central = smallest_columns(there, self.average)
            targets = self.pool[central].mean(axis=1)
        nowhere = np.full(len(states), -1, dtype=np.int64)
        return Aim(targets, self.pool_states[central[:, 0]], self.direct_costs(states, goals), nowhere)


class AlongGraph(Straight):
    """Next hops of prepared fields, re-matched at every call."""

    def __init__(
        self,
        graph: PlanningGraph,
        states: Integers,
        fields: list[Field],
        nodes_off: np.ndarray | None,
        lookahead: float = 0.0,
        places: Floats | None = None,
    ):
        """`states` are the rows of the planner's `targets` that are the graph's nodes, and then its portals;
        `nodes_off` (m, N) are the nodes not used per goal."""
        super().__init__([field.goal for field in fields], graph.metric)
        self.graph, self.hop_states, self.fields = graph, states, fields
        self.matcher = graph.matcher(self.goals, nodes_off)
        self.next_hops = np.stack([field.beyond(lookahead, places) for field in fields])
        self.hop_points = np.concatenate([graph.points, graph.portal_points])
        self.distances = np.stack([field.distance for field in fields])
        self.goal_nodes = np.array([field.node for field in fields])
        self.last_costs = np.array([field.last_cost for field in fields])

    @cached_property
    def node_steps(self) -> Floats:
        """Predicted steps from every node to every goal, (m, N)."""
        last = self.graph.metric.steps(self.last_costs)
        return np.stack([field.steps(self.graph.metric) for field in self.fields]) + last[:, None]

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The next hop from the matched node, or the goal from the goal's own node; or that node, to collect there."""
        nodes, costs = self.matcher.match(states, goals, memory)
        place = goals * self.graph.count + nodes
        hops = self.next_hops.take(place)
        hops = np.where((hops == NO_HOP) & self.collects[goals], nodes, hops)  # a reward is best collected right here
        targets = self.hop_points.take(hops, axis=0, mode="wrap")
        rows = np.where(hops == NO_HOP, -1, self.hop_states.take(hops, mode="wrap"))
        totals = costs + self.distances.take(place) + self.last_costs[goals]
        last = np.flatnonzero(hops == NO_HOP)
        if len(last):
            targets[last] = self.points[goals[last]]
            # Standing at the goal's own node there is no detour over it.
            arrived = last[self._arrived(nodes[last], goals[last]) & np.isfinite(totals[last])]
            totals[arrived] = self.direct_costs(states[arrived], goals[arrived])
        return Aim(targets, rows, totals, nodes)

    def steps(self, states: Floats, goals: Integers, aim: Aim) -> Floats:
        """Steps to the matched node, along its way, and from its end to the goal; straight from the goal's own node."""
        metric, known = self.graph.metric, np.isfinite(aim.costs)
        result = np.full(len(states), np.inf)
        straight = known & self._arrived(aim.nodes, goals)
        result[straight] = metric.steps(aim.costs[straight])
        onward = np.flatnonzero(known & ~straight)
        first = self.matcher.costs(states, goals, onward, aim.nodes[onward])
        result[onward] = metric.steps(first) + self.node_steps[goals[onward], aim.nodes[onward]]
        return result

    def _arrived(self, nodes: Integers, goals: Integers) -> Booleans:
        return nodes == self.goal_nodes[goals]
