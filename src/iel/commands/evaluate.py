"""`iel evaluate` and `iel video`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

import iel
from iel.commands.common import ActingCommand, Facts, Flag, PlanningCommand, environment_of
from iel.commands.prompts import parse_regions, parse_reward
from iel.errors import ConfigError, unknown_name
from iel.files import require_writable

if TYPE_CHECKING:
    from iel.evaluation import Arena, Rollouts, TaskRequest
    from iel.evaluation.result import Result
    from iel.model import Model
    from iel.signals import Signals
    from iel.training import Run


@dataclass(frozen=True, kw_only=True)
class Evaluate(ActingCommand):
    """Measure success rates of a run under each planner and draw its pictures."""

    run: tyro.conf.Positional[Path]
    """Run directory, or a directory of several seeds."""
    planners: tuple[str, ...] | None = None
    """Planners: direct, rec-mid, greedy, sym-graph, asym-graph, gas-graph (default: all that the method
    allows, the last for GAS alone, without greedy)."""
    episodes: int = 20
    """Episodes per task."""
    tasks: tuple[int, ...] | None = None
    """Only these tasks, counted from 1 (default: all)."""
    seed: int = 0
    """Seed of every start and goal."""
    action: Literal["mean", "sample", "unstick"] = "mean"
    """Act by the policy's mean, by samples of it, or by its mean with noise only while no progress is made."""
    by_distance: Flag = False
    """Instead of the tasks: pairs of cells in bands of distance, EPISODES per band; draws success against distance."""
    goal_columns: tuple[str, ...] | None = None
    """Only these columns of each goal count (x y, or 0 1, for a position), whatever the others."""
    avoid: tuple[str, ...] | None = None
    """Regions to avoid, as columns and ranges: 0=4:8,1=2:6 (graph planners)."""
    reward: tuple[str, ...] | None = None
    """Collect a reward to the horizon instead of reaching goals: regions and the reward of a step in them, 0=4:8@1."""
    policy_of: Path | None = None
    """Plan with RUN's distances, but act with the policy of this other run, which is conditioned on waypoints."""
    workers: int | None = None
    """Processes that step the environments (default: all cores, fewer where episodes are few or short). The results
    are the same to the bit for every number."""
    no_pictures: Flag = False
    """Draw nothing (otherwise the field, the rollouts and the training curves go into RUN/plots)."""

    def __call__(self) -> Facts:
        """Every run with every planner on the same episodes; writes JSON and pictures into each run."""
        from rich.console import Console

        from iel.evaluation import Arena
        from iel.evaluation.result import summarise, table
        from iel.training import open_runs

        runs = open_runs(self.run)
        signals = runs[0].model.signals
        request, world = self._request(signals), self.environment.world(signals)
        driver = None if self.policy_of is None else iel.open_run(self.policy_of)
        planners = self._planners(request, runs[0].model, (driver or runs[0]).model)
        steps = self.environment.max_steps
        protocol = iel.Protocol(self.episodes, self.tasks, self.seed, steps, self.action, request, self.by_distance)
        for run in runs:  # refused before the first episode, not after the last
            require_writable(run.folder("evaluations"))
        env = world.name if world else environment_of(runs[0])
        stored = [run.data(self.planning.data) for run in runs]
        arena = Arena(world or env, protocol, reference=stored[0].observations[0], workers=self.workers)
        results: list[Result] = []
        for run, data in zip(runs, stored, strict=True):
            results += self._evaluate(run, data, planners, arena, env, driver)
        summary = summarise(results)
        Console().print(table(summary))
        print(f"written to {runs[0].path / 'evaluations'}")
        return summary

    def _evaluate(
        self, run: Run, data: iel.Trajectories, planners: Sequence[str], arena: Arena, env: str, driver: Run | None
    ) -> list[Result]:
        """One run with every planner.

        With a `driver` it is that run's policy that acts; the protocol says so, and such scores are not the run's own.
        A smaller evaluation than one that is there already draws under names of its own: a quick look replaces nothing.
        """
        from iel.commands.pictures import draw_distances, draw_evaluation
        from iel.evaluation.result import Result, results_of, summarise

        model = run.model if driver is None else run.model.driven_by(driver.model)
        measured = {**arena.describe(), **({} if driver is None else {"policy_of": str(driver.path)})}
        rollouts: dict[str, Rollouts] = {}
        for name in planners:
            agent = self.planning.agent(name, model, data)
            rollouts[name] = arena.rollout(model, agent.planner, name)
        found = [Result.of(each, env, run.config["algo"], run.seed, measured) for each in rollouts.values()]
        largest = max((len(earlier.episodes.tasks) for earlier in results_of(run)), default=0)
        stamp, kind = time.strftime("%Y%m%d-%H%M%S"), "-distances" if self.by_distance else ""
        for result in found:
            result.write(run.folder("evaluations") / f"{stamp}-seed{self.seed}{kind}-{result.planner}.json")
        if self.by_distance and not self.no_pictures:
            draw_distances(run, summarise(found))
        elif not self.no_pictures:
            first = driver is None and len(arena.episodes) >= largest
            draw_evaluation(run, arena, rollouts, agent, data, "" if first else f"-{stamp}")
        return found

    def _planners(self, request: TaskRequest, model: Model, acting: Model) -> Sequence[str]:
        """The planners that are given, else all that can follow the request."""
        from iel.model import Direction
        from iel.planning import PLANNERS, over_coreset, usual_planners

        for name in self.planners or ():
            if name not in PLANNERS:
                raise unknown_name("planner", name, PLANNERS)
        if self.planners or (request.avoid is None and request.goal is None):
            return self.planners or usual_planners(model)
        # Without a graph a reward is a direction, which only some policies can be conditioned on.
        alone = request.avoid is None and isinstance(acting.conditioning, Direction)
        return [name for name in usual_planners(model) if over_coreset(name) or (alone and name == "direct")]

    def _request(self, signals: Signals) -> TaskRequest:
        """What the agent is to do, if not to reach each task's goal."""
        from iel.evaluation import TaskRequest

        words = [
            *([f"columns {', '.join(self.goal_columns)} of each goal"] if self.goal_columns else []),
            *([f"the reward {' + '.join(self.reward)}"] if self.reward else []),
            *([f"avoiding {' and '.join(self.avoid)}"] if self.avoid else []),
        ]
        avoid = None if self.avoid is None else parse_regions(self.avoid, signals)
        columns = None if self.goal_columns is None else tuple(map(signals.column, self.goal_columns))
        if self.reward is None:
            return TaskRequest(columns, avoid, words=", ".join(words))
        if self.goal_columns is not None:
            raise ConfigError("--reward replaces the tasks' goals, so leave --goal-columns out.")
        return TaskRequest.for_reward(parse_reward(self.reward, signals), avoid, ", ".join(words))


@dataclass(frozen=True, kw_only=True)
class VideoCommand(PlanningCommand):
    """Film one episode of a run, with the planned waypoints drawn in: a video and a strip of pictures."""

    planner: str | None = None
    """direct, rec-mid, greedy, sym-graph, asym-graph or gas-graph (default: the one that suits model and data)."""
    task: int = 1
    """Which task of the environment."""
    seed: int = 0
    """Seed of the start and the goal."""
    out: Path | None = None
    """Where to write, MP4 or GIF (default: RUN/plots/video.mp4)."""

    def __call__(self) -> Facts:
        from iel.evaluation import Arena
        from iel.viz.video import record

        run = iel.open_run(self.run)
        name, data = environment_of(run), run.data(self.planning.data)
        agent = self.planning.agent(self.planner, run.model, data)
        arena = Arena(name, iel.Protocol(1, (self.task,), self.seed), reference=data.observations[0])
        rollouts = arena.rollout(agent.model, agent.planner, agent.planner.name)
        path, goal, success = rollouts.paths[0], rollouts.goals[0], bool(rollouts.success[0])
        waypoints = agent.plan(path[0], goal).observations
        recording = record(name, path, goal, self.out or run.folder("plots") / "video.mp4", waypoints=waypoints)
        print(f"{'reached the goal' if success else 'did not reach the goal'} after {len(path) - 1} steps")
        print(f"{recording.video}\n{recording.strip}")
        return {
            "env": name,
            "planner": agent.planner.name,
            "success": success,
            "steps": len(path) - 1,
            "waypoints": len(waypoints),
            "video": str(recording.video),
            "strip": str(recording.strip),
            "rendering": recording.backend,
        }
