"""A watchdog stops an agent whose answers should not be trusted.

    watchdog = Watchdog(stop=(0.0, 0.0))
    episode = agent.start(goal, watchdog=watchdog)
    action = episode.act(observation, stamp=time.time())
    episode.stopped                                  why this is the stop action; None if it is the policy's

| reason | what is seen |
|---|---|
| not finite | an observation with NaN or infinity, or an action |
| stale | a stamp (seconds, or a sequence number) that does not rise, or is older than `max_age` |
| repeated | the same observation `repeats` times: the sensor hangs |
| outside | an observation outside of the training data |
| no progress | predicted steps to go that did not fall by one within `stuck` steps |
| refused | no route leads to the goal, or the planner refuses the observation |

It goes on as soon as the reason is gone; after no progress, when the goal is set again.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from iel.distances import Floats, plain_numbers
from iel.errors import ConfigError, GeometryError, NoPath
from iel.planning.planner import Planner
from iel.signals import Units
from iel.typed import Count, Positive, check_settings


@dataclass(frozen=True)
class Watchdog:
    """When an agent is stopped. What is None is not checked."""

    stop: tuple[float, ...]
    """The action that stops the robot, in the units of the call: where [-1, 1] stands for speeds from 0 to 0.6 m/s, 0
    does not stop it."""
    max_age: Positive | None = None
    """Seconds by the clock (`time.time()`) that a stamp may lie back; None where stamps are not times."""
    repeats: Count | None = 10
    """Identical observations in a row."""
    outside: bool = True
    """Whether to stop outside of the training data."""
    stuck: Count | None = 100
    """Steps without progress."""

    def __post_init__(self) -> None:
        check_settings(self)

    def require(self, action_size: int) -> Watchdog:
        """The same, refused where its action is not one of the robot's."""
        if len(self.stop) != action_size:
            raise ConfigError(f"The stop action has {len(self.stop)} numbers; give {action_size}, as actions have.")
        return self


class Watched:
    """A planner with a prepared goal, under a watchdog."""

    def __init__(self, watchdog: Watchdog, planner: Planner):
        if watchdog.outside and planner.model.support is None:
            raise ConfigError("This model does not know where its data was; train it again, or set outside=False.")
        self.watchdog, self.planner = watchdog, planner
        self.stopped: str | None = None
        """Why the last answer was the stop action."""
        self._stamp, self._same = -math.inf, 1
        self._row: Floats = np.empty(0, np.float32)
        self._stage, self._least, self._since = -1, math.inf, 0

    def act(self, observation: ArrayLike, units: Units = "unit", stamp: float | None = None) -> Floats:
        """The planner's action, or the one that stops."""
        try:
            with np.errstate(over="ignore"):
                row = plain_numbers(observation, "The observation", GeometryError).astype(np.float32)
            self.stopped = self._seen(row, stamp)
            if self.stopped is None:
                action = self.planner.act(row, units)
                self.stopped = self._done(action)
        except (GeometryError, NoPath) as refusal:
            self.stopped = f"refused: {refusal}"
        return action if self.stopped is None else np.array(self.watchdog.stop, np.float32)

    def _seen(self, row: Floats, stamp: float | None) -> str | None:
        """What is wrong with an observation."""
        settings = self.watchdog
        before, self._stamp = self._stamp, self._stamp if stamp is None else stamp
        if stamp is not None and not stamp > before:
            self._stamp = before
            return f"stale: the stamp {stamp:.15g} follows {before:.15g}"
        if stamp is not None and settings.max_age is not None and time.time() - stamp > settings.max_age:
            return f"stale: the observation is {time.time() - stamp:.3g} s old"
        if not np.isfinite(row).all():
            return f"not finite: column {int(np.argmin(np.isfinite(row)))} of the observation"
        self._same = self._same + 1 if np.array_equal(row, self._row) else 1
        self._row = row.copy()
        if settings.repeats is not None and self._same >= settings.repeats:
            return f"repeated: the same observation {self._same} times"
        model = self.planner.model
        if settings.outside and model.support is not None and row.shape == (self.planner.width,):
            sentence = model.support.violation(row, "observation", model.signals)
            return None if sentence is None else f"outside: {sentence}"
        return None

    def _done(self, action: Floats) -> str | None:
        """What is wrong with what the planner did."""
        if not np.isfinite(action).all():
            return "not finite: the action"
        controller, metric = self.planner.controller, self.planner.metric
        if self.watchdog.stuck is None or metric is None or controller.plan.pursuit.collects.any():
            return None
        stage, cost = int(controller.memory.stages[0]), controller.costs[:1]
        left = float((cost if metric.discount is None else metric.steps(cost))[0])
        if stage != self._stage or left <= self._least - 1.0:
            self._stage, self._least, self._since = stage, left, 0
            return None
        self._since += 1
        if self._since < self.watchdog.stuck:
            return None
        return f"no progress: {self._least:.3g} predicted steps to go, no fewer for {self._since} steps"
