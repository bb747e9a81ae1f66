"""`iel evaluate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from iel.commands.pictures import draw_evaluation
from iel.commands.runs import environment_of, planner_settings, run_data
from iel.errors import unknown_name
from iel.evaluation import Arena, Protocol, Rollouts
from iel.evaluation.report import summarise, table
from iel.options import Evaluate, PlannerSettings
from iel.planning import PLANNERS, make_planner
from iel.training import Run, open_runs
from iel.training.checkpoint import write_json


def evaluate_command(options: Evaluate) -> dict[str, Any]:
    """`iel evaluate`."""
    runs = open_runs(options.run)
    usual = list(PLANNERS) if runs[0].model.has_geometry else ["direct"]
    planners = options.planners or usual
    for name in planners:
        if name not in PLANNERS:
            raise unknown_name("planner", name, PLANNERS)
    protocol = Protocol(options.episodes, options.tasks, options.seed)
    summary = evaluate_runs(runs, planners, protocol, options.planning, options.pictures)
    if not options.json:
        Console().print(table(summary))
        print(f"written to {runs[0].path / 'evaluations'}")
    return summary


def evaluate_runs(
    runs: Sequence[Run], planners: Sequence[str], protocol: Protocol, planning: PlannerSettings, pictures: bool = True
) -> dict[str, Any]:
    """Evaluate every run with every planner on the same episodes; writes JSON (and pictures) into each run."""
    env = environment_of(runs[0])
    stored = [run_data(run, planning.data) for run in runs]
    arena = Arena(env, protocol, reference=stored[0].observations[0])
    results: dict[str, list[Rollouts]] = {name: [] for name in planners}
    for run, data in zip(runs, stored, strict=True):
        own: dict[str, Rollouts] = {}
        for name in planners:
            planner = make_planner(name, run.model, data, **planner_settings(name, planning))
            own[name] = arena.rollout(run.model, planner, name)
            results[name].append(own[name])
        summary = summarise(env, arena, {name: [rollouts] for name, rollouts in own.items()})
        stamp = time.strftime("%Y%m%d-%H%M%S")
        write_json(run.folder("evaluations") / f"{stamp}-seed{protocol.seed}.json", summary)
        if pictures:
            draw_evaluation(run, arena, own, planner)
    return summarise(env, arena, results)
