"""The directed cost of the paper, and what a planner needs to know of a model.

For one goal g with unit direction w = omega_g, and for points phi_i of the latent space,

    l_ij = max(||phi_j - phi_i||, FLOOR)          length of the displacement
    p_i  = <phi_i, w>                             projection, the only thing that depends on the goal
    c_ij = clip((p_j - p_i) / l_ij, -1, 1)        cosine between the displacement and the goal's direction
    C_ij = l_ij exp(beta (1 - c_ij))              directed cost from i to j

so that l_ij <= C_ij <= e^{2 beta} l_ij. The floor (the published code floors the squared norm at 1e-6) keeps every cost
positive, also between duplicates; the clip makes the two bounds hold in floating point as well.

Everything here is *elementwise*: a value depends on its own pair only, never on how pairs were batched. That is what
lets the pruned graph and the dense reference agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from iel.errors import ConfigError, GeometryError

FLOOR = 1e-3
"""Smallest length of a displacement, in steps."""

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]

CostFunction = Callable[[Floats, Floats, Floats, Floats], Floats]
"""A user's geometry: cost(sources (n, d), targets (m, d), goal (d,), direction (d,)) -> (n, m), finite and positive."""


class Geometry(Protocol):
    """What a planner asks of a model: embeddings, goal directions, a policy, and the sharpness beta."""

    @property
    def beta(self) -> float: ...

    def embed(self, observations: Floats, /) -> Floats:
        """phi: (n, obs_dim) -> (n, d)."""

    def task(self, goals: Floats, /) -> Floats:
        """omega: (n, obs_dim) -> (n, d), unit vectors."""

    def act(self, observations: Floats, directions: Floats, /) -> Floats:
        """The policy's action for each observation and latent direction: (n, obs_dim), (n, d) -> (n, act_dim)."""


class States(Protocol):
    """A data set, as far as a planner cares."""

    @property
    def observations(self) -> Floats: ...


def pair_lengths(columns: Floats, first: Integers, second: Integers) -> Floats:
    """l_ij for listed pairs; `columns` is the transposed table of points, (d, N).

    Squares are added coordinate after coordinate, so the sum is the same number whatever else is in the batch.
    """
    total = np.zeros(np.broadcast_shapes(first.shape, second.shape))
    for column in columns:
        difference = column[first] - column[second]
        difference *= difference
        total += difference
    return floored_root(total)


def lengths_between(sources: Floats, targets: Floats) -> Floats:
    """l for every source and target, (n, m); the same numbers as `pair_lengths`."""
    total = np.zeros((len(sources), len(targets)))
    for source, target in zip(sources.T, targets.T, strict=True):
        difference = source[:, None] - target[None, :]
        difference *= difference
        total += difference
    return floored_root(total)


def lengths_to(columns: Floats, point: Floats) -> Floats:
    """l from every column of the transposed table (d, N) to one point; the same numbers as `pair_lengths`."""
    difference = columns - point[:, None]
    difference *= difference
    # Along the first axis numpy adds row after row, in the order of `pair_lengths`; but it pairs up a single column.
    several = difference.shape[1] > 1
    return floored_root(np.add.reduce(difference, axis=0) if several else np.add.accumulate(difference, axis=0)[-1])


def floored_root(squares: Floats) -> Floats:
    """sqrt(max(squares, FLOOR^2)), in place."""
    np.maximum(squares, FLOOR * FLOOR, out=squares)
    return np.sqrt(squares, out=squares)


def directed_cost(lengths: Floats, rises: Floats, beta: float) -> Floats:
    """C = l exp(beta (1 - clip(rise / l, -1, 1))) with rise = p_j - p_i."""
    if beta == 0.0:
        return lengths.copy()
    cost = rises / lengths
    np.clip(cost, -1.0, 1.0, out=cost)
    np.subtract(1.0, cost, out=cost)
    cost *= beta
    np.exp(cost, out=cost)
    cost *= lengths
    return cost


def symmetric_cost(lengths: Floats, rises: Floats, beta: float) -> Floats:
    """S_ij = (C_ij + C_ji) / 2, which equals l e^beta cosh(beta c): the weight of the spanning tree."""
    total = directed_cost(lengths, rises, beta)
    total += directed_cost(lengths, -rises, beta)
    total *= 0.5
    return total


def projections(points: Floats, direction: Floats) -> Floats:
    """p_i = <phi_i, w>. By einsum, not by a BLAS product: one row's number does not depend on the others, and a call
    this small is slower when threads must be woken for it."""
    return np.einsum("nd,d->n", points, direction)


def unit(vectors: Floats, *fallbacks: Callable[[], Floats]) -> Floats:
    """Rows scaled to length one; a row too short to have a direction takes the first fallback that has one.

    The last resort is the first coordinate axis: a planner never answers NaN.
    """
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    if (norms > 1e-9).all():
        return vectors / norms[:, None]
    result = np.zeros_like(vectors, dtype=np.float64)
    result[:, 0] = 1.0
    missing = np.ones(len(vectors), dtype=bool)
    for make in (lambda: vectors, *fallbacks):
        candidate = make()
        norms = np.sqrt(np.einsum("nd,nd->n", candidate, candidate, dtype=np.float64))
        usable = missing & (norms > 1e-9)
        result[usable] = candidate[usable] / norms[usable, None]
        missing &= ~usable
        if not missing.any():
            break
    return result


def checked_points(points: Any, what: str = "embeddings") -> Floats:
    """A finite, two-dimensional, contiguous float64 table, or an error that names the first bad row."""
    table = np.ascontiguousarray(points, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] == 0:
        raise GeometryError(f"The {what} have shape {table.shape}; give a table with one row per state.")
    if len(table) == 0:
        raise GeometryError(f"There are no {what}; give at least one.")
    # Comparisons with NaN are false; beyond 1e100 squares would soon overflow.
    usable = (np.abs(table) < 1e100).all(axis=1)
    if not usable.all():
        row = int(np.argmin(usable))
        raise GeometryError(
            f"The {what} contain a non-finite (or absurdly large) number in row {row}; mend it before planning."
        )
    return table


def checked_beta(beta: float) -> float:
    """beta as a finite non-negative float."""
    value = float(beta)
    if not (math.isfinite(value) and value >= 0.0):
        raise ConfigError(f"beta is {beta}; it must be a finite number of at least 0.")
    return value


def checked_costs(costs: Any, shape: tuple[int, int], *, own: tuple[Integers, Integers] | None = None) -> Floats:
    """A user's costs, verified: the right shape, finite and positive; `own` are the (row, column) pairs of a node with
    itself, which are no edges and become infinite."""
    table = np.array(costs, dtype=np.float64)
    if table.shape != shape:
        raise GeometryError(f"The cost function returned shape {table.shape} where {shape} was asked for.")
    if own is not None:
        table[own] = 1.0
    if not np.isfinite(table).all():
        raise GeometryError("The cost function returned a non-finite cost; every cost must be a finite number.")
    if not (table > 0.0).all():
        raise GeometryError(
            f"The cost function returned {table.min():g}; every cost must be positive: "
            "remove duplicate states or add a small floor."
        )
    if own is not None:
        table[own] = np.inf
    return table
