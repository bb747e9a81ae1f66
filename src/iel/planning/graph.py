"""The directed planning graph: prepared once per coreset, searched in milliseconds per goal.

For a goal the graph has the k cheapest out-edges of every node and, in both directions, the Euclidean spanning tree of
the coreset, which makes it strongly connected. Searched backwards from the goal's node it gives every node its distance
and its next hop, a `Field`:

    distance(i) = min_j C_ij + distance(j),     next(i) = smallest j that attains it.

What edges cost, and how the cheapest are found, depends on the metric (`node_costs`). Where costs are the same for all
goals there is one graph for all of them, and a new goal is one search.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from iel.distances import (
    Booleans,
    Displacement,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    SupportFunction,
    checked_costs,
    checked_points,
)
from iel.errors import ConfigError, GeometryError
from iel.model.atlas import ObservedEdges, ObservedTeleports
from iel.planning.coreset import euclidean_tree
from iel.planning.landmarks import SupportCosts
from iel.planning.node_costs import DisplacementCosts, Matcher, NodeCosts
from iel.planning.observed import LONGEST
from iel.planning.teleports import expectations

NO_HOP = -1
LOOKED_AT = 64
"""Nodes of a path whose distances are computed together."""
RECENT = 4
"""Goals whose edges are remembered."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def recall(recent: OrderedDict[K, V], most: int, key: K, make: Callable[[], V]) -> V:
    """What was made for this key, or is made now; the `most` last ones are remembered."""
    if key not in recent:
        recent[key] = make()
    recent.move_to_end(key)
    found = recent[key]
    if len(recent) > most:
        recent.popitem(last=False)
    return found


# ---------------------------------------------------------------- edges and searches


@dataclass(frozen=True)
class Edges:
    """A directed graph as lists: source[e] -> target[e] at cost[e]."""

    source: Integers
    target: Integers
    cost: Floats

    def __len__(self) -> int:
        return len(self.source)

    def chosen(self, rows: Booleans | slice) -> Edges:
        """Some of them."""
        return Edges(self.source[rows], self.target[rows], self.cost[rows])

    def more(self, source: Integers, target: Integers, cost: Floats) -> Edges:
        """These and others."""
        return Edges(np.append(self.source, source), np.append(self.target, target), np.append(self.cost, cost))

    def matrix(self, count: int) -> csr_array:
        """Costs by (target, source): the reversed graph as a sparse matrix."""
        reverse = coo_array((self.cost, (self.target, self.source)), shape=(count, count))
        # No edge is listed twice, so there is nothing to sum: saves a sort.
        reverse.has_canonical_format = True
        return reverse.tocsr()


def without(edges: Edges, count: int, nodes_off: Booleans | None, edges_off: Iterable[tuple[int, int]]) -> Edges:
    """The graph less the switched-off nodes and edges."""
    pairs = np.array(list(edges_off), dtype=np.int64).reshape(-1, 2)
    if nodes_off is None and not len(pairs):
        return edges
    keep = np.ones(len(edges), dtype=bool)
    if nodes_off is not None:
        keep &= ~(nodes_off[edges.source] | nodes_off[edges.target])
    if len(pairs):
        keep &= ~np.isin(edges.source * np.int64(count) + edges.target, pairs[:, 0] * count + pairs[:, 1])
    return edges.chosen(keep)


def search(edges: Edges, count: int, node: int) -> tuple[Floats, Integers]:
    """Distances to `node` and next hops towards it, by Dijkstra's algorithm on the reversed graph."""
    distance, predecessor = dijkstra(edges.matrix(count), directed=True, indices=node, return_predecessors=True)
    here, onward = distance.take(edges.source), distance.take(edges.target)
    best = np.flatnonzero(onward + edges.cost == here)
    best = best[onward[best] < here[best]]
    next_hop = np.full(count, count)
    np.minimum.at(next_hop, edges.source[best], edges.target[best])
    # Where a cost is below the distance's rounding no edge shortens it strictly: there the search's own tree is used,
    # which has -9999 for unreachable nodes.
    left = np.flatnonzero(next_hop == count)
    next_hop[left] = np.maximum(predecessor[left], NO_HOP)
    next_hop[node] = NO_HOP
    return distance, next_hop


def teleport_search(
    edges: Edges, count: int, node: int, teleports: ObservedTeleports, entering: Floats, off: Booleans | None = None
) -> tuple[Floats, Integers]:
    """V of every node (`teleports`), and its next hop: a node, or `count` + k for teleport k. `entering` is c_ik."""
    usable = np.ones(len(entering), bool) if off is None else ~off[teleports.source]
    routes = edges.more(teleports.source[usable], count + teleports.entered[usable], entering[usable])
    ends = np.concatenate([[node], count + np.arange(len(teleports))])
    reverse = routes.matrix(count + len(teleports))
    walks, onward = dijkstra(reverse, directed=True, indices=ends, return_predecessors=True)
    walks, onward = walks[:, :count], onward[:, :count]
    totals = walks + np.concatenate([[0.0], expectations(walks[:, teleports.exits], teleports)])[:, None]
    best, nodes = np.argmin(totals, axis=0), np.arange(count)
    distance = totals[best, nodes]
    next_hop = np.where(np.isfinite(distance), np.maximum(onward[best, nodes], NO_HOP), NO_HOP)
    next_hop[node] = NO_HOP
    return distance, next_hop


def around(edges: Edges, count: int, width: int = 64) -> Integers:
    """The `width` nodes that are nearest to each one along a graph, there or back, itself among them: (N, width).

    Ascending; where fewer can be reached, i itself fills the row up.
    """
    width, everyone = min(width, count), np.arange(count)
    graph = edges.matrix(count)
    nodes = np.empty((count, width), np.int64)
    for start in range(0, count, 256):  # no N^2 numbers are held
        rows = everyone[start : start + 256]
        routes = dijkstra(graph, directed=False, indices=rows)
        order = np.argsort(routes, axis=1, kind="stable")[:, :width]
        nodes[rows] = np.where(np.isfinite(np.take_along_axis(routes, order, axis=1)), order, rows[:, None])
    nodes.sort(axis=1)
    return nodes


@dataclass(frozen=True)
class Field:
    """Everything planning knows about one goal: where each node goes next, and how far it is."""

    goal: LatentGoal
    node: int
    """The node that stands for the goal: argmin_i d(x_i, g; g); -1 for a reward, whose paths end at several nodes."""
    last_cost: float
    """d(node, g; g) where all paths lead through `node`; 0 where the goal was joined to several nodes."""
    distance: Floats
    """Cost of the shortest path from every node to `node`, or to the goal where that was joined to several nodes;
    infinite where there is none."""
    next_hop: Integers
    """The next node on that path; -1 where the goal is next, where a reward is best collected, and where the goal
    cannot be reached; N + k where teleport k is entered (`teleports`)."""
    values: Floats | None = None
    """For a reward: what its discounted sum will be from every node."""
    hops: Floats | None = None
    """Cost of the next hop from every node without penalties, where the search penalised unobserved edges."""

    def steps(self, metric: Metric) -> Floats:
        """Predicted steps from every node to `node`: those of its hops, added up along the path.

        s(i) = steps(C_i,next(i)) + s(next(i)). Where a teleport is entered, the rest counts as one hop.
        """
        known = np.isfinite(self.distance)
        hop = np.where(known, 0.0, np.inf)
        if self.hops is None:
            onward = (self.next_hop != NO_HOP) & (self.next_hop < len(hop))
            rest = np.where(onward, self.distance.take(self.next_hop, mode="clip"), 0.0)
            hop[known] = metric.steps(self.distance[known] - rest[known])
        else:
            hop[known] = metric.steps(self.hops[known])
        return along(hop, self.next_hop)

    def beyond(self, node: int, lookahead: float, positions: Floats | None = None) -> int:
        """The first node on the path from `node` that is at least `lookahead` away; -1 if the goal comes before it.

        Distances are between the nodes' `positions` if they have some, else in costs. Teleports on the path are not
        passed by, nor nodes that a reward is collected from.
        """
        path = [int(self.next_hop[node])]
        if self.goal.rewards is not None:
            return path[0]
        while True:
            while len(path) % LOOKED_AT and 0 <= path[-1] < len(self.next_hop):
                path.append(int(self.next_hop[path[-1]]))
            ends = not 0 <= path[-1] < len(self.next_hop)
            passed = np.array(path[:-1] if ends else path, dtype=np.int64)
            if positions is None:
                away = self.distance[node] - self.distance[passed]
            else:
                away = np.linalg.norm(positions[passed] - positions[node], axis=1)
            far = np.flatnonzero(away >= lookahead)
            if len(far) or ends:
                return path[far[0]] if len(far) else path[-1]
            path.append(int(self.next_hop[path[-1]]))


def along(cost: Floats, next_hop: Integers) -> Floats:
    """The sum of a cost per node over all hops to come, by jumping twice as far in every round."""
    end = len(cost)
    onward = np.append(np.where((next_hop == NO_HOP) | (next_hop >= end), end, next_hop), end)
    total = np.append(cost, 0.0)
    for _ in range(end.bit_length()):  # a path has fewer hops than there are nodes
        if (onward == end).all():
            break
        total, onward = total + total[onward], onward[onward]
    return total[:end]


# ---------------------------------------------------------------- the graph


def node_costs(points: Floats, metric: Metric, neighbours: int) -> NodeCosts:
    """The costs between nodes that fit the metric."""
    if len(points) > 1 and isinstance(metric, SupportFunction):
        return SupportCosts(points, metric, neighbours)
    if isinstance(metric, Displacement):
        return DisplacementCosts(points, metric, neighbours)
    return NodeCosts(points, metric, neighbours)


class PlanningGraph:
    """A coreset's points, ready to be planned over for any goal.

    `symmetric` adds the reverse of every edge (Sym-Graph). The Euclidean tree that keeps the graph connected is that of
    `tree_points`, where distances between the points themselves mean nothing. The cost of every edge that is not among
    the `observed_edges` is multiplied by `unobserved_cost`; an infinite factor removes it.
    """

    def __init__(
        self,
        points: ArrayLike,
        metric: Metric,
        *,
        neighbours: int = 10,
        symmetric: bool = False,
        tree_points: Floats | None = None,
        observed_edges: ObservedEdges | None = None,
        unobserved_cost: float = math.inf,
    ):
        self.points, self.metric = checked_points(points, "coreset embeddings"), metric
        self.count, self.dimension = self.points.shape
        """Number of nodes, and of numbers in an embedding."""
        if neighbours < 1:
            raise ConfigError(f"neighbours is {neighbours}; every node needs at least 1.")
        self.neighbours, self.symmetric = min(neighbours, self.count - 1), symmetric
        self.observed_edges, self.unobserved_cost = observed_edges, unobserved_cost
        self.teleports: ObservedTeleports | None = None
        self.teleport_points: Floats = np.empty((0, self.dimension))
        """Embeddings of the aims of teleports."""
        self._recent: OrderedDict[bytes, Edges] = OrderedDict()
        self._common: Edges | None = None
        self._common_entries: tuple[Integers, Floats] | None = None
        self._sources = np.repeat(np.arange(self.count), self.neighbours)
        self.costs = node_costs(self.points, metric, self.neighbours)
        dispersion = self.points if tree_points is None else checked_points(tree_points, "tree points")
        same = tree_points is None or np.array_equal(dispersion, self.points)
        self.tree = euclidean_tree(dispersion, self.costs.tree if same else None)

    @cached_property
    def vicinity(self) -> Integers:
        """Lists of the nodes around every node, along the graph; for costs that are the same for all goals."""
        anywhere = LatentGoal(self.points[0], np.eye(self.dimension)[0], self.points[0])
        return around(self.edges(anywhere), self.count)

    def matcher(self, goals: list[LatentGoal], nodes_off: Booleans | None) -> Matcher:
        """Matches states to nodes for these goals; `nodes_off` (m, N) are the nodes not used per goal."""
        local = self.metric.expensive and self.metric.for_every_goal and self.count > 1 and nodes_off is None
        matcher = self.costs.matched_by(self.costs, goals, nodes_off)
        matcher.around = self.vicinity if local else None
        return matcher

    def edges(self, goal: LatentGoal) -> Edges:
        """The directed graph for one goal, remembered for a while; one for all goals where costs are."""
        return recall(self._recent, RECENT, self.costs.key(goal), lambda: self._build(goal))

    def _build(self, goal: LatentGoal) -> Edges:
        """The edges that the metric gives, those that were not observed at their penalised cost."""
        edges = self.geometric(goal)
        if self.observed_edges is None:
            return edges
        seen = self.seen(edges)
        if math.isinf(self.unobserved_cost):
            return edges.chosen(seen)
        return Edges(edges.source, edges.target, np.where(seen, edges.cost, self.unobserved_cost * edges.cost))

    def seen(self, edges: Edges) -> Booleans:
        """Which edges were observed."""
        if self.observed_edges is None:
            raise ConfigError("This graph has no observed edges; build its planner with unobserved_cost=1000.")
        return self.observed_edges.seen(edges.source, edges.target, self.predicted(edges.cost))

    def predicted(self, costs: Floats) -> Floats:
        """Predicted steps of edges; `LONGEST` where the metric's costs are not steps."""
        return np.full(len(costs), LONGEST) if self.metric.discount is None else self.metric.steps(costs)

    def observed_connectivity(self, goal: LatentGoal) -> tuple[float, int]:
        """The share of one goal's edges that were observed, and into how many strongly connected components they join
        the nodes (1: every node can reach every other)."""
        edges = self.geometric(goal)
        seen = self.seen(edges)
        components, _ = connected_components(edges.chosen(seen).matrix(self.count), connection="strong")
        return float(seen.mean()), int(components)

    def geometric(self, goal: LatentGoal) -> Edges:
        """The edges that the metric gives, without penalties; computed once where costs are the same for all goals."""
        if not self.metric.for_every_goal:
            return self._geometric(goal)
        if self._common is None:
            self._common = self._geometric(goal)
        return self._common

    def entries(self, goals: list[LatentGoal]) -> tuple[Integers, Floats]:
        """Where paths may begin from every node (itself and the ends of its cheapest out-edges), and the factors by
        which these edges are penalised: both (m, N, 1 + neighbours); m = 1 where costs are the same for all goals.

        A metric that tells one-way steps by itself needs no penalty here: some nodes have few observed edges, and an
        agent that keeps to those turns back and forth between such nodes.
        """
        if self._common_entries is not None:
            return self._common_entries
        itself, ends, factors = np.arange(self.count)[:, None], [], []
        for goal in goals[:1] if self.metric.for_every_goal else goals:
            edges = self.geometric(goal).chosen(slice(self.count * self.neighbours))
            trusted = self.observed_edges is None or self.metric.one_way
            factor = np.ones(len(edges)) if trusted else np.where(self.seen(edges), 1.0, self.unobserved_cost)
            ends.append(np.hstack([itself, edges.target.reshape(self.count, -1)]))
            factors.append(np.hstack([np.ones_like(itself), factor.reshape(self.count, -1)]))
        found = np.stack(ends), np.stack(factors)
        if self.metric.for_every_goal:
            self._common_entries = found
        return found

    def _geometric(self, goal: LatentGoal) -> Edges:
        """Top-k out-edges, then the tree edges that are not among them, in both directions."""
        if self.count == 1:
            return Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        nearest, costs = self.costs.cheapest(goal)
        sources = np.concatenate([self.tree.first, self.tree.second])
        targets = np.concatenate([self.tree.second, self.tree.first])
        new = (nearest[sources] != targets[:, None]).all(axis=1)
        if not self.metric.expensive:  # networks round by batch, so they evaluate all in one
            sources, targets, new = sources[new], targets[new], new[new]
        between = self.costs.pair_costs(sources, targets, goal)
        edges = Edges(self._sources, nearest.ravel(), costs.ravel()).more(sources[new], targets[new], between[new])
        if self.symmetric:
            code = np.setdiff1d(edges.target * self.count + edges.source, edges.source * self.count + edges.target)
            sources, targets = code // self.count, code % self.count
            edges = edges.more(sources, targets, self.costs.pair_costs(sources, targets, goal))
        return edges

    def field(
        self,
        goal: LatentGoal,
        *,
        nodes_off: Booleans | None = None,
        edges_off: Iterable[tuple[int, int]] = (),
        joins: int = 1,
    ) -> Field:
        """Search backwards from the goal; `nodes_off` (a mask) and `edges_off` (pairs source, target) are not used.

        All paths lead through the goal's node argmin_i d(x_i, g; g), or, as to any node, through the `joins` nodes that
        are nearest to it. The goal keeps its node: were that switched off, every distance is infinite.
        """
        if not goal.point.shape == goal.direction.shape == (self.dimension,):
            raise GeometryError(f"The goal is {goal.point.shape}; it and its direction must be ({self.dimension},).")
        goal = goal._replace(off=None)
        edges = self.edges(goal)
        edges = without(edges, self.count, nodes_off, edges_off)
        to_goal = self.costs.costs_to(goal)
        node = int(np.argmin(to_goal))
        last: Floats = np.zeros(self.count)
        if nodes_off is not None and nodes_off[node]:
            distance = np.full(self.count, np.inf)
            next_hop: Integers = np.full(self.count, NO_HOP)
        else:
            if joins > 1:
                last = to_goal
                near = np.flatnonzero(
                    to_goal <= np.partition(to_goal, min(joins, self.count) - 1)[min(joins, self.count) - 1]
                )
                near = near[np.argsort(to_goal[near], kind="stable")][:joins]
                extra = near, np.full(len(near), self.count), self._penalised(near, node, to_goal[near])
                distance, next_hop = self._search(edges.more(*extra), self.count + 1, self.count, goal, nodes_off)
            else:
                distance, next_hop = self._search(edges, self.count, node, goal, nodes_off)
            if nodes_off is not None:
                distance[nodes_off], next_hop[nodes_off] = np.inf, NO_HOP
        hops = None if self.observed_edges is None else self._hops(distance, next_hop, goal, last)
        return Field(goal, node, 0.0 if joins > 1 else float(to_goal[node]), distance, next_hop, hops=hops)

    def _penalised(self, sources: Integers, node: int, costs: Floats) -> Floats:
        """Costs from nodes to a goal beside `node`, penalised where no trajectory went there (see `entries`)."""
        if self.observed_edges is None or self.metric.one_way:
            return costs
        seen = self.seen(Edges(sources, np.full(len(sources), node), costs)) | (sources == node)
        return np.where(seen, costs, self.unobserved_cost * costs)

    def _search(
        self, edges: Edges, count: int, node: int, goal: LatentGoal, nodes_off: Booleans | None
    ) -> tuple[Floats, Integers]:
        """Distances of the nodes, and their next hops, in a graph of `count` nodes: one more where the goal is one."""
        teleports = self.teleports
        if teleports is None:
            distance, next_hop = search(edges, count, node)
        else:
            ends = self.points[teleports.source], self.teleport_points[teleports.entered]
            count_of = len(teleports.source)
            entering = checked_costs(self.metric.row_costs(*ends, [goal] * count_of), (count_of,))
            distance, next_hop = teleport_search(edges, count, node, teleports, entering, nodes_off)
        if count > self.count:
            distance, next_hop = distance[: self.count], next_hop[: self.count]
            next_hop = np.where(next_hop == node, NO_HOP, np.where(next_hop > node, next_hop - 1, next_hop))
        return distance, next_hop

    def _hops(self, distance: Floats, next_hop: Integers, goal: LatentGoal, last: Floats) -> Floats:
        """What the metric says of every next hop, whether it was observed or not: `last` where the goal is next, and
        where a teleport is entered the whole rest."""
        costs = np.where(next_hop < self.count, last, distance)
        onward = np.flatnonzero((next_hop != NO_HOP) & (next_hop < self.count))
        costs[onward] = self.costs.pair_costs(onward, next_hop[onward], goal)
        return costs
