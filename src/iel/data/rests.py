"""Rests: long stretches in which a body goes nowhere, such as an ant that waits at its goal until the episode ends.

With u_t the columns that tell the place, each divided by its standard deviation, and m_t = |u_{t + 40} - u_t|,

    a row rests if   m_t < q / 4,     q = the 99th percentile of m,

and a rest is a run of at least 80 such rows, without its first and last 40. Where nothing goes anywhere, hindsight
names directions at random, and what is drawn from there is missing elsewhere. In D4RL's recipe an ant in the ultra maze
rests for nine tenths of its time; there rests are left out.

Where they are less than half of the data they stay: an ant that works its way out of a corner shows how to do that.
With them (a sixth of `antmaze-large-navigate`) a policy reached 40 of 40 goals, without them 37.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iel.data.slowness import Rows, place_columns
from iel.data.store import require_memory
from iel.data.trajectories import Trajectories
from iel.errors import DataError

WINDOW = 40
SHARE = 0.25
SHORTEST = 80
"""A rest has at least so many rows."""
MOST = 0.5
"""Share of the data from which on rests are left out."""


def rest_rows(data: Rows, columns: list[int] | None = None) -> NDArray[np.int64]:
    """Rows inside rests of these columns, or of those that tell the place; none where nothing tells it."""
    require_memory(data, "look for rests")
    if columns is None:
        try:
            columns = place_columns(data)
        except DataError:  # nothing tells the place
            return np.zeros(0, np.int64)
    place = data.observations[:, columns].astype(np.float64)
    place /= np.where(place.std(0) > 0.0, place.std(0), 1.0)
    offsets = np.asarray(data.offsets)
    rows, last = np.arange(len(place)), np.repeat(offsets[1:] - 1, np.diff(offsets))
    moved = np.linalg.norm(place[np.minimum(rows + WINDOW, last)] - place, axis=1)
    whole = moved[rows + WINDOW <= last]
    if len(whole) == 0:
        return rows[:0]
    resting = moved < SHARE * np.quantile(whole, 0.99)
    # Runs of equal rows within one episode, as first rows and ends.
    changes = np.flatnonzero(np.diff(resting)) + 1
    bounds = np.union1d(offsets, changes)
    first, end = bounds[:-1], bounds[1:]
    rests = resting[first] & (end - first >= SHORTEST)
    inside = [np.arange(a + WINDOW, b - WINDOW) for a, b in zip(first[rests], end[rests], strict=True)]
    return np.concatenate(inside) if inside else rows[:0]


def cut_rests(data: Trajectories, columns: list[int] | None = None) -> Trajectories:
    """The data in pieces without the inside of its rests, where they are most of it; else the data itself."""
    rows = rest_rows(data, columns)
    return data.cut(rows) if len(rows) > MOST * data.num_states else data
