"""What is served, a run with its data or an export with its states, and its answers, one at a time.

The model runs in one worker thread, one request after another: numpy keeps a core busy, so two threads would share it,
and planners, their caches and the sessions of WebSockets need no locks.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, TypeVarTuple

import numpy as np
from msgspec import json, to_builtins
from numpy.typing import ArrayLike

from iel.agent import STORED_IN_ATLAS, Agent
from iel.distances import Floats, Integers
from iel.envs.registry import ALIASES
from iel.errors import ConfigError, DataError, GeometryError, IELError, RunError, unknown_name
from iel.files import notice
from iel.loader import read_json
from iel.model import Model, load_model
from iel.model.archive import unpacked
from iel.model.support import warning
from iel.planning import Acting, AsymGraph, Atlas, Controller, Plan, Planner, usual_planner, usual_planners
from iel.planning.goals import observation_table
from iel.planning.watchdog import Watched
from iel.serving.schemas import ActQuery, Answer, ControlMessage, Goal, Query, watchdog_of

if TYPE_CHECKING:
    from iel.training import Run

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
PLANS = 32
"""Prepared goals that are remembered: this number of robots may head for goals of their own without any search."""
GOALS = 16
"""Different goals of one request that a graph is searched for."""
WAITING = 256
"""Requests that may wait for the worker; further ones are refused."""
too_large_is_infinite = np.errstate(over="ignore")
"""For numbers that float32 does not have: planners then refuse them as not finite."""


@dataclass(frozen=True, eq=False)
class Served:
    """A model and what its agents are made of."""

    name: str
    """What the page calls it: the directory's own name."""
    model: Model
    atlas: Atlas | None = None
    """States to plan over and to draw; None: only `direct` works, and there is nothing to draw."""
    env: str | None = None
    """The environment's name, if there is one of that name."""
    seed: int | None = None
    options: Callable[[str], Mapping[str, Any]] = lambda planner: {}
    """Settings of a planner, by its name."""

    @property
    def planners(self) -> tuple[str, ...]:
        """Names of the planners that can be used, the best one last."""
        if self.atlas is None:
            return ("direct",)
        best = usual_planner(self.model, self.atlas)
        return (*(name for name in usual_planners(self.model, on_request=()) if name != best), best)

    @property
    def drawable(self) -> Atlas:
        """States to draw; refused where there are none."""
        if self.atlas is None:
            raise ConfigError(
                f"{self.name} has no states to draw; export with --nodes 2048, or give the data with --data FILE."
            )
        return self.atlas

    @property
    def states(self) -> Floats:
        """Observations to draw."""
        return self.drawable.observations

    def agent(self, planner: str) -> Agent:
        """An agent that uses this planner; a graph takes a second or two."""
        given = self.options(planner)
        if self.atlas is not None and self.atlas.chosen:  # nodes that were exported are what there is
            given = {name: value for name, value in given.items() if name not in STORED_IN_ATLAS}
        return Agent(self.model, self.atlas, planner, **given)

    def describe(self) -> Answer:
        """For programs: what may be requested."""
        model, planners = self.model, self.planners
        return {
            "name": self.name,
            "algo": model.algo,
            "env": self.env,
            "seed": self.seed,
            "observation_size": model.observation_size,
            "action_size": model.action_size,
            "signals": to_builtins(model.signals),
            "planners": list(planners),
            "planner": planners[-1],
            "predicts_steps": model.metric is not None and model.metric.discount is not None,
        }


class PreparedRequest(NamedTuple):
    """A query with the plan that answers it."""

    rows: Floats
    """Observations (n, o)."""
    plan: Plan
    owner: Integers
    """Which episode of the plan each row belongs to."""
    warnings: list[str]
    """What lies outside of the training data: the goal, and an observation."""


class Busy(IELError):
    """Too many requests are waiting."""


class Engine:
    """One model, its agents and its thread: `call` runs a method there, and nothing else touches the model."""

    def __init__(self, served: Served):
        self.served, self.model = served, served.model
        self.planners = served.planners
        """Names of the planners that can be used; the last one is used unless another is requested."""
        self._agents: dict[str, Agent] = {}
        self._plans: OrderedDict[tuple[str, bytes], tuple[Plan, list[str]]] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="iel-engine")
        self._calls: set[Future] = set()

    @property
    def waiting(self) -> int:
        """Calls that the worker has not finished, whether or not their answers are still wanted."""
        return len(self._calls)

    async def call(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function in the worker, after those that were called before."""
        if self.waiting >= WAITING:
            raise Busy(f"{WAITING} requests are waiting already; try again in a moment.")
        answer = self._worker.submit(function, *arguments)
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Let the worker finish and end it."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def agent(self, planner: str | None = None) -> Agent:
        """An agent with this planner, built when first requested."""
        name = self.planners[-1] if planner is None else planner
        if name not in self.planners:
            raise unknown_name("planner", name[:40], self.planners)
        if name not in self._agents:
            self._agents[name] = self.served.agent(name)
        return self._agents[name]

    # ---------------------------------------------------------------- answers

    def act(self, query: ActQuery) -> Answer:
        """The policy's mean action towards the goal, over the planner's next waypoint."""
        # Nothing is remembered: clients share plans, and each row gets the action of the first step of an episode.
        request = self._prepared(query, query.planner)
        actions = Controller(self.model, request.plan).act(request.rows, request.owner)
        if query.units == "robot":
            actions = self.model.signals.in_units(actions, "robot")
        answer: Answer = {"action" if query.single else "actions": query.one_or_all(actions.tolist())}
        return answer | (self._steps(query, request) if query.steps else {}) | warned(request.warnings)

    def steps(self, query: Query) -> Answer:
        """Predicted steps to the goal: by the network alone, or along a planner's route."""
        request = self._prepared(query, query.planner or "direct")
        return self._steps(query, request) | warned(request.warnings)

    def plan(self, query: Query) -> Answer:
        """Waypoints (states of the data) from the observation to the goal, and the predicted steps of each part."""
        if query.count > GOALS:
            raise ConfigError(f"A request gets at most {GOALS} routes; send several requests.")
        agent, plans = self.agent(query.planner), []
        observations, goals = query.rows
        for number in range(query.count):
            row, goal = observations[number % len(observations)], goals[number % len(goals)]
            request = self._prepare([row], [goal], agent.planner)
            route = agent.plan(row, goal)
            *steps, total = (finite(value) for value in (*route.steps, route.total))
            answer: Answer = {"waypoints": route.observations.tolist(), "steps": steps, "predicted_steps": total}
            plans.append(answer | warned(request.warnings))
        return plans[0] if query.single else {"plans": plans}

    def outside(self, rows: ArrayLike, what: str) -> list[str]:
        """A warning if one of these rows lies outside of the training data."""
        sentence = warning(self.model.support, rows, what, self.model.outside, self.model.signals)
        return [] if sentence is None else [sentence]

    def _steps(self, query: Query, request: PreparedRequest) -> Answer:
        if self.model.metric is None:
            raise GeometryError(f"{self.model.algo} learned no distances, so it predicts no number of steps.")
        found = request.plan.steps(self.model.embed(request.rows), rows=request.owner)
        return {"steps": query.one_or_all([finite(value) for value in found])}

    def _prepared(self, query: Query, planner: str | None) -> PreparedRequest:
        return self._prepare(*query.rows, self.agent(planner).planner)

    @too_large_is_infinite
    def _prepare(self, observations: list[list[float]], goals: list[Goal], planner: Planner) -> PreparedRequest:
        """Checked observations, and a plan for the goals: one that is remembered, or a new one."""
        rows = observation_table(observations, self.model.observation_size, "observation")
        texts = [json.encode(goal) for goal in goals]
        if len(set(texts)) > GOALS and planner.name.endswith("graph"):
            raise ConfigError(
                f"There are {len(set(texts))} different goals, but {planner.name} searches for at most {GOALS} "
                "per request; send several requests, or use direct."
            )
        key = planner.name, sha256(b" ".join(texts)).digest()
        if key not in self._plans:
            plan = planner.plan(goals)
            self._plans[key] = plan, self.outside(plan.known_goals, "goal")
        self._plans.move_to_end(key)
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        plan, warnings = self._plans[key]
        count = max(len(rows), len(goals))
        owner = np.arange(count) % len(goals)
        return PreparedRequest(
            np.repeat(rows, count // len(rows), axis=0), plan, owner, warnings + self.outside(rows, "observation")
        )


class Control:
    """One control loop: a goal, and the memory that pursuing it needs. A refused message changes none of it."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._forks: dict[str, Planner] = {}
        self._chosen: Planner | None = None
        self._watched: Watched | None = None
        self._goal_warning: list[str] = []

    @property
    def planner(self) -> Planner:
        """The planner that pursues the goal."""
        if self._chosen is None:
            raise ConfigError("No goal is set; send a goal first.")
        return self._chosen

    @too_large_is_infinite
    def answer(self, message: ControlMessage) -> Answer:
        """Do what a message says; the answer holds what was done, the action, and predicted steps and warnings."""
        changed = copy.copy(self)
        changed._forks = dict(self._forks)
        done: Answer = {}
        if message.goal is not None:
            changed._pursue(message.goal, message)
            done |= {"goal": "set"} | warned(changed._goal_warning)
        if message.avoid is not None:
            done["nodes_off"] = changed._avoid(message.avoid, message.radius)
        if message.observation is not None:
            done |= changed._act(message.observation, message)
        self.__dict__ = changed.__dict__
        return done

    def _pursue(self, goal: Goal, message: ControlMessage) -> None:
        engine = self.engine
        base = engine.agent(message.planner).planner
        planner = self._forks.get(base.name, base).fork()
        planner.prepare(goal, Acting(message.acting), message.seed)
        self._chosen = self._forks[planner.name] = planner
        self._watched = None
        if message.watchdog is not None:
            self._watched = Watched(watchdog_of(message.watchdog).require(engine.model.action_size), planner)
        self._goal_warning = engine.outside(planner.prepared.known_goals, "goal")

    def _act(self, row: list[float], message: ControlMessage) -> Answer:
        planner, watched, stopped = self.planner, self._watched, None
        if watched is None:
            done: Answer = {"action": planner.act(row, message.units).tolist()}
        else:
            action = watched.act(row, message.units, message.stamp).tolist()
            stopped = watched.stopped
            done = {"action": action, "stopped": stopped}
        if stopped is not None:  # the observation may be one that the model refuses
            return done | warned(self._goal_warning)
        if message.steps:
            done["steps"] = finite(planner.predicted_steps(row))
        return done | warned(self._goal_warning + self.engine.outside(row, "observation"))

    def _avoid(self, states: list[list[float]], radius: float) -> int:
        """Switch off the nodes near these states, and all others on; returns how many nodes are off."""
        planner = self.planner
        if not isinstance(planner, AsymGraph):
            raise ConfigError(f"{planner.name} has no nodes to switch off; use a graph planner.")
        changed = planner.fork()
        changed.switch_on()
        off = changed.switch_off_near(states, radius) if states else ()
        changed.resume(planner)
        self._chosen = self._forks[planner.name] = changed
        if self._watched is not None:
            self._watched = copy.copy(self._watched)
            self._watched.planner = changed
        return len(off)


def warned(warnings: list[str]) -> Answer:
    """The part of an answer that holds warnings, where there are any."""
    return {"warnings": warnings} if warnings else {}


def finite(value: float) -> float | None:
    """A number, or None where it is infinite or NaN, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


# ---------------------------------------------------------------- from directories


def open_served(path: Path | str, *, data: Path | None = None) -> list[Served]:
    """The model in a directory: a run (all seeds of it), an export (or its zip archive), or RUN/model."""
    path = Path(path)
    with unpacked(path) as directory:
        config = directory / "config.json"
        if config.exists() and "observation_size" in read_json(config):
            return [_exported(directory, data)]
    from iel.training import open_runs  # an export needs no JAX, a run does

    return [_trained(run, data) for run in open_runs(path)]


def _trained(run: Run, data: Path | None) -> Served:
    atlas = None
    try:
        atlas = Atlas.of(run.data(data))
    except DataError as error:
        if data is not None:
            raise
        notice(f"{error} Until then only the planner `direct` can be used, and nothing can be drawn.")
    path = run.path.resolve()
    name = f"{path.parent.name}, seed {run.seed}" if path.name.startswith("seed_") else path.name
    return Served(name, run.model, atlas, ALIASES.get(run.env), run.seed)


def _exported(path: Path, data: Path | None) -> Served:
    model, card = load_model(path), path / "card.json"
    facts = read_json(card) if card.exists() else {}
    env, atlas = ALIASES.get(str(facts.get("env"))), model.atlas
    if data is not None:
        from iel.data import load

        store = load(data, env=env, trust=True)
        if store.observation_size != model.observation_size:
            raise RunError(
                f"{data} has observations of {store.observation_size} numbers, but {path} takes "
                f"{model.observation_size}; give the data it was trained on."
            )
        atlas = Atlas.of(store)
    return Served(path.resolve().name, model, atlas, env, facts.get("seed"))
