"""Observed edges: which hops of a planning graph the trajectories of the data made.

A distance may be short for hops that do not exist: back through a one-way door, across a fold of the embedding, through
a thin wall. The trajectories do not make these hops. With a(t) the node nearest to state t (in the embedding, or in the
position columns where the policy is conditioned on them),

    n(i, j) = min { k >= 1 : a(t) = i and a(t + k) = j on some trajectory }         steps of the fastest passage,

and with s_ij the steps that the metric predicts for the edge i -> j,

    the edge is observed  iff  n(i, j) <= min(1 + slack * s_ij, window),

where `window` is what 99 % of the edges need, and 64 steps at most. Costs that are not steps predict nothing: there any
passage within 64 steps counts. An unobserved edge costs `unobserved_cost` times as much. While this is finite the
graph stays strongly connected, and a path uses such edges only where observed ones lead nowhere. An infinite factor
removes them, and nodes may be cut off.

Passages are counted between *runs* of equal nodes, so standing still costs nothing.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial import cKDTree

from iel.cores import usable_cores
from iel.distances import Floats, Integers
from iel.model.atlas import SLACK, ObservedEdges

LONGEST = 64
"""No passage longer than this is looked for, in steps."""


def positions(columns: Sequence[int], observations: Floats) -> Floats:
    """Where every state is, in position columns that are each divided by their standard deviation.

    A robot passes a position in whatever pose, and its embedding may be nearer to a node behind a door in the same pose
    than to one beside it.
    """
    table = np.asarray(observations[:, list(columns)], np.float32)
    return table / np.maximum(table.std(axis=0), np.float32(1e-8))


def window_for(predicted: Floats) -> int:
    """The window that 99 % of edges with these predicted steps need."""
    return min(LONGEST, math.ceil(1.0 + SLACK * float(np.quantile(predicted, 0.99))))


def assign(states: Floats, points: Floats) -> Integers:
    """a(t): the nearest node of every state."""
    return cKDTree(points).query(states, workers=len(usable_cores()))[1]


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
