"""Functions that training calls as it goes on: to watch it, to measure success, or to end it early.

    def until_flat(progress: TrainingProgress) -> bool:
        loss = progress.metrics[0][f"{progress.phase}/loss"] if progress.event == "step" else float("inf")
        return progress.is_last_phase and loss < 0.1

    iel.train(data, algo, callbacks=[until_flat, Evaluator(every=5_000, stop_at=0.95)])

A callback runs between two chunks of at most 100 steps and sees what is already computed, so it changes no bit of what
is trained. A run that a callback ended is finished: its model is the one of that step, and resuming it does nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from iel.data.trajectories import Trajectories
from iel.model import Model
from iel.typed import Amount, Count, Seed, check_settings


class TrainingProgress(NamedTuple):
    """What a callback receives."""

    event: Literal["start", "step", "end"]
    """`start` once before the first step, `step` after every chunk, `end` once after the last step."""
    step: int
    """Steps done, of `total`."""
    since: int
    """Steps done when the chunk began."""
    total: int
    phase: str
    is_last_phase: bool
    """Whether every network has been trained, or is being trained, so that the model can act."""
    metrics: Mapping[int, Mapping[str, float]]
    """By seed: the chunk's mean metrics; empty at `start` and `end`."""
    data: Trajectories
    models: Callable[[], dict[int, Model]]
    """Makes the frozen model of every seed as of this step."""
    log: Callable[[int, Mapping[str, float]], None]
    """Writes metrics of a seed, at this step, to metrics.csv and to every tracker."""


Callback = Callable[[TrainingProgress], bool | None]
"""A function of the progress; it returns True to end training after this chunk. What it raises ends training as well,
and the run can be resumed from its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """A callback that measures success every `every` steps of the last phase and at its end, and logs it as `success`.

    It looks at the first end of a chunk at or after each multiple of `every`. With `stop_at`, training ends once every
    seed succeeds in that share of the episodes.
    """

    every: Count
    """Steps between two measurements."""
    stop_at: Amount | None = None
    """End training at this success rate, in [0, 1] (None: never)."""
    env: object = None
    """Where to act: a name, a Gymnasium environment or a function that makes one (None: the data's environment)."""
    episodes: Count = 4
    """Episodes per task."""
    planner: str = ""
    """The planner (empty: the one that suits the model and the data, `iel.planning.usual_planner`)."""
    seed: Seed = 0
    """Seed of starts and goals: the same episodes every time."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, progress: TrainingProgress) -> bool:
        due = progress.step // self.every > progress.since // self.every or progress.step == progress.total
        if progress.event != "step" or not progress.is_last_phase or not due:
            return False
        rates = {seed: self.success_rate(model, progress.data) for seed, model in progress.models().items()}
        for seed, rate in rates.items():
            progress.log(seed, {"success": rate})
        return self.stop_at is not None and min(rates.values()) >= self.stop_at

    def success_rate(self, model: Model, data: Trajectories) -> float:
        """The share of episodes in which the model reaches the goal."""
        from iel.agent import Agent
        from iel.planning import usual_planner

        planner = self.planner or usual_planner(model, data)
        env = data.name if self.env is None else self.env
        found = Agent(model, data, planner).evaluate(env, self.episodes, self.seed, progress=False)
        return float(found[planner].success.mean())
