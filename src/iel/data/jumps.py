"""Jumps: transitions that no motion explains, such as teleports, resets in mid-episode and glued episodes.

With u_t the observed columns that tell the place, each divided by its standard deviation, the step from t to t + 1 is a
jump if

    |u_{t + 1} - u_t| > 3 q,      q = the 99th percentile of |u_{t + 1} - u_t| over the steps that move at all.

The columns are `place_columns`. So legs that kick, an ant that falls and a sensor that trembles are no jumps, and where
nothing separates place from pose (arms, kitchens with objects that snap) there are none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.slowness import Rows, pairs, position_columns, step_limit
from iel.data.store import require_memory
from iel.data.trajectories import Trajectories

FEWEST = 1000
"""Of fewer steps the 99th percentile may itself be a jump: then nothing is said."""


class Cut(NamedTuple):
    """Data without the transitions that jump."""

    data: Trajectories
    jumps: int
    dropped: int
    """Pieces of fewer than two steps, which were left out."""


def jump_rows(data: Rows, columns: list[int] | None = None) -> NDArray[np.int64]:
    """Rows t whose transition to t + 1 is a jump of these columns, by default of those that tell the place."""
    require_memory(data, "look for jumps")
    steps = pairs(data.offsets, 1)
    if len(steps) < FEWEST:
        return steps[:0]
    columns = list(position_columns(data)) if columns is None else columns
    squares = np.zeros(len(steps))
    for column in columns:
        values = data.observations[:, column].astype(np.float64)
        squares += ((values[steps + 1] - values[steps]) / (values.std() or 1.0)) ** 2
    sizes = np.sqrt(squares)
    return steps[sizes > step_limit(sizes)]


def cut_at_jumps(data: Trajectories, columns: list[int] | None = None) -> Cut:
    """The data in pieces that end before a jump and begin after it, so no transition leads across."""
    rows = data.jumps if columns is None else jump_rows(data, columns)
    pieces = data.cut(rows)
    return Cut(pieces, len(rows), len(data) + len(rows) - len(pieces))
