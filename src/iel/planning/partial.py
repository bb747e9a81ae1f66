"""Goals on some of the columns: `planner.prepare({0: 8.5, 1: 2.0})` is "x and y, whatever the rest".

The goal becomes a `Region`: the states of the data nearest to the wish in these columns, each column measured by its
own spread. So the rest of the state is one that was seen together with this place, never an average of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iel.errors import GeometryError
from iel.metrics import Floats

NEAREST = 32
"""States of the data that stand for a goal on some of the columns."""
WITHIN = 3.0
"""Only those within so many times the distance of the nearest one, and of a hundredth of a spread."""


def states_like(wish: Mapping[Any, Any], observations: Floats) -> tuple[Floats, float]:
    """(states of the data nearest to the wish, distance of the nearest one in spreads), nearest first."""
    columns, values = _checked(wish, observations.shape[1])
    known = observations[:, columns].astype(np.float64)
    spread = known.std(axis=0)
    gaps = (known - values) / np.where(spread > 1e-8, spread, 1.0)
    squares = np.einsum("nc,nc->n", gaps, gaps) / len(columns)
    count = min(NEAREST, len(squares))
    nearest = np.argpartition(squares, count - 1)[:count]
    nearest = nearest[np.argsort(squares[nearest], kind="stable")]
    least = float(np.sqrt(squares[nearest[0]]))
    nearest = nearest[np.sqrt(squares[nearest]) <= WITHIN * max(least, 0.01)]
    return observations[nearest], least


def _checked(wish: Mapping[Any, Any], width: int) -> tuple[list[int], Floats]:
    try:
        columns, values = [int(column) for column in wish], np.array([float(wish[column]) for column in wish])
    except (TypeError, ValueError):
        raise GeometryError(
            "A goal on some columns is a table from column numbers to values, such as {0: 8.5, 1: 2.0}."
        ) from None
    if not columns or any(not 0 <= column < width for column in columns) or not np.isfinite(values).all():
        raise GeometryError(
            f"A goal on some columns names columns 0 to {width - 1} and finite values, such as {{0: 8.5, 1: 2.0}}."
        )
    return columns, values
