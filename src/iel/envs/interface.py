"""The one interface of every environment."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from iel.envs.mazes import MazeMap


@runtime_checkable
class GoalEnv(Protocol):
    """What evaluation, pictures and data makers ask of an environment, besides Gymnasium's `reset` and `step`.

    `reset(seed=, options={"task_id": k})` returns info["goal"], a full observation; `step` returns info["success"], and
    info["subtasks"], how many of the `subtasks` were completed so far, where a task has several.
    """

    name: str
    num_tasks: int
    """Fixed evaluation tasks, numbered from 1."""
    horizon: int
    """Steps after which an episode is truncated."""
    map: MazeMap | None
    """Walls, where there are any."""
    subtasks: int
    """Parts a task has; 0 where success is all there is."""
    lanes: int | None
    """How many to keep in memory at a time; None where they are small."""
    draws_while_stepping: bool
    """Whether `step` borrows numpy's global generator (then two such environments must not step at the same time)."""
    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]: ...

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]: ...
