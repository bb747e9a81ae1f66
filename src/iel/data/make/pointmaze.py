"""How PointMaze data is collected: a noisy shortest-path controller in OGBench's MuJoCo environment.

    navigate   drive to random cells of the whole maze, a new goal whenever one is reached
    stitch     short episodes that end near where they began (goals at most four cells away)
    explore    no goal at all: a random heading, redrawn every ten steps

The controller looks one cell ahead on a shortest path: with c the centre of the next cell (or the goal itself in its
own cell), a = clip(unit(c - xy) + noise * N(0, I), -1, 1). Every draw of episode e comes from the seed sequence
(seed, split, e), so an episode is the same whoever collects it, and in whatever order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.envs.mazes import KINDS, MAZES, MazeMap, SeededMaze, environment_names, make_env
from iel.errors import unknown_name

SPLITS = ("train", "val")


@dataclass(frozen=True)
class Recipe:
    """What a data set's name means. Sizes are those of OGBench."""

    name: str
    maze: str
    kind: str
    episodes: int
    steps: int
    """Transitions an episode."""
    noise: float
    """Standard deviation added to the unit direction of the controller."""
    reach: float = 0.5
    """A goal counts as reached within this distance, and a new one is drawn."""
    stitch_cells: int = 4
    """`stitch`: goals are at most this many cells away from the start."""
    redraw_every: int = 10
    """`explore`: steps between two random headings."""


def recipe(name: str) -> Recipe:
    """The recipe of a data set we know how to make."""
    if name not in environment_names():
        raise unknown_name("data set", name, environment_names())
    _, maze, kind, _ = name.split("-")
    assert maze in MAZES and kind in KINDS
    if kind == "stitch":
        return Recipe(name, maze, kind, episodes=5000, steps=200, noise=0.5)
    episodes, steps = (500, 2000) if maze == "giant" else (1000, 1000)
    return Recipe(name, maze, kind, episodes, steps, noise=0.5 if kind == "navigate" else 1.0)


class PointMazeCollector:
    """Collects single episodes of a recipe; one instance a process."""

    def __init__(self, plan: Recipe, seed: int):
        self.plan, self.seed = plan, seed
        self.env: SeededMaze = make_env(plan.name, terminate_at_goal=False)
        self.maze: MazeMap = self.env.map
        self.next_cell = self.maze.next_cell

    def episode(self, index: int, split: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(T + 1 observations, T actions) of episode `index`."""
        rng = np.random.default_rng([self.seed, SPLITS.index(split), index])
        start = int(rng.integers(len(self.maze.free)))
        task = {"init_ij": tuple(self.maze.free[start]), "goal_ij": tuple(self.maze.free[start])}
        observation, _ = self.env.reset(seed=int(rng.integers(2**31)), options={"task_info": task})
        control = self._explorer(rng) if self.plan.kind == "explore" else self._driver(rng, start)

        observations, actions = [observation], []
        simulator: Any = self.env.unwrapped
        for _ in range(self.plan.steps):
            direction = control(simulator.get_xy())
            action = np.clip(direction + self.plan.noise * rng.standard_normal(2), -1.0, 1.0)
            action = action.astype(np.float32)
            observation = self._step(action)
            observations.append(observation)
            actions.append(action)
        return np.array(observations, np.float32), np.array(actions, np.float32)

    def _step(self, action: NDArray) -> NDArray:
        # Teleports draw random numbers, so those mazes step through the seeded wrapper; the others can skip the
        # time limit and its bookkeeping.
        if self.plan.maze == "teleport":
            with self.env._lend_generator():
                return self.env.unwrapped.step(action)[0]
        return self.env.unwrapped.step(action)[0]

    def _driver(self, rng: np.random.Generator, start: int):
        """A controller that goes from goal to goal along shortest paths of cells."""
        maze, cells = self.maze, np.arange(len(self.maze.free))
        if self.plan.kind == "stitch":
            cells = np.flatnonzero(maze.cell_distances[start] <= self.plan.stitch_cells)
        goal, goal_xy = start, maze.centre(maze.free[start])

        def draw_goal() -> tuple[int, NDArray]:
            cell = int(rng.choice(cells))
            return cell, maze.centre(maze.free[cell]) + rng.uniform(-1.0, 1.0, 2) * maze.cell / 4

        goal, goal_xy = draw_goal()

        def direction(xy: NDArray) -> NDArray:
            nonlocal goal, goal_xy
            while np.linalg.norm(goal_xy - xy) <= self.plan.reach:
                goal, goal_xy = draw_goal()
            here = maze.number[tuple(maze.cell_of(xy))]
            ahead = self.next_cell[goal, here]
            target = goal_xy if here in (goal, -1) else maze.centre(maze.free[ahead])
            return (target - xy) / (np.linalg.norm(target - xy) + 1e-8)

        return direction

    def _explorer(self, rng: np.random.Generator):
        """A random heading, redrawn every few steps."""
        step, heading = 0, np.zeros(2)

        def direction(xy: NDArray) -> NDArray:
            nonlocal step, heading
            if step % self.plan.redraw_every == 0:
                angle = rng.uniform(0.0, 2.0 * np.pi)
                heading = np.array([np.cos(angle), np.sin(angle)])
            step += 1
            return heading

        return direction
