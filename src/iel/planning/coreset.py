"""Which states stand for all states: a coreset that covers the latent space rather than the data's density.

Farthest-point sampling takes, again and again, the state farthest from all states taken so far: the gaps it leaves are
at most twice the smallest possible (Gonzalez). Greedy DPP (`dpp`), the paper's choice, takes the state with the largest
residual variance under a Gaussian kernel of width sigma; it stops where the kernel's numerical rank ends and
farthest-point picks fill the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from iel.errors import ConfigError, GeometryError, unknown_name
from iel.metrics import Floats, Integers, checked_points
from iel.planning.dpp import greedy_dpp
from iel.planning.neighbours import Screen

METHODS = ("farthest", "dpp", "all")
DEFAULT_NODES = 2048
SIGMA_FRACTION = 0.5
"""The paper recommends sigma between 0.3 and 0.75 of the mean pair distance; this is the middle."""


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


@dataclass(frozen=True)
class Coverage:
    """How well nodes cover the states they stand for; the paper wants the k-nearest distance about constant."""

    mean_neighbour_distance: float
    """Mean over nodes of the mean distance to the k nearest other nodes."""
    spread: float
    """Standard deviation of that distance over nodes, as a fraction of its mean."""
    largest_gap: float
    """Largest distance from a state to its nearest node."""
    mean_gap: float
    """Mean distance from a state to its nearest node."""


def select_coreset(
    embeddings: Any,
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
        raise GeometryError(f"A coreset of {wanted} nodes was asked for but there are only {len(points)} states.")
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


def farthest_point(points: Any, count: int, chosen: Any = ()) -> Integers:
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
    screen = Screen(table[picks])
    squares, owner = np.empty(len(table)), np.empty(len(table), dtype=np.int64)
    height = max(1, (1 << 21) // len(picks))
    for start in range(0, len(table), height):
        block = table[start : start + height]
        owner[start : start + height] = np.argmin(screen.sources(block)[0] @ screen.right, axis=1)
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


def coverage(nodes: Any, states: Any, neighbours: int = 10) -> Coverage:
    """How evenly the nodes lie, and how far the states are from them."""
    points, table = checked_points(nodes), checked_points(states)
    screen = Screen(points)
    k = min(neighbours, len(points) - 1)
    means = []
    for rows, squares in screen.blocks():
        squares[np.arange(len(rows)), rows] = np.inf
        if k:
            nearest = np.partition(squares, k - 1, axis=1)[:, :k]
            means.append(np.sqrt(np.maximum(nearest, 0.0)).mean(axis=1))
    spacing = np.concatenate(means) if means else np.zeros(1)
    gaps = np.sqrt(nearest_picks(np.concatenate([points, table]), np.arange(len(points)))[0][len(points) :])
    mean = float(spacing.mean())
    spread = float(spacing.std() / mean) if mean > 0.0 else 0.0
    return Coverage(mean, spread, float(gaps.max()), float(gaps.mean()))
