"""The wrapper that makes any simulator follow from a seed.

OGBench draws tasks, starts, goals and teleports from numpy's global generator. `SeededEnv` lends it a generator of its
own for the length of a call, so that two environments never disturb each other, nor anyone else's random numbers.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from iel.envs.mazes import MazeMap
from iel.envs.own import Info
from iel.errors import ConfigError


class SeededEnv(gymnasium.Wrapper):
    """A raw simulator environment (`self.env`) as a `GoalEnv`: every random draw follows from the last seeded reset.

    It stands directly on the simulator, without Gymnasium's checkers and limiters in between: a step costs one call and
    one comparison more than the simulator's own.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        name: str,
        horizon: int,
        *,
        maze: MazeMap | None = None,
        num_tasks: int = 1,
        subtasks: int = 0,
        num_envs: int | None = None,
        may_draw: Callable[[], bool] | None = None,
    ):
        """`may_draw` says whether the next step could borrow the global generator; None: no step ever does."""
        super().__init__(env)
        self.name, self.horizon, self.map = name, horizon, maze
        self.num_tasks, self.subtasks, self.num_envs = num_tasks, subtasks, num_envs
        self._may_draw = may_draw
        self._raw_step = env.step
        self._left = horizon
        self._state = np.random.RandomState(0).get_state()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """`options={"task_id": k}` chooses one of the evaluation tasks, 1 to `num_tasks`."""
        task = (options or {}).get("task_id")
        if task is not None and not 1 <= task <= self.num_tasks:
            raise ConfigError(f"Task {task} does not exist; {self.name} has tasks 1 to {self.num_tasks}.")
        if seed is not None:
            self._state = np.random.RandomState(seed % 2**32).get_state()
            self.env.action_space.seed(seed)
        self._left = self.horizon
        with self.lend_generator():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        if self._may_draw is not None and self._may_draw():
            with self.lend_generator():
                result = self._raw_step(action)
        else:
            result = self._raw_step(action)
        self._left -= 1
        return result if self._left > 0 else (*result[:3], True, result[4])

    @contextlib.contextmanager
    def lend_generator(self) -> Iterator[None]:
        """Inside the block numpy's global generator is this environment's own; afterwards it is the caller's again."""
        everyone = np.random.get_state()  # noqa: NPY002  OGBench draws from nothing else
        np.random.set_state(self._state)  # noqa: NPY002
        try:
            yield
        finally:
            self._state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(everyone)  # noqa: NPY002
