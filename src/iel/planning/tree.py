"""The Euclidean spanning tree of a coreset: the edges that keep a planning graph connected, whatever the goal.

It is found by Boruvka's rounds from lists of near neighbours, with rows of distances only where the lists leave a
doubt.

The paper takes the tree of the symmetrised cost of each goal instead. That cost lies between e^beta l and
e^beta cosh(beta) l, so the trees hardly differ, and a tree only matters where the k cheapest edges leave a gap: with
beta of 0.1 and 0.3 all next hops of all goals were the same (docs/lab-notes.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from iel.metrics import Floats, Integers, pair_lengths
from iel.planning.screen import WIDEN, Screen, affordable_screen, places, rounded_up


@dataclass(frozen=True)
class Pairs:
    """Listed pairs (first, second) with their lengths."""

    first: Integers
    second: Integers
    lengths: Floats

    def __len__(self) -> int:
        return len(self.first)


def euclidean_tree(points: Floats, near: Pairs, radii: Floats) -> Pairs:
    """A minimum spanning tree of the lengths: every round joins each component to its nearest outside node.

    The nearest outside node of a component is taken from the lists in `near` where they suffice: an unlisted edge of i
    is longer than radii[i]. A row of distances is computed only for members whose radius is below the best listed
    edge, and never for the largest component, which the others will join.
    """
    count = len(points)
    columns = np.ascontiguousarray(points.T)
    screen = affordable_screen(points, float(np.median(radii)) ** 2)
    order = np.argsort(near.lengths, kind="stable")
    near = Pairs(near.first[order], near.second[order], near.lengths[order])
    labels, components = np.arange(count), count
    joined_first: Integers = np.empty(0, dtype=np.int64)
    joined_second: Integers = np.empty(0, dtype=np.int64)
    while components > 1:
        outside = labels[near.first] != labels[near.second]
        near = Pairs(near.first[outside], near.second[outside], near.lengths[outside])
        best = first_of_each(labels[near.first], labels[near.second], components)
        reach = np.append(near.lengths, np.inf)[best]
        narrowest = np.full(components, np.inf)
        np.minimum.at(narrowest, labels, radii)
        certain = best[reach <= narrowest]
        joined_first = np.append(joined_first, near.first[certain])
        joined_second = np.append(joined_second, near.second[certain])
        doubtful = reach > narrowest
        doubtful[np.argmax(np.bincount(labels, minlength=components))] = False
        if doubtful.any():
            rows = np.flatnonzero(doubtful[labels] & (radii < reach[labels]))
            found = nearest_outside(screen, columns, labels, rows)
            listed = best[doubtful & np.isfinite(reach)]
            leaving = shortest_leaving(found, near, listed, labels, doubtful)
            joined_first = np.append(joined_first, leaving[0])
            joined_second = np.append(joined_second, leaving[1])
        graph = coo_array((np.ones(len(joined_first)), (joined_first, joined_second)), shape=(count, count))
        components, labels = connected_components(graph, directed=False)
    return cheapest_tree(count, columns, joined_first, joined_second)


def first_of_each(labels_first: Integers, labels_second: Integers, components: int) -> Integers:
    """For each component the position of its first pair, `len(labels_first)` where it has none."""
    none = len(labels_first)
    result = np.full(components, none)
    for labels in (labels_first, labels_second):
        own = np.full(components, none)
        # Assigned backwards, so the first occurrence is the one that stays.
        own[labels[::-1]] = np.arange(none - 1, -1, -1)
        np.minimum(result, own, out=result)
    return result


def nearest_outside(screen: Screen, columns: Floats, labels: Integers, rows: Integers) -> Pairs:
    """For each listed node the nearest node of another component, with its exact length."""
    seconds, lengths = [], []
    for block, squares in screen.blocks(rows):
        squares[labels[block][:, None] == labels[None, :]] = np.inf
        bound = (squares.min(axis=1).astype(np.float64) + 2.0 * screen.slack) * WIDEN
        row, second = places(squares <= rounded_up(bound, squares.dtype)[:, None])
        exact = pair_lengths(columns, block[row], second)
        order = np.lexsort((exact, row))
        nearest = order[np.searchsorted(row[order], np.arange(len(block)))]
        seconds.append(second[nearest])
        lengths.append(exact[nearest])
    return Pairs(rows, np.concatenate(seconds), np.concatenate(lengths))


def shortest_leaving(
    found: Pairs, near: Pairs, listed: Integers, labels: Integers, wanted: np.ndarray
) -> tuple[Integers, Integers]:
    """The shortest edge that leaves each wanted component, among those found and those listed (in both directions)."""
    first = np.concatenate([found.first, near.first[listed], near.second[listed]])
    second = np.concatenate([found.second, near.second[listed], near.first[listed]])
    order = np.argsort(np.concatenate([found.lengths, near.lengths[listed], near.lengths[listed]]), kind="stable")
    component, position = np.unique(labels[first[order]], return_index=True)
    shortest = order[position[wanted[component]]]
    return first[shortest], second[shortest]


def cheapest_tree(count: int, columns: Floats, first: Integers, second: Integers) -> Pairs:
    """The spanning tree of a small set of edges: between equal lengths two components may have chosen two edges."""
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second).astype(np.int64)
    code = np.unique(low * count + high)
    low, high = code // count, code % count
    lengths = pair_lengths(columns, low, high)
    tree = minimum_spanning_tree(csr_array((lengths, (low, high)), shape=(count, count))).tocoo()
    return Pairs(tree.row, tree.col, tree.data)
