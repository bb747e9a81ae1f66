"""`iel evaluate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from iel.commands.common import Flag, Output, PlannerSettings
from iel.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from iel.envs import World
    from iel.evaluation import Ask, Protocol, Rollouts
    from iel.training import Run


@dataclass(frozen=True, kw_only=True)
class Evaluate(Output):
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
    max_steps: int | None = None
    """Steps an episode may take (default, and at most: the environment's own limit)."""
    env_factory: str | None = None
    """Act in your own environment: package.module:function makes a Gymnasium environment (docs/own-robot.md)."""
    tolerance: float | None = None
    """There, a goal counts as reached within this distance (default: info["success"] says so)."""
    columns: tuple[int, ...] | None = None
    """Columns of that distance (default: all that the goal names)."""
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
    planning: Annotated[PlannerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=PlannerSettings)


def evaluate_command(options: Evaluate) -> dict[str, Any]:
    """`iel evaluate`."""
    from rich.console import Console

    from iel.commands.runs import world_of
    from iel.evaluation import Protocol
    from iel.evaluation.result import table
    from iel.model import Direction
    from iel.planning import PLANNERS, over_coreset, usual_planners
    from iel.training import open_run, open_runs

    ask = asked(options)
    runs = open_runs(options.run)
    driver = None if options.policy_of is None else open_run(options.policy_of)
    planners = options.planners or usual_planners(runs[0].model)
    if options.planners is None and (ask.avoid is not None or ask.goal is not None):
        # Without a graph a reward is a direction, which only some policies can be told.
        alone = ask.avoid is None and isinstance((driver or runs[0]).model.steering, Direction)
        planners = tuple(name for name in planners if over_coreset(name) or (alone and name == "direct"))
    for name in planners:
        if name not in PLANNERS:
            raise unknown_name("planner", name, PLANNERS)
    protocol = Protocol(
        options.episodes, options.tasks, options.seed, options.max_steps, options.action, ask, options.by_distance
    )  # fmt: skip
    summary = evaluate_runs(
        runs, planners, protocol, options.planning, not options.no_pictures, world_of(options), driver
    )
    if not options.json:
        Console().print(table(summary))
        print(f"written to {runs[0].path / 'evaluations'}")
    return summary


def asked(options: Evaluate) -> Ask:
    """What the agent is asked for, from the command line."""
    from iel.commands.prompts import parse_places, parse_reward
    from iel.evaluation import Ask

    words = []
    if options.goal_columns is not None:
        words.append(f"columns {', '.join(map(str, options.goal_columns))} of each goal")
    if options.reward is not None:
        words.append(f"the reward {' + '.join(options.reward)}")
    if options.avoid is not None:
        words.append(f"to keep out of {' and '.join(options.avoid)}")
    avoid = None if options.avoid is None else parse_places(options.avoid)
    if options.reward is None:
        return Ask(options.goal_columns, avoid, words=", ".join(words))
    if options.goal_columns is not None:
        raise ConfigError("--reward replaces the tasks' goals, so leave --goal-columns out.")
    return Ask.for_reward(parse_reward(options.reward), avoid, ", ".join(words))


def evaluate_runs(
    runs: Sequence[Run],
    planners: Sequence[str],
    protocol: Protocol,
    planning: PlannerSettings,
    pictures: bool = True,
    world: World | None = None,
    driver: Run | None = None,
) -> dict[str, Any]:
    """Evaluate every run with every planner on the same episodes; writes JSON (and pictures) into each run.

    With a `driver` it is that run's policy that acts; the protocol says so, and such scores are not the run's own.

    A smaller evaluation than one that is there already draws under names of its own: a quick look replaces nothing.
    """
    from iel.commands.pictures import draw_distances, draw_evaluation
    from iel.commands.runs import environment_of, planner_settings
    from iel.evaluation import Arena
    from iel.evaluation.result import Result, results_of, summarise
    from iel.files import require_writable
    from iel.planning import make_planner

    for run in runs:  # said before the first episode, not after the last
        require_writable(run.folder("evaluations"))
    env = world.name if world else environment_of(runs[0])
    stored = [run.data(planning.data) for run in runs]
    arena = Arena(world or env, protocol, reference=stored[0].observations[0])
    measured = {**arena.describe(), **({} if driver is None else {"policy_of": str(driver.path)})}
    results: list[Result] = []
    for run, data in zip(runs, stored, strict=True):
        own: dict[str, Rollouts] = {}
        model = run.model if driver is None else run.model.driven_by(driver.model)
        for name in planners:
            planner = make_planner(name, model, data, **planner_settings(name, planning))
            own[name] = arena.rollout(model, planner, name)
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
            draw_evaluation(run, arena, own, planner, data, "" if first else f"-{stamp}")
    return summarise(results)
