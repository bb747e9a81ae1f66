"""Rests: stretches in which a body goes nowhere, such as an ant that waits at its goal until the episode ends.

With u_t the columns that tell the place, each divided by its standard deviation, and m_t = |u_{t + w} - u_t|,

    a row rests if   m_t < q / 4,     q = the 99th percentile of m,

and a rest is a run of such rows. Where nothing goes anywhere, hindsight names directions at random, and what is drawn
from there is missing elsewhere. Two kinds count:

    LONG    w = 40, at least 80 rows, without the first and last 40 of them
    SHORT   w = 20, at least 20 rows, all of them; where fewer than w steps are left, q is that share of itself

In D4RL's recipe an ant in the ultra maze rests for nine tenths of its time; there long rests are left out. In short
episodes that end at their goal (`antmaze-large-stitch`) long ones are 28 % and short ones 59 %; there short ones are
left out, and goals reached rise from 11 to 14 % to 72 to 76 (docs/results.md).

Rests of less than half of the data stay: an ant that works its way out of a corner shows how to do that. With them (a
sixth of `antmaze-large-navigate`) a policy reached 40 of 40 goals, without them 37.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.slowness import Rows, position_columns
from iel.data.store import require_memory
from iel.data.trajectories import Trajectories


class Rest(NamedTuple):
    """What counts as one."""

    window: int
    """w"""
    shortest: int
    """Rows it has at least."""
    edge: int
    """Rows at both of its ends that do not count."""


LONG, SHORT = Rest(40, 80, 40), Rest(20, 20, 0)
SHARE = 0.25
MOST = 0.5
"""Share of the data from which on rests are left out."""


def rest_rows(data: Rows, columns: list[int] | None = None, kind: Rest = LONG) -> NDArray[np.int64]:
    """Rows inside rests of these columns, or of those that tell the place; none where nothing tells it."""
    require_memory(data, "look for rests")
    columns = list(position_columns(data)) if columns is None else columns
    if not columns:
        return np.zeros(0, np.int64)
    place = data.observations[:, columns].astype(np.float64)
    place /= np.where(place.std(0) > 0.0, place.std(0), 1.0)
    offsets = np.asarray(data.offsets)
    rows, last = np.arange(len(place)), np.repeat(offsets[1:] - 1, np.diff(offsets))
    ahead = np.minimum(kind.window, last - rows)
    moved = np.linalg.norm(place[rows + ahead] - place, axis=1)
    whole = moved[ahead == kind.window]
    if len(whole) == 0:
        return rows[:0]
    left = np.maximum(ahead, 1) / kind.window if kind.edge == 0 else 1.0  # the edges of long ones are kept anyway
    resting = moved < SHARE * np.quantile(whole, 0.99) * left
    # Runs of equal rows within one episode, as first rows and ends.
    changes = np.flatnonzero(np.diff(resting)) + 1
    bounds = np.union1d(offsets, changes)
    first, end = bounds[:-1], bounds[1:]
    rests = resting[first] & (end - first >= kind.shortest)
    inside = [np.arange(a + kind.edge, b - kind.edge) for a, b in zip(first[rests], end[rests], strict=True)]
    return np.concatenate(inside) if inside else rows[:0]


def cut_rests(data: Trajectories, columns: list[int] | None = None) -> Trajectories:
    """The data in pieces without the kind of rests that are most of it, long ones first; else the data itself."""
    columns = list(data.position_columns) if columns is None else columns
    for kind in (LONG, SHORT):
        rows = rest_rows(data, columns, kind)
        if len(rows) > MOST * data.num_states:
            return data.cut(rows)
    return data
