"""HILP's planner: recursive midpoints."""

from __future__ import annotations

import numpy as np

from iel.errors import ConfigError, GeometryError
from iel.metrics import LatentGoal
from iel.model.atlas import Source
from iel.planning.plan import PlanningModel, Pursuit
from iel.planning.planner import Planner
from iel.planning.pursuits import Midpoints
from iel.planning.screen import affordable_screen


class RecMid(Planner):
    """Recursive midpoints (HILP's planner): `rounds` halvings, each the mean of the `average` most central states."""

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
            raise GeometryError(
                "This model has no embedding that midpoints could be taken in; use a graph planner or direct."
            )
        if rounds < 1 or average < 1:
            raise ConfigError(f"rounds is {rounds} and average is {average}; both must be at least 1.")
        self.states, self.points = self._embedded_pool(pool, seed)
        self.rounds, self.average = rounds, min(average, len(self.points))
        self.screen = affordable_screen(self.points, float(np.var(self.points, axis=0).sum()))

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Midpoints(goals, self.metric, self.points, self.states, self.screen, self.rounds, self.average)
