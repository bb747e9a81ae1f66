"""How AntMaze data is collected: the same drivers as for the point, with a walking controller below them.

With mu, sigma the controller's output for direction d (`iel.data.make.ant`) and n ~ N(0, I):

    OGBench   a = clip(tanh(mu) + noise * n, -1, 1)
    D4RL      a = clip(tanh(mu + sigma * n') + noise * n, -1, 1)

D4RL's episodes start at the centre of any free cell + U(0, 1) along each axis, at least 0, and have one goal, placed as
in its evaluation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.data.make.ant import ACTIONS, load_controller
from iel.data.make.driving import Driver, Pilot
from iel.data.make.episodes import MazeCollector
from iel.data.make.recipes import Recipe
from iel.envs.antmaze import LAYOUTS


class AntMazeCollector(MazeCollector):
    """An ant whose legs are moved by a controller, ours or that of a file."""

    def __init__(self, plan: Recipe, seed: int, controller: Path | None = None):
        self.controller = load_controller(controller)
        super().__init__(plan, seed)

    def act(self, observation: NDArray, direction: NDArray, rng: np.random.Generator) -> NDArray:
        action = self.controller(observation, direction, rng if self.plan.sampled else None)
        return np.clip(action + self.plan.noise * rng.standard_normal(ACTIONS), -1.0, 1.0)

    def begin(self, rng: np.random.Generator) -> tuple[NDArray, Pilot]:
        if not self.plan.is_d4rl:
            return super().begin(rng)
        layout, maze = LAYOUTS[self.plan.maze], self.maze
        start = int(rng.integers(len(maze.free)))
        goals = layout.collection_goals if self.plan.kind == "play" else maze.free
        goal = goals[rng.integers(len(goals))]
        goal_xy = layout.draw_goal(rng, tuple(goal))
        self.env.reset(seed=int(rng.integers(2**31)))
        simulator: Any = self.env.unwrapped
        simulator.set_goal(goal_xy)
        simulator.set_xy(np.maximum(maze.centre(maze.free[start]) + rng.uniform(0.0, 1.0, 2), 0.0))
        pilot = Driver(self.plan, maze, rng, start, goal=(int(maze.number[tuple(goal)]), goal_xy))
        return simulator.get_ob(), pilot
