"""Three ways to approach a goal: straight, over recursive midpoints, and along a graph.

Straight:    the target is phi(g).
Midpoints:   starting from t = phi(g), repeat R times: among all states w take the 50 that are smallest in
             max(||phi(w) - phi(x)||, ||phi(w) - t||) and let t be their mean (the planner of HILP).
Graph:       match x to the node argmin_i d(x, x_i; g), head for its next hop or a later one; at the goal's for phi(g).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from iel.metrics import (
    FLOOR,
    Booleans,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    checked_costs,
    directed_cost,
    floored_root,
    row_lengths,
    row_products,
)
from iel.planning.field import NO_HOP, Field
from iel.planning.graph import PlanningGraph
from iel.planning.plan import Aim
from iel.planning.screen import WIDEN, Screen, affordable_screen, places, rounded_up


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
    """Next hops of prepared fields, re-matched at every call.

    With a `Displacement` matching is exact: d(x, x_i; g) is least among the nodes with l <= e^{2 beta} l_min. A state
    near the node v it was matched to last time is compared with the list of v first; if that list provably holds the
    best node, nothing else is looked at.

    Where every cost is a network's answer, a state is compared with the nodes around v along the graph, then with
    those around the best of them, until a node is the best of all around it. The first match looks at all nodes, as
    every match does with any other metric.

    With hysteresis h an episode stays at its node until another one is cheaper by more than the fraction h.
    """

    def __init__(
        self,
        graph: PlanningGraph,
        states: Integers,
        fields: list[Field],
        nodes_off: np.ndarray | None,
        hysteresis: float,
        lookahead: float = 0.0,
        places: Floats | None = None,
    ):
        """`states` are the rows of the planner's `targets` that are the graph's nodes, and then its portals;
        `nodes_off` (m, N) are the nodes not used per goal."""
        super().__init__([field.goal for field in fields], graph.metric)
        self.graph, self.hop_states, self.fields, self.hysteresis = graph, states, fields, hysteresis
        self.nodes_off = nodes_off
        self.projections = np.stack([field.projection for field in fields])
        self.next_hops = np.stack([field.beyond(lookahead, places) for field in fields])
        portals = np.empty((0, graph.dimension)) if graph.portals is None else graph.portals.points
        self.hop_points = np.concatenate([graph.points, portals])
        self.distances = np.stack([field.distance for field in fields])
        self.goal_nodes = np.array([field.node for field in fields])
        self.last_costs = np.array([field.last_cost for field in fields])
        if graph.beta is not None:
            self.beta = graph.beta
            self.screen = affordable_screen(graph.points, graph.spacing**2)
            self.spread = float(np.exp(2.0 * graph.beta))

    @cached_property
    def node_steps(self) -> Floats:
        """Predicted steps from every node to every goal, (m, N)."""
        last = self.graph.metric.steps(self.last_costs)
        return np.stack([field.steps(self.graph.metric) for field in self.fields]) + last[:, None]

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The next hop from the matched node, or the goal from the goal's own node; or that node, to collect there."""
        nodes, costs = self.match(states, goals, memory)
        if self.hysteresis > 0.0:
            nodes, costs = self._stay(states, goals, memory, nodes, costs)
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
        first = self._costs(states, goals, onward, aim.nodes[onward])
        result[onward] = metric.steps(first) + self.node_steps[goals[onward], aim.nodes[onward]]
        return result

    def _arrived(self, nodes: Integers, goals: Integers) -> Booleans:
        return nodes == self.goal_nodes[goals]

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        """argmin_i d(x, x_i; g) over the nodes in use, the smallest index among equals, and its cost."""
        if self.graph.beta is None:
            return self._match_around(states, goals, memory)
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
        row, node = self._near_anything(states, goals)
        costs = self._costs(states, goals, row, node)
        if self.nodes_off is not None:
            costs[self.nodes_off[goals[row], node]] = np.inf
        cheapest = np.full(len(states), np.inf)
        np.minimum.at(cheapest, row, costs)
        best = costs == cheapest[row]
        nodes = np.full(len(states), self.graph.count, dtype=np.int64)
        np.minimum.at(nodes, row[best], node[best])
        return nodes, cheapest

    def _near_anything(self, states: Floats, goals: Integers) -> tuple[Integers, Integers]:
        """Pairs (row, node) with l <= e^{2 beta} l_min, from rows of squared distances."""
        left, slack = self.screen.sources(states)
        squares = left @ self.screen.right
        if self.nodes_off is not None:
            squares[self.nodes_off[goals]] = np.inf
        least = squares.min(axis=1).astype(np.float64)
        bound = self.spread**2 * WIDEN * np.maximum(least + slack, FLOOR**2) + slack
        return places(squares <= rounded_up(bound, squares.dtype)[:, None])

    def _costs(self, states: Floats, goals: Integers, row: Integers, node: Integers) -> Floats:
        """d(x, x_i; g) for pairs of a row (a state and its goal) and a node."""
        if self.graph.beta is None:
            wanted = [self.goals[goals[r]] for r in row]
            costs = self.graph.metric.row_costs(states[row], self.graph.points[node], wanted)
            return checked_costs(costs, (len(row),))
        heights = row_products(states, self.directions[goals])
        rises = self.projections[goals[row], node] - heights[row]
        return directed_cost(row_lengths(states[row], self.graph.points[node]), rises, self.beta)

    def _match_around(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        """From the remembered node to better and better ones, until none around is better; the best of all at first."""
        near = self.graph.vicinity if self.nodes_off is None else None
        moving, first = np.flatnonzero(memory >= 0), np.flatnonzero(memory < 0)
        if near is None or not len(moving):
            return self._match_rows(states, goals)
        nodes, costs = memory.copy(), np.empty(len(states))
        if len(first):
            nodes[first], costs[first] = self._match_rows(states[first], goals[first])
        costs[moving], listed = np.inf, near[nodes[moving]]
        fresh = np.ones(listed.shape, bool)
        while fresh.any():
            row, column = np.nonzero(fresh)
            table = np.full(listed.shape, np.inf)
            table[row, column] = self._costs(states, goals, moving[row], listed[row, column])
            best, least = table.argmin(axis=1), table.min(axis=1)
            better = np.flatnonzero(least < costs[moving])
            before, moving = listed[better], moving[better]
            nodes[moving], costs[moving] = before[np.arange(len(better)), best[better]], least[better]
            listed = near[nodes[moving]]
            fresh = (listed[:, :, None] != before[:, None, :]).all(axis=2)  # those just asked about are not better
        return nodes, costs

    def _match_rows(self, states: Floats, goals: Integers) -> tuple[Integers, Floats]:
        """From rows of any metric: one call for all states where goals do not matter, otherwise one per goal."""
        table = np.empty((len(states), self.graph.count))
        groups = (
            [np.arange(len(states))]
            if self.graph.metric.for_every_goal
            else [np.flatnonzero(goals == goal) for goal in np.unique(goals)]
        )
        for group in groups:
            costs = self.graph.metric.costs(states[group], self.graph.points, self.goals[goals[group[0]]])
            table[group] = checked_costs(costs, (len(group), self.graph.count))
        if self.nodes_off is not None:
            table[self.nodes_off[goals]] = np.inf
        nodes = np.argmin(table, axis=1)
        return nodes, table[np.arange(len(states)), nodes]

    def _stay(
        self, states: Floats, goals: Integers, memory: Integers, nodes: Integers, costs: Floats
    ) -> tuple[Integers, Floats]:
        """Keep the remembered node unless the new one is cheaper by more than the fraction `hysteresis`."""
        known = memory >= 0
        if self.nodes_off is not None:
            known &= ~self.nodes_off[goals, memory]
        if not known.any():
            return nodes, costs
        kept = np.flatnonzero(known)
        old = self._costs(states[kept], goals[kept], np.arange(len(kept)), memory[kept])
        stay = costs[kept] >= (1.0 - self.hysteresis) * old
        nodes, costs = nodes.copy(), costs.copy()
        nodes[kept[stay]], costs[kept[stay]] = memory[kept[stay]], old[stay]
        return nodes, costs
