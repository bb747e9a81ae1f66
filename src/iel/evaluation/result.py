"""The result of an evaluation: what came of every episode of one model under one planner, on disk and in tables.

`iel evaluate` (RUN/evaluations) and `iel compare` (CELL/evaluations) write the same JSON file, one per planner: the
fields of `Result`, a `format` and a `sha256` of all the rest. A result that was changed, cut off or is of an earlier
version does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iel.errors import RunError
from iel.evaluation.stats import SUCCESS_INTERVAL, bootstrap_interval, success_interval
from iel.files import notice, write_json
from iel.loader import read_json
from iel.typed import Share, as_struct

if TYPE_CHECKING:
    from rich.table import Table

    from iel.evaluation.rollout import Rollouts
    from iel.training.run import Run

FORMAT = 2
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Record = TypeVar("Record")
JSON = dict[str, Any]
SCORES = {
    "subtask_fraction": "fraction of subtasks",
    "reward_per_step": "reward a step",
    "share_in_avoided": "share of steps in avoided regions",
}
"""What is measured beside success, as tables call it."""


def read_record(path: Path, kind: type[Record]) -> Record:
    """A JSON file as the dataclass it was written from; refused where a field is missing or of another kind."""
    return as_struct(read_json(path), kind, str(path), RunError)


@dataclass(frozen=True)
class Episodes:
    """Columns with one entry per episode, task by task."""

    tasks: tuple[str, ...]
    success: tuple[bool, ...]
    steps: tuple[Count, ...]
    subtasks: tuple[Share, ...] | None = None
    """Fraction of its subtasks that each episode completed, where a task has several."""
    others: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """What else was measured of every episode, such as `reward_per_step`."""

    def __post_init__(self) -> None:
        columns = (self.success, self.steps, self.scores, *self.others.values())
        if not self.tasks or {len(column) for column in columns} != {len(self.tasks)}:
            raise ValueError("every column of an evaluation needs one entry per episode")
        if len({self.tasks.count(task) for task in self.names}) != 1:
            raise ValueError("every task of an evaluation needs the same number of episodes")

    @classmethod
    def of(cls, rollouts: Rollouts) -> Self:
        return cls(
            tuple(rollouts.name_of(task) for task in rollouts.tasks),
            tuple(rollouts.success.tolist()),
            tuple(rollouts.steps.tolist()),
            None if rollouts.subtasks is None else tuple(rollouts.subtasks.tolist()),
            {name: tuple(values.tolist()) for name, values in rollouts.scores.items()},
        )

    @property
    def names(self) -> list[str]:
        """The tasks, each once."""
        return list(dict.fromkeys(self.tasks))

    @property
    def per_task(self) -> int:
        """Episodes per task."""
        return len(self.tasks) // len(self.names)

    @property
    def metric(self) -> str:
        """What `scores` are: success, or as in D4RL the fraction of subtasks where there are any."""
        return "success_rate" if self.subtasks is None else "subtask_fraction"

    @property
    def scores(self) -> tuple[float, ...]:
        """One number in [0, 1] per episode."""
        return self.success if self.subtasks is None else self.subtasks

    def by_task(self, column: Sequence[float]) -> list[NDArray[np.float64]]:
        """A column, task by task."""
        values, tasks = np.asarray(column, np.float64), np.array(self.tasks)
        return [values[tasks == name] for name in self.names]


def rates_of(seeds: Sequence[Episodes], column: str = "scores") -> NDArray[np.float64]:
    """(seeds, tasks) means of a column of each training seed."""
    return np.array([[own.mean() for own in seed.by_task(getattr(seed, column))] for seed in seeds])


@dataclass(frozen=True)
class Result:
    """One training seed under one planner, with the protocol it was measured by."""

    env: str
    method: str
    planner: str
    seed: Count
    """Of the training."""
    protocol: JSON
    """`Arena.describe()`; `policy_of` where the policy of another run acted."""
    episodes: Episodes
    seconds: Seconds
    planning_seconds: Seconds
    step: Count = 0
    """Training steps of the model, where they were recorded."""
    earlier: dict[int, Episodes] = field(default_factory=dict)
    """Step -> episodes of an earlier checkpoint."""
    bands: Episodes | None = None
    """Success by distance, with bands for tasks."""
    fingerprint: str = ""
    """In a comparison: hash of all that decides these episodes."""

    def __post_init__(self) -> None:
        expected = self.protocol.get("tasks"), self.protocol.get("episodes_per_task")
        for episodes in (self.episodes, *self.earlier.values()):
            if (len(episodes.names), episodes.per_task) != expected:
                raise ValueError("an evaluation needs as many tasks and episodes as its protocol says")

    @classmethod
    def of(cls, rollouts: Rollouts, env: str, method: str, seed: int, protocol: JSON, **more: Any) -> Self:
        """The result of one planner's rollouts."""
        times = round(rollouts.seconds, 3), round(rollouts.planning_seconds, 3)
        return cls(env, method, rollouts.planner, seed, protocol, Episodes.of(rollouts), *times, **more)

    def write(self, path: Path) -> None:
        """Write the file whole, with its hash."""
        content = {"format": FORMAT, **json.loads(json.dumps(asdict(self)))}
        write_json(path, {**content, "sha256": _sha256(content)})


def read_result(path: Path) -> Result:
    """A result as it was written; everything else is refused."""
    content = read_json(path)
    stated = content.pop("sha256", None)
    if content.get("format") != FORMAT:
        raise RunError(f"{path} is not an evaluation of this version; evaluate again.")
    if stated != _sha256(content):
        raise RunError(f"{path} was changed or damaged after it was written; evaluate again.")
    return as_struct(content, Result, str(path), RunError)


def results_of(run: Run) -> list[Result]:
    """Results of a run's own policy on the tasks of its environment, oldest first; a notice names unreadable files."""
    found = []
    for path in sorted((run.path / "evaluations").glob("*.json")):
        try:
            result = read_result(path)
        except RunError as error:
            notice(f"{error} It is left out.")
            continue
        if not any(kind in result.protocol for kind in ("by_distance", "policy_of")):
            found.append(result)
    return found


def _sha256(content: JSON) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- tables; every number is shown with its protocol


class Evaluation(dict[str, "Rollouts"]):
    """What `iel.evaluate` returns: rollouts by planner, printed as a table of success rates."""

    def __init__(self, env: str, protocol: JSON, rollouts: Mapping[str, Rollouts]):
        super().__init__(rollouts)
        self.env, self.protocol = env, protocol

    def summary(self) -> JSON:
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

        return f"<pre>{escape(repr(self))}</pre>"


def summarise(results: Iterable[Result]) -> JSON:
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


def summary_of(seeds: Sequence[Episodes]) -> JSON:
    """success_rate, 95 % interval and the same per task, as JSON-safe values, of the episodes of each training seed.

    Also of what else was measured, such as `subtask_fraction` (D4RL's normalised kitchen score / 100).
    """
    first, others = seeds[0], JSON()
    rates, steps = rates_of(seeds, "success"), rates_of(seeds, "steps")
    for name, values in first.others.items():
        others[name] = float(np.mean([seed.others[name] for seed in seeds]))
        if len(seeds) == 1:
            others[f"{name}_interval"] = list(bootstrap_interval(first.by_task(values)))
    if first.subtasks is not None:  # fractions vary less than successes do, so their interval is wide enough
        fractions = rates_of(seeds)
        others["subtask_fraction"] = float(fractions.mean())
        others["subtask_interval"] = list(success_interval(fractions, first.per_task))
    return {
        **others,
        "success_rate": float(rates.mean()),
        "interval": list(success_interval(rates, first.per_task)),
        **({"per_seed": rates.mean(1).tolist()} if len(seeds) > 1 else {}),
        "per_task": {
            task: {
                "success_rate": float(rates[:, number].mean()),
                "interval": list(success_interval(rates[:, [number]], first.per_task)),
                "mean_steps": float(steps[:, number].mean()),
            }
            for number, task in enumerate(first.names)
        },
        "mean_steps": float(steps.mean()),
    }


def table(summary: JSON) -> Table:
    """Success rates per task and overall, in per cent, with the protocol as caption."""
    from rich.table import Table

    protocol = summary["protocol"]
    kind = "bands of distance" if "by_distance" in protocol else "tasks"
    caption = (
        f"success rate in per cent; {protocol['tasks']} {kind} x {protocol['episodes_per_task']} episodes x "
        f"{protocol['training_seeds']} training seed(s), {protocol['action']}, brackets: {protocol['interval']}"
    )
    caption += f"; request: {protocol['request']}" if "request" in protocol else ""
    caption += f"; driven by the policy of {protocol['policy_of']}" if "policy_of" in protocol else ""
    result = Table(title=summary["env"], caption=caption, title_style="bold", caption_justify="left", pad_edge=False)
    result.add_column("planner")
    first = next(iter(summary["planners"].values()))
    tasks, scores = list(first["per_task"]), [name for name in SCORES if name in first]
    for task in tasks:
        result.add_column(task, justify="right")
    result.add_column("overall", justify="right", style="bold", no_wrap=True)
    for name in ("steps", *(SCORES[score] for score in scores)):
        result.add_column(name, justify="right")
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
