"""Where to go next: the navigating driver and the explorer, shared by every body.

The driver looks one cell ahead on a shortest path: with c the centre of the next cell (or the goal itself in its own
cell), the direction is unit(c - xy).
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
    """Goals reached so far."""

    def __call__(self, xy: NDArray) -> NDArray: ...


class Driver:
    """Goes from goal to goal along shortest paths of cells; with `goal`, to this one place and stays there."""

    def __init__(
        self,
        plan: Recipe,
        maze: MazeMap,
        next_cell: NDArray[np.int64],
        rng: np.random.Generator,
        start: int,
        goal: tuple[int, NDArray] | None = None,
    ):
        self.plan, self.maze, self.next_cell, self.rng = plan, maze, next_cell, rng
        self.centres, self.reached, self.only_one = maze.centre(maze.free), 0, goal is not None
        self.cells = np.arange(len(maze.free))
        if plan.kind == "stitch":
            self.cells = np.flatnonzero(maze.cell_distances[start] <= plan.stitch_cells)
        self.goal, self.goal_xy = self._draw_goal() if goal is None else goal

    def _draw_goal(self) -> tuple[int, NDArray]:
        cell = int(self.rng.choice(self.cells))
        return cell, self.centres[cell] + self.rng.uniform(-1.0, 1.0, 2) * self.maze.cell / 4

    def __call__(self, xy: NDArray) -> NDArray:
        while np.linalg.norm(self.goal_xy - xy) <= self.plan.reach:
            self.reached += 1
            if self.only_one:
                break
            self.goal, self.goal_xy = self._draw_goal()
        here = self.maze.number[tuple(self.maze.cell_of(xy))]
        if here in (self.goal, -1):
            target = self.goal_xy
        else:
            target = self.centres[self.next_cell[self.goal, here]]
            if self.plan.waypoint_noise:
                target = target + self.rng.uniform(-1.0, 1.0, 2) * self.plan.waypoint_noise
        return (target - xy) / (np.linalg.norm(target - xy) + 1e-8)


class Explorer:
    """A random heading, redrawn every few steps."""

    def __init__(self, plan: Recipe, rng: np.random.Generator):
        self.plan, self.rng, self.reached = plan, rng, 0
        self.steps, self.heading = 0, np.zeros(2)

    def __call__(self, xy: NDArray) -> NDArray:
        if self.steps % self.plan.redraw_every == 0:
            angle = self.rng.uniform(0.0, 2.0 * np.pi)
            self.heading = np.array([np.cos(angle), np.sin(angle)])
        self.steps += 1
        return self.heading
