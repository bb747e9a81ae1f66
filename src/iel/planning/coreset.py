"""Which states are nodes, and which nodes are near each other: exactly, and without N^2 numbers.

**Coresets** cover the latent space rather than the data's density. Farthest-point sampling takes, again and again, the
state farthest from all states taken so far: the gaps it leaves are at most twice the smallest possible (Gonzalez).
Greedy DPP (`dpp`), the paper's choice, takes the state with the largest residual variance under a Gaussian kernel of
width sigma; it stops where the kernel's numerical rank ends and farthest-point picks fill the rest.

**Pairs.** With l the floored length and beta the sharpness (notation of `iel.distances`), the k cheapest out-edges of
node i lie, for any goal, in

    { j : l_ij <= e^{2 beta} l_i(k) },   l_i(k) = k-th smallest length from i,

because the k nearest nodes cost at most e^{2 beta} l_i(k) each, and every edge costs at least its length. A k-d tree
finds these pairs. What it rounds only widens its searches: pairs that it finds get their exact length
(`distances.pair_lengths`), which decides.

**The tree.** The Euclidean spanning tree keeps a planning graph connected, whatever the goal. It is found by Boruvka's
rounds from lists of near neighbours, with rows of distances only where the lists leave a doubt. The paper takes the
tree of the symmetrised cost of each goal instead. That cost lies between e^beta l and e^beta cosh(beta) l, so the trees
hardly differ, and a tree only matters where the k cheapest edges leave a gap: with beta of 0.1 and 0.3 all next hops of
all goals were the same (docs/lab-notes.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from iel.cores import usable_cores
from iel.distances import FLOOR, Floats, Integers, checked_points, pair_lengths
from iel.errors import ConfigError, GeometryError, unknown_name
from iel.planning.dpp import greedy_dpp

METHODS = ("farthest", "dpp", "all")
DEFAULT_NODES = 2048
SIGMA_FRACTION = 0.5
"""The paper recommends sigma between 0.3 and 0.75 of the mean pair distance; this is the middle."""
BLOCK_ELEMENTS = 1 << 22
"""Numbers in one block of distances: about what two cores digest without waiting for memory."""

WIDEN = 1.0 + 1e-9
"""Every bound is widened by this factor, far more than the rounding of a cost and far less than a candidate."""
TREE_ROWS = 4096
"""Points that are looked up in the tree at a time."""
LISTED = 33
"""Nodes in the list of each node, itself among them: for the spanning tree and for matching."""


# ---------------------------------------------------------------- coresets


@dataclass(frozen=True)
class Coreset:
    """Chosen states: their rows in the table they were chosen from, their embeddings, and how they were chosen."""

    indices: Integers
    points: Floats
    method: str
    sigma: float | None = None
    """Kernel width of a DPP."""
    rank: int | None = None
    """How many picks the DPP made before its kernel's numerical rank ended; the rest are farthest points."""

    def __len__(self) -> int:
        return len(self.indices)


def select_coreset(
    embeddings: ArrayLike,
    nodes: int | None = None,
    *,
    method: str = "farthest",
    sigma: float | None = None,
    default: int = DEFAULT_NODES,
) -> Coreset:
    """Choose `nodes` distinct states (by default `default`, or all there are) by the named method."""
    points = checked_points(embeddings)
    if method not in METHODS:
        raise unknown_name("coreset method", method, METHODS)
    if method == "all":  # the states are a coreset already, such as one exported with a model
        if nodes not in (None, len(points)):
            raise ConfigError(f"coreset='all' takes all {len(points)} states; leave out nodes={nodes}.")
        return Coreset(np.arange(len(points)), points, method)
    wanted = min(default, len(points)) if nodes is None else int(nodes)
    if wanted < 1:
        raise ConfigError(f"nodes is {wanted}; a coreset needs at least 1.")
    if wanted > len(points):
        raise GeometryError(f"nodes is {wanted}, but there are only {len(points)} states; choose fewer.")
    rank = None
    if method == "dpp":
        sigma = automatic_sigma(points) if sigma is None else float(sigma)
        picks = greedy_dpp(points, wanted, sigma)
        rank = len(picks)
        if rank < wanted:
            picks = farthest_point(points, wanted, chosen=picks)
    else:
        sigma = None
        picks = farthest_point(points, wanted)
    if len(picks) < wanted and nodes is not None:
        raise GeometryError(
            f"nodes is {wanted}, but only {len(picks)} embedded states are distinct; choose at most {len(picks)}."
        )
    return Coreset(picks, points[picks], method, sigma, rank)


def farthest_point(points: ArrayLike, count: int, chosen: Sequence[int] | Integers = ()) -> Integers:
    """Farthest-point picks that continue `chosen` (or start at the state nearest the mean), at most `count` in all.

    Stops early when only duplicates are left. Among equally far states the first wins. A pick c can only be nearer to a
    state x than x's own nearest pick a if ||a - c|| < 2 ||x - a||, so only those states are looked at.
    """
    table = checked_points(points)
    picks = [int(pick) for pick in chosen]
    if not picks:
        deviation = table - table.mean(axis=0)
        picks = [int(np.argmin(np.einsum("nd,nd->n", deviation, deviation)))]
    count = min(count, len(table))
    squares, owner = nearest_picks(table, np.array(picks))
    centres = np.empty((count, table.shape[1]))
    centres[: len(picks)] = table[picks]
    while len(picks) < count:
        pick = int(np.argmax(squares))
        if squares[pick] <= 0.0:
            break
        number = len(picks)
        to_centres = np.add.reduce(np.square(centres[:number] - table[pick]), axis=1)
        near = np.flatnonzero(to_centres[owner] <= 4.0 * (1.0 + 1e-9) * squares)
        fresh = np.add.reduce(np.square(table[near] - table[pick]), axis=1)
        closer = fresh < squares[near]
        squares[near[closer]] = fresh[closer]
        owner[near[closer]] = number
        centres[number] = table[pick]
        picks.append(pick)
    return np.array(picks)


def nearest_picks(table: Floats, picks: Integers) -> tuple[Floats, Integers]:
    """Squared distance from every state to its nearest pick, and which pick that is."""
    owner = cKDTree(table[picks]).query(table)[1]
    squares = np.add.reduce(np.square(table - table[picks[owner]]), axis=1)
    squares[picks] = 0.0
    return squares, owner


def automatic_sigma(points: Floats, sample: int = 2000) -> float:
    """Half the mean pair distance over an evenly spaced sample of states."""
    rows = np.unique(np.linspace(0, len(points) - 1, min(sample, len(points))).astype(int))
    distances = pdist(points[rows])
    mean = float(distances.mean()) if len(distances) else 0.0
    return SIGMA_FRACTION * mean if mean > 0.0 else 1.0


# ---------------------------------------------------------------- near nodes


class TooMany(Exception):
    """Pruning leaves more pairs than the dense computation can afford."""


@dataclass(frozen=True)
class Pairs:
    """Listed pairs (first, second) with their lengths."""

    first: Integers
    second: Integers
    lengths: Floats

    def __len__(self) -> int:
        return len(self.first)

    def chosen(self, rows: np.ndarray) -> "Pairs":
        """Some of the pairs, by a mask or an order."""
        return Pairs(self.first[rows], self.second[rows], self.lengths[rows])


class NodeTree:
    """A k-d tree of the nodes in their principal axes, which keep lengths.

    Learned embeddings have few directions that matter, so boxes of the tree fit closer in these axes.
    """

    def __init__(self, points: Floats):
        self.points, self.centre = points, points.mean(axis=0)
        centred = points - self.centre
        self.axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
        self.tree = cKDTree(centred @ self.axes, leafsize=64, balanced_tree=False)

    def turned(self, states: Floats) -> tuple[Floats, float]:
        """The states in the tree's axes, and a bound on how much that rounds any of their distances."""
        centred = states - self.centre
        largest = max(
            float(np.abs(self.tree.maxes).max()), float(np.abs(self.tree.mins).max()), np.abs(centred).max(initial=0.0)
        )
        return centred @ self.axes, 64.0 * states.shape[1] * float(np.finfo(np.float64).eps) * largest

    def nearest(self, states: Floats, count: int) -> tuple[Floats, Integers]:
        """Distances (n, count), rounded, to the nearest nodes of each state, and these nodes."""
        return self.tree.query(self.turned(states)[0], np.arange(1, count + 1), workers=_workers(len(states)))

    @cached_property
    def listed(self) -> tuple[Floats, Integers]:
        """Distances to the `LISTED` nearest nodes of every node, itself among them, and these nodes: (N, LISTED)."""
        return self.nearest(self.points, min(LISTED, len(self.points)))

    def candidates(self, states: Floats, nearest: int, factor: float) -> tuple[Integers, Integers]:
        """All (state, node) with length at most factor * (length of the state's `nearest`-th node); perhaps a few more.

        States ascend, and the nodes of each state.
        """
        turned, slack = self.turned(states)
        kth = self.tree.query(turned, [nearest], workers=_workers(len(states)))[0][:, 0]
        radius = factor * np.maximum(kth + slack, FLOOR) * WIDEN + slack
        lists = self.tree.query_ball_point(turned, radius, workers=_workers(len(states)), return_sorted=True)
        rows = np.repeat(np.arange(len(states)), [len(each) for each in lists])
        return rows, np.fromiter(chain.from_iterable(lists), np.int64, len(rows))


def _workers(rows: int) -> int:
    """Threads for a number of searches: starting one takes longer than a few searches."""
    return len(usable_cores()) if rows > 64 else 1


def nearest_pairs(points: Floats, tree: NodeTree, neighbours: int, factor: float, limit: float = np.inf) -> Pairs:
    """All pairs (i, j) with l_ij <= factor * l_i(k), by first, then second; k is `neighbours`.

    Raises `TooMany` as soon as more than `limit` pairs are certain.
    """
    columns, found, retained = np.ascontiguousarray(points.T), [], 0
    for start in range(0, len(points), TREE_ROWS):
        block = points[start : start + TREE_ROWS]
        row, second = tree.candidates(block, neighbours + 1, factor)  # a node is nearest to itself
        others = start + row != second
        row, second = row[others], second[others]
        lengths = pair_lengths(columns, start + row, second)
        starts = np.searchsorted(row, np.arange(len(block)))
        kth = lengths[np.lexsort((lengths, row))][starts + neighbours - 1]
        keep = lengths <= (factor * WIDEN * kth)[row]
        found.append(((start + row[keep]).astype(np.int32), second[keep].astype(np.int32), lengths[keep]))
        retained += int(keep.sum())
        if retained > limit:
            raise TooMany
    return Pairs(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


# ---------------------------------------------------------------- the tree


def euclidean_tree(points: Floats, tree: NodeTree | None = None) -> Pairs:
    """A minimum spanning tree of the lengths, by Boruvka's rounds: each joins every component to its nearest outside
    node.

    That node is taken from lists of near nodes where they suffice: an unlisted edge of i is longer than radii[i]. Only
    members whose radius is below the best listed edge are looked up again, and those of the largest component, which
    the others will join, never.
    """
    count, columns = len(points), np.ascontiguousarray(points.T)
    if count == 1:
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    tree = tree or NodeTree(points)
    listed = tree.listed[1]
    first = np.repeat(np.arange(count), listed.shape[1])
    lengths = pair_lengths(columns, first, listed.ravel())
    radii = lengths.reshape(listed.shape).max(axis=1) * (2.0 - WIDEN)
    near = Pairs(first, listed.ravel(), lengths).chosen(np.argsort(lengths, kind="stable"))
    joined = near.chosen(np.zeros(0, np.int64))
    labels, components = np.arange(count), count
    while components > 1:
        near = near.chosen(labels[near.first] != labels[near.second])
        best = np.full(components, len(near))
        for ends in (near.first, near.second):
            np.minimum.at(best, labels[ends], np.arange(len(near)))
        reach = np.append(near.lengths, np.inf)[best]
        narrowest = np.full(components, np.inf)
        np.minimum.at(narrowest, labels, radii)
        doubtful = reach > narrowest
        chosen = [near.chosen(best[~doubtful])]
        doubtful[np.argmax(np.bincount(labels, minlength=components))] = False
        if doubtful.any():
            rows = np.flatnonzero(doubtful[labels] & (radii < reach[labels]))
            found = nearest_outside(points, tree, labels, rows)
            listed_too = near.chosen(best[doubtful & np.isfinite(reach)])
            chosen.append(shortest_leaving([found, listed_too], labels, doubtful))
        joined = together([joined, *chosen])
        graph = coo_array((joined.lengths, (joined.first, joined.second)), shape=(count, count))
        components, labels = connected_components(graph, directed=False)
    # Between equal lengths two components may have chosen two edges, so edges may be too many.
    low, high = np.minimum(joined.first, joined.second), np.maximum(joined.first, joined.second)
    unique = np.unique(low * np.int64(count) + high, return_index=True)[1]
    graph = csr_array((joined.lengths[unique], (low[unique], high[unique])), shape=(count, count))
    spanning = minimum_spanning_tree(graph).tocoo()
    return Pairs(spanning.row, spanning.col, spanning.data)


def together(parts: Sequence[Pairs]) -> Pairs:
    """All of these pairs."""
    fields = [(pairs.first, pairs.second, pairs.lengths) for pairs in parts]
    return Pairs(*(np.concatenate(each) for each in zip(*fields, strict=True)))


def nearest_outside(points: Floats, tree: NodeTree, labels: Integers, rows: Integers) -> Pairs:
    """The nearest node of another component for each listed node that may have the nearest of its component."""
    listed = tree.nearest(points[rows], min(8 * LISTED, len(points)))[1]
    outside = labels[listed] != labels[rows][:, None]
    second = listed[np.arange(len(rows)), outside.argmax(axis=1)]
    columns, found = np.ascontiguousarray(points.T), outside.any(axis=1)
    best = np.full(labels.max() + 1, np.inf)
    np.minimum.at(best, labels[rows[found]], pair_lengths(columns, rows[found], second[found]))
    reach = pair_lengths(columns, rows, listed[:, -1]) * (2.0 - WIDEN)
    lacking = np.flatnonzero(~found & (reach < best[labels[rows]]))
    for component in np.unique(labels[rows[lacking]]):
        others, members = np.flatnonzero(labels != component), lacking[labels[rows[lacking]] == component]
        second[members] = others[NodeTree(points[others]).nearest(points[rows[members]], 1)[1][:, 0]]
    found[lacking] = True
    return Pairs(rows[found], second[found], pair_lengths(columns, rows[found], second[found]))


def shortest_leaving(parts: Sequence[Pairs], labels: Integers, wanted: np.ndarray) -> Pairs:
    """The shortest pair that leaves each wanted component, in either direction."""
    both = together([*parts, *(Pairs(pairs.second, pairs.first, pairs.lengths) for pairs in parts)])
    both = both.chosen(np.argsort(both.lengths, kind="stable"))
    component, position = np.unique(labels[both.first], return_index=True)
    return both.chosen(position[wanted[component]])
