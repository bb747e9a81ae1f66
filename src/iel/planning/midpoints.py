"""The planner of HILP: recursive midpoints.

Starting from t = phi(g), repeat R times: among all states w take the 50 that are smallest in
max(||phi(w) - phi(x)||, ||phi(w) - t||), and let t be their mean.
"""

from __future__ import annotations

import numpy as np

from iel.distances import Floats, Integers, LatentGoal
from iel.errors import ConfigError, GeometryError
from iel.model.atlas import Atlas, Source
from iel.planning.planner import Aim, Planner, PlanningModel, Pursuit


def smallest_columns(table: Floats, count: int) -> Integers:
    """Columns of the `count` smallest entries of each row, smallest first, the first column among equals.

    Every 16th column suffices to guess a bound that about four times as many entries meet; only those are sorted.
    """
    sample = table[:, ::16]
    rank = min(count // 4 + 8, sample.shape[1] - 1)
    bound = np.partition(sample, rank, axis=1)[:, rank]
    row, column = np.divmod(np.flatnonzero(table <= bound[:, None]), table.shape[1])
    if np.bincount(row, minlength=len(table)).min() < count:
        return np.argsort(table, axis=1, kind="stable")[:, :count]
    order = np.lexsort((table[row, column], row))
    return column[order[np.searchsorted(row, np.arange(len(table)))[:, None] + np.arange(count)]]


class Midpoints(Pursuit):
    """Recursive midpoints among a pool of states, in the Euclidean metric."""

    def __init__(self, goals: list[LatentGoal], planner: RecMid):
        super().__init__(goals, planner.metric)
        self.planner = planner

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The last midpoint, for which its most central state stands; the cost is that of heading straight for the
        goal, which this planner knows no better than."""
        targets, here = self.points[goals], self.planner.squares(states)
        for _ in range(self.planner.rounds):
            there = self.planner.squares(targets)
            np.maximum(there, here, out=there)
            central = smallest_columns(there, self.planner.average)
            targets = self.planner.points[central].mean(axis=1)
        unmatched = np.full(len(states), -1, dtype=np.int64)
        states_of = self.planner.states[central[:, 0]]
        return Aim(targets, states_of, self.direct_costs(states, goals), unmatched, unmatched)


class RecMid(Planner):
    """Recursive midpoints (HILP's planner): `rounds` halvings, each the mean of the `average` most central states.

    `pool` states are drawn from the data with `seed`. Needs an embedding.
    """

    name = "rec-mid"

    def __init__(
        self,
        model: PlanningModel,
        data: Source,
        *,
        pool: int = 50_000,
        rounds: int = 3,
        average: int = 50,
        seed: int = 0,
    ):
        super().__init__(model, data)
        if self.metric is None or not self.metric.spatial:
            raise GeometryError("This model has no embedding to take midpoints in; use a graph planner or direct.")
        if rounds < 1 or average < 1:
            raise ConfigError(f"rounds is {rounds} and average is {average}; both must be at least 1.")
        self.states, self.points = self._embedded_pool(pool, seed)
        self.rounds, self.average = rounds, min(average, len(self.points))
        self.centre = self.points.mean(axis=0)  # rounding is least near it
        moved = self.points - self.centre
        lengths = np.einsum("nd,nd->n", moved, moved)
        self.table = np.ascontiguousarray(np.column_stack([moved, np.ones(len(moved)), lengths]).astype(np.float32).T)

    def squares(self, states: Floats) -> Floats:
        """Squared distances ||x - y||^2 = <(-2x, ||x||^2, 1), (y, 1, ||y||^2)> to the pool, float32: (n, pool)."""
        moved = states - self.centre
        lengths = np.einsum("nd,nd->n", moved, moved)
        return np.column_stack([-2.0 * moved, lengths, np.ones(len(moved))]).astype(np.float32) @ self.table

    def node_atlas(self) -> Atlas:
        return self._nodes(self.states, self.points)

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Midpoints(goals, self)
