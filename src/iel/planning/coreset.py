"""Which states are nodes, and which nodes are near each other: exactly, and without N^2 numbers.

**Coresets** cover the latent space rather than the data's density. Farthest-point sampling takes, again and again, the
state farthest from all states taken so far: the gaps it leaves are at most twice the smallest possible (Gonzalez).
Greedy DPP (`dpp`), the paper's choice, takes the state with the largest residual variance under a Gaussian kernel of
width sigma; it stops where the kernel's numerical rank ends and farthest-point picks fill the rest.

**Screens.** ||x - y||^2 = <(-2x, ||x||^2, 1), (y, 1, ||y||^2)> is one product of augmented tables: fast, but rounded
differently for every block shape. So these numbers only ever *screen* pairs: the test is widened by `slack`, which
bounds their absolute error, and pairs that pass get their exact length (`metrics.pair_lengths`). Rows come in blocks.

**Pairs.** With l the floored length and beta the sharpness (notation of `iel.distances`), the k cheapest out-edges of
node i lie, for any goal, in

    { j : l_ij <= e^{2 beta} l_i(k) },   l_i(k) = k-th smallest length from i,

because the k nearest nodes cost at most e^{2 beta} l_i(k) each, and every edge costs at least its length.

**The tree.** The Euclidean spanning tree keeps a planning graph connected, whatever the goal. It is found by Boruvka's
rounds from lists of near neighbours, with rows of distances only where the lists leave a doubt. The paper takes the
tree of the symmetrised cost of each goal instead. That cost lies between e^beta l and e^beta cosh(beta) l, so the trees
hardly differ, and a tree only matters where the k cheapest edges leave a gap: with beta of 0.1 and 0.3 all next hops of
all goals were the same (docs/lab-notes.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree

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

MANY = 20_000
"""From so many points on near ones are found by a tree; the pairs are the same."""
TREE_ROWS = 4096
"""Points that are looked up in the tree at a time."""


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
            raise ConfigError(f"A coreset of {nodes} nodes was asked for, but coreset 'all' takes all {len(points)}.")
        return Coreset(np.arange(len(points)), points, method)
    wanted = min(default, len(points)) if nodes is None else int(nodes)
    if wanted < 1:
        raise ConfigError(f"A coreset of {wanted} nodes was asked for; it needs at least 1.")
    if wanted > len(points):
        raise GeometryError(f"A coreset of {wanted} nodes was asked for, but there are only {len(points)} states.")
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
            f"A coreset of {wanted} nodes was asked for but only {len(picks)} embedded states are distinct; "
            f"ask for at most {len(picks)}."
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
    screen = Screen(points[rows])
    total = sum(float(np.sqrt(np.maximum(squares, 0.0)).sum()) for _, squares in screen.blocks())
    mean = total / max(1, len(rows) * (len(rows) - 1))
    return SIGMA_FRACTION * mean if mean > 0.0 else 1.0


# ---------------------------------------------------------------- screens


class Screen:
    """Approximate squared distances from any points to the rows of a table, and between its rows."""

    def __init__(self, points: Floats, dtype: DTypeLike = np.float64):
        self.dtype = np.dtype(dtype)
        self.centre = points.mean(axis=0)
        moved = points - self.centre  # rounding is least near the origin
        squares = np.einsum("nd,nd->n", moved, moved)
        self.largest = float(squares.max())
        table = np.column_stack([moved, np.ones(len(moved)), squares]).astype(self.dtype)
        self.right = np.ascontiguousarray(table.T)
        self.left, self.slack = self.sources(points)

    @property
    def count(self) -> int:
        return self.right.shape[1]

    def sources(self, points: Floats) -> tuple[Floats, float]:
        """The left factor of the product for these points, and the slack of its result.

        Each of the d + 2 products and sums is off by at most a unit in the last place of the largest partial sum.
        """
        moved = points - self.centre
        squares = np.einsum("nd,nd->n", moved, moved)
        left = np.column_stack([-2.0 * moved, squares, np.ones(len(moved))]).astype(self.dtype)
        scale = self.largest + float(squares.max(initial=0.0))
        return left, 4.0 * (moved.shape[1] + 4) * float(np.finfo(self.dtype).eps) * scale

    def blocks(self, rows: Integers | None = None) -> Iterator[tuple[Integers, Floats]]:
        """The chosen rows of the table (all by default) in blocks, each with its squared distances to every row."""
        chosen = np.arange(self.count) if rows is None else rows
        height = max(1, BLOCK_ELEMENTS // self.count)
        for start in range(0, len(chosen), height):
            block = chosen[start : start + height]
            yield block, self.left[block] @ self.right


def affordable_screen(points: Floats, typical_square: float) -> Screen:
    """A float32 screen where its slack is small against the squared lengths of interest, otherwise a float64 one."""
    double = Screen(points, np.float64)
    if double.largest > 1e30:  # near the end of float32's range
        return double
    single = Screen(points, np.float32)
    return single if single.slack <= 0.02 * typical_square else double


def rounded_up(bound: Floats, dtype: np.dtype) -> Floats:
    """A bound in the screen's own precision, never below the bound itself."""
    return np.nextafter(bound.astype(dtype), dtype.type(np.inf))


def grid_positions(mask: np.ndarray) -> tuple[Integers, Integers]:
    """Rows and columns where a table is true, row by row: np.nonzero, several times faster on sparse tables."""
    return np.divmod(np.flatnonzero(mask), mask.shape[1])


# ---------------------------------------------------------------- pairs


class TooMany(Exception):
    """Pruning keeps so many pairs that the dense path is cheaper."""


@dataclass(frozen=True)
class Pairs:
    """Listed pairs (first, second) with their lengths."""

    first: Integers
    second: Integers
    lengths: Floats

    def __len__(self) -> int:
        return len(self.first)


def nearest_pairs(points: Floats, neighbours: int, factor: float, limit: float) -> tuple[Pairs, Floats]:
    """All pairs (i, j) with l_ij <= factor * l_i(k) by first, then second, and the radius factor * l_i(k) of each row.

    A row knows *every* node within its radius. Raises `TooMany` as soon as more than `limit` pairs are certain.
    """
    count = len(points)
    nearest = min(neighbours, count - 1)
    columns = np.ascontiguousarray(points.T)
    firsts, seconds, lengths = [], [], []
    radii = np.empty(count)
    retained = 0
    for rows, row, second in (_by_tree if count >= MANY else _by_screen)(points, nearest, factor):
        exact = pair_lengths(columns, rows[row], second)
        starts = np.searchsorted(row, np.arange(len(rows)))
        radius = factor * kth_smallest(exact, row, starts, nearest) * WIDEN
        keep = exact <= radius[row]
        radii[rows] = radius
        firsts.append(rows[row[keep]].astype(np.int32))
        seconds.append(second[keep].astype(np.int32))
        lengths.append(exact[keep])
        retained += int(keep.sum())
        if retained > limit:
            raise TooMany
    return Pairs(np.concatenate(firsts), np.concatenate(seconds), np.concatenate(lengths)), radii


def _by_screen(points: Floats, nearest: int, factor: float) -> Iterator[tuple[Integers, Integers, Integers]]:
    """(rows, which of them, others) of all pairs in question, in blocks of rows: by looking at all pairs."""
    screen = affordable_screen(points, typical_square(points, nearest))
    for rows, squares in screen.blocks():
        squares[np.arange(len(rows)), rows] = np.inf
        kth = np.partition(squares, nearest - 1, axis=1)[:, nearest - 1].astype(np.float64)
        bound = factor**2 * np.maximum(kth + screen.slack, FLOOR**2) * WIDEN + screen.slack
        yield rows, *grid_positions(squares <= rounded_up(bound, squares.dtype)[:, None])


def _by_tree(points: Floats, nearest: int, factor: float) -> Iterator[tuple[Integers, Integers, Integers]]:
    """(rows, which of them, others) of all pairs in question, in blocks of rows: from a tree of the points.

    In their principal axes, which keep lengths, boxes of the tree fit closer: learned embeddings have few directions
    that matter. What that rounds is at most `slack`.
    """
    centred = points - points.mean(axis=0)
    turned = centred @ np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    slack = 64.0 * points.shape[1] * float(np.finfo(np.float64).eps * np.abs(centred).max())
    tree, workers = cKDTree(turned, leafsize=64), len(usable_cores())
    for start in range(0, len(points), TREE_ROWS):
        rows = np.arange(start, min(start + TREE_ROWS, len(points)))
        kth = tree.query(turned[rows], nearest + 1, workers=workers)[0][:, nearest]  # a point is nearest to itself
        radius = factor * np.maximum(kth + slack, FLOOR) * WIDEN**2 + slack
        lists = tree.query_ball_point(turned[rows], radius, workers=workers, return_sorted=True)
        row = np.repeat(np.arange(len(rows)), [len(each) for each in lists])
        second = np.fromiter(chain.from_iterable(lists), np.int64, len(row))
        others = rows[row] != second
        yield rows, row[others], second[others]


def typical_square(points: Floats, nearest: int) -> float:
    """Median squared distance to the k-th nearest node over a few rows, to choose the precision of the screen."""
    rows = np.unique(np.linspace(0, len(points) - 1, min(64, len(points))).astype(int))
    screen = Screen(points)
    squares = screen.left[rows] @ screen.right
    return float(np.median(np.partition(squares, nearest, axis=1)[:, nearest]))


def kth_smallest(values: Floats, row: Integers, starts: Integers, k: int) -> Floats:
    """The k-th smallest value of each row of a ragged table whose rows all hold at least k values."""
    return values[np.lexsort((values, row))][starts + k - 1]


# ---------------------------------------------------------------- the tree


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
        np.minimum.at(result, labels, np.arange(none))
    return result


def nearest_outside(screen: Screen, columns: Floats, labels: Integers, rows: Integers) -> Pairs:
    """For each listed node the nearest node of another component, with its exact length."""
    seconds, lengths = [], []
    for block, squares in screen.blocks(rows):
        squares[labels[block][:, None] == labels[None, :]] = np.inf
        bound = (squares.min(axis=1).astype(np.float64) + 2.0 * screen.slack) * WIDEN
        row, second = grid_positions(squares <= rounded_up(bound, squares.dtype)[:, None])
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
