"""The directed planning graph: prepared once per coreset, searched in milliseconds per goal.

For a goal the graph has the k cheapest out-edges of every node and, in both directions, the Euclidean spanning tree of
the coreset, which makes it strongly connected. Searched backwards from the goal's node it gives every node its distance
and its next hop:

    distance(i) = min_j C_ij + distance(j),     next(i) = smallest j that attains it.

What edges cost, and how the cheapest are found, depends on the metric (`node_costs`). Where costs are the same for all
goals there is one graph for all of them, and a new goal is one search.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from iel.errors import ConfigError, GeometryError
from iel.metrics import (
    Displacement,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    SupportFunction,
    checked_costs,
    checked_points,
)
from iel.model.atlas import ObservedEdges, ObservedTeleports
from iel.planning.chance import chance_search
from iel.planning.displacement import DisplacementCosts
from iel.planning.landmarks import SupportCosts
from iel.planning.neighbours import Pairs, around, euclidean_tree, nearest_pairs
from iel.planning.node_costs import Matcher, MetricCosts, NodeCosts
from iel.planning.search import NO_HOP, Edges, Field, search, without
from iel.planning.witness import LONGEST, Connectivity, connectivity


@dataclass
class Report:
    """What preparation found and how long it took."""

    path: str = "pruned"
    """`pruned` (exact, from candidates), `dense` (exact, every pair), `support` (exact, filtered by some landmarks) or
    `metric` (rows of any other metric)."""
    candidates: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def node_costs(points: Floats, metric: Metric, neighbours: int, path: str) -> NodeCosts:
    """The costs between nodes that fit the metric; `path` is for displacements."""
    if len(points) > 1 and isinstance(metric, SupportFunction):
        return SupportCosts(points, metric, neighbours)
    if isinstance(metric, Displacement):
        return DisplacementCosts(points, metric, neighbours, path)
    return MetricCosts(points, metric, neighbours)


class PlanningGraph:
    """A coreset's points, ready to be planned over for any goal.

    `path` forces the "pruned" or the "dense" computation of a `Displacement`; "auto" prunes while that is cheaper.
    `both_ways` adds the reverse of every kept edge (Sym-Graph). The Euclidean tree that keeps the graph connected is
    that of `tree_points`, where the points themselves are no space. Edges that `witnesses` did not see cost `unseen`
    times as much; an infinite factor takes them out.
    """

    def __init__(
        self,
        points: Any,
        metric: Metric,
        *,
        neighbours: int = 10,
        both_ways: bool = False,
        path: str = "auto",
        tree_points: Floats | None = None,
        witnesses: ObservedEdges | None = None,
        unseen: float = math.inf,
        recent: int = 4,
    ):
        self.points = checked_points(points, "coreset embeddings")
        self.metric = metric
        if neighbours < 1:
            raise ConfigError(f"neighbours is {neighbours}; every node needs at least 1.")
        if path not in ("auto", "pruned", "dense"):
            raise ConfigError(f"path is '{path}'; choose auto, pruned or dense.")
        self.neighbours = min(neighbours, self.count - 1)
        self.both_ways = both_ways
        self.witnesses, self.unseen = witnesses, unseen
        self.portals: ObservedTeleports | None = None
        self.portal_points: Floats = np.empty((0, self.points.shape[1]))
        """Embeddings of the aims of portals."""
        self.report = Report()
        self.seconds: dict[str, float] = {}
        self._recent: OrderedDict[bytes, Edges] = OrderedDict()
        self._capacity = max(1, recent)
        self._common: Edges | None = None
        self._sources = np.repeat(np.arange(self.count), self.neighbours)
        self._prepare(path, self.points if tree_points is None else checked_points(tree_points, "tree points"))

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.points)

    @property
    def dimension(self) -> int:
        """Dimension of the latent space."""
        return self.points.shape[1]

    def _prepare(self, path: str, tree_points: Floats) -> None:
        """Find the cheapest edges, or what they are chosen from; find the tree; write the report."""
        report, started = self.report, time.perf_counter()
        self.costs = node_costs(self.points, self.metric, self.neighbours, path)
        report.path, report.candidates = self.costs.path, self.costs.candidates
        report.seconds["neighbours"] = time.perf_counter() - started
        self.tree = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        if self.count > 1:
            near, radii = self.costs.near or nearest_pairs(tree_points, self.neighbours, 1.0, math.inf)
            self.tree = euclidean_tree(tree_points, near, radii)
        report.seconds["total"] = time.perf_counter() - started

    @cached_property
    def vicinity(self) -> Integers:
        """Lists of the nodes around every node, along the graph; for costs that are the same for all goals."""
        anywhere = LatentGoal(self.points[0], np.eye(self.dimension)[0], self.points[0])
        return around(self.edges(anywhere), self.count)

    def matcher(self, goals: list[LatentGoal], nodes_off: np.ndarray | None) -> Matcher:
        """Matches states to nodes on the way to these goals; `nodes_off` (m, N) are the nodes not used per goal."""
        return self.costs.matcher(goals, nodes_off, lambda: self.vicinity)

    def edges(self, goal: LatentGoal) -> Edges:
        """The directed graph for one goal, remembered for a while; one for all goals where costs are."""
        key = self.costs.key(goal)
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        edges = self._build(goal)
        self._recent[key] = edges
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)
        return edges

    def _build(self, goal: LatentGoal) -> Edges:
        """The edges that geometry gives, and among them dearer ones that nobody was seen to take."""
        edges = self.geometric(goal)
        if self.witnesses is None:
            return edges
        seen = self._seen(edges)
        if math.isinf(self.unseen):
            return Edges(edges.source[seen], edges.target[seen], edges.cost[seen])
        return Edges(edges.source, edges.target, np.where(seen, edges.cost, self.unseen * edges.cost))

    def _seen(self, edges: Edges) -> np.ndarray:
        if self.witnesses is None:
            raise ConfigError("This graph has no witnesses; make its planner with witnesses=1000.")
        return self.witnesses.seen(edges.source, edges.target, self.predicted(edges.cost))

    def predicted(self, costs: Floats) -> Floats:
        """The steps that edges are to take; as many as witnesses look for where the metric's costs are no steps."""
        return np.full(len(costs), LONGEST) if self.metric.discount is None else self.metric.steps(costs)

    def witnessed(self, goal: LatentGoal) -> Connectivity:
        """How the graph of one goal hangs together by the edges that were seen."""
        edges = self.geometric(goal)
        seen = self._seen(edges)
        return connectivity(self.count, edges.source, edges.target, seen)

    def geometric(self, goal: LatentGoal) -> Edges:
        """The edges that costs give, whoever took them; asked for once where they are the same for all goals."""
        if not self.metric.for_every_goal:
            return self._geometric(goal)
        if self._common is None:
            self._common = self._geometric(goal)
        return self._common

    def _geometric(self, goal: LatentGoal) -> Edges:
        """Top-k out-edges, then the tree edges that are not among them, both ways; an edge in both appears once."""
        if self.count == 1:
            return Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        started = time.perf_counter()
        cheapest = self.costs.cheapest(goal)
        self.seconds["neighbours"] = time.perf_counter() - started
        sources = np.concatenate([self.tree.first, self.tree.second])
        targets = np.concatenate([self.tree.second, self.tree.first])
        costs = self.edge_costs(sources, targets, goal)
        new = ~self.costs.kept(cheapest, sources, targets, costs)
        edges = Edges(
            np.concatenate([self._sources, sources[new]]),
            np.concatenate([cheapest.targets.ravel(), targets[new]]),
            np.concatenate([cheapest.costs.ravel(), costs[new]]),
        )
        edges = self._with_reverses(edges, goal) if self.both_ways else edges
        self.seconds["join"] = time.perf_counter() - started - self.seconds["neighbours"]
        return edges

    def _with_reverses(self, edges: Edges, goal: LatentGoal) -> Edges:
        forward = edges.source * np.int64(self.count) + edges.target
        backward = edges.target * np.int64(self.count) + edges.source
        code = np.setdiff1d(backward, forward)
        source, target = code // self.count, code % self.count
        return Edges(
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.cost, self.edge_costs(source, target, goal)]),
        )

    def edge_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        """Costs of listed edges between nodes."""
        return self.costs.pair_costs(sources, targets, goal)

    def field(
        self, goal: LatentGoal, *, nodes_off: np.ndarray | None = None, edges_off: Iterable[tuple[int, int]] = ()
    ) -> Field:
        """Search backwards from the goal; `nodes_off` (a mask) and `edges_off` (pairs source, target) are not used.

        The goal keeps the node that geometry gives it: were that node switched off, every distance is infinite.
        """
        goal = self._checked_goal(goal)
        edges = self.edges(goal)
        started = time.perf_counter()
        edges = without(edges, self.count, nodes_off, edges_off)
        to_goal = self.costs.costs_to(goal)
        node = int(np.argmin(to_goal))
        if nodes_off is not None and nodes_off[node]:
            distance = np.full(self.count, np.inf)
            next_hop: Integers = np.full(self.count, NO_HOP)
        else:
            distance, next_hop = self._search(edges, node, goal, nodes_off)
            if nodes_off is not None:
                distance[nodes_off], next_hop[nodes_off] = np.inf, NO_HOP
        self.seconds["search"] = time.perf_counter() - started
        hops = None if self.witnesses is None else self._hops(distance, next_hop, goal)
        return Field(goal, node, float(to_goal[node]), distance, next_hop, hops=hops)

    def _search(
        self, edges: Edges, node: int, goal: LatentGoal, nodes_off: np.ndarray | None
    ) -> tuple[Floats, Integers]:
        portals = self.portals
        if portals is None:
            return search(edges, self.count, node)
        ends = self.points[portals.source], self.portal_points[portals.entered]
        entering = checked_costs(self.metric.row_costs(*ends, [goal] * len(portals.source)), (len(portals.source),))
        return chance_search(edges, self.count, node, portals, entering, nodes_off)

    def _hops(self, distance: Floats, next_hop: Integers, goal: LatentGoal) -> Floats:
        """What the metric says of every next hop, whoever was seen to make it; 0 where there is none, and where a
        portal is entered all that is still to come."""
        costs = np.where(next_hop < self.count, 0.0, distance)
        onward = np.flatnonzero((next_hop != NO_HOP) & (next_hop < self.count))
        costs[onward] = self.edge_costs(onward, next_hop[onward], goal)
        return costs

    def _checked_goal(self, goal: LatentGoal) -> LatentGoal:
        point, direction = np.asarray(goal.point, dtype=np.float64), np.asarray(goal.direction, dtype=np.float64)
        if point.shape != (self.dimension,) or direction.shape != (self.dimension,):
            raise GeometryError(
                f"The goal has shape {point.shape} and its direction {direction.shape}; "
                f"both must be ({self.dimension},)."
            )
        if not (np.isfinite(point).all() and np.isfinite(direction).all()):
            raise GeometryError("The goal's embedding or direction is not finite; check the model and the goal.")
        return LatentGoal(point, direction, goal.observation)
