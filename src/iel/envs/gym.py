"""DirectedMaze: a benchmark of goal reaching where the way back is another one, as plain Gymnasium environments.

    import gymnasium
    import iel.envs.gym                                              # registers the names, and imports no JAX

    env = gymnasium.make("iel/pointmaze-medium-doors-v0")
    observation, info = env.reset(seed=0, options={"task_id": 1})    # five tasks
    info["goal"], info["exact_steps"]                                # a whole observation, and the fewest steps to it

    summary(attempts("iel/pointmaze-medium-doors-v0", start))        # the benchmark's protocol

The worlds are those of `iel.envs.directed`; docs/directed-maze.md has the protocol, pictures and results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.envs.directed import WORLDS
from iel.envs.mazes import MazeMap
from iel.envs.own import Info, episode_seed
from iel.envs.registry import make_env

if TYPE_CHECKING:
    from iel.theory.mazes import Maze

HORIZON = 1000
NAMES = tuple(f"{robot}-{world}-v0" for robot in ("pointmaze", "antmaze") for world in WORLDS)
Act = Callable[[NDArray], ArrayLike]
"""The action for an observation."""


class DirectedMaze(gymnasium.Env):
    """A world with one-way doors or wind. `reset` takes `options={"task_id": k}`, k from 1 to 5, else it draws one.

    Reward and `info["success"]` are 1 where the goal is reached, which ends the episode.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  Gymnasium's own declaration

    def __init__(self, name: str, render_mode: str | None = None):
        self.simulator, self.render_mode = make_env(name), render_mode
        self.num_tasks = self.simulator.num_tasks
        assert self.simulator.map is not None
        self.map: MazeMap = self.simulator.map
        self.observation_space = self.simulator.observation_space
        # The simulator draws from its own space when it resets; samples of the user's must not disturb that.
        self.action_space = copy.deepcopy(self.simulator.action_space)

    @cached_property
    def discretised(self) -> Maze:
        """The maze in squares of half a unit, on which exact steps are counted."""
        from iel.theory.mazes import maze_of

        return maze_of(self.map)

    def exact_steps(self, starts: ArrayLike, goals: ArrayLike) -> NDArray[np.float64]:
        """The fewest steps of the point from starts[i] to goals[i], observations or positions: (n, >= 2) twice.

        An ant is slower: its steps over these are above 1 even on the shortest path.
        """
        from iel.theory.mazes import steps_between

        first, last = (np.atleast_2d(np.asarray(ends, np.float64))[:, :2] for ends in (starts, goals))
        return steps_between(self.discretised, first, last)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed)
        own = int(self.np_random.integers(2**31)) if seed is None else seed
        observation, info = self.simulator.reset(seed=own, options=options)
        goal = np.array(info["goal"])
        return np.array(observation), {"goal": goal, "exact_steps": float(self.exact_steps(observation, goal)[0])}

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = self.simulator.step(np.asarray(action))
        return np.array(observation), float(reward), bool(terminated), truncated, {"success": bool(info["success"])}

    def render(self) -> Any:
        return self.simulator.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        simulator: Any = self.simulator.unwrapped
        if simulator.custom_renderer is not None:  # or it complains when Python ends
            simulator.custom_renderer.close()
            simulator.custom_renderer = None
        self.simulator.close()


class Attempt(NamedTuple):
    """One episode of the protocol."""

    task: int
    success: bool
    steps: int
    """Steps to the goal, or to the horizon."""
    exact_steps: float
    """The fewest that the world allows."""


def attempts(
    world: str | gymnasium.Env, start: Callable[[NDArray], Act], *, episodes: int = 20, seed: int = 5000
) -> Iterator[Attempt]:
    """The benchmark's protocol: every task `episodes` times, on the starts and goals of `iel evaluate --seed`.

    `start(goal)` is called once per episode and returns what acts: a function from observations to actions.
    """
    env = gymnasium.make(world) if isinstance(world, str) else world
    maze: Any = env.unwrapped
    for task in range(1, maze.num_tasks + 1):
        for episode in range(episodes):
            observation, info = env.reset(seed=episode_seed(seed, task, episode), options={"task_id": task})
            act, steps, success, over = start(info["goal"]), 0, False, False
            exact = info["exact_steps"]
            while not over:
                observation, _, terminated, truncated, info = env.step(act(observation))
                steps, success, over = steps + 1, info["success"], terminated or truncated
            yield Attempt(task, success, steps, exact)


def summary(done: Iterable[Attempt]) -> dict[str, float]:
    """Success over all tasks and of each, and the mean of steps over exact steps of the episodes that succeeded."""
    tasks, success, steps, exact = (np.array(column) for column in zip(*done, strict=True))
    rates = {f"task{task}": float(success[tasks == task].mean()) for task in np.unique(tasks)}
    ratio = float((steps / exact)[success].mean()) if success.any() else float("nan")
    return {"success_rate": float(success.mean()), **rates, "steps_over_exact": ratio}


def register() -> None:
    """Make the names known to Gymnasium; importing this module does it."""
    for name in NAMES:
        if f"iel/{name}" not in gymnasium.registry:
            entry = "iel.envs.gym:DirectedMaze"
            gymnasium.register(f"iel/{name}", entry, max_episode_steps=HORIZON, kwargs={"name": name})


register()
