"""What the agent is asked for in an evaluation, where that is not simply each task's goal."""

from __future__ import annotations

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
    reward: Reward | None = None
    """Collected from the tasks' starts until the horizon, their goals ignored; its values must be a function."""
    words: str = ""
    """How protocols print it."""

    def __post_init__(self) -> None:
        if self.reward is not None and not callable(self.reward.values):
            raise ConfigError("A column of rewards is known at the data's states only; evaluate a function of states.")
        if self.reward is not None and self.columns is not None:
            raise ConfigError("A reward replaces the tasks' goals, so there are no columns of them to choose.")

    def wishes(self, goals: NDArray[np.float32]) -> Any:
        """What a planner is asked for in each episode."""
        wanted: Any = goals
        if self.reward is not None:
            wanted = [self.reward] * len(goals)
        elif self.columns is not None:
            wanted = [Where({column: float(goal[column]) for column in self.columns}) for goal in goals]
        return wanted if self.avoid is None else [Avoid(wish, self.avoid) for wish in wanted]

    def scores(self, paths: list[NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
        """Per episode: the mean reward of a step, and the share of steps in places to keep out of."""
        found = {}
        if self.reward is not None:
            found["reward_per_step"] = np.array([float(np.mean(self.reward.values(path[1:]))) for path in paths])
        if self.avoid is not None:
            found["share_in_avoided"] = np.array([float(inside(self.avoid, path[1:]).mean()) for path in paths])
        return found
