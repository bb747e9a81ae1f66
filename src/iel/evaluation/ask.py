"""What the agent is asked for in an evaluation, where that is not simply each task's goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.errors import ConfigError
from iel.planning import Avoid, Reward, Where
from iel.planning.goals import inside


@dataclass(frozen=True)
class Ask:
    """Only some columns of the goals, places to keep out of, or a reward instead of goals."""

    columns: tuple[int, ...] | None = None
    """The agent is sent to these columns of each goal, whatever the others; success is still the environment's."""
    avoid: Any = None
    """Places to keep out of on the way (`iel.planning.Avoid`)."""
    goal: Any = None
    """Any goal of `iel.planning`, the same in all episodes, instead of the tasks' own. Episodes then begin where the
    tasks do and last to the horizon, and success says whether the task's goal was passed."""
    reward: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    """Measured on the way: a function from observations (n, obs_dim) to numbers (n,)."""
    words: str = ""
    """How protocols print it."""

    @classmethod
    def for_reward(cls, reward: Any, avoid: Any = None, words: str = "") -> Ask:
        """Collect a reward, and measure it."""
        if not callable(reward):
            raise ConfigError("A column of rewards is known at the data's states only; evaluate a function of states.")
        return cls(avoid=avoid, goal=Reward(reward), reward=reward, words=words)

    def __post_init__(self) -> None:
        if self.goal is not None and self.columns is not None:
            raise ConfigError("Another goal replaces the tasks' own, so there are no columns of them to choose.")

    def wishes(self, goals: NDArray[np.float32]) -> Any:
        """What a planner is asked for in each episode."""
        wanted: Any = goals
        if self.goal is not None:
            wanted = [self.goal] * len(goals)
        elif self.columns is not None:
            wanted = [Where({column: float(goal[column]) for column in self.columns}) for goal in goals]
        return wanted if self.avoid is None else [Avoid(wish, self.avoid) for wish in wanted]

    def scores(self, paths: list[NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
        """Per episode: the mean reward of a step, and the share of steps in places to keep out of."""
        found = {}
        if self.reward is not None:
            found["reward_per_step"] = np.array([float(np.mean(self.reward(path[1:]))) for path in paths])
        if self.avoid is not None:
            found["share_in_avoided"] = np.array([float(inside(self.avoid, path[1:]).mean()) for path in paths])
        return found
