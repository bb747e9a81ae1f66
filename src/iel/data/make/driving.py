"""Where to go next: the navigating driver and the explorer, shared by every body.

The driver looks one cell ahead on a shortest path of cells: with c the centre of the next cell (of its own in the
goal's cell), the direction is unit(c - xy). So the last metre is left to chance, as with OGBench's oracle; D4RL's
driver heads for the goal itself from the neighbouring cell on.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from iel.data.make.recipes import Recipe
from iel.envs import MazeMap


class Pilot(Protocol):
    """xy in, unit direction out."""

    reached: int
    """Goals reached so far (steps at the goal, where an episode has only one)."""

    def __call__(self, xy: NDArray) -> NDArray:
        """The direction of the next step."""

    def arrive(self, xy: NDArray) -> None:
        """Told after every step where it led, before any teleport."""


class Driver:
    """Goes from goal to goal along shortest paths of cells (`navigate`), or to one place and stays there."""

    def __init__(
        self,
        plan: Recipe,
        maze: MazeMap,
        rng: np.random.Generator,
        start: int,
        goal: tuple[int, NDArray] | None = None,
    ):
        """`goal` (cell, xy) is D4RL's, which is drawn otherwise."""
        self.plan, self.maze, self.rng, self.reached = plan, maze, rng, 0
        self.centres, self.next_cell = maze.centre(maze.free), maze.next_cell
        self.cells = maze.vertices
        if plan.kind == "stitch":
            away = np.flatnonzero(maze.cell_distances[start] == plan.stitch_cells)
            self.cells = away if len(away) else np.array([start])
        self.goal, self.goal_xy = self._draw_goal() if goal is None else goal

    def _draw_goal(self) -> tuple[int, NDArray]:
        cell = int(self.rng.choice(self.cells))
        return cell, self.centres[cell] + self.rng.uniform(-1.0, 1.0, 2) * self.maze.cell / 4

    def __call__(self, xy: NDArray) -> NDArray:
        cell = self.maze.cell_of(xy)
        here = self.maze.number[tuple(cell)]
        ahead = self.next_cell[self.goal, here]
        target = self.centres[ahead] if here >= 0 else self.maze.centre(cell)
        if self.plan.is_d4rl:
            target = self.goal_xy if here < 0 or ahead == self.goal else target + self._waypoint_noise()
        return (target - xy) / (np.linalg.norm(target - xy) + 1e-6)

    def _waypoint_noise(self) -> NDArray:
        return self.plan.waypoint_shift + self.rng.uniform(-1.0, 1.0, 2) * self.plan.waypoint_noise

    def arrive(self, xy: NDArray) -> None:
        if np.linalg.norm(self.goal_xy - xy) <= self.plan.reach:
            self.reached += 1
            if self.plan.kind == "navigate":
                self.goal, self.goal_xy = self._draw_goal()


class Explorer:
    """A random heading, redrawn every few steps: the unit vector of a 2-D normal."""

    def __init__(self, plan: Recipe, rng: np.random.Generator):
        self.plan, self.rng, self.reached = plan, rng, 0
        self.steps, self.heading = 0, np.zeros(2)

    def __call__(self, xy: NDArray) -> NDArray:
        if self.steps % self.plan.redraw_every == 0:
            drawn = self.rng.standard_normal(2)
            self.heading = drawn / (np.linalg.norm(drawn) + 1e-6)
        self.steps += 1
        return self.heading

    def arrive(self, xy: NDArray) -> None:
        """An explorer has no goal."""
