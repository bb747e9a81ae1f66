"""The planner without a search: the next node is the best one within reach by the distance alone.

Shortest hitting times obey Bellman's equation, V(x, g) = min over n within reach of d(x, n) + V(n, g), and a distance
that is right for far goals answers it at once:

    next(v) = argmin_n d(v, n) + d(n, g)      over R / 2 <= d(v, n) <= R and d(n, g) < d(v, g),   R steps of reach

The d(v, n) are found once. A goal costs its distance from every node and one pass over them. Nearer nodes are left out:
by the triangle inequality a node at distance 0 always attains the minimum, and the error of a short distance is as
large as itself. Because d(n, g) falls, no route is circular; where no node is nearer the agent heads for the goal.

A graph adds up short distances, which are right; this planner believes the long ones. In between lie `backups`, each of
which moves the belief one reach further away:

    V_0(v) = d(v, g)        V_k(v) = min_n d(v, n) + V_{k-1}(n)        next(v) from V_k in place of d(., g)
"""

from __future__ import annotations

import numpy as np

from iel.distances import Floats, Integers, LatentGoal, checked_costs
from iel.errors import ConfigError, GeometryError
from iel.model.atlas import Atlas, Source
from iel.planning.coreset import BLOCK_ELEMENTS, select_coreset
from iel.planning.graph import NO_HOP, node_costs
from iel.planning.planner import Aim, Planner, PlanningModel, Pursuit

NODES = 2048
"""Default size of the coreset: all pairs of nodes are looked at once."""
REACH = 10.0
"""Default reach, in steps."""


class Downhill(Pursuit):
    """Next nodes of prepared goals, from the node that a state is matched to."""

    def __init__(self, goals: list[LatentGoal], planner: Greedy):
        super().__init__(goals, planner.metric)
        self.planner = planner
        self.matcher = planner.costs.matched_by(planner.costs, goals, None)
        self.next_nodes = np.stack([planner.descend(goal) for goal in goals])
        """Of every goal and node; -1: the goal itself."""

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The next node of the matched one, or the goal; the cost is the distance to the goal."""
        nodes, _ = self.matcher.match(self.matcher.lifted(states), goals, memory)
        ahead = self.next_nodes[goals, nodes]
        last = ahead == NO_HOP
        points = np.where(last[:, None], self.points[goals], self.planner.points[ahead])
        rows = np.where(last, -1, self.planner.states[ahead])
        return Aim(points, rows, self.direct_costs(states, goals), nodes, nodes)

    def route(self, state: Floats, goal: int) -> tuple[list[int], list[float]]:
        """The next nodes one after the other, and what each part costs; from the last one straight to the goal."""
        lifted = self.matcher.lifted(state[None, :])
        node = int(self.matcher.match(lifted, np.array([goal]), np.array([-1]))[0][0])
        nodes: list[int] = []
        while (node := int(self.next_nodes[goal, node])) != NO_HOP:
            nodes.append(node)
        stops = np.concatenate([state[None, :], self.planner.points[nodes], self.points[[goal]]])
        assert self.metric is not None
        return nodes, checked_costs(
            self.metric.row_costs(stops[:-1], stops[1:], [self.goals[goal]] * (len(nodes) + 1)), (len(nodes) + 1,)
        ).tolist()


class Greedy(Planner):
    """The best node within `reach` steps, without a search; needs an embedding and one distance for all goals."""

    name = "greedy"

    def __init__(
        self,
        model: PlanningModel,
        data: Source,
        *,
        nodes: int | None = None,
        reach: float = REACH,
        backups: int = 0,
        pool: int = 50_000,
        seed: int = 0,
    ):
        super().__init__(model, data)
        metric = self._distances("it knows no best node")
        if not (metric.spatial and metric.for_every_goal and metric.discount is not None):
            raise GeometryError("greedy needs an embedding and one distance in steps for all goals (HTP, HILP, GAS); "
                                "use asym-graph.")  # fmt: skip
        if not 0.0 < reach < np.inf:
            raise ConfigError(f"reach is {reach}; give a number of steps above 0.")
        if backups < 0:
            raise ConfigError(f"backups is {backups}; give 0 or more.")
        rows, embedded = self._embedded_pool(max(pool, nodes or 0), seed)
        method = "all" if self.atlas.chosen else "farthest"
        coreset = select_coreset(embedded, nodes, method=method, default=NODES)
        self.states, self.points, self.reach, self.backups = rows[coreset.indices], coreset.points, reach, backups
        self.costs = node_costs(self.points, metric, 1)
        self.sources, self.candidates, self.steps = self._within_reach()

    def _within_reach(self) -> tuple[Integers, Integers, Floats]:
        """Pairs of nodes R / 2 to R steps apart, by the first one: (from, to, steps)."""
        metric, count = self.costs.metric, len(self.points)
        anywhere = LatentGoal(self.points[0], np.eye(self.points.shape[1])[0])
        found = []
        height = max(1, BLOCK_ELEMENTS // count)
        for start in range(0, count, height):
            block = self.points[start : start + height]
            steps = metric.steps(checked_costs(metric.costs(block, self.points, anywhere), (len(block), count)))
            row, column = np.nonzero((steps >= self.reach / 2) & (steps <= self.reach))
            found.append((start + row, column, steps[row, column]))
        sources, candidates, steps = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return sources, candidates, steps

    def descend(self, goal: LatentGoal) -> Integers:
        """next(v) of every node, the smallest number among equals; -1 within reach of the goal and where none is
        nearer."""
        count, left = len(self.points), self.costs.metric.steps(self.costs.costs_to(goal))
        for _ in range(self.backups):
            least = np.full(count, np.inf)
            np.minimum.at(least, self.sources, self.steps + left[self.candidates])
            left = np.where((left > self.reach) & np.isfinite(least), least, left)
        useful = (left[self.candidates] < left[self.sources]) & (left[self.sources] > self.reach)
        sources, candidates = self.sources[useful], self.candidates[useful]
        totals = self.steps[useful] + left[candidates]
        least = np.full(count, np.inf)
        np.minimum.at(least, sources, totals)
        best = totals == least[sources]
        ahead = np.full(count, count)
        np.minimum.at(ahead, sources[best], candidates[best])
        return np.where(ahead == count, NO_HOP, ahead)

    def node_atlas(self) -> Atlas:
        return self._nodes(self.states, self.points)

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Downhill([goal if goal.observation is not None else self._standing_for(goal) for goal in goals], self)

    def _standing_for(self, goal: LatentGoal) -> LatentGoal:
        """A mixture is not a state: for policies that are sent to states its nearest node stands."""
        return goal._replace(observation=self.observations[self.states[self.costs.costs_to(goal).argmin()]])
