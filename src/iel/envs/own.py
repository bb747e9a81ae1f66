"""What an environment must offer (`GoalEnv`), and how anything with Gymnasium's `reset` and `step` becomes one.

    World(lambda: MyRobot())                                  info["goal"] and info["success"] are its own
    World(MyRobot, goal=lambda env, observation, info: env.target, tolerance=0.3, columns=(0, 1), max_steps=400)

The goal is info["goal"] of `reset`, or what the function `goal` says: a whole observation, or {column: value} where the
rest may be anything. Success is info["success"] (or info["is_success"]) of `step`, or what the function `success` says,
or a distance of at most `tolerance` to the goal in the given columns. An environment that has fixed tasks says
`num_tasks` and takes `options={"task_id": k}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iel.envs.mazes import MazeMap
from iel.errors import ConfigError, unknown_name
from iel.typed import imported

NUM_ENVS = 16
"""How many of a user's environments are held in memory at a time."""
Info = dict[str, Any]
"""What environments say about a step, by name."""


def episode_seed(seed: int, task: int, episode: int) -> int:
    """The seed that every evaluation resets with for an episode of a task."""
    return int(np.random.SeedSequence([seed, task, episode]).generate_state(1)[0])


@runtime_checkable
class GoalEnv(Protocol):
    """What evaluation, pictures and data makers need of an environment, besides Gymnasium's `reset` and `step`.

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
    num_envs: int | None
    """How many to keep in memory at a time; None where they are small."""
    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]: ...

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]: ...


@dataclass(frozen=True)
class World:
    """How to make a user's environment, and where its goal and its success come from."""

    make: Callable[[], Any]
    goal: Callable[[Any, Any, Info], Any] | None = None
    """(env, observation, info) -> the goal of this episode."""
    success: Callable[[Any, Any, Any, Info], bool] | None = None
    """(env, observation, goal, info) -> whether it is reached."""
    tolerance: float | None = None
    """Success is a distance to the goal of at most this, in the observation's own units."""
    columns: tuple[int, ...] | None = None
    """Columns of that distance; by default all that the goal names."""
    max_steps: int | None = None
    """Steps an episode may take; by default what the environment's registration says."""
    name: str = "own environment"
    num_envs: int = NUM_ENVS

    @classmethod
    def of(cls, env: Any, **facts: Any) -> World:
        """From a function that makes environments, or from a single environment, whose episodes then take turns."""
        if isinstance(env, World):
            return env
        if unknown := facts.keys() - SAID:
            raise unknown_name("option of an environment of your own", min(unknown), SAID)
        if hasattr(env, "reset") and hasattr(env, "step") and not isinstance(env, type):
            name = getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__
            return cls(lambda: env, name=name, num_envs=1, **facts)
        if not callable(env):
            raise ConfigError(f"env is a {type(env).__name__}; give a name, a Gymnasium environment, or a function "
                              "that makes one.")  # fmt: skip
        return cls(env, name=getattr(env, "__name__", "own environment"), **facts)

    @classmethod
    def from_text(cls, text: str, **facts: Any) -> World:
        """From `package:function`, looked for in the current directory too."""
        return cls.of(imported(text, "--env-factory"), **facts)

    def environment(self) -> OwnEnv:
        """A new environment (or the only one there is)."""
        return OwnEnv(self)


SAID = ("goal", "success", "tolerance", "columns", "max_steps")
"""What may be said of an environment that does not say it itself."""


def arena_of(env: object, **facts: Any) -> str | World:
    """Where to act: the name of an environment, or one's own, with what it does not say itself."""
    if not isinstance(env, str):
        return World.of(env, **facts)
    if facts:
        raise ConfigError(
            f"{min(facts)} is an option of your own environments; '{env}' defines it itself, so leave it out."
        )
    return env


class OwnEnv:
    """A user's environment as a `GoalEnv`."""

    map: MazeMap | None = None
    subtasks = 0

    def __init__(self, world: World):
        env = world.make()
        for method in ("reset", "step"):
            if not callable(getattr(env, method, None)):
                raise ConfigError(f"{world.name} makes a {type(env).__name__}, which has no {method}(); give a "
                                  "Gymnasium environment.")  # fmt: skip
        self.env, self.world, self.name, self.num_envs = env, world, world.name, world.num_envs
        self.observation_space = _supported("observation", getattr(env, "observation_space", None), self.name)
        self.action_space = _supported("action", getattr(env, "action_space", None), self.name)
        self.num_tasks = int(_attribute(env, "num_tasks") or 1)
        limit = world.max_steps or getattr(getattr(env, "spec", None), "max_episode_steps", None)
        limit = limit or _attribute(env, "horizon") or _attribute(env, "max_episode_steps")
        if limit is None:
            raise ConfigError(f"{self.name} does not say how long an episode may be; give max_steps (--max-steps).")
        self.horizon = int(limit)
        self._left = self.horizon
        self._goal: NDArray[np.float32] = np.zeros(0, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray[np.float32], Info]:
        """The first observation, and info with the goal; columns the goal does not name are NaN."""
        further = {"options": options} if self.num_tasks > 1 else {}
        observation, info = self.env.reset(seed=seed, **further)
        row = self._row(observation)
        if self.world.goal is None and "goal" not in info:
            raise ConfigError(
                f"{self.name} gives no goal: reset must return info['goal'], or give a function goal(env, observation, "
                "info)."
            )
        target = info["goal"] if self.world.goal is None else self.world.goal(self.env, observation, info)
        self._goal = self._as_goal(target, len(row))
        self._left = self.horizon
        return row, {**info, "goal": self._goal}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        row = self._row(observation)
        self._left -= 1
        success = self._succeeded(row, observation, info)
        return row, reward, bool(terminated), bool(truncated) or self._left <= 0, {**info, "success": success}

    def _succeeded(self, row: NDArray, observation: Any, info: Info) -> bool:
        world = self.world
        if world.success is not None:
            return bool(world.success(self.env, observation, self._goal, info))
        if world.tolerance is not None:
            named = np.flatnonzero(np.isfinite(self._goal)) if world.columns is None else np.array(world.columns)
            return bool(np.linalg.norm(row[named] - self._goal[named]) <= world.tolerance)
        for name in ("success", "is_success"):
            if name in info:
                return bool(info[name])
        raise ConfigError(
            f"{self.name} does not say when a goal is reached: step must return info['success'], or give a tolerance "
            "or a function success(env, observation, goal, info)."
        )

    def _row(self, observation: Any) -> NDArray[np.float32]:
        if isinstance(observation, Mapping):
            raise ConfigError(f"{self.name} observes dictionaries, which are not supported; flatten them to one row "
                              "(gymnasium.wrappers.FlattenObservation).")  # fmt: skip
        row = np.array(observation, np.float32)  # a copy: environments may reuse their own
        if row.ndim != 1:
            raise ConfigError(f"{self.name} observes arrays of shape {row.shape}; only rows of numbers are supported.")
        return row

    def _as_goal(self, target: Any, size: int) -> NDArray[np.float32]:
        goal = np.full(size, np.nan, np.float32)
        if isinstance(target, Mapping):
            for column, value in target.items():
                if not 0 <= int(column) < size:
                    raise ConfigError(f"{self.name}: the goal names column {column}, but observations have {size}.")
                goal[int(column)] = value
            return goal
        given = np.asarray(target, np.float32)
        if given.shape != (size,):
            raise ConfigError(
                f"{self.name}: the goal has shape {given.shape}, but an observation has {size} numbers; give all of "
                "them, or {column: value} for some."
            )
        return given


def _supported(kind: str, space: Any, name: str) -> Any:
    """The space, if it is none or a box of one dimension: tables have no others."""
    if space is None:
        return None
    others = any(hasattr(space, word) for word in ("spaces", "nvec", "n"))
    if others or len(getattr(space, "shape", None) or ()) != 1:
        raise ConfigError(
            f"{name} has a {kind} space {str(space)[:60]}; only rows of real numbers (a Box of one dimension) are "
            "supported, no numbered choices, dictionaries or pictures."
        )
    if kind == "action" and not (np.all(space.low >= -1 - 1e-6) and np.all(space.high <= 1 + 1e-6)):
        raise ConfigError(
            f"{name} takes actions beyond [-1, 1] ({str(space)[:60]}), but policies act within; wrap it with "
            "gymnasium.wrappers.RescaleAction(env, -1, 1), and stretch the data's actions the same way."
        )
    return space


def _attribute(env: Any, name: str) -> Any:
    """An attribute of an environment or of what it wraps."""
    return getattr(env, name, getattr(getattr(env, "unwrapped", env), name, None))
