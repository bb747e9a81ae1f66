"""Witnessed edges: which hops of a planning graph somebody was seen to make.

A distance may believe in hops that do not exist: back through a one-way door, across a fold of the embedding, through
a thin wall. The trajectories know better. With a(t) the node nearest to state t (in the embedding, or in the place
columns where the policy is steered by them),

    n(i, j) = min { k >= 1 : a(t) = i and a(t + k) = j on some trajectory }         steps of the fastest passage,

and with s_ij the steps that the metric predicts for the edge i -> j,

    the edge is witnessed  iff  n(i, j) <= min(1 + slack * s_ij, window),

where `window` is what 99 % of the edges need, and 64 steps at most. Costs that are no steps predict nothing: there any
passage within 64 steps is a witness. An unwitnessed edge costs `factor` times as much.
While the factor is finite the graph stays strongly connected, and a large one means: only where no witnessed way is
known. With an infinite one the edge goes, and nodes may be cut off.

Both parts are exact. Nodes are found coarse to fine along each trajectory: every 64th state by looking at all nodes,
the others from the list of near nodes of a state that is known already. If v is that state's node and the list of v
holds every node within r_v of it, the best listed node u is nearest of all as soon as

    ||x - v|| + ||x - u|| <= r_v.

Passages are counted between *runs* of equal nodes, so standing still costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from iel.metrics import Floats, Integers, checked_points
from iel.model.atlas import SLACK, ObservedEdges
from iel.planning.neighbours import WIDEN, Nearby, Screen, affordable_screen, nearest_pairs, places, rounded_up

STRIDE = 64
"""Every so many states one is compared with all nodes."""
LISTED = 16
"""Near nodes in the list of each node."""
LONGEST = 64
"""No passage longer than this is looked for, in steps."""
ROWS = 256
"""States compared with their lists at a time: as many as a core's cache holds."""
ROUNDS = 8
"""Times a state may try the list of the best node of the last list before it looks at all nodes."""


@dataclass(frozen=True)
class Connectivity:
    """What is left of a graph when only witnessed edges count."""

    edges: int
    witnessed: int
    components: int
    """Strongly connected components of the witnessed edges; 1 if everything can still be reached from everywhere."""
    largest: int
    """Nodes in the largest of them."""


def observed_edges(states: Floats, offsets: Integers, points: Floats, window: int = LONGEST) -> ObservedEdges:
    """From embedded states (n, d) of trajectories (`offsets` as in `Trajectories`) and embedded nodes (N, d)."""
    return passages(assign(states, offsets, points), offsets, len(points), window)


def positions(columns: Sequence[int], observations: Floats) -> Floats:
    """Where every state is, in position columns that are each divided by their standard deviation.

    A robot passes a position in whatever pose, and its embedding may be nearer to a node behind a door in the same pose
    than to one beside it.
    """
    table = np.asarray(observations[:, list(columns)], np.float32)
    return table / np.maximum(table.std(axis=0), np.float32(1e-8))


def connectivity(count: int, sources: Integers, targets: Integers, seen: np.ndarray) -> Connectivity:
    """How a graph of so many nodes hangs together by its witnessed edges alone."""
    kept = np.ones(int(seen.sum())), (sources[seen], targets[seen])
    components, labels = connected_components(coo_array(kept, shape=(count, count)), connection="strong")
    return Connectivity(len(seen), int(seen.sum()), int(components), int(np.bincount(labels).max()))


def window_for(predicted: Floats) -> int:
    """The window that 99 % of edges with these predicted steps need."""
    return min(LONGEST, math.ceil(1.0 + SLACK * float(np.quantile(predicted, 0.99))))


# ---------------------------------------------------------------- the node of every state


def assign(states: Floats, offsets: Integers, points: Floats) -> Integers:
    """a(t): the nearest node of every state, the first among equals."""
    table = checked_points(points, "nodes")
    screen = affordable_screen(table, float(np.var(table, axis=0).sum()) / len(table))
    place = np.arange(len(states)) - np.repeat(offsets[:-1], np.diff(offsets))  # within its trajectory
    nodes = np.full(len(states), -1, dtype=np.int32)
    lists = None
    if len(table) > 4 * LISTED:
        near, radii = nearest_pairs(table, LISTED, 1.0, math.inf)
        lists = Nearby.of(near, radii, len(table))
    stride = STRIDE if lists is not None else 1
    anchors = np.flatnonzero(place % stride == 0)
    nodes[anchors] = nearest(states, anchors, table, screen)
    while lists is not None and stride > 1:
        stride //= 2
        rows = np.flatnonzero(place % (2 * stride) == stride)
        guesses, left = nodes[rows - stride], np.arange(len(rows))
        for _ in range(ROUNDS):
            certain = np.empty(len(left), bool)
            for start in range(0, len(left), ROWS):
                part = left[start : start + ROWS]
                best = best_listed(states[rows[part]], guesses[part], table, lists)
                guesses[part], certain[start : start + ROWS] = best
            left = left[~certain]
        guesses[left] = nearest(states, rows[left], table, screen)
        nodes[rows] = guesses
    return nodes


def best_listed(states: Floats, guesses: Integers, points: Floats, lists: Nearby) -> tuple[Integers, np.ndarray]:
    """The nearest node in the list of each guess, and whether it is the nearest of all for certain."""
    listed, row = lists.nodes[guesses], np.arange(len(states))
    difference = points[listed]
    difference -= states[:, None, :]
    lengths = np.sqrt(np.einsum("rwd,rwd->rw", difference, difference))
    best = lengths.argmin(axis=1)
    reach = (lengths[row, lists.own[guesses]] + lengths[row, best]) * WIDEN
    return listed[row, best], reach <= lists.radii[guesses]


def nearest(states: Floats, rows: Integers, points: Floats, screen: Screen) -> Integers:
    """The nearest of all nodes: one matrix product finds the few in question."""
    found = np.empty(len(rows), dtype=np.int64)
    height = max(1, (1 << 20) // len(points))
    for start in range(0, len(rows), height):
        block = states[rows[start : start + height]].astype(np.float64)
        left, slack = screen.sources(block)
        squares = left @ screen.right
        bound = (squares.min(axis=1).astype(np.float64) + 2.0 * slack) * WIDEN
        row, node = places(squares <= rounded_up(bound, squares.dtype)[:, None])
        difference = points[node] - block[row]
        order = np.lexsort((np.einsum("rd,rd->r", difference, difference), row))
        found[start : start + height] = node[order[np.searchsorted(row[order], np.arange(len(block)))]]
    return found


# ---------------------------------------------------------------- who was seen where


def passages(nodes: Integers, offsets: Integers, count: int, window: int = LONGEST) -> ObservedEdges:
    """n(i, j) within `window` steps, from the node of every state."""
    start = np.ones(len(nodes), dtype=bool)
    start[1:] = nodes[1:] != nodes[:-1]
    start[offsets[:-1]] = True
    first = np.flatnonzero(start)
    last = np.append(first[1:], len(nodes)) - 1
    node = nodes[first].astype(np.int64)
    episode = np.searchsorted(offsets, first, side="right")
    merged: Integers = np.empty(0, np.int64)
    pending: list[Integers] = []
    for lag in range(1, len(first)):
        gap = first[lag:] - last[:-lag]
        together = (gap <= window) & (episode[lag:] == episode[:-lag])
        if not together.any():
            break
        pair = np.flatnonzero(together & (node[lag:] != node[:-lag]))
        # One number to sort by: the pair, then the steps.
        pending.append((node[pair] * count + node[pair + lag]) * (window + 1) + gap[pair])
        if sum(map(len, pending)) > 1 << 23:
            merged, pending = np.unique(np.concatenate([merged, *pending])), []
    code, steps = np.divmod(np.unique(np.concatenate([merged, *pending])), window + 1)
    begins = np.flatnonzero(np.diff(code, prepend=-1))
    return ObservedEdges(count, code[begins], steps[begins])
