"""Rollouts: all episodes of all tasks are stepped together, with one batched network call a step for all of them.

OGBench's protocol: every fixed task of the maze, N episodes each, the policy's mean action, success as the environment
reports it. Episode e of task k starts from the seed (seed, k, e), so every planner and every model meets the same
episodes, and two evaluations agree exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.envs import SeededMaze, make_env
from iel.errors import ConfigError
from iel.evaluation.stats import bootstrap_interval
from iel.progress import Progress


@dataclass(frozen=True)
class Protocol:
    """How success is measured; printed with every number."""

    episodes: int = 20
    """Episodes a task."""
    tasks: tuple[int, ...] | None = None
    """Which tasks, counted from 1; None means all of them."""
    seed: int = 0
    """Every start, goal and teleport follows from it."""
    max_steps: int | None = None
    """Steps an episode may take; None is the environment's own limit."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"An evaluation needs at least one episode a task, but {self.episodes} were asked for.")


@dataclass(frozen=True)
class Rollouts:
    """Results of one planner: one entry an episode."""

    planner: str
    tasks: NDArray[np.int64]
    success: NDArray[np.bool_]
    steps: NDArray[np.int64]
    seconds: float
    """Wall time of the rollouts, planning included."""
    planning_seconds: float
    """The part spent preparing goals and choosing directions."""
    paths: list[NDArray[np.float32]] = field(repr=False, default_factory=list)
    """Observations of every episode."""
    goals: NDArray[np.float32] = field(repr=False, default_factory=lambda: np.zeros((0, 0), np.float32))

    def summary(self) -> dict[str, Any]:
        """success_rate, 95 % interval and the same per task, as JSON-safe values."""
        strata = [self.success[self.tasks == task] for task in np.unique(self.tasks)]
        return {
            "success_rate": float(np.mean([stratum.mean() for stratum in strata])),
            "interval": list(bootstrap_interval(strata)),
            "per_task": {
                f"task{task}": {
                    "success_rate": float(self.success[self.tasks == task].mean()),
                    "interval": list(bootstrap_interval([self.success[self.tasks == task]])),
                    "mean_steps": float(self.steps[self.tasks == task].mean()),
                }
                for task in np.unique(self.tasks)
            },
            "mean_steps": float(self.steps.mean()),
            "seconds": round(self.seconds, 3),
            "planning_seconds": round(self.planning_seconds, 3),
        }


class Arena:
    """A pool of environments, one an episode, made once and used for every planner."""

    def __init__(self, env: str, protocol: Protocol):
        self.name, self.protocol = env, protocol
        first = make_env(env)
        self.tasks = protocol.tasks or tuple(range(1, first.num_tasks + 1))
        unknown = [task for task in self.tasks if not 1 <= task <= first.num_tasks]
        if unknown:
            raise ConfigError(f"{env} has tasks 1 to {first.num_tasks}, not {unknown[0]}.")
        episodes = [(task, episode) for task in self.tasks for episode in range(protocol.episodes)]
        self.episodes = np.array(episodes)
        self.envs: list[SeededMaze] = [first, *(make_env(env) for _ in episodes[1:])]
        limit = first.spec.max_episode_steps if first.spec else None
        self.horizon = min(protocol.max_steps or limit or 1000, limit or 1000)

    def describe(self) -> dict[str, Any]:
        """The protocol as JSON-safe values."""
        return {
            "tasks": len(self.tasks),
            "episodes_per_task": self.protocol.episodes,
            "max_steps": self.horizon,
            "seed": self.protocol.seed,
            "action": "policy mean",
            "interval": "95 % stratified bootstrap over episodes",
        }

    def reset(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(observations, goals) of all episodes."""
        observations, goals = [], []
        for (task, episode), env in zip(self.episodes, self.envs, strict=True):
            sequence = np.random.SeedSequence([self.protocol.seed, int(task), int(episode)])
            observation, info = env.reset(seed=int(sequence.generate_state(1)[0]), options={"task_id": int(task)})
            observations.append(observation)
            goals.append(info["goal"])
        return np.array(observations, np.float32), np.array(goals, np.float32)

    def rollout(self, model: Any, planner: Any, name: str, progress: bool = True) -> Rollouts:
        """Let `planner` drive every episode to success or to the horizon."""
        started = time.perf_counter()
        observations, goals = self.reset()
        count = len(observations)
        paths = [[observation.copy()] for observation in observations]
        success, steps = np.zeros(count, bool), np.full(count, self.horizon)
        running = np.arange(count)

        # Networks always see all episodes, also those that are over: one shape, compiled once, outside the clock.
        directions = np.zeros_like(model.embed(observations))
        model.act(observations, directions)
        mark = time.perf_counter()
        plan = planner.plan(goals)
        planning = time.perf_counter() - mark
        with Progress(f"evaluate {name}", count, unit="episodes", show=progress) as bar:
            for step in range(1, self.horizon + 1):
                embeddings = model.embed(observations)[running]
                mark = time.perf_counter()
                directions[running] = plan.directions(embeddings, rows=running)
                planning += time.perf_counter() - mark
                actions = model.act(observations, directions)[running]
                done = np.zeros(len(running), bool)
                for slot, (episode, action) in enumerate(zip(running, actions, strict=True)):
                    observation, _, terminated, truncated, info = self.envs[episode].step(action)
                    observations[episode] = observation
                    paths[episode].append(observations[episode].copy())
                    if info["success"]:
                        success[episode], steps[episode] = True, step
                    done[slot] = terminated or truncated or bool(info["success"])
                if done.any():
                    bar.advance(int(done.sum()), f"success {success.sum()}/{count}")
                    running = running[~done]
                    if len(running) == 0:
                        break
        seconds = time.perf_counter() - started
        arrays = [np.array(path, np.float32) for path in paths]
        return Rollouts(name, self.episodes[:, 0], success, steps, seconds, planning, arrays, goals)


def evaluate(
    model: Any,
    data: Any,
    env: str,
    planners: Sequence[str] = ("direct", "rec-mid", "sym-graph", "asym-graph"),
    protocol: Protocol | None = None,
    *,
    settings: dict[str, dict[str, Any]] | None = None,
    progress: bool = True,
) -> dict[str, Rollouts]:
    """Success of a model under each planner. `settings` are keyword arguments for planners, by name."""
    from iel.planning import make_planner

    made = {name: make_planner(name, model, data, **(settings or {}).get(name, {})) for name in planners}
    arena = Arena(env, protocol or Protocol())
    return {name: arena.rollout(model, planner, name, progress) for name, planner in made.items()}
