"""A directed graph as lists of edges, the search backwards from a goal's node, and the field that it gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from iel.metrics import Floats, Integers, LatentGoal, Metric

NO_HOP = -1


@dataclass(frozen=True)
class Edges:
    """A directed graph as lists: source[e] -> target[e] at cost[e]."""

    source: Integers
    target: Integers
    cost: Floats

    def __len__(self) -> int:
        return len(self.source)


def without(edges: Edges, count: int, nodes_off: np.ndarray | None, edges_off: Iterable[tuple[int, int]]) -> Edges:
    """The graph less the switched-off nodes and edges."""
    pairs = np.array(list(edges_off), dtype=np.int64).reshape(-1, 2)
    if nodes_off is None and not len(pairs):
        return edges
    keep = np.ones(len(edges), dtype=bool)
    if nodes_off is not None:
        keep &= ~(nodes_off[edges.source] | nodes_off[edges.target])
    if len(pairs):
        keep &= ~np.isin(edges.source * np.int64(count) + edges.target, pairs[:, 0] * count + pairs[:, 1])
    return Edges(edges.source[keep], edges.target[keep], edges.cost[keep])


def search(edges: Edges, count: int, node: int) -> tuple[Floats, Integers]:
    """Distances to `node` and next hops towards it, by Dijkstra's algorithm on the reversed graph."""
    reverse = coo_array((edges.cost, (edges.target, edges.source)), shape=(count, count))
    # No edge is listed twice, so there is nothing to sum: saves a sort.
    reverse.has_canonical_format = True
    distance, predecessor = dijkstra(reverse.tocsr(), directed=True, indices=node, return_predecessors=True)
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


@dataclass(frozen=True)
class Field:
    """Everything planning knows about one goal: where each node goes next, and how far it is."""

    goal: LatentGoal
    node: int
    """The node that stands for the goal: argmin_i d(x_i, g; g); -1 for a reward, whose ways end in many places."""
    last_cost: float
    """d(node, g; g), the way from that node to the goal itself."""
    distance: Floats
    """Cost of the shortest way from every node to `node`; infinite where there is none."""
    next_hop: Integers
    """The next node on that way; -1 at `node` itself, where a reward is best collected, and where there is no way;
    N + k where portal k is entered (`chance`)."""
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

    def beyond(self, lookahead: float, places: Floats | None = None) -> Integers:
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
            if places is None:
                away = self.distance[near] - self.distance[ahead[near]]
            else:
                away = np.linalg.norm(places[ahead[near]] - places[near], axis=1)
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
