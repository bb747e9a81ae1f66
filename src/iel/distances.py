"""Metrics: what it costs to go from one embedded state to another, as planners see it.

`Displacement` is the paper's. For one goal g with unit direction w = omega_g, and for points phi_i of the latent space,

    l_ij = max(||phi_j - phi_i||, FLOOR)          length of the displacement
    p_i  = <phi_i, w>                             projection, the only thing that depends on the goal
    c_ij = clip((p_j - p_i) / l_ij, -1, 1)        cosine between the displacement and the goal's direction
    C_ij = l_ij exp(beta (1 - c_ij))              directed cost from i to j

so that l_ij <= C_ij <= e^{2 beta} l_ij, which is what lets a graph of it be pruned. The floor (1e-6 for the squared
norm, as in the published code) keeps every cost positive, also between duplicates; the clip makes the two bounds hold
in floating point as well. Its arithmetic is *elementwise*: a value depends on its own pair only, never on how pairs
were batched. That is what lets the pruned graph and the dense reference agree to the last bit.

`SupportFunction` is HTP's: the largest of many displacements, the same for every goal, with the triangle inequality.

Any other metric is a table of costs and nothing is known about its bounds: `Quasimetric`, for the heads of
`iel.quasimetrics`, and those of value networks (in `iel.model`).

Losses and models take the formula of a single displacement, without the clip, and the unit of discounted steps from
here too: those functions take arrays of numpy or of JAX and answer in the same library (their `__array_namespace__`).
beta = 0 is the Euclidean distance of HILP. For 0 <= beta <= 1 C is an asymmetric norm of the displacement, so the
triangle inequality holds; it fails for beta > 1. Going back costs C_ji = exp(2 beta c_ij) C_ij.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.errors import ConfigError, DataError, GeometryError, IELError
from iel.quasimetrics import Array, Head, distance, table

FLOOR = 1e-3
"""Smallest length of a displacement, and smallest cost of any metric."""
SQUARED_FLOOR = 1e-6
"""Keeps the gradient of the square root finite where a displacement is 0; d(g, g; g) is 1e-3 e^beta, not 0."""
REMAINING_FLOOR = 1e-3
"""gamma^H is never taken to be smaller: the longest time that discounted costs tell apart (687 steps at 0.99)."""

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]
Booleans = NDArray[np.bool_]


class LatentGoal(NamedTuple):
    """A goal as planners see it: phi(g), omega_g, and its state (None for a mixture of states).

    A reward to collect is a goal as well: `direction` is where it increases, `point` where it is largest.
    """

    point: Floats
    direction: Floats
    observation: Floats | None = None
    rewards: Floats | None = None
    """Of every node of the planner's graph (empty where there is none); None for a goal to reach."""
    discount: float = 1.0
    """Of rewards, per step."""
    off: Booleans | None = None
    """Nodes that routes to this goal leave out."""

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for equal goals; a mixture is never a state."""
        optional = (b"" if part is None else np.asarray(part).tobytes() for part in self[2:])
        return self.point.tobytes(), self.direction.tobytes(), *optional


class Metric(ABC):
    """Costs between embedded states: finite and positive."""

    for_every_goal: bool = False
    """Whether costs are the same for all goals: then one graph serves them all."""
    discount: float | None = None
    """Costs are discounted steps with this gamma; 1 for plain steps, None where costs are not steps at all."""
    spatial: bool = True
    """Whether Euclidean distances between embeddings mean something (recursive midpoints and coresets use them)."""
    one_way: bool = False
    """Whether it can tell a step that cannot be undone: nothing bounds the ratio of the two directions."""
    expensive: bool = False
    """Whether every single cost is a network's answer: then planners compute few of them."""

    @abstractmethod
    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        """From every source to every target, for `goal`: (n, d), (m, d) -> (n, m)."""

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        """Row by row: from sources[r] to targets[r], for goals[r], (n,)."""
        rows = range(len(sources))
        return np.array([self.costs(sources[[r]], targets[[r]], goals[r])[0, 0] for r in rows], dtype=np.float64)

    def steps(self, costs: Floats) -> Floats:
        """The steps that costs stand for; infinite costs stay infinite."""
        if self.discount is None:
            raise GeometryError("The costs of this metric are not in steps, so it predicts no number of steps.")
        return np.where(np.isfinite(costs), undiscounted_steps(costs, self.discount), np.inf)

    def symmetric(self) -> Metric:
        """A metric without direction: the mean of the costs there and back."""
        return Symmetric(self)


@dataclass(frozen=True)
class Displacement(Metric):
    """C = l exp(beta (1 - c)): IEL's metric, and HILP's with beta = 0."""

    beta: float = 0.1
    discount: float | None = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.beta) and self.beta >= 0.0):
            raise ConfigError(f"beta is {self.beta}; it must be a finite number of at least 0.")

    @property
    def for_every_goal(self) -> bool:  # type: ignore[override]
        return self.beta == 0.0

    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        rises = projections(targets, goal.direction)[None, :] - projections(sources, goal.direction)[:, None]
        return directed_cost(lengths_between(sources, targets), rises, self.beta)

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        directions = np.array([goal.direction for goal in goals]).reshape(sources.shape)
        return directed_cost(row_lengths(sources, targets), row_products(targets - sources, directions), self.beta)

    def symmetric(self) -> Metric:
        """The Euclidean distance, which is what the paper's symmetric graph uses."""
        return Displacement(0.0, self.discount)


@dataclass(frozen=True)
class Quasimetric(Metric):
    """C = scale d(phi_i, phi_j) with a head of `iel.quasimetrics`: directed, and the same for every goal.

    `scale` turns the head's own unit into that of `discount`: plain steps, unless said otherwise.
    """

    head: Head = "iqe"
    groups: int = 64
    mix: float = 0.5
    scale: float = 1.0
    discount: float | None = 1.0
    for_every_goal: ClassVar[bool] = True  # type: ignore[misc]
    one_way: ClassVar[bool] = True  # type: ignore[misc]

    @property
    def spatial(self) -> bool:  # type: ignore[override]
        """`mrn` is a norm of the difference, so means lie between; unions of intervals have no such means."""
        return self.head == "mrn"

    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        return np.maximum(self.scale * table(self.head, sources, targets, self.groups, self.mix), FLOOR)

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        return np.maximum(self.scale * distance(self.head, sources, targets, self.groups, self.mix), FLOOR)


@dataclass(frozen=True, eq=False)
class SupportFunction(Metric):
    """d(x, y) = max_l <phi(y) - phi(x), w_l>, over the directions w_l of landmarks: HTP's metric, in steps.

    It is the support function of the w_l, read at the displacement: d(x, x) = 0, and d(x, z) <= d(x, y) + d(y, z) for
    any phi and w, because a maximum of linear functions is subadditive. Nothing bounds the ratio of both directions.
    With the heights A = Phi W^T it is max_l (A_yl - A_xl), the same for every goal.
    """

    directions: Floats
    """w_l, one row per landmark: (L, d)."""
    one_way: bool = True
    discount: ClassVar[float | None] = 1.0  # type: ignore[misc]
    for_every_goal: ClassVar[bool] = True  # type: ignore[misc]

    def heights(self, points: Floats) -> Floats:
        """<phi, w_l> for every point and landmark: (n, d) -> (n, L) float32."""
        return (np.asarray(points, np.float64) @ self._columns).astype(np.float32)

    @cached_property
    def _columns(self) -> Floats:
        return np.asarray(self.directions, np.float64).T

    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        lower, upper = self.heights(sources), np.ascontiguousarray(self.heights(targets).T)
        table = np.full((len(sources), len(targets)), FLOOR)
        for row, heights in zip(table, lower, strict=True):
            np.maximum(row, (upper - heights[:, None]).max(axis=0), out=row)
        return table

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        return np.maximum(largest_rises(self.heights(sources), self.heights(targets)), FLOOR)

    def symmetric(self) -> Metric:
        """The longer of both directions, max(d(x, y), d(y, x)): a norm of the displacement."""
        return SupportFunction(np.concatenate([self.directions, -self.directions]), one_way=False)


def largest_rises(lower: Floats, upper: Floats) -> Floats:
    """max_l (upper_l - lower_l) along the last axis; elementwise, so the same number however rows are batched."""
    shape = np.broadcast_shapes(lower.shape, upper.shape)
    lower, upper = np.broadcast_to(lower, shape), np.broadcast_to(upper, shape)
    rises = np.empty(shape[:-1])
    for i in range(0, len(rises), RISING):
        rises[i : i + RISING] = (upper[i : i + RISING] - lower[i : i + RISING]).max(axis=-1)
    return rises


RISING = 512
"""Rows of heights that are subtracted at a time: small enough to stay in a core's cache."""


class Symmetric(Metric):
    """(C_ij + C_ji) / 2 of another metric."""

    def __init__(self, other: Metric):
        self.other, self.spatial = other, other.spatial
        self.for_every_goal, self.discount, self.expensive = other.for_every_goal, other.discount, other.expensive

    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        return 0.5 * (self.other.costs(sources, targets, goal) + self.other.costs(targets, sources, goal).T)

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        return 0.5 * (self.other.row_costs(sources, targets, goals) + self.other.row_costs(targets, sources, goals))


# ---------------------------------------------------------------- formulas for numpy and JAX


def euclidean(source: Array, target: Array) -> Array:
    """sqrt(max(||phi(t) - phi(s)||^2, 1e-6)) along the last axis."""
    xp = source.__array_namespace__()
    squared = xp.square(target - source).sum(-1)
    return xp.sqrt(xp.maximum(squared, SQUARED_FLOOR))


def directed(source: Array, target: Array, omega: Array, beta: float) -> Array:
    """d(s, t; g) = l exp(beta (1 - <Delta, omega> / l)) along the last axis."""
    xp = source.__array_namespace__()
    length = euclidean(source, target)
    cosine = projection(source, target, omega) / length
    return length * xp.exp(beta * (1.0 - cosine))


def projection(source: Array, target: Array, omega: Array) -> Array:
    """<phi(t) - phi(s), omega_g>: the displacement read along the goal's direction."""
    return ((target - source) * omega).sum(-1)


def discounted_steps(steps: Array, discount: float) -> Array:
    """h(H) = 1 + gamma + ... + gamma^(H - 1) = (1 - gamma^H) / (1 - gamma): what H steps cost when discounted."""
    return steps if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)


def undiscounted_steps(cost: Array, discount: float) -> Array:
    """H = log(1 - (1 - gamma) h) / log(gamma), the inverse of `discounted_steps`; gamma = 1 leaves costs as they are.

    Costs at or above 1 / (1 - gamma) are reached by no number of steps: they become `longest_steps(gamma)`.
    """
    if discount == 1.0:
        return cost
    xp = cost.__array_namespace__()
    remaining = xp.maximum(1.0 - (1.0 - discount) * cost, REMAINING_FLOOR)
    return xp.maximum(xp.log(remaining) / math.log(discount), 0.0)


def longest_steps(discount: float) -> float:
    """The ceiling of `undiscounted_steps`: where predictions saturate."""
    return math.inf if discount == 1.0 else math.log(REMAINING_FLOOR) / math.log(discount)


# ---------------------------------------------------------------- the arithmetic of displacements, elementwise


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


def row_lengths(first: Floats, second: Floats) -> Floats:
    """Floored lengths between corresponding rows."""
    difference = first - second
    difference *= difference
    return floored_root(np.add.reduce(difference, axis=1))


def row_products(first: Floats, second: Floats) -> Floats:
    """<first_r, second_r> for corresponding rows."""
    return np.add.reduce(first * second, axis=1)


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


# ---------------------------------------------------------------- what is refused


def plain_numbers(array: ArrayLike | Mapping[str, object], what: str, error: type[IELError] = DataError) -> NDArray:
    """Whatever a caller gave as an array of plain numbers; hidden values and imaginary parts are never dropped."""
    if isinstance(array, Mapping):
        raise error(
            f"{what}: dictionaries are not supported; put their arrays side by side, such as "
            "np.concatenate([o['position'], o['velocity']], axis=1)."
        )
    if isinstance(array, np.ma.MaskedArray) and np.ma.getmaskarray(array).any():
        raise error(f"{what}: some values are masked; fill them in, or leave their rows out.")
    try:
        table = np.asarray(array)
        table = table if table.dtype.kind in "fiubc" else np.asarray(table, np.float32)
    except (TypeError, ValueError):
        raise error(f"{what}: this is not a table of numbers; give one row per step, all equally long.") from None
    if table.dtype.kind == "c":
        raise error(f"{what}: complex numbers are not read; give real ones.")
    return table


def checked_points(points: ArrayLike, what: str = "embeddings") -> Floats:
    """A finite, two-dimensional, contiguous float64 table, or an error that names the first bad row."""
    table = np.ascontiguousarray(points, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] == 0:
        raise GeometryError(f"The {what} have shape {table.shape}; give a table with one row per state.")
    if len(table) == 0:
        raise GeometryError(f"The table of {what} is empty; give at least one row.")
    # Comparisons with NaN are false; beyond 1e100 squares would soon overflow.
    usable = (np.abs(table) < 1e100).all(axis=1)
    if not usable.all():
        row = int(np.argmin(usable))
        raise GeometryError(
            f"The {what} contain a non-finite (or absurdly large) number in row {row}; fix it before planning."
        )
    return table


def checked_costs(costs: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Costs of any metric, verified: the right shape, finite, not negative, and at least FLOOR."""
    table = np.asarray(costs, dtype=np.float64)
    if table.shape != shape:
        raise GeometryError(f"The metric returned costs of shape {table.shape} but must return {shape}.")
    if not np.isfinite(table).all():
        raise GeometryError("The metric returned a non-finite cost; every cost must be a finite number.")
    if (table < 0.0).any():
        raise GeometryError(f"The metric returned the cost {table.min():g}; no cost may be negative.")
    return np.maximum(table, FLOOR)
