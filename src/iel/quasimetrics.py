"""Quasimetric heads: distances between embeddings whose way back may be longer, for JAX (losses) and numpy (models).

    d(x, y) >= 0,     d(x, x) = 0,     d(x, z) <= d(x, y) + d(y, z)

hold for any embeddings, before any training. Both heads read the last axis in groups.

`iqe` (interval quasimetric embedding): every coordinate is an interval from x_k up to y_k, empty where y_k <= x_k. A
group's distance is the length of the union of its intervals; the groups are mixed by their mean and their largest:

    u   = |union_k [x_k, y_k]| = sum_k (y_k - max(x_k, max_{j before k} y_j))_+
    d   = a mean_groups(u) + (1 - a) max_groups(u)

where `before` is the order of left ends x (among equal ones, of positions): k adds what those before it left uncovered.
Moving an end of the union by one changes u by one, and moving anything else changes nothing: du/dy_k = 1 where y_k is a
right end of the union, du/dx_k = -1 where x_k is a left one. The gradient is taken from that, not from the maxima.

`mrn` (metric residual network): the first half of a group costs only downwards, the second is a Euclidean distance:

    d   = mean_groups(max_k (x_k - y_k)_+ + ||x - y||)

The root has no epsilon under it: d(x, x) is exactly 0, and so is its gradient there.

Functions take arrays of either library and answer in the same one (their `__array_namespace__`).
"""

from functools import reduce
from typing import Any, Literal

import numpy as np

from iel.errors import ConfigError

Array = Any
"""A numpy or a JAX array."""
Head = Literal["iqe", "mrn"]
HEADS: tuple[Head, ...] = ("iqe", "mrn")


def union_lengths(left: Array, right: Array) -> Array:
    """|union_k [left_k, right_k]| along the last axis."""
    xp = left.__array_namespace__()
    position, covered = np.arange(left.shape[-1]), left
    for j in position:  # a handful of coordinates: cheaper than sorting, and one fused pass in JAX
        start = left[..., j : j + 1]
        before = (start < left) | ((start == left) & (j < position))
        covered = xp.maximum(covered, xp.where(before, right[..., j : j + 1], left))
    adds = right > covered
    length = xp.where(adds, right - covered, 0.0).sum(-1)
    if isinstance(left, np.ndarray):
        return length
    begins, ends = adds & (covered == left), adds
    for j in position:  # y_k is not an end of the union if an interval that adds something was covered up to y_k
        ends = ends & ~((adds & ~begins)[..., j : j + 1] & (covered[..., j : j + 1] == right))
    return _with_gradient(length, (xp.where(ends, right, 0.0) - xp.where(begins, left, 0.0)).sum(-1))


def _with_gradient(value: Array, other: Array) -> Array:
    """`value`, with the gradient of an `other` expression of the same thing that is cheaper to differentiate."""
    from jax.lax import stop_gradient  # only training needs gradients

    return stop_gradient(value) + (other - stop_gradient(other))


def mrn(source: Array, target: Array, groups: int) -> Array:
    """mean over groups of max_k (x_k - y_k)_+ and ||x - y||, on the two halves of each, along the last axis."""
    xp = source.__array_namespace__()
    difference = _grouped(source, groups) - _grouped(target, groups)
    half = difference.shape[-1] // 2
    return _residual(xp, difference[..., :half].max(-1), xp.square(difference[..., half:]).sum(-1)).mean(-1)


def _residual(xp: Any, down: Array, squares: Array) -> Array:
    """(down)_+ + sqrt(squares), whose gradient is 0 where they are 0."""
    apart = squares > 0
    return xp.where(down > 0, down, 0.0) + xp.where(apart, xp.sqrt(xp.where(apart, squares, 1.0)), 0.0)


def distance(head: Head, source: Array, target: Array, groups: int, mix: Array = 0.5) -> Array:
    """One of the two by name, along the last axis; a = `mix` is for `iqe`."""
    if head == "mrn":
        return mrn(source, target, groups)
    lengths = union_lengths(_grouped(source, groups), _grouped(target, groups))
    return mix * lengths.mean(-1) + (1.0 - mix) * lengths.max(-1)


# ---------------------------------------------------------------- tables of all pairs

NUMBERS = 1 << 18
"""Differences held at once in a numpy table: few enough to stay in a core's cache, and bounds memory."""
ROWS = 16
"""Sources at once in a JAX table."""
FEW = 4
"""Of no more coordinates than these the gradient of the largest is cheaper by looking at all."""


def table(head: Head, sources: np.ndarray, targets: np.ndarray, groups: int, mix: float = 0.5) -> np.ndarray:
    """d from every source to every target in numpy, (n, D), (m, D) -> (n, m), a block at a time."""
    result = np.empty((len(sources), len(targets)), np.result_type(sources, targets))
    width = max(1, NUMBERS // sources.shape[1])
    height = max(1, width // max(1, len(targets)))
    for i in range(0, len(sources), height):
        for j in range(0, len(targets), width):
            block = _block(head, sources[i : i + height], targets[j : j + width], groups, mix)
            result[i : i + height, j : j + width] = block
    return result


def pairwise(head: Head, sources: Array, targets: Array, groups: int, mix: Array = 0.5) -> Array:
    """d from every source to every target in JAX, for losses: (..., n, D), (..., m, D) -> (..., n, m).

    Rows come in blocks, whose differences are made again for the gradient: stored, those of 512 states with 512 numbers
    and two heads would take a gigabyte, and moving them takes longer than making them (docs/tmd.md).
    """
    import jax  # only training has it

    with jax.default_matmul_precision("highest"):  # a permutation must not round
        rows = sources.swapaxes(-2, 0)
        some = lambda part: _block(head, part.swapaxes(-2, 0), targets, groups, mix).swapaxes(-2, 0)  # noqa: E731
        whole = len(rows) // ROWS * ROWS
        found = [some(rows[whole:])] if whole < len(rows) else []
        if whole:
            blocks = jax.lax.map(jax.checkpoint(some), rows[:whole].reshape(-1, ROWS, *rows.shape[1:]))
            found.insert(0, blocks.reshape(whole, *blocks.shape[2:]))
        return jax.numpy.concatenate(found).swapaxes(-2, 0)


def _block(head: Head, sources: Array, targets: Array, groups: int, mix: Array) -> Array:
    """All pairs at once; coordinates come first, so that every operation runs along the targets."""
    x, y = (_grouped(part, groups).swapaxes(-1, -3).swapaxes(-2, -3) for part in (sources, targets))
    if head == "mrn":  # x is (..., groups, size, n), y (..., groups, size, m)
        return _mrn_block(x, y).mean(-3)
    lengths = _iqe_block(x, y)
    return mix * lengths.mean(-3) + (1.0 - mix) * lengths.max(-3)


def _mrn_block(x: Array, y: Array) -> Array:
    """max_k (x_k - y_k)_+ + ||x - y|| of all pairs of columns.

    Both gradients are cheaper elsewhere than in the differences: that of the largest is in one coordinate, and that of
    ||x||^2 + ||y||^2 - 2 <x, y> is two matrix products. The values are those of the differences.
    """
    xp, half = x.__array_namespace__(), x.shape[-2] // 2
    differences = [x[..., k, :, None] - y[..., k, None, :] for k in range(2 * half)]
    down, squares = reduce(xp.maximum, differences[:half]), sum(map(xp.square, differences[half:]))
    if not isinstance(x, np.ndarray) and half > FEW:
        best: Array = 0
        for k in reversed(range(half)):
            best = xp.where(differences[k] == down, k, best)
        (fall_x, near_x), (fall_y, near_y) = (xp.split(part.swapaxes(-1, -2), 2, axis=-1) for part in (x, y))
        there = xp.take_along_axis(fall_y, best.swapaxes(-1, -2), axis=-1).swapaxes(-1, -2)
        down = _with_gradient(down, xp.take_along_axis(fall_x, best, axis=-1) - there)
        long_x, long_y = xp.square(near_x).sum(-1)[..., :, None], xp.square(near_y).sum(-1)[..., None, :]
        squares = _with_gradient(squares, long_x + long_y - 2.0 * xp.matmul(near_x, near_y.swapaxes(-1, -2)))
    return _residual(xp, down, squares)


def _iqe_block(x: Array, y: Array) -> Array:
    """|union_k [x_k, y_k]| of all pairs of columns.

    The order of `before` depends on the source alone: with its intervals sorted, and the targets' ends put in the same
    order by a product with a permutation, one pass over the coordinates is enough.
    """
    xp, size = x.__array_namespace__(), x.shape[-2]
    order = xp.argsort(x, axis=-2, stable=True)
    x = xp.take_along_axis(x, order, axis=-2)
    permutation = (order[..., None] == np.arange(size)).astype(y.dtype)
    ends = xp.matmul(permutation, y[..., None, :, :])
    covered: Array = x[..., 0, :, None]
    length: Array = 0.0
    intervals = []
    for k in range(size):
        start, end = x[..., k, :, None], ends[..., k, :, :]
        added = end - xp.maximum(covered, start)
        length = length + xp.where(added > 0, added, 0.0)
        intervals.append((start, end, added > 0, covered <= start))
        covered = xp.maximum(covered, end)
    if isinstance(x, np.ndarray):
        return length
    total, last = 0.0, True
    for start, end, adds, begins in reversed(intervals):  # an end of the union is followed by a beginning, or none
        total = total + xp.where(adds & last, end, 0.0) - xp.where(adds & begins, start, 0.0)
        last = xp.where(adds, begins, last)
    return _with_gradient(length, total)


def groups_of(dimension: int, size: int) -> int:
    """How many groups of `size` coordinates there are."""
    if dimension % size:
        raise ConfigError(f"An embedding of {dimension} numbers does not fall into groups of {size}.")
    return dimension // size


def check_groups(head: str, dimension: int, groups: int) -> None:
    """Refuse embeddings that do not fall into such groups (and for `mrn` into halves of them)."""
    if head not in HEADS:
        raise ConfigError(f"The quasimetric head is '{str(head)[:40]}'; choose one of {', '.join(HEADS)}.")
    if groups < 1 or dimension % groups or (head == "mrn" and dimension // groups % 2):
        even = " of an even size" if head == "mrn" else ""
        raise ConfigError(f"An embedding of {dimension} numbers does not fall into {groups} equal groups{even}.")


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
