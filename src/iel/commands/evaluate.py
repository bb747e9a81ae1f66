"""`iel evaluate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from iel.commands.common import Command, Facts, Flag, OwnWorld, PlannerSettings, Planning, WorldSettings, environment_of
from iel.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from iel.envs import World
    from iel.evaluation import Protocol, Rollouts
    from iel.evaluation.ask import Ask
    from iel.training import Run


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Measure success rates of a run under each planner and draw its pictures."""

    run: tyro.conf.Positional[Path]
    """Run directory, or a directory of several seeds."""
    planners: tuple[str, ...] | None = None
    """Ways of acting: direct, rec-mid, sym-graph, asym-graph, gas-graph (default: all that the method allows,
    the last for GAS alone)."""
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
    goal_columns: tuple[int, ...] | None = None
    """Send the agent to these columns of each goal only (0 1 for a place), whatever the others."""
    avoid: tuple[str, ...] | None = None
    """Places to keep out of, as columns and ranges: 0=4:8,1=2:6 (graph planners)."""
    reward: tuple[str, ...] | None = None
    """Collect a reward to the horizon instead of going to goals: places and what a step in them is worth, 0=4:8@1."""
    policy_of: Path | None = None
    """Plan with RUN's distances, but act with the policy of this other run, which is steered by waypoints."""
    no_pictures: Flag = False
    """Draw nothing (otherwise the field, the rollouts and the training curves go into RUN/plots)."""
    environment: OwnWorld = WorldSettings()
    planning: Planning = PlannerSettings()

    def __call__(self) -> Facts:
        from rich.console import Console

        from iel.evaluation import Protocol
        from iel.evaluation.report import table
        from iel.model import Direction
        from iel.planning import PLANNERS, over_coreset, usual_planners
        from iel.training import open_run, open_runs

        ask, steps = self.ask(), self.environment.max_steps
        runs = open_runs(self.run)
        driver = None if self.policy_of is None else open_run(self.policy_of)
        planners = self.planners or usual_planners(runs[0].model)
        if self.planners is None and (ask.avoid is not None or ask.goal is not None):
            # Without a graph a reward is a direction, which only some policies can be told.
            alone = ask.avoid is None and isinstance((driver or runs[0]).model.steering, Direction)
            planners = tuple(name for name in planners if over_coreset(name) or (alone and name == "direct"))
        for name in planners:
            if name not in PLANNERS:
                raise unknown_name("planner", name, PLANNERS)
        protocol = Protocol(self.episodes, self.tasks, self.seed, steps, self.action, ask, self.by_distance)
        world, pictures = self.environment.world(), not self.no_pictures
        summary = evaluate_runs(runs, planners, protocol, self.planning, pictures, world, driver)
        Console().print(table(summary))
        print(f"written to {runs[0].path / 'evaluations'}")
        return summary

    def ask(self) -> Ask:
        """What the agent is asked for."""
        from iel.commands.prompts import parse_places, parse_reward
        from iel.evaluation.ask import Ask

        words = []
        if self.goal_columns is not None:
            words.append(f"columns {', '.join(map(str, self.goal_columns))} of each goal")
        if self.reward is not None:
            words.append(f"the reward {' + '.join(self.reward)}")
        if self.avoid is not None:
            words.append(f"to keep out of {' and '.join(self.avoid)}")
        avoid = None if self.avoid is None else parse_places(self.avoid)
        if self.reward is None:
            return Ask(self.goal_columns, avoid, words=", ".join(words))
        if self.goal_columns is not None:
            raise ConfigError("--reward replaces the tasks' goals, so leave --goal-columns out.")
        return Ask.for_reward(parse_reward(self.reward), avoid, ", ".join(words))


def evaluate_runs(
    runs: Sequence[Run],
    planners: Sequence[str],
    protocol: Protocol,
    planning: PlannerSettings,
    pictures: bool = True,
    world: World | None = None,
    driver: Run | None = None,
) -> Facts:
    """Evaluate every run with every planner on the same episodes; writes JSON (and pictures) into each run.

    With a `driver` it is that run's policy that acts; the protocol says so, and such scores are not the run's own.

    A smaller evaluation than one that is there already draws under names of its own: a quick look replaces nothing.
    """
    from iel.commands.pictures import draw_distances, draw_evaluation
    from iel.evaluation import Arena
    from iel.evaluation.report import summarise
    from iel.evaluation.result import Result, results_of
    from iel.files import require_writable

    for run in runs:  # said before the first episode, not after the last
        require_writable(run.folder("evaluations"))
    env = world.name if world else environment_of(runs[0])
    stored = [run.data(planning.data) for run in runs]
    arena = Arena(world or env, protocol, reference=stored[0].observations[0])
    measured = {**arena.describe(), **({} if driver is None else {"policy_of": str(driver.path)})}
    results: list[Result] = []
    for run, data in zip(runs, stored, strict=True):
        model = run.model if driver is None else run.model.driven_by(driver.model)
        own: dict[str, Rollouts] = {}
        for name in planners:
            agent = planning.agent(name, model, data)
            own[name] = arena.rollout(model, agent.planner, name)
        found = [Result.of(rollouts, env, run.config["algo"], run.seed, measured) for rollouts in own.values()]
        results += found
        stamp = time.strftime("%Y%m%d-%H%M%S")
        largest = max((len(earlier.episodes.tasks) for earlier in results_of(run)), default=0)
        kind = "-distances" if protocol.by_distance else ""
        for result in found:
            result.write(run.folder("evaluations") / f"{stamp}-seed{protocol.seed}{kind}-{result.planner}.json")
        if pictures and protocol.by_distance:
            draw_distances(run, summarise(found))
        elif pictures:
            first = driver is None and len(arena.episodes) >= largest
            draw_evaluation(run, arena, own, agent, data, "" if first else f"-{stamp}")
    return summarise(results)
