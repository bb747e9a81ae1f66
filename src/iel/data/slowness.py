"""Slow columns and slow directions: where a body is, told from how it moves, without a label.

A pose swings to and fro, a place is left and stays left. For a column c of the observations let

    r(c) = E (c_{t + 40} - c_t)^2 / E (c_{t + 1} - c_t)^2

over pairs within an episode. Independent noise has r = 1, a random walk r = 40, constant speed r = 1600; units cancel.
In an ant's 29 columns x and y have 200 to 1000, everything else has less than 15, except for its heading: 130 to 330,
more than x and y where it spends its time turning on the spot. An orientation is no place, so columns that lie on a
unit sphere together (quaternions, cosine and sine of an angle) are never place columns.

A column's own jumps (`STEP_LIMIT` times its 99th percentile: teleports, glitches) are left out of both means, or one
teleport in a thousand steps would outweigh all walking.

The same for directions of an embedding phi: the generalised eigenvectors of

    Cov(phi_{t + 40} - phi_t) v = lambda [mean over k = 1..5 of Cov(phi_{t + k} - phi_t)] v

with the largest lambda change most over long times compared with short ones.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.store import require_memory
from iel.errors import DataError

LAG = 40
GAP = 3.0
"""Place columns are those within this factor of the slowest, if the next one is this factor below all of them."""
PERSISTENT = 0.25
"""A column goes somewhere, instead of trembling around a value, if r is at least this share of the lag."""
STEP_LIMIT = 3.0
SPHERE, TURNS = 0.02, 0.1
"""Columns are an orientation if the sum of their squares is this near to 1 in nine of ten rows, and at least two of
them have a standard deviation of this much.
"""
MOVES = 1e-6
"""Steps smaller than this share of the largest one are standing still; they say nothing about usual steps."""


class Rows(Protocol):
    """A store, or rows that were not checked yet."""

    @property
    def observations(self) -> NDArray: ...
    @property
    def offsets(self) -> NDArray: ...
    @property
    def name(self) -> str: ...


def usual_lag(data: Rows) -> int:
    """`LAG`, or half of the longest episode where that is less."""
    return min(LAG, int(np.diff(data.offsets).max()) // 2)


def slowness(data: Rows, lag: int = LAG) -> NDArray[np.float64]:
    """(columns,) r of every column, 0 for one that never moves."""
    require_memory(data, "tell its slow columns")
    near, far = pairs(data.offsets, 1), pairs(data.offsets, lag)
    if len(far) == 0:
        raise DataError(
            f"{data.name}: no episode is longer than {lag} steps, so slow columns cannot be told; give a smaller lag."
        )
    return np.array([_ratio(data.observations[:, c].astype(np.float64), near, far, lag) for c in range(_width(data))])


def _ratio(values: NDArray, near: NDArray[np.int64], far: NDArray[np.int64], lag: int) -> float:
    steps = np.abs(values[near + 1] - values[near])
    unusual = steps > step_limit(steps)
    short = np.mean(steps[~unusual] ** 2)
    if unusual.any():
        before = np.zeros(len(values) + 1, np.int64)
        before[near[unusual] + 1] = 1
        before = np.cumsum(before)  # jumps before a row
        far = far[before[far + lag] == before[far]]
    if short == 0.0 or len(far) == 0:
        return 0.0
    return float(np.mean((values[far + lag] - values[far]) ** 2) / short)


def step_limit(sizes: NDArray) -> float:
    """What no usual step exceeds: three times the 99th percentile of the steps that move at all."""
    moving = sizes[sizes > MOVES * sizes.max(initial=0.0)]
    return STEP_LIMIT * float(np.quantile(moving, 0.99)) if len(moving) else 0.0


def orientation_columns(observations: NDArray) -> list[int]:
    """Columns that are part of a unit vector of two, three or four neighbouring columns."""
    rows = observations[np.linspace(0, len(observations) - 1, min(len(observations), 10_000)).astype(int)]
    squares, turns = rows.astype(np.float64) ** 2, rows.std(axis=0, dtype=np.float64) > TURNS
    found: set[int] = set()
    for size in (2, 3, 4):
        for first in range(rows.shape[1] - size + 1):
            window = slice(first, first + size)
            on_sphere = np.abs(squares[:, window].sum(1) - 1.0) < SPHERE
            if turns[window].sum() >= 2 and on_sphere.mean() >= 0.9:
                found |= set(range(first, first + size))
    return sorted(found)


def place_columns(data: Rows, lag: int = LAG, ratios: ArrayLike | None = None) -> list[int]:
    """The columns that tell the place: a group of equally slow ones, clearly slower than all others.

    `ratios` are the data's `slowness`, if it is known already.
    """
    r = np.array(slowness(data, lag) if ratios is None else ratios, np.float64)
    r[orientation_columns(data.observations)] = 0.0
    group = r >= max(r.max() / GAP, PERSISTENT * lag)
    if not group.any():
        reason = f"no column goes anywhere in {lag} steps (largest ratio {r.max():.3g})"
    else:
        least, rest = r[group].min(), r[~group].max(initial=0.0)
        if rest <= least / GAP:
            return [int(column) for column in np.flatnonzero(group)]
        reason = f"columns of ratio {r.max():.3g} to {least:.3g} are followed by one of {rest:.3g}"
    raise DataError(
        f"{data.name}: nothing separates place from pose ({reason}); name the columns that tell the place, or use all."
    )


def position_columns(data: Rows) -> tuple[int, ...]:
    """The columns that tell the position, over half of the longest episode if all are short; () if none do."""
    require_memory(data, "tell its slow columns")
    try:
        return tuple(place_columns(data, usual_lag(data)))
    except DataError:
        return ()


def typical_reach(data: Rows, columns: list[int], steps: int, spread: ArrayLike = 1.0) -> float:
    """E ||p(x_{t+k}) - p(x_t)||, k uniform on 1..`steps` but not beyond the episode, p the columns over their spread.

    From up to 10,000 states that are spread evenly over the data (no last ones: nothing is learned there), and up to 20
    values of k.
    """
    total = int(data.offsets[-1])
    rows = np.linspace(0, total - 1, min(total, 10_000)).astype(np.int64)
    final = np.asarray(data.offsets)[1:][np.searchsorted(data.offsets, rows, side="right") - 1] - 1
    rows, final = rows[rows < final], final[rows < final]
    place = lambda chosen: data.observations[chosen][:, columns] / np.asarray(spread, np.float64)  # noqa: E731
    here = place(rows)
    later = np.unique(np.linspace(1, steps, 20).round().astype(int))
    ahead = [np.linalg.norm(place(np.minimum(rows + k, final)) - here, axis=1) for k in later]
    return float(np.mean(ahead))


class SlowDirections(NamedTuple):
    """Generalised eigenvectors, slowest first."""

    ratios: NDArray[np.float64]
    """(size,) lambda: how much further a direction moves over the long lag than over the short ones, squared."""
    directions: NDArray[np.float64]
    """(size, size) one direction a column, of unit variance over the short lags; phi @ directions[:, :k] keeps k."""


def slow_directions(embeddings: ArrayLike, offsets: ArrayLike, lag: int = LAG, short: int = 5) -> SlowDirections:
    """The directions of an embedding ordered by slowness; `offsets` are the first rows of episodes and their end."""
    phi, bounds = np.asarray(embeddings, np.float64), np.asarray(offsets, np.int64)
    far = pairs(bounds, lag)
    if len(far) < 2:
        raise DataError(f"No two states are {lag} steps apart in one episode; give longer episodes or a smaller lag.")
    slow = _covariance(phi, far, lag)
    fast = np.mean([_covariance(phi, pairs(bounds, k), k) for k in range(1, short + 1)], axis=0)
    # With fast = L L^T and w = L^T v it is the ordinary problem L^-1 slow L^-T w = lambda w. A direction that never
    # moves is worth nothing, not infinitely much: hence the small ridge.
    lower = np.linalg.cholesky(fast + 1e-8 * np.trace(fast) / len(fast) * np.eye(len(fast)))
    half = np.linalg.solve(lower, slow)
    ratios, vectors = np.linalg.eigh(np.linalg.solve(lower, half.T))
    return SlowDirections(ratios[::-1], np.linalg.solve(lower.T, vectors)[:, ::-1])


def pairs(offsets: NDArray, lag: int) -> NDArray[np.int64]:
    """Rows t whose row t + lag is of the same episode."""
    lengths = np.diff(offsets)
    last = np.repeat(np.asarray(offsets)[1:] - lag, lengths)
    rows = np.arange(len(last))
    return rows[rows < last]


def _covariance(phi: NDArray, rows: NDArray[np.int64], lag: int) -> NDArray[np.float64]:
    return np.atleast_2d(np.cov(phi[rows + lag] - phi[rows], rowvar=False, bias=True))


def _width(data: Rows) -> int:
    return data.observations.shape[1]
