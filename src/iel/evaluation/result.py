"""The result of an evaluation: what came of every episode of one model under one planner.

`iel evaluate` (RUN/evaluations) and `iel compare` (CELL/evaluations) write the same JSON file, one per planner: the
fields of `Result`, a `format` and a `sha256` of all the rest. A result that was changed, cut off or is of an earlier
version does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec
import numpy as np

from iel.errors import RunError
from iel.files import notice, write_json
from iel.loader import read_json

if TYPE_CHECKING:
    from iel.evaluation.rollout import Rollouts
    from iel.training.run import Run

FORMAT = 2
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Record = TypeVar("Record")


def read_record(path: Path, kind: type[Record]) -> Record:
    """A JSON file as the dataclass it was written from; refused where a field is missing or of another kind."""
    return _record(read_json(path), path, kind)


def _record(table: Mapping[str, Any], path: Path, kind: type[Record]) -> Record:
    try:
        return msgspec.convert(table, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise RunError(f"{path} is damaged or of another version: {error}.") from None


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

    def means(self, column: tuple[float, ...]) -> dict[str, float]:
        """Task -> mean of a column over its episodes."""
        values, tasks = np.asarray(column, np.float64), np.array(self.tasks)
        return {name: float(values[tasks == name].mean()) for name in self.names}


@dataclass(frozen=True)
class Result:
    """One training seed under one planner, with the protocol it was measured by."""

    env: str
    method: str
    planner: str
    seed: Count
    """Of the training."""
    protocol: dict[str, Any]
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
    def of(cls, rollouts: Rollouts, env: str, method: str, seed: int, protocol: Mapping[str, Any], **more: Any) -> Self:
        """The result of one planner's rollouts."""
        times = round(rollouts.seconds, 3), round(rollouts.planning_seconds, 3)
        return cls(env, method, rollouts.planner, seed, dict(protocol), Episodes.of(rollouts), *times, **more)

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
    return _record(content, path, Result)


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


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
