"""Where the data was, measured once: states kept to compare with, and how far from them held-out states lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import Trajectories
from iel.model.support import Support, View
from iel.planning.coreset import farthest_point

KEPT = 512
"""States a view compares with: a matrix product of microseconds."""
POOL = 10_000
"""States they are chosen from."""
EPISODES = 200
"""Episodes that are looked at; more tell no more about which columns are slow."""
HELD_OUT, MARGIN = 0.99, 3.0
"""The limit is this many times the distance within which this share of held-out states lie."""


def support_of(data: Trajectories, seed: int = 0) -> Support:
    """Mean, spread, and one or two views of the data. Every tenth episode is held out, at least one if there are two.

    A single episode is cut: its last tenth is held out.
    """
    chosen = np.unique(np.linspace(0, len(data) - 1, min(len(data), EPISODES)).astype(int))
    few = data if len(chosen) == len(data) else data.select(chosen)
    mean = few.observations.mean(axis=0, dtype=np.float64).astype(np.float32)
    spread = few.scale
    table = (few.observations - mean) / spread
    episode = np.repeat(np.arange(len(few)), np.diff(few.offsets))
    aside = episode % 10 == min(9, len(few) - 1) if len(few) > 1 else np.arange(len(table)) >= 0.9 * len(table)
    generator = np.random.default_rng(seed)
    known, held = (_some(np.flatnonzero(rows), generator) for rows in (~aside, aside))
    views = [_view("all", np.arange(table.shape[1]), table, known, held)]
    place = few.position_columns
    if 0 < len(place) < table.shape[1]:
        views.append(_view("place", np.array(place), table, known, held))
    return Support(mean, spread, tuple(views))


def _view(
    name: str, columns: NDArray[np.int64], table: NDArray, known: NDArray[np.int64], held: NDArray[np.int64]
) -> View:
    states = table[known][:, columns]
    kept = np.ascontiguousarray(states[farthest_point(states, KEPT)], np.float32)
    distances = View(name, columns, kept, 1.0).distances(table[held].astype(np.float32))
    # Data on a grid may be met exactly; a limit of nothing would then call the next grid point outside.
    usual = max(float(np.quantile(distances, HELD_OUT)), 1e-3)
    return View(name, columns, kept, MARGIN * usual)


def _some(rows: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    return rows if len(rows) <= POOL else np.sort(generator.choice(rows, POOL, replace=False))
