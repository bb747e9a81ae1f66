"""One episode at a time: reset, drive, record.

Every draw of episode e comes from the seed sequence (seed, split, e), so an episode depends neither on the process that
collects it nor on the order.

The driver looks one cell ahead on a shortest path of cells: with c the centre of the next cell (of its own in the
goal's cell), the direction is d = unit(c - xy). So the last metre is left to chance, as with OGBench's oracle; D4RL's
driver heads for the goal itself from the neighbouring cell on. With mu, sigma the output of the ant's walking
controller for direction d (`iel.data.make.ant`) and n ~ N(0, I):

    point           a = clip(d + noise * n, -1, 1)
    ant, OGBench    a = clip(tanh(mu) + noise * n, -1, 1)
    ant, D4RL       a = clip(tanh(mu + sigma * n') + noise * n, -1, 1)

OGBench's episodes start in a random cell. D4RL's start at the centre of any free cell + U(0, 1) along each axis, at
least 0, and have one goal, placed as in its evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from iel.data.make.recipes import SPLITS, Recipe
from iel.envs import MazeMap, make_env

if TYPE_CHECKING:
    from iel.data.make.ant import AntController

STITCH_CELLS = 4
"""`stitch`: the goal is exactly this many cells away from the start."""
REDRAW_EVERY = 10
"""`explore`: steps between two random headings."""
WAYPOINT_NOISE = 0.5


class Driver:
    """Goes from goal to goal along shortest paths of cells (`navigate`), or to one goal and stays there."""

    def __init__(
        self, plan: Recipe, maze: MazeMap, rng: Generator, start: int, goal: tuple[int, NDArray] | None = None
    ):
        """`goal` (cell, xy) is D4RL's, which is drawn otherwise."""
        self.plan, self.maze, self.rng = plan, maze, rng
        self.reached = 0
        """Goals reached so far (steps at the goal, where an episode has only one)."""
        self.centres, self.next_cell = maze.centre(maze.free), maze.next_cell
        self.cells = maze.vertices
        if plan.kind == "stitch":
            away = np.flatnonzero(maze.cell_distances[start] == STITCH_CELLS)
            self.cells = away if len(away) else np.array([start])
        self.goal, self.goal_xy = self._draw_goal() if goal is None else goal

    def _draw_goal(self) -> tuple[int, NDArray]:
        cell = int(self.rng.choice(self.cells))
        return cell, self.centres[cell] + self.rng.uniform(-1.0, 1.0, 2) * self.maze.cell / 4

    def __call__(self, xy: NDArray) -> NDArray:
        """The unit direction of the next step."""
        cell = self.maze.cell_of(xy)
        here = self.maze.number[tuple(cell)]
        ahead = self.next_cell[self.goal, here]
        target = self.centres[ahead] if here >= 0 else self.maze.centre(cell)
        if self.plan.is_d4rl:
            if here < 0 or ahead == self.goal:
                target = self.goal_xy
            else:
                target = target + (self.plan.waypoint_shift + self.rng.uniform(-1.0, 1.0, 2) * WAYPOINT_NOISE)
        return (target - xy) / (np.linalg.norm(target - xy) + 1e-6)

    def reach_target(self, xy: NDArray) -> None:
        """Called after every step with its end, before any teleport."""
        if np.linalg.norm(self.goal_xy - xy) <= self.plan.reach:
            self.reached += 1
            if self.plan.kind == "navigate":
                self.goal, self.goal_xy = self._draw_goal()


class Explorer:
    """A random heading, redrawn every few steps: the unit vector of a 2-D normal. It has no goal."""

    def __init__(self, rng: Generator):
        self.rng, self.reached, self.steps, self.heading = rng, 0, 0, np.zeros(2)

    def __call__(self, xy: NDArray) -> NDArray:
        if self.steps % REDRAW_EVERY == 0:
            drawn = self.rng.standard_normal(2)
            self.heading = drawn / (np.linalg.norm(drawn) + 1e-6)
        self.steps += 1
        return self.heading

    def reach_target(self, xy: NDArray) -> None:
        """Nothing is reached."""


class Collector:
    """Collects single episodes of a recipe; one instance a process."""

    def __init__(self, plan: Recipe, seed: int, controller: AntController | None = None):
        """`controller` moves the legs of an ant; a point moves by the direction itself."""
        self.plan, self.seed, self.controller = plan, seed, controller
        self.env = make_env(plan.name, terminate_at_goal=False)
        assert self.env.map is not None
        self.maze: MazeMap = self.env.map
        self.simulator: Any = self.env.unwrapped
        self.goals_reached = 0
        """Goals reached in the last episode (steps spent at the goal, where an episode has only one)."""

    def act(self, observation: NDArray, direction: NDArray, rng: Generator) -> NDArray:
        """The action of a body that is to move in a direction."""
        action = direction
        if self.controller is not None:
            action = self.controller(observation, direction, rng if self.plan.is_d4rl else None)
        return np.clip(action + self.plan.noise * rng.standard_normal(len(action)), -1.0, 1.0)

    def begin(self, rng: Generator) -> tuple[NDArray, Driver | Explorer]:
        """(first observation, driver) of an episode."""
        maze = self.maze
        start = int(rng.integers(len(maze.free)))
        if self.plan.is_d4rl:
            from iel.envs.antmaze import LAYOUTS

            layout = LAYOUTS[self.plan.maze]
            goals = layout.collection_goals if self.plan.kind == "play" else maze.free
            goal = goals[rng.integers(len(goals))]
            goal_xy = layout.draw_goal(rng, tuple(goal))
            self.env.reset(seed=int(rng.integers(2**31)))
            self.simulator.set_goal(goal_xy)
            self.simulator.set_xy(np.maximum(maze.centre(maze.free[start]) + rng.uniform(0.0, 1.0, 2), 0.0))
            driver = Driver(self.plan, maze, rng, start, goal=(int(maze.number[tuple(goal)]), goal_xy))
            return self.simulator.get_ob(), driver
        task = {"init_ij": tuple(maze.free[start]), "goal_ij": tuple(maze.free[start])}
        observation, _ = self.env.reset(seed=int(rng.integers(2**31)), options={"task_info": task})
        explores = self.plan.kind == "explore"
        return observation, Explorer(rng) if explores else Driver(self.plan, maze, rng, start)

    def episode(self, index: int, split: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(T + 1 observations, T actions) of episode `index`."""
        rng = np.random.default_rng([self.seed, SPLITS.index(split), index])
        observation, driver = self.begin(rng)
        observations, actions = [observation], []
        for _ in range(self.plan.steps):
            direction = driver(self.simulator.get_xy())
            actions.append(self.act(observation, direction, rng).astype(np.float32))
            observation = self.env.step(actions[-1])[0]
            observations.append(observation)
            # A step into a teleport returns the state before it; OGBench tests there whether the goal is reached.
            driver.reach_target(observation[:2])
        self.goals_reached = driver.reached
        return np.array(observations, np.float32), np.array(actions)
