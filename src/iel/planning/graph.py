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
import time
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
from iel.planning.coreset import Pairs, euclidean_tree, nearest_pairs
from iel.planning.landmarks import SupportCosts
from iel.planning.node_costs import DisplacementCosts, Matcher, NodeCosts
from iel.planning.observed import LONGEST
from iel.planning.teleports import expectations

NO_HOP = -1
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
    # Where a cost drowns in the distance's rounding no edge shortens it strictly: keep the search's own tree there,
    # which says -9999 where there is no way.
    left = np.flatnonzero(next_hop == count)
    next_hop[left] = np.maximum(predecessor[left], NO_HOP)
    next_hop[node] = NO_HOP
    return distance, next_hop


def teleport_search(
    edges: Edges, count: int, node: int, teleports: ObservedTeleports, entering: Floats, off: Booleans | None = None
) -> tuple[Floats, Integers]:
    """V of every node (`teleports`), and its next hop: a node, or `count` + k for portal k. `entering` are the c_ik."""
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
    """The node that stands for the goal: argmin_i d(x_i, g; g); -1 for a reward, whose ways end in many places."""
    last_cost: float
    """d(node, g; g) where all paths lead through `node`; 0 where the goal was joined to several nodes."""
    distance: Floats
    """Cost of the shortest path from every node to `node`, or to the goal where that was joined to several nodes;
    infinite where there is none."""
    next_hop: Integers
    """The next node on that path; -1 where the goal is next, where a reward is best collected, and where there is no
    path; N + k where portal k is entered (`teleports`)."""
    values: Floats | None = None
    """For a reward: what its discounted sum will be from every node."""
    hops: Floats | None = None
    """Cost of the next hop from every node, where the search had others: edges that nobody took are dearer to it."""

    def steps(self, metric: Metric) -> Floats:
        """Predicted steps from every node to `node`: those of its hops, added up along the way.

        s(i) = steps(C_i,next(i)) + s(next(i)). Where a portal is entered, all that is still to come is one hop.
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

    def beyond(self, lookahead: float, node_positions: Floats | None = None) -> Integers:
        """From every node, the first node on its way that is at least `lookahead` away; -1 if the goal comes before.

        Away is meant in the nodes' `places`, if they have some, else in costs. What a reward is collected from is not
        passed by: there it is the next hop.
        """
        ahead = self.next_hop.copy()
        if lookahead <= 0.0 or self.goal.rewards is not None:
            return ahead
        count = len(ahead)
        near = np.flatnonzero((ahead != NO_HOP) & (ahead < count))
        while len(near):
            if node_positions is None:
                away = self.distance[near] - self.distance[ahead[near]]
            else:
                away = np.linalg.norm(node_positions[ahead[near]] - node_positions[near], axis=1)
            near = near[away < lookahead]
            ahead[near] = self.next_hop[ahead[near]]
            near = near[(ahead[near] != NO_HOP) & (ahead[near] < count)]
        return ahead


def along(cost: Floats, next_hop: Integers) -> Floats:
    """The sum of a cost per node over all hops to come, by jumping twice as far in every round."""
    end = len(cost)
    onward = np.append(np.where((next_hop == NO_HOP) | (next_hop >= end), end, next_hop), end)
    total = np.append(cost, 0.0)
    for _ in range(end.bit_length()):  # a way has fewer hops than there are nodes
        if (onward == end).all():
            break
        total, onward = total + total[onward], onward[onward]
    return total[:end]


# ---------------------------------------------------------------- the graph


@dataclass(frozen=True)
class Connectivity:
    """What is left of a graph when only witnessed edges count."""

    edges: int
    observed_connectivity: int
    components: int
    """Strongly connected components of the witnessed edges; 1 if everything can still be reached from everywhere."""
    largest: int
    """Nodes in the largest of them."""


def node_costs(points: Floats, metric: Metric, neighbours: int, path: str) -> NodeCosts:
    """The costs between nodes that fit the metric; `path` is for displacements."""
    if len(points) > 1 and isinstance(metric, SupportFunction):
        return SupportCosts(points, metric, neighbours)
    if isinstance(metric, Displacement):
        return DisplacementCosts(points, metric, neighbours, path)
    return NodeCosts(points, metric, neighbours)


class PlanningGraph:
    """A coreset's points, ready to be planned over for any goal.

    `path` forces the "pruned" or the "dense" computation of a `Displacement`; "auto" prunes while that is cheaper.
    `symmetric` adds the reverse of every kept edge (Sym-Graph). The Euclidean tree that keeps the graph connected is
    that of `tree_points`, where the points themselves are no space. The cost of every edge that is not among the
    `observed_edges` is multiplied by `unobserved_cost`; an infinite factor removes it.
    """

    def __init__(
        self,
        points: ArrayLike,
        metric: Metric,
        *,
        neighbours: int = 10,
        symmetric: bool = False,
        path: str = "auto",
        tree_points: Floats | None = None,
        observed_edges: ObservedEdges | None = None,
        unobserved_cost: float = math.inf,
    ):
        self.points, self.metric = checked_points(points, "coreset embeddings"), metric
        self.count, self.dimension = self.points.shape
        """Number of nodes, and of numbers in an embedding."""
        if neighbours < 1:
            raise ConfigError(f"neighbours is {neighbours}; every node needs at least 1.")
        if path not in ("auto", "pruned", "dense"):
            raise ConfigError(f"path is '{path}'; choose auto, pruned or dense.")
        self.neighbours, self.symmetric = min(neighbours, self.count - 1), symmetric
        self.observed_edges, self.unobserved_cost = observed_edges, unobserved_cost
        self.teleports: ObservedTeleports | None = None
        self.teleport_points: Floats = np.empty((0, self.dimension))
        """Embeddings of the aims of teleports."""
        self.seconds: dict[str, float] = {}
        """How long the parts of the last search took."""
        self._recent: OrderedDict[bytes, Edges] = OrderedDict()
        self._common: Edges | None = None
        self._sources = np.repeat(np.arange(self.count), self.neighbours)
        self.costs = node_costs(self.points, metric, self.neighbours, path)
        self.tree = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        if self.count > 1:
            dispersion = self.points if tree_points is None else checked_points(tree_points, "tree points")
            near, radii = self.costs.near or nearest_pairs(dispersion, self.neighbours, 1.0, math.inf)
            self.tree = euclidean_tree(dispersion, near, radii)

    @cached_property
    def vicinity(self) -> Integers:
        """Lists of the nodes around every node, along the graph; for costs that are the same for all goals."""
        anywhere = LatentGoal(self.points[0], np.eye(self.dimension)[0], self.points[0])
        return around(self.edges(anywhere), self.count)

    def matcher(self, goals: list[LatentGoal], nodes_off: Booleans | None) -> Matcher:
        """Matches states to nodes on the way to these goals; `nodes_off` (m, N) are the nodes not used per goal."""
        local = self.metric.expensive and self.metric.for_every_goal and self.count > 1 and nodes_off is None
        matcher = self.costs.matched_by(self.costs, goals, nodes_off)
        matcher.around = self.vicinity if local else None
        return matcher

    def edges(self, goal: LatentGoal) -> Edges:
        """The directed graph for one goal, remembered for a while; one for all goals where costs are."""
        return recall(self._recent, RECENT, self.costs.key(goal), lambda: self._build(goal))

    def _build(self, goal: LatentGoal) -> Edges:
        """The edges that geometry gives, and among them dearer ones that nobody was seen to take."""
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
        """The steps that edges are to take; as many as witnesses look for where the metric's costs are no steps."""
        return np.full(len(costs), LONGEST) if self.metric.discount is None else self.metric.steps(costs)

    def observed_connectivity(self, goal: LatentGoal) -> Connectivity:
        """How the graph of one goal hangs together by the edges that were seen."""
        edges = self.geometric(goal)
        retained = edges.chosen(self.seen(edges))
        components, labels = connected_components(retained.matrix(self.count), connection="strong")
        return Connectivity(len(edges), len(retained), int(components), int(np.bincount(labels).max()))

    def geometric(self, goal: LatentGoal) -> Edges:
        """The edges that costs give, whoever took them; asked for once where they are the same for all goals."""
        if not self.metric.for_every_goal:
            return self._geometric(goal)
        if self._common is None:
            self._common = self._geometric(goal)
        return self._common

    def entries(self, goals: list[LatentGoal]) -> tuple[Integers, Floats]:
        """Where paths may begin from every node, the ends of its cheapest out-edges, and the factors by which these
        edges are penalised: both (m, N, neighbours), with m = 1 where costs are the same for all goals.

        A metric that tells one-way steps by itself needs no penalty here: some nodes have few observed edges, and an
        agent that keeps to those turns back and forth between such nodes.
        """
        shape, ends, factors = (self.count, self.neighbours), [], []
        for goal in goals[:1] if self.metric.for_every_goal else goals:
            edges = self.geometric(goal).chosen(slice(self.count * self.neighbours))
            trusted = self.observed_edges is None or self.metric.one_way
            factor = np.ones(len(edges)) if trusted else np.where(self.seen(edges), 1.0, self.unobserved_cost)
            ends.append(edges.target.reshape(shape))
            factors.append(factor.reshape(shape))
        return np.stack(ends), np.stack(factors)

    def _geometric(self, goal: LatentGoal) -> Edges:
        """Top-k out-edges, then the tree edges that are not among them, both ways; an edge in both appears once."""
        if self.count == 1:
            return Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        started = time.perf_counter()
        nearest, costs = self.costs.cheapest(goal)
        self.seconds["neighbours"] = time.perf_counter() - started
        sources = np.concatenate([self.tree.first, self.tree.second])
        targets = np.concatenate([self.tree.second, self.tree.first])
        new = (nearest[sources] != targets[:, None]).all(axis=1)
        if not self.metric.expensive:  # networks round by batch, so theirs are all asked together
            sources, targets, new = sources[new], targets[new], new[new]
        between = self.costs.pair_costs(sources, targets, goal)
        edges = Edges(self._sources, nearest.ravel(), costs.ravel()).more(sources[new], targets[new], between[new])
        if self.symmetric:
            code = np.setdiff1d(edges.target * self.count + edges.source, edges.source * self.count + edges.target)
            sources, targets = code // self.count, code % self.count
            edges = edges.more(sources, targets, self.costs.pair_costs(sources, targets, goal))
        self.seconds["join"] = time.perf_counter() - started - self.seconds["neighbours"]
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
        started = time.perf_counter()
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
                near = np.argsort(to_goal, kind="stable")[:joins]
                extra = near, np.full(len(near), self.count), self._penalised(near, node, to_goal[near])
                distance, next_hop = self._search(edges.more(*extra), self.count + 1, self.count, goal, nodes_off)
            else:
                distance, next_hop = self._search(edges, self.count, node, goal, nodes_off)
            if nodes_off is not None:
                distance[nodes_off], next_hop[nodes_off] = np.inf, NO_HOP
        self.seconds["search"] = time.perf_counter() - started
        hops = None if self.observed_edges is None else self._hops(distance, next_hop, goal, last)
        return Field(goal, node, 0.0 if joins > 1 else float(to_goal[node]), distance, next_hop, hops=hops)

    def _penalised(self, sources: Integers, node: int, costs: Floats) -> Floats:
        """Costs from nodes to a goal beside `node`, dearer where no trajectory was seen to go there (see `entries`)."""
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
        where a portal is entered all that is still to come."""
        costs = np.where(next_hop < self.count, last, distance)
        onward = np.flatnonzero((next_hop != NO_HOP) & (next_hop < self.count))
        costs[onward] = self.costs.pair_costs(onward, next_hop[onward], goal)
        return costs
