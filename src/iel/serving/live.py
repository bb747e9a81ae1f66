"""The agent in its simulator, seen from above: put at a start, sent to a goal, stepped one action at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.envs import make_env

Row = NDArray[np.float32]
ROUND, LONG = (2, 4), (3, 5)
"""MuJoCo's numbers of spheres and ellipsoids, of capsules and cylinders."""


class Simulation:
    """A maze environment whose start and goal can be moved."""

    def __init__(self, name: str, reference: ArrayLike):
        self.env = make_env(name, reference=reference)
        self.maze, self.horizon = self.env.map, self.env.horizon
        self.simulator: Any = self.env.unwrapped
        start, info = self.env.reset(seed=0, options={"task_id": 1})
        self.task: tuple[Row, Row] = np.asarray(start, np.float32), np.asarray(info["goal"], np.float32)
        """Start and goal of the first task."""

    @property
    def placeable(self) -> bool:
        """Whether the agent can be put anywhere: only mazes have a floor plan."""
        return self.maze is not None and hasattr(self.simulator, "set_xy")

    def reset(self, start: Row, goal: Row) -> Row:
        """Put the agent at the start, in the pose a reset gives it."""
        self.env.reset(seed=0, options={"task_id": 1})
        self.simulator.set_xy(np.asarray(start[:2], np.float64))
        self.set_goal(goal)
        return np.asarray(self.simulator.get_ob(), np.float32)

    def set_goal(self, goal: Row) -> None:
        """Where success is."""
        place = np.asarray(goal[:2], np.float64)
        if "cur_goal_xy" in vars(self.simulator):
            self.simulator.set_goal(goal_xy=place)
        else:
            self.simulator.set_goal(place)

    def step(self, action: ArrayLike) -> tuple[Row, bool]:
        """(observation, whether the goal is reached)."""
        observation, _, _, _, info = self.env.step(action)
        return np.asarray(observation, np.float32), bool(info["success"])

    def body(self) -> list[list[float]]:
        """The robot from above: [x1, y1, x2, y2, radius] of every part, a line with round ends."""
        model, data = self.simulator.model, self.simulator.data
        parts = []
        for geom in np.flatnonzero(model.geom_bodyid > 0):
            kind, size = int(model.geom_type[geom]), model.geom_size[geom]
            if kind not in ROUND + LONG or model.geom_rgba[geom][3] == 0.0:
                continue
            half = data.geom_xmat[geom].reshape(3, 3)[:2, 2] * (size[1] if kind in LONG else 0.0)
            centre = data.geom_xpos[geom][:2]
            parts.append([round(float(v), 3) for v in (*(centre - half), *(centre + half), size[0])])
        return parts
