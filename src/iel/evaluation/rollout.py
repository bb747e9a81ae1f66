"""Rollouts: the episodes of all tasks are stepped together, with one batched network call per step for all of them.

OGBench's protocol: every fixed task of an environment, N episodes each, success as the environment reports it. D4RL's
is the same with one task; in the kitchen the score is the fraction of its four subtasks. The policy acts by its mean,
or by samples where the protocol says so. Episode e of task k starts from the seed (seed, k, e), so every planner and
every model meets the same episodes, and two evaluations agree exactly, on any number of cores (`simulators.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data import Trajectories
from iel.distances import Floats
from iel.envs import GoalEnv, World, make_env
from iel.envs.own import arena_of, episode_seed
from iel.errors import ConfigError, NoPath
from iel.evaluation.distances import bands_of
from iel.evaluation.result import JSON, Episodes, Evaluation, summary_of
from iel.evaluation.simulators import SUCCESS, TERMINATED, TRUNCATED, Simulators, Start, usual_workers
from iel.evaluation.stats import EPISODE_INTERVAL
from iel.files import notice
from iel.model import Model
from iel.planning import Acting, ActionKind, Avoid, Controller, Planner, Reward, Where, make_planner, planners_for
from iel.planning.goals import Goal, Regions, Rewards, inside
from iel.progress import Progress

ACTIONS = {"mean": "policy mean", "sample": "policy sample", "unstick": "policy mean, noise while stuck"}
"""Kinds of actions, as protocols print them."""


@dataclass(frozen=True)
class TaskRequest:
    """Only some columns of the goals, regions to avoid, or a reward instead of goals."""

    columns: tuple[int, ...] | None = None
    """The goal is these columns of each task's goal, whatever the others; success is still the environment's."""
    avoid: Regions | None = None
    """Regions that plans avoid (`iel.planning.Avoid`)."""
    goal: Goal | None = None
    """Any goal of `iel.planning`, the same in all episodes, instead of the tasks' own. Episodes then begin where the
    tasks do and last to the horizon, and success is whether the task's goal was passed."""
    reward: Callable[[Floats], ArrayLike] | None = None
    """Measured at every step: a function from observations (n, obs_dim) to numbers (n,)."""
    words: str = ""
    """What protocols print."""

    @classmethod
    def for_reward(cls, reward: Rewards, avoid: Regions | None = None, words: str = "") -> TaskRequest:
        """Collect a reward, and measure it."""
        if not callable(reward):
            raise ConfigError("A column of rewards is known at the data's states only; evaluate a function of states.")
        return cls(avoid=avoid, goal=Reward(reward), reward=reward, words=words)

    def __post_init__(self) -> None:
        if self.goal is not None and self.columns is not None:
            raise ConfigError("A goal replaces those of the tasks, so leave their columns out.")

    def specifications(self, goals: NDArray[np.float32]) -> Sequence[Goal] | NDArray[np.float32]:
        """The goal specification of each episode: of goals of which only some columns are known (the others are NaN),
        these columns."""
        wanted: Sequence[Goal] | NDArray[np.float32] = goals
        if not np.isfinite(goals).all():
            known = [np.flatnonzero(np.isfinite(goal)) for goal in goals]
            return [Where({int(c): float(g[c]) for c in own}) for g, own in zip(goals, known, strict=True)]
        if self.goal is not None:
            wanted = [self.goal] * len(goals)
        elif self.columns is not None:
            wanted = [Where({column: float(goal[column]) for column in self.columns}) for goal in goals]
        return wanted if self.avoid is None else [Avoid(requested, self.avoid) for requested in wanted]

    def scores(self, paths: list[NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
        """Per episode: the mean reward of a step, and the share of steps in avoided regions."""
        found = {}
        if self.reward is not None:
            found["reward_per_step"] = np.array([float(np.mean(np.asarray(self.reward(path[1:])))) for path in paths])
        if self.avoid is not None:
            found["share_in_avoided"] = np.array([float(inside(self.avoid, path[1:]).mean()) for path in paths])
        return found


@dataclass(frozen=True)
class Protocol:
    """How success is measured; printed with every number."""

    episodes: int = 20
    """Episodes per task."""
    tasks: tuple[int, ...] | None = None
    """Which tasks, counted from 1; None means all of them."""
    seed: int = 0
    """Every start, goal and teleport follows from it."""
    max_steps: int | None = None
    """Steps an episode may take, never more than the environment's own limit, which is what None means."""

    action: ActionKind = "mean"
    """How the policy acts (`iel.planning.Acting`); what is random follows from the seed as well."""
    request: TaskRequest = field(default_factory=TaskRequest)
    """What the agent is to do, if not to reach each task's goal."""
    by_distance: bool = False
    """Starts and goals are pairs of cells in bands of distance (`iel.evaluation.distances`), which count as tasks."""

    def __post_init__(self) -> None:
        _ = Acting(self.action)  # refuses an unknown kind of action now
        if self.episodes < 1:
            raise ConfigError(f"An evaluation needs at least one episode per task, not {self.episodes}.")


@dataclass(frozen=True)
class Rollouts:
    """Results of one planner: one entry per episode."""

    planner: str
    tasks: NDArray[np.int64]
    success: NDArray[np.bool_]
    steps: NDArray[np.int64]
    seconds: float
    """Wall time of the rollouts, planning included."""
    planning_seconds: float
    """The part spent preparing goals and choosing targets."""
    paths: list[NDArray[np.float32]] = field(repr=False, default_factory=list)
    """Observations of every episode."""
    goals: NDArray[np.float32] = field(repr=False, default_factory=lambda: np.zeros((0, 0), np.float32))
    subtasks: NDArray[np.float64] | None = None
    """Fraction of its subtasks that each episode completed, where a task has several."""
    scores: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """What else was measured of every episode (`TaskRequest.scores`)."""
    names: dict[int, str] = field(default_factory=dict)
    """What tasks are called, if not task1, task2..."""

    def __repr__(self) -> str:
        return f"Rollouts({self.planner}: {self.success.sum()} of {len(self.success)} episodes reached their goals)"

    def name_of(self, task: int) -> str:
        return self.names.get(int(task), f"task{task}")

    def summary(self) -> JSON:
        """success_rate, 95 % interval and the same per task, as JSON-safe values.

        Where tasks have subtasks, also `subtask_fraction` (D4RL's normalised kitchen score / 100) and its interval.
        """
        seconds = {"seconds": round(self.seconds, 3), "planning_seconds": round(self.planning_seconds, 3)}
        return {**summary_of([Episodes.of(self)]), **seconds}


class Arena:
    """The environments of a protocol, made once and used by every planner: one per episode, or fewer that take turns
    where one needs much memory (`GoalEnv.num_envs`).

    `reference` is an observation of the data set, for environments whose goals take the robot's pose from it. `workers`
    is the number of processes that step them (default: as many as there are cores, fewer where the episodes are short).
    An environment of your own is stepped in this process alone.
    """

    def __init__(
        self,
        env: str | World,
        protocol: Protocol,
        *,
        reference: NDArray[np.float32] | None = None,
        workers: int | None = None,
    ):
        def make() -> GoalEnv:
            made: Any = env.environment() if isinstance(env, World) else make_env(env, reference=reference)
            return made

        if workers is not None and workers < 1:
            raise ConfigError(f"--workers must be at least 1, but is {workers}.")
        first = make()
        self.name, self.protocol, self.map = env if isinstance(env, str) else env.name, protocol, first.map
        self.bands = bands_of(self.name, first.map) if protocol.by_distance else ()
        known = len(self.bands) or first.num_tasks
        self.tasks = protocol.tasks or tuple(range(1, known + 1))
        unknown = [task for task in self.tasks if not 1 <= task <= known]
        if unknown:
            raise ConfigError(f"{self.name} has tasks 1 to {known}, not {unknown[0]}.")
        self.episodes = np.array([(task, episode) for task in self.tasks for episode in range(protocol.episodes)])
        self.horizon = min(protocol.max_steps or first.horizon, first.horizon)
        self.subtasks, count = first.subtasks, len(self.episodes)
        self.num_envs = min(count, first.num_envs or count)
        workers = usual_workers(count * self.horizon) if workers is None else workers
        self.workers = 1 if isinstance(env, World) else min(workers, self.num_envs)
        row = None if reference is None else reference.tolist()
        self.simulators = Simulators(first, make, self.num_envs, self.workers, row)

    def describe(self) -> JSON:
        """The protocol as JSON-safe values."""
        return {
            "tasks": len(self.tasks),
            "episodes_per_task": self.protocol.episodes,
            "max_steps": self.horizon,
            "seed": self.protocol.seed,
            "action": ACTIONS[self.protocol.action],
            "interval": EPISODE_INTERVAL,
            **({"request": self.protocol.request.words} if self.protocol.request.words else {}),
            **({"by_distance": True} if self.bands else {}),
        }

    def start(self, task: int, episode: int) -> Start:
        """How an episode of a task begins."""
        seed = self.protocol.seed, int(task), int(episode)
        if not self.bands:
            return Start(episode_seed(*seed), {"task_id": int(task)})
        return Start(episode_seed(*seed), {"task_info": self.bands[task - 1].task(np.random.SeedSequence(seed))})

    def reset(self, chosen: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(observations, goals) at the start of the chosen episodes, at most `num_envs` of them."""
        return self.simulators.reset([self.start(*self.episodes[number]) for number in chosen])

    def rollout(self, model: Model, planner: Planner, name: str, progress: bool = True) -> Rollouts:
        """Let `planner` drive every episode to success or to the horizon."""
        from threadpoolctl import threadpool_limits

        count, turns = len(self.episodes), list[_Turn]()
        # Episodes are few rows: a second thread for their products would only be waited for.
        with Progress(f"evaluate {name}", count, unit="episodes", show=progress) as bar, threadpool_limits(1, "blas"):
            try:
                for first in range(0, count, self.num_envs):
                    turns.append(_Turn(self, range(first, min(first + self.num_envs, count))))
                    turns[-1].run(model, planner, bar)
            except BaseException:
                self.simulators.close()
                raise
        success, steps, goals, parts = (
            np.concatenate(columns)
            for columns in zip(*((turn.success, turn.steps, turn.goals, turn.subtasks) for turn in turns), strict=True)
        )
        paths = [path for turn in turns for path in turn.paths()]
        return Rollouts(
            name,
            self.episodes[:, 0],
            success,
            steps,
            sum(turn.seconds for turn in turns),
            sum(turn.planning for turn in turns),
            paths,
            goals,
            parts / self.subtasks if self.subtasks else None,
            self.protocol.request.scores(paths),
            {number: band.label for number, band in enumerate(self.bands, 1)},
        )


class _Turn:
    """Episodes that are stepped together, one per environment."""

    def __init__(self, arena: Arena, chosen: range):
        self.arena, count = arena, len(chosen)
        self.started = time.perf_counter()
        self.observations, self.goals = arena.reset(chosen)
        self.history = [self.observations.copy()]
        self.success, self.steps, self.taken = (
            np.zeros(count, bool),
            np.full(count, arena.horizon),
            np.zeros(count, int),
        )
        self.subtasks, self.over = np.zeros(count), np.zeros(count, bool)
        self.planning = self.seconds = 0.0
        self.generator = np.random.default_rng(np.random.SeedSequence([arena.protocol.seed, chosen.start]))

    def run(self, model: Model, planner: Planner, bar: Progress) -> None:
        """Act and step, for all running episodes at once."""
        running, mark, protocol = np.arange(len(self.steps)), time.perf_counter(), self.arena.protocol
        plan = planner.plan(protocol.request.specifications(self.goals))
        controller = Controller(model, plan, Acting(protocol.action), self.generator)
        self.planning = time.perf_counter() - mark
        for step in range(1, self.arena.horizon + 1):
            actions, running = self._act(controller, running, bar)
            if len(running) == 0:
                break
            self._step(step, running, actions)
            done = self.over[running]
            if done.any():
                bar.advance(int(done.sum()), f"success {self.success.sum()}/{len(self.success)}")
                running = running[~done]
                if len(running) == 0:
                    break
        bar.advance(len(running))
        self.planning += controller.seconds
        self.seconds = time.perf_counter() - self.started

    def paths(self) -> list[NDArray[np.float32]]:
        """(steps + 1, obs_dim) observations of every episode."""
        table = np.stack(self.history, axis=1)
        return [path[: taken + 1].copy() for path, taken in zip(table, self.taken, strict=True)]

    def _act(self, controller: Controller, running: NDArray[np.intp], bar: Progress) -> tuple[Floats, NDArray[np.intp]]:
        """Actions of the running episodes but for those whose goal no route leads to: they have failed."""
        try:
            return controller.act(self.observations[running], running), running
        except NoPath as stuck:
            if not stuck.episodes:
                raise
            self.over[list(stuck.episodes)] = True
            bar.advance(len(stuck.episodes))
            notice(f"No route leads to the goals of {len(stuck.episodes)} episodes, which count as failed.")
            left = running[~self.over[running]]
            return (controller.act(self.observations[left], left), left) if len(left) else (np.empty((0, 0)), left)

    def _step(self, step: int, running: NDArray[np.intp], actions: Floats) -> None:
        """One step of the running episodes."""
        made = self.arena.simulators.step(running, np.asarray(actions, np.float32))
        self.observations[running], self.subtasks[running], self.taken[running] = made.observations, made.subtasks, step
        self.history.append(self.observations.copy())
        succeeded = (made.flags & SUCCESS) > 0
        new = running[succeeded & ~self.success[running]]
        self.success[new], self.steps[new] = True, step
        # An agent with another goal may pass by the task's; then only the simulator's limit ends the episode.
        reached = (made.flags & (SUCCESS | TERMINATED)) > 0 if self.arena.protocol.request.goal is None else False
        self.over[running] = ((made.flags & TRUNCATED) > 0) | reached


def evaluate(
    model: Model,
    data: Trajectories | None = None,
    env: object = None,
    planners: Sequence[str] | None = None,
    protocol: Protocol | None = None,
    *,
    episodes: int | None = None,
    settings: dict[str, JSON] | None = None,
    progress: bool = True,
    workers: int | None = None,
    **world: Any,
) -> Evaluation:
    """Measure success rates of a model under each planner (by default all that it allows).

        iel.evaluate(model, data, "antmaze-large-navigate-v0", ["direct", "asym-graph"], episodes=20)

    `env` is the name of an environment, a Gymnasium environment of your own, or a function that makes one (better: then
    its episodes are acted for in batches). `goal`, `success`, `tolerance`, `columns` and `max_steps` are what your
    environment does not say itself (`iel.envs.World`). `episodes` is the number per task. Planners take their nodes
    from `data`, or from what was exported with the model; `settings` are their keyword arguments, by planner.
    `workers` processes step a named environment (default: all cores); every number gives the same bits.

    Returns rollouts by planner, printed as a table. Raises a `ConfigError` for an unknown environment, planner or task.
    """
    if env is None:
        raise ConfigError("Say where to act: env='pointmaze-large-navigate-v0', or an environment of your own.")
    known_world, protocol = arena_of(env, **world), protocol or Protocol()
    if episodes is not None:
        protocol = replace(protocol, episodes=episodes)
    if planners is None:
        planners = planners_for(model) if data is not None or model.atlas is not None else ("direct",)
    made = {}
    for name in planners:
        own = (settings or {}).get(name, {})
        made[name] = model.planner(name, **own) if data is None else make_planner(name, model, data, **own)
    return evaluate_planners(model, made, known_world, protocol, progress, workers)


def evaluate_planners(
    model: Model,
    planners: dict[str, Planner],
    env: str | World,
    protocol: Protocol,
    progress: bool = True,
    workers: int | None = None,
) -> Evaluation:
    """Success of a model under planners that were made already, by name."""
    reference = next(iter(planners.values())).observations[0]
    arena = Arena(env, protocol, reference=reference, workers=workers)
    rollouts = {name: arena.rollout(model, planner, name, progress) for name, planner in planners.items()}
    return Evaluation(arena.name, arena.describe(), rollouts)
