"""Answers of one model, one at a time.

Whatever may take long runs in one worker thread, one question after another: numpy keeps a core busy, two threads would
share it, and planners, their caches and the sessions of a WebSocket then need no locks. An action towards a goal that
is prepared already takes less than waking that thread; if the thread is idle, it is answered on the spot.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from iel.errors import ConfigError, GeometryError, IELError, unknown_name
from iel.model.networks import distinct_rows
from iel.planning import Acting, AsymGraph, Controller, Plan, Planner
from iel.planning.goals import observation_table
from iel.serving.source import Served

Rows = NDArray[np.float32]
T = TypeVar("T")
PLANS = 32
"""Prepared goals that are remembered: as many robots may head for goals of their own without any search."""
FEW = 32
"""Rows that are answered on the spot."""
WAITING = 256
"""Questions that may wait for the worker; beyond that it is honest to say no."""


class Busy(IELError):
    """More was asked than can be answered."""


class Prepared(NamedTuple):
    """A plan for the distinct goals of a request, and which of them each row pursues."""

    plan: Plan
    rows: NDArray[np.int64]


class Engine:
    """One model, its planners and its thread. Methods other than `ask`, `quick` and `close` go through `ask`."""

    def __init__(self, served: Served, *, goals: int = 16):
        self.served, self.model, self.goal_limit = served, served.model, goals
        self._planners: dict[str, Planner] = {}
        self._plans: OrderedDict[tuple[str, bytes], Plan] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="iel-engine")
        self.waiting = 0
        """Questions that the worker has not finished, whether or not their answers are still wanted."""
        self._counting = threading.Lock()

    async def ask(self, question: Callable[..., T], *arguments: Any, quick: bool = False) -> T:
        """Run a function in the worker; a `quick` one at once if the worker is idle: then nobody else is asking."""
        if quick and self.waiting == 0:
            return question(*arguments)
        if self.waiting >= WAITING:
            raise Busy(f"{WAITING} requests are waiting already; ask again in a moment.")
        answer = self._worker.submit(question, *arguments)
        self._count(1)
        answer.add_done_callback(lambda _: self._count(-1))
        return await asyncio.wrap_future(answer)

    def _count(self, change: int) -> None:
        with self._counting:  # called by the worker too
            self.waiting += change

    def quick(self, observations: Rows, goals: Rows, planner: str | None) -> bool:
        """Whether `act` would take well below a millisecond: few rows, and one goal that is remembered."""
        chosen = self._planners.get(self.served.default_planner if planner is None else planner)
        known = chosen is not None and is_quick(chosen) and len(goals) == 1 and len(observations) <= FEW
        return known and (chosen.name, goals.tobytes()) in self._plans  # type: ignore[union-attr]

    def close(self) -> None:
        """Let the worker finish and end it."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def planner(self, name: str | None) -> Planner:
        """A planner that is built when first asked for."""
        name = self.served.default_planner if name is None else name
        if name not in self.served.planners:
            raise unknown_name("planner", name[:40], self.served.planners)
        if name not in self._planners:
            self._planners[name] = self.served.planner(name)
        return self._planners[name]

    # ---------------------------------------------------------------- what is asked

    def act(
        self, observations: Rows, goals: Rows, planner: str | None, with_steps: bool = False
    ) -> tuple[Rows, NDArray[np.floating] | None]:
        """Mean actions (n, a), and predicted steps (n,) if they are wanted. Nothing is remembered: clients share plans,
        and each row is answered like the first step of an episode."""
        observations, prepared = self._prepare(observations, goals, planner)
        actions = Controller(self.model, prepared.plan).act(observations, prepared.rows)
        return actions, self._steps(prepared, observations) if with_steps else None

    def steps(self, observations: Rows, goals: Rows, planner: str | None) -> NDArray[np.floating]:
        """Predicted steps (n,): by the network alone, or along a planner's way."""
        if planner is None:
            observations, goals = self._tables(observations, goals)
            return self.model.steps(observations, goals)
        observations, prepared = self._prepare(observations, goals, planner)
        return self._steps(prepared, observations)

    def _steps(self, prepared: Prepared, observations: Rows) -> NDArray[np.floating]:
        if self.model.metric is None:
            raise GeometryError(f"{self.model.algo} learned no distances, so it predicts no number of steps.")
        return prepared.plan.steps(self.model.embed(observations), rows=prepared.rows)

    def ways(self, observations: Rows, goals: Rows, planner: str | None) -> list[dict[str, Any]]:
        """Waypoints from each observation to its goal."""
        observations, goals = self._tables(observations, goals)
        fork = self.planner(planner).fork()
        answers = []
        for observation, goal in zip(observations, goals, strict=True):
            fork.prepare(goal)
            way = fork.path(observation)
            answers.append(
                {
                    "waypoints": way.observations.tolist(),
                    "steps": [finite(steps) for steps in way.steps],
                    "predicted_steps": finite(way.total),
                }
            )
        return answers

    # ---------------------------------------------------------------- inside

    def _tables(self, observations: Rows, goals: Rows) -> tuple[Rows, Rows]:
        """Both as tables of equal length; one goal may stand for all rows, and one row meet all goals."""
        width = self.model.observation_size
        rows, wanted = observation_table(observations, width, "observation"), observation_table(goals, width, "goal")
        count = max(len(rows), len(wanted))
        if {len(rows), len(wanted)} - {1, count}:
            raise ConfigError(f"There are {len(rows)} observations and {len(wanted)} goals; give one goal, or as many.")
        return np.broadcast_to(rows, (count, width)), np.broadcast_to(wanted, (count, width))

    def _prepare(self, observations: Rows, goals: Rows, planner: str | None) -> tuple[Rows, Prepared]:
        chosen = self.planner(planner)
        rows, wanted = self._tables(observations, goals)
        if len(goals) == 1:
            distinct, owner = wanted[:1], np.zeros(len(rows), np.int64)
        else:
            distinct, owner = distinct_rows(wanted)
        if len(distinct) > self.goal_limit and chosen.name.endswith("graph"):
            raise ConfigError(
                f"There are {len(distinct)} different goals, but {chosen.name} searches for at most {self.goal_limit} "
                "at a time; ask several times, or use direct."
            )
        key = chosen.name, distinct.tobytes()
        plan = self._plans.pop(key, None) or chosen.plan(distinct)
        self._plans[key] = plan
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return rows, Prepared(plan, owner.reshape(-1))


def is_quick(planner: Planner) -> bool:
    """Whether a target is found without asking a network about many pairs, or all states about midpoints."""
    return planner.name == "direct" or (isinstance(planner, AsymGraph) and not planner.graph.metric.dear)


class Control:
    """One control loop: a goal, and the little state that pursuing it needs."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._forks: dict[str, Planner] = {}
        self.planner: Planner | None = None

    def prepare(self, goal: Any, planner: str | None, acting: str, seed: int) -> None:
        """Head for another goal from now on."""
        chosen = self.engine.planner(planner)
        fork = self._forks.setdefault(chosen.name, chosen.fork())
        fork.prepare(np.asarray(goal, np.float32), Acting(acting), seed)  # type: ignore[arg-type]
        self.planner = fork

    def avoid(self, states: Any, radius: float) -> int:
        """Switch off what is near these states (and everything that was off on again); how many nodes are off.

        Where that leaves no plan it is refused, and the goal and the former obstacles stay.
        """
        planner = self._chosen()
        if not isinstance(planner, AsymGraph):
            raise ConfigError(f"{planner.name} has no nodes to switch off; use a graph planner.")
        changed = planner.fork()
        changed.switch_on()
        off = changed.switch_off_near(states, radius) if len(states) else ()
        changed.resume(planner)
        self.planner = self._forks[planner.name] = changed
        return len(off)

    def act(self, observation: Any, with_steps: bool) -> tuple[list[float], float | None]:
        """The action, and the predicted steps if they are wanted."""
        planner = self._chosen()
        row = np.asarray(observation, np.float32)
        steps = finite(planner.predicted_steps(row)) if with_steps else None
        return planner.act(row).tolist(), steps

    def _chosen(self) -> Planner:
        if self.planner is None:
            raise ConfigError("No goal is set; send a goal first.")
        return self.planner


def finite(value: Any) -> float | None:
    """A number that JSON has a word for."""
    number = float(value)
    return number if math.isfinite(number) else None
