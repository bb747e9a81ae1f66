"""Hops of a plan that the data speaks against: no map of walls is needed.

With p the position columns, v the longest step of the data in them (jumps aside) and n the predicted steps, a hop from
x to y is doubted if it is

    too fast    |p(y) - p(x)| > FASTER v max(n, 1)
    unseen      |p(y) - p(x)| > FREE v, and no trajectory came from within FREE v / 2 of p(x) to within FREE v / 2 of
                p(y) in 1 + SLACK n steps

Short hops join one trajectory to another, which is what a graph is for; a long one that no trajectory made usually
leads through a wall.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from iel.data.positions import pairs
from iel.data.trajectories import Trajectories
from iel.distances import Booleans, Floats
from iel.model.atlas import SLACK
from iel.planning.planner import Planner, Route
from iel.planning.planners import AsymGraph

FASTER = 2.0
"""Predictions of a trained distance are some tenths too short; a robot is not twice as fast as it ever was."""
FREE = 5.0


def route_states(planner: Planner, start: Floats, route: Route) -> Floats:
    """Observations along the route of the prepared goal: start, waypoints, and the goal if it is a state.

    Of several goals, such as states that match in some columns, the one nearest to the last waypoint.
    """
    goals, plan = planner.prepared.goal_observations, planner.prepared
    ends = goals[plan.alternatives[0][-1]]
    ends = ends[np.isfinite(ends).all(axis=1)]
    line = np.concatenate([start[None], np.asarray(route.observations)])
    if len(ends):
        columns = list(planner.atlas.position_columns) or slice(None)
        line = np.concatenate([line, ends[[np.linalg.norm((ends - line[-1])[:, columns], axis=1).argmin()]]])
    return line


class Hops:
    """What the trajectories say about hops between positions."""

    def __init__(self, data: Trajectories, columns: tuple[int, ...]):
        self.columns, self.data = list(columns), data
        self.node_positions = data.observations[:, self.columns].astype(np.float64)
        steps = np.setdiff1d(pairs(data.offsets, 1), data.jumps)
        self.fastest = float(
            np.linalg.norm(self.node_positions[steps + 1] - self.node_positions[steps], axis=1).max(initial=0.0)
        )
        """v, the longest step of the data."""
        self._tree = cKDTree(self.node_positions)

    @classmethod
    def of(cls, planner: Planner) -> Hops | None:
        """Those of a planner's data; None without trajectories in memory or position columns, and where plans use
        teleports."""
        data, columns = planner.atlas.resident, planner.atlas.position_columns
        if isinstance(planner, AsymGraph) and planner.graph.teleports is not None:
            return None
        return cls(data, columns) if data is not None and columns else None

    def doubted(self, states: Floats, steps: Floats) -> Booleans:
        """Which of the hops (k - 1,) between states (k, obs_dim) of a route, given their predicted steps (k - 1,)."""
        node_positions = np.asarray(states)[:, self.columns].astype(np.float64)
        lengths = np.linalg.norm(np.diff(node_positions, axis=0), axis=1)
        predicted = np.nan_to_num(np.asarray(steps, np.float64), nan=np.inf)  # costs that are not steps predict nothing
        found = lengths > FASTER * self.fastest * np.maximum(predicted, 1.0)
        for hop in np.flatnonzero(~found & (lengths > FREE * self.fastest)):
            found[hop] = not self._made(node_positions[hop], node_positions[hop + 1], 1.0 + SLACK * predicted[hop])
        return found

    def _made(self, here: Floats, there: Floats, limit: float) -> bool:
        """Whether a trajectory went from near one position to near another within `limit` steps."""
        radius = FREE * self.fastest / 2
        begins, ends = (np.sort(self._tree.query_ball_point(position, radius)) for position in (here, there))
        if not (len(begins) and len(ends)):
            return False
        following = np.searchsorted(ends, begins, side="right")
        begins, following = begins[following < len(ends)], following[following < len(ends)]
        end_row = ends[following]
        return bool(((end_row - begins <= limit) & (end_row <= self.data.final[begins])).any())
