"""How far an observation is from the data a model was trained on, in units of the data's own std.

    z = (x - mean) / std, column by column
    d_V(x) = min_r ||z_V(x) - z_V(r)|| / sqrt(|V|)                  r runs over stored states of the data
    excess(x) = max_V d_V(x) / limit_V                              above 1: x is outside of the data

V is all columns, and a second time the position columns where such exist: among 29 columns of an ant, a position twice
as far out as any other hardly counts. limit_V is three times the distance within which 99 of 100
states lie that were held out when the r were chosen, as far apart from each other as possible. So noise and new poses
pass, and a goal behind the outer wall does not. A state inside may still be predicted badly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.errors import ConfigError, GeometryError
from iel.files import notice
from iel.signals import UNNAMED, Signals

if TYPE_CHECKING:
    from iel.data.trajectories import Trajectories

FloatArray = NDArray[np.float32]
Rows = NDArray[np.int64]
Outside = Literal["warn", "refuse", "ignore"]
"""What to do about an observation or a goal that is far outside of the data."""

RETAINED = 512
"""States a view compares with: a matrix product of microseconds."""
POOL = 10_000
"""States they are chosen from."""
EPISODES = 200
"""Episodes that are looked at; more tell no more about which columns are slow."""
HELD_OUT, MARGIN = 0.99, 3.0
"""The limit is this many times the distance within which this share of held-out states lie."""


@dataclass(frozen=True)
class View:
    """Some columns, states of the data in them, and how far from these states is still usual."""

    name: str
    columns: NDArray[np.int64]
    states: FloatArray
    """(states, columns) standardised."""
    limit: float
    norms: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "norms", np.einsum("rc,rc->r", self.states, self.states))

    def distances(self, rows: FloatArray) -> FloatArray:
        """d of standardised rows of all columns, (n,)."""
        here = rows.take(self.columns, axis=1)
        squares = np.minimum.reduce(self.norms - 2.0 * (here @ self.states.T), axis=1)
        squares += np.einsum("nc,nc->n", here, here)
        return np.sqrt(np.maximum(squares, 0.0) / len(self.columns))


@dataclass(frozen=True)
class Support:
    """Where the data was."""

    mean: FloatArray
    std: FloatArray
    views: tuple[View, ...]

    def excess(self, observations: ArrayLike) -> FloatArray:
        """(n,) distance to the data over the limit, the larger of all views; above 1 is outside. Rows are finite."""
        rows = (np.atleast_2d(np.asarray(observations, np.float32)) - self.mean) / self.std
        return reduce(np.maximum, (view.distances(rows) / view.limit for view in self.views))

    def violation(self, observation: ArrayLike, what: str, signals: Signals = UNNAMED) -> str | None:
        """One sentence if this observation is outside of the data: which column, how far, and what to do."""
        row = (np.asarray(observation, np.float32).reshape(1, -1) - self.mean) / self.std
        worst = max(self.views, key=lambda view: float(view.distances(row)[0]) / view.limit)
        distance = float(worst.distances(row)[0])
        if distance <= worst.limit:
            return None
        here = row[0, worst.columns]
        nearest = worst.states[int(np.argmin(worst.norms - 2.0 * (worst.states @ here)))]
        off = int(np.argmax(np.abs(here - nearest)))
        column = int(worst.columns[off])
        known = float(nearest[off] * self.std[column] + self.mean[column])
        given = float(here[off] * self.std[column] + self.mean[column])
        return (
            f"The {what} is outside of the data: {distance:.3g} standard deviations from its nearest known state, "
            f"where {worst.limit:.2g} is the limit ({signals.label(column)} is {given:.4g}, nearest {known:.4g}); "
            "predictions there are guesses, so choose one inside the data, or record data there."
        )


def support_of(data: Trajectories, seed: int = 0) -> Support:
    """Mean, std, and one or two views of the data. Every tenth episode is held out, at least one if there are two.

    A single episode is cut: its last tenth is held out.
    """
    chosen = np.unique(np.linspace(0, len(data) - 1, min(len(data), EPISODES)).astype(int))
    few = data if len(chosen) == len(data) else data.select(chosen)
    mean = few.observations.mean(axis=0, dtype=np.float64).astype(np.float32)
    std = few.scale
    table = ((few.observations - mean) / std).astype(np.float32)
    episode = np.repeat(np.arange(len(few)), np.diff(few.offsets))
    aside = episode % 10 == min(9, len(few) - 1) if len(few) > 1 else np.arange(len(table)) >= 0.9 * len(table)
    generator = np.random.default_rng(seed)
    known, held = (_some(np.flatnonzero(rows), generator) for rows in (~aside, aside))
    views = [_view("all", np.arange(table.shape[1]), table, known, held)]
    position = few.position_columns
    if 0 < len(position) < table.shape[1]:
        views.append(_view("position", np.array(position), table, known, held))
    return Support(mean, std, tuple(views))


def _view(name: str, columns: Rows, table: FloatArray, known: Rows, held: Rows) -> View:
    states = table[known][:, columns]
    retained = states[_far_apart(states, RETAINED)]
    distances = View(name, columns, retained, 1.0).distances(table[held])
    # Data on a grid may be met exactly; a limit of nothing would then call the next grid point outside.
    usual = max(float(np.quantile(distances, HELD_OUT)), 1e-3)
    return View(name, columns, retained, MARGIN * usual)


def _some(rows: Rows, generator: np.random.Generator) -> Rows:
    return rows if len(rows) <= POOL else np.sort(generator.choice(rows, POOL, replace=False))


def _far_apart(states: FloatArray, count: int) -> list[int]:
    """Rows that are each the farthest from those before, the first nearest to the mean; no two are the same state."""
    moved = states - states.mean(axis=0, dtype=np.float64)
    norms = np.einsum("nc,nc->n", moved, moved)
    picks, squares = [int(norms.argmin())], np.full(len(moved), np.inf)
    while len(picks) < count:
        np.minimum(squares, norms - 2.0 * (moved @ moved[picks[-1]]) + norms[picks[-1]], out=squares)
        farthest = int(squares.argmax())
        if squares[farthest] <= 1e-9:
            break
        picks.append(farthest)
    return picks


def report(support: Support | None, rows: ArrayLike, what: str, outside: Outside, signals: Signals = UNNAMED) -> None:
    """One sentence about the rows outside of the data, if there are any; `warn` prints it, `refuse` raises it."""
    if sentence := warning(support, rows, what, outside, signals):
        notice(sentence)


def warning(
    support: Support | None, rows: ArrayLike, what: str, outside: Outside, signals: Signals = UNNAMED
) -> str | None:
    """One sentence about the rows outside of the data, None if there are none or `outside` is ignore."""
    if outside not in ("warn", "refuse", "ignore"):
        raise ConfigError(f"outside is '{outside}'; choose warn, refuse or ignore.")
    if support is None or outside == "ignore" or np.size(rows) == 0:
        return None
    table = np.atleast_2d(np.asarray(rows, np.float32))
    beyond = support.excess(table)
    if not (beyond > 1.0).any():
        return None
    sentence = support.violation(table[int(np.argmax(beyond))], what, signals) or ""
    others = int((beyond > 1.0).sum()) - 1
    if others:
        sentence = f"{sentence[:-1]} ({others} more of {len(table)} are outside)."
    if outside == "refuse":
        raise GeometryError(sentence)
    return sentence


class OutOfDistributionMonitor:
    """Reports when one agent leaves the training data: at its first observation outside, not at every step."""

    def __init__(self) -> None:
        self.lost = False
        """Whether the observation before this one was outside."""

    def step(self, support: Support | None, row: ArrayLike, outside: Outside, signals: Signals = UNNAMED) -> None:
        """Report an observation that is outside if the one before was inside; `refuse` raises every one."""
        if support is None:
            return
        before, self.lost = self.lost, bool(support.excess(row)[0] > 1.0)
        if self.lost and not (before and outside == "warn"):
            report(support, row, "observation", outside, signals)
