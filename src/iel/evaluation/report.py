"""Evaluations as dictionaries, JSON files and tables. Every number is shown with its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from iel.evaluation.rollout import Arena, Rollouts
from iel.evaluation.stats import SUCCESS_INTERVAL, success_interval
from iel.loader import read_json
from iel.training.run import Run

SCORES = {
    "subtask_fraction": "fraction of subtasks",
    "reward_per_step": "reward a step",
    "share_in_avoided": "share of steps in avoided places",
}
"""What is measured beside success, as tables call it."""


def summarise(env: str, arena: Arena, results: Mapping[str, list[Rollouts]]) -> dict[str, Any]:
    """`env`, `protocol` and `planners.<name>.{success_rate, interval, per_task}`.

    `results` holds one `Rollouts` a training seed for every planner. With several seeds, rates are means over seeds and
    the interval is that of a newly trained agent (`success_interval`).
    """
    planners = {}
    for name, runs in results.items():
        summaries = [run.summary() for run in runs]
        if len(runs) == 1:
            planners[name] = summaries[0]
            continue
        tasks = np.unique(runs[0].tasks)
        rates = np.array([[run.success[run.tasks == task].mean() for task in tasks] for run in runs])
        episodes = arena.protocol.episodes
        parts = [summary["subtask_fraction"] for summary in summaries if "subtask_fraction" in summary]
        scores = {score: float(np.mean([summary[score] for summary in summaries])) for score in runs[0].scores}
        planners[name] = {
            **scores,
            **({"subtask_fraction": float(np.mean(parts))} if parts else {}),
            "success_rate": float(np.mean([summary["success_rate"] for summary in summaries])),
            "interval": list(success_interval(rates, episodes)),
            "per_seed": [summary["success_rate"] for summary in summaries],
            "per_task": {
                runs[0].name_of(task): {
                    "success_rate": float(rates[:, column].mean()),
                    "interval": list(success_interval(rates[:, [column]], episodes)),
                }
                for column, task in enumerate(tasks)
            },
            "mean_steps": float(np.mean([summary["mean_steps"] for summary in summaries])),
            "seconds": round(sum(summary["seconds"] for summary in summaries), 3),
            "planning_seconds": round(sum(summary["planning_seconds"] for summary in summaries), 3),
        }
    seeds = len(next(iter(results.values())))
    protocol = {**arena.describe(), "training_seeds": seeds}
    if seeds > 1:
        protocol["interval"] = SUCCESS_INTERVAL
    return {"env": env, "protocol": protocol, "planners": planners}


def evaluations(run: Run) -> list[dict[str, Any]]:
    """All evaluations of a run and its own policy on the tasks of its environment, oldest first."""
    found = [read_json(file) for file in sorted((run.path / "evaluations").glob("*.json"))]
    others = ("by_distance", "policy_of")
    return [summary for summary in found if not any(summary.get("protocol", {}).get(kind) for kind in others)]


def measured(summary: Mapping[str, Any]) -> int:
    """Episodes per planner of an evaluation: how much it can tell."""
    protocol = summary.get("protocol", {})
    return int(protocol.get("tasks", 0)) * int(protocol.get("episodes_per_task", 0))


def table(summary: Mapping[str, Any]) -> Table:
    """Success rates per task and overall, in per cent, with the protocol as caption."""
    protocol = summary["protocol"]
    kind = "bands of distance" if "by_distance" in protocol else "tasks"
    caption = (
        f"success rate in per cent; {protocol['tasks']} {kind} x {protocol['episodes_per_task']} episodes x "
        f"{protocol['training_seeds']} training seed(s), {protocol['action']}, brackets: {protocol['interval']}"
    )
    caption += f"; asked: {protocol['asked']}" if "asked" in protocol else ""
    caption += f"; driven by the policy of {protocol['policy_of']}" if "policy_of" in protocol else ""
    result = Table(title=summary["env"], caption=caption, title_style="bold", caption_justify="left", pad_edge=False)
    result.add_column("planner")
    tasks = list(next(iter(summary["planners"].values()))["per_task"])
    for task in tasks:
        result.add_column(task, justify="right")
    result.add_column("overall", justify="right", style="bold", no_wrap=True)
    result.add_column("steps", justify="right")
    scores = [name for name in SCORES if name in next(iter(summary["planners"].values()))]
    for score in scores:
        result.add_column(SCORES[score], justify="right")
    for name, numbers in summary["planners"].items():
        low, high = numbers["interval"]
        result.add_row(
            name,
            *(f"{100 * numbers['per_task'][task]['success_rate']:.0f}" for task in tasks),
            f"{100 * numbers['success_rate']:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
            f"{numbers['mean_steps']:.0f}",
            *(f"{numbers[score]:.3f}" for score in scores),
        )
    return result
