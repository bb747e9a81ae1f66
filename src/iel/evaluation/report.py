"""Evaluations as dictionaries and tables. Every number is shown with its protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iel.evaluation.result import Episodes, Result
from iel.evaluation.stats import SUCCESS_INTERVAL, bootstrap_interval, success_interval

if TYPE_CHECKING:
    from rich.table import Table

    from iel.evaluation.rollout import Rollouts

SCORES = {
    "subtask_fraction": "fraction of subtasks",
    "reward_per_step": "reward a step",
    "share_in_avoided": "share of steps in avoided places",
}
"""What is measured beside success, as tables call it."""


class Evaluation(dict[str, "Rollouts"]):
    """What `iel.evaluate` returns: rollouts by planner, printed as a table of success rates."""

    def __init__(self, env: str, protocol: Mapping[str, Any], rollouts: Mapping[str, Rollouts]):
        super().__init__(rollouts)
        self.env, self.protocol = env, protocol

    def summary(self) -> dict[str, Any]:
        """`env`, `protocol` and `planners.<name>.{success_rate, interval, per_task}`."""
        return summarise(Result.of(rollouts, self.env, "", 0, self.protocol) for rollouts in self.values())

    def __repr__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as captured:
            console.print(table(self.summary()))
        return captured.get()

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        from html import escape

        shown = table(self.summary())
        heads = "".join(f"<th>{escape(str(column.header))}</th>" for column in shown.columns)
        rows = zip(*(column.cells for column in shown.columns), strict=True)
        lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><caption>{escape(str(shown.caption))}</caption><tr>{heads}</tr>{body}</table>"


def summarise(results: Iterable[Result]) -> dict[str, Any]:
    """`env`, `protocol` and `planners.<name>.{success_rate, interval, per_task}` of results by one protocol.

    With several training seeds, rates are means over seeds and the interval is that of a newly trained agent.
    """
    planners: dict[str, list[Result]] = {}
    for result in results:
        planners.setdefault(result.planner, []).append(result)
    first = next(iter(planners.values()))
    protocol = {**first[0].protocol, "training_seeds": len(first)}
    if len(first) > 1:
        protocol["interval"] = SUCCESS_INTERVAL
    numbers = {
        name: {
            **summary_of([result.episodes for result in own]),
            "seconds": round(sum(result.seconds for result in own), 3),
            "planning_seconds": round(sum(result.planning_seconds for result in own), 3),
        }
        for name, own in planners.items()
    }
    return {"env": first[0].env, "protocol": protocol, "planners": numbers}


def summary_of(seeds: Sequence[Episodes]) -> dict[str, Any]:
    """success_rate, 95 % interval and the same per task, as JSON-safe values, of the episodes of each training seed.

    Where tasks have subtasks, also `subtask_fraction` (D4RL's normalised kitchen score / 100) and its interval.
    """
    tasks, episodes = seeds[0].names, seeds[0].per_task
    rates, steps = (
        np.array([list(seed.means(column(seed)).values()) for seed in seeds])
        for column in (lambda seed: seed.success, lambda seed: seed.steps)
    )
    return {
        **_others(seeds),
        "success_rate": float(rates.mean()),
        "interval": list(success_interval(rates, episodes)),
        **({"per_seed": rates.mean(1).tolist()} if len(seeds) > 1 else {}),
        "per_task": {
            task: {
                "success_rate": float(rates[:, number].mean()),
                "interval": list(success_interval(rates[:, [number]], episodes)),
                "mean_steps": float(steps[:, number].mean()),
            }
            for number, task in enumerate(tasks)
        },
        "mean_steps": float(steps.mean()),
    }


def _others(seeds: Sequence[Episodes]) -> dict[str, Any]:
    """Means and intervals of what is measured beside success."""
    parts: dict[str, Any] = {}
    for name in seeds[0].others:
        parts[name] = float(np.mean([seed.others[name] for seed in seeds]))
        if len(seeds) == 1:
            values, tasks = np.array(seeds[0].others[name]), np.array(seeds[0].tasks)
            parts[f"{name}_interval"] = list(bootstrap_interval([values[tasks == task] for task in seeds[0].names]))
    if seeds[0].subtasks is not None:  # fractions vary less than successes do, so their interval is wide enough
        fractions = np.array([list(seed.means(seed.scores).values()) for seed in seeds])
        parts["subtask_fraction"] = float(fractions.mean())
        parts["subtask_interval"] = list(success_interval(fractions, seeds[0].per_task))
    return parts


def table(summary: Mapping[str, Any]) -> Table:
    """Success rates per task and overall, in per cent, with the protocol as caption."""
    from rich.table import Table

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
