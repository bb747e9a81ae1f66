"""A directed graph as lists of edges, and the search backwards from a goal's node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from iel.metrics import Floats, Integers
from iel.planning.field import NO_HOP


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
