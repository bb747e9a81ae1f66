"""One episode at a time: reset, drive, record. A body says how a direction becomes an action.

Every draw of episode e comes from the seed sequence (seed, split, e), so an episode is the same whoever collects it,
and in whatever order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iel.data.make.driving import Driver, Explorer, Pilot
from iel.data.make.recipes import Recipe
from iel.envs import MazeMap, make_env

if TYPE_CHECKING:
    from iel.envs.seeded import SeededEnv

SPLITS = ("train", "val")


class MazeCollector(ABC):
    """Collects single episodes of a recipe; one instance a process."""

    def __init__(self, plan: Recipe, seed: int):
        self.plan, self.seed = plan, seed
        self.env: SeededEnv = make_env(plan.name, terminate_at_goal=False)
        assert self.env.map is not None
        self.maze: MazeMap = self.env.map
        self.goals_reached = 0
        """Goals reached in the last episode (steps spent at the goal, where an episode has only one)."""

    @abstractmethod
    def act(self, observation: NDArray, direction: NDArray, rng: np.random.Generator) -> NDArray:
        """The action of a body that is to move in a direction."""

    def begin(self, rng: np.random.Generator) -> tuple[NDArray, Pilot]:
        """(first observation, pilot) of an episode: OGBench's start in a random cell, and the pilot of the kind."""
        start = int(rng.integers(len(self.maze.free)))
        task = {"init_ij": tuple(self.maze.free[start]), "goal_ij": tuple(self.maze.free[start])}
        observation, _ = self.env.reset(seed=int(rng.integers(2**31)), options={"task_info": task})
        if self.plan.kind == "explore":
            return observation, Explorer(self.plan, rng)
        return observation, Driver(self.plan, self.maze, rng, start)

    def episode(self, index: int, split: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(T + 1 observations, T actions) of episode `index`."""
        rng = np.random.default_rng([self.seed, SPLITS.index(split), index])
        observation, pilot = self.begin(rng)
        observations = np.empty((self.plan.steps + 1, len(observation)), np.float32)
        actions = np.empty((self.plan.steps, *self.env.action_space.shape), np.float32)  # type: ignore[misc]
        observations[0] = observation
        simulator: Any = self.env.unwrapped
        for step in range(self.plan.steps):
            direction = pilot(simulator.get_xy())
            actions[step] = self.act(observation, direction, rng)
            observation = self.env.step(actions[step])[0]
            observations[step + 1] = observation
            # A step into a teleport returns the state before it, and that is where OGBench judges arrivals.
            pilot.arrive(observation[:2])
        self.goals_reached = pilot.reached
        return observations, actions
