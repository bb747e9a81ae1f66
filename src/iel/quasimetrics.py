"""Quasimetric heads: distances between embeddings whose way back may be longer, for JAX (losses) and numpy (models).

    d(x, y) >= 0,     d(x, x) = 0,     d(x, z) <= d(x, y) + d(y, z)

hold for any embeddings, before any training. Both heads read the last axis in groups.

`iqe` (interval quasimetric embedding): every coordinate is an interval from x_k up to y_k, empty where y_k <= x_k. A
group's distance is the length of the union of its intervals; the groups are mixed by their mean and their largest:

    u   = |union_k [x_k, y_k]| = sum_k (y_k - max(x_k, max_{j before k} y_j))_+
    d   = a mean_groups(u) + (1 - a) max_groups(u)

where `before` is the order of left ends x (among equal ones, of positions): k adds what those before it left uncovered.

`mrn` (metric residual network): the first half of a group costs only downwards, the second is a Euclidean distance:

    d   = mean_groups(max_k (x_k - y_k)_+ + ||x - y||)

The root has no epsilon under it: d(x, x) is exactly 0, and so is its gradient there.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from iel.errors import ConfigError

Array = Any
"""A numpy or a JAX array."""
Head = Literal["iqe", "mrn"]
HEADS: tuple[Head, ...] = ("iqe", "mrn")


def iqe(source: Array, target: Array, groups: int, mix: Array = 0.5) -> Array:
    """a mean(u) + (1 - a) max(u) along the last axis, with a = `mix`."""
    lengths = union_lengths(_grouped(source, groups), _grouped(target, groups))
    return mix * lengths.mean(-1) + (1.0 - mix) * lengths.max(-1)


def union_lengths(left: Array, right: Array) -> Array:
    """|union_k [left_k, right_k]| along the last axis."""
    xp = left.__array_namespace__()
    position, covered = np.arange(left.shape[-1]), left
    for j in position:  # a handful of coordinates: cheaper than sorting, and one fused pass in JAX
        start = left[..., j : j + 1]
        before = (start < left) | ((start == left) & (j < position))
        covered = xp.maximum(covered, xp.where(before, right[..., j : j + 1], left))
    added = right - covered
    return xp.where(added > 0, added, 0.0).sum(-1)


def mrn(source: Array, target: Array, groups: int) -> Array:
    """mean over groups of max_k (x_k - y_k)_+ and ||x - y||, on the two halves of each, along the last axis."""
    xp = source.__array_namespace__()
    difference = _grouped(source, groups) - _grouped(target, groups)
    half = difference.shape[-1] // 2
    down, squares = difference[..., :half].max(-1), xp.square(difference[..., half:]).sum(-1)
    apart = squares > 0
    length = xp.where(apart, xp.sqrt(xp.where(apart, squares, 1.0)), 0.0)
    return (xp.where(down > 0, down, 0.0) + length).mean(-1)


def distance(head: Head, source: Array, target: Array, groups: int, mix: Array = 0.5) -> Array:
    """One of the two by name; `mix` is for `iqe`."""
    return iqe(source, target, groups, mix) if head == "iqe" else mrn(source, target, groups)


FEW = 16
"""Below so many targets a table is made pair by pair: there is too little to do for each source."""
NUMBERS = 1 << 17
"""Numbers of embeddings compared at once in a table: few enough to stay in a core's cache, and bounds memory."""


def table(head: Head, sources: np.ndarray, targets: np.ndarray, groups: int, mix: float = 0.5) -> np.ndarray:
    """d from every source to every target in numpy, (n, D), (m, D) -> (n, m), a block at a time.

    The order of `before` depends on the source alone: sorted once for it, one pass over its coordinates is enough.
    """
    result = np.empty((len(sources), len(targets)), np.result_type(sources, targets))
    width = max(1, NUMBERS // sources.shape[1])
    if len(targets) < FEW:
        for start in range(0, len(sources), max(1, width // max(1, len(targets)))):
            rows = slice(start, start + max(1, width // max(1, len(targets))))
            result[rows] = distance(head, sources[rows, None], targets[None], groups, mix)
        return result
    of_one = _unions_from if head == "iqe" else _residuals_from
    for start in range(0, len(targets), width):
        columns = np.ascontiguousarray(targets[start : start + width].T)  # long rows are what numpy is quick with
        for row, source in enumerate(sources):
            each = of_one(source, columns, groups)
            found = mix * each.mean(0) + (1.0 - mix) * each.max(0) if head == "iqe" else each.mean(0)
            result[row, start : start + width] = found
    return result


def _unions_from(source: np.ndarray, columns: np.ndarray, groups: int) -> np.ndarray:
    """Lengths of the unions from one source, (D,), to targets in columns, (D, m): (groups, m)."""
    starts = _grouped(source, groups)
    order = np.argsort(starts, axis=1, kind="stable")
    first = np.arange(groups) * starts.shape[1]
    covered: np.ndarray | float = -np.inf
    total = np.zeros((groups, columns.shape[1]), columns.dtype)
    for place in order.T:
        start, end = source[first + place, None], columns[first + place]
        total += np.maximum(end - np.maximum(covered, start), 0.0)
        covered = np.maximum(covered, end)
    return total


def _residuals_from(source: np.ndarray, columns: np.ndarray, groups: int) -> np.ndarray:
    difference = (source[:, None] - columns).reshape(groups, len(source) // groups, -1)
    half = difference.shape[1] // 2
    far = difference[:, half:]
    return np.maximum(difference[:, :half].max(1), 0.0) + np.sqrt(np.einsum("gkm,gkm->gm", far, far))


def check_groups(head: str, dimension: int, groups: int) -> None:
    """Refuse embeddings that do not fall into such groups (and for `mrn` into halves of them)."""
    if head not in HEADS:
        raise ConfigError(f"The quasimetric head is '{str(head)[:40]}'; choose one of {', '.join(HEADS)}.")
    if groups < 1 or dimension % groups or (head == "mrn" and dimension // groups % 2):
        even = " of an even size" if head == "mrn" else ""
        raise ConfigError(f"An embedding of {dimension} numbers does not fall into {groups} equal groups{even}.")


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
