"""What is served, a run with its data or an export with the states it took along, and its answers, one at a time.

Whatever may take long runs in one worker thread, one question after another: numpy keeps a core busy, two threads would
share it, and planners, their caches and the sessions of a WebSocket then need no locks. An action towards a goal that
is prepared already takes less than waking that thread; if the thread is idle, it is answered on the spot.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, TypeVarTuple

import numpy as np
from msgspec import to_builtins
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
from iel.planning import Acting, AsymGraph, Atlas, Controller, Plan, Planner, usual_planners
from iel.planning.goals import observation_table
from iel.planning.watchdog import Watched
from iel.serving.schemas import Answer, ControlMessage

if TYPE_CHECKING:
    from iel.training import Run

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Goal = list[float] | Floats | Mapping[str, float | list[float]]
"""As clients say it: a full observation, or what some columns should be."""
PLANS = 32
"""Prepared goals that are remembered: as many robots may head for goals of their own without any search."""
GOALS = 16
"""Different goals of one request that a graph is searched for."""
FEW = 32
"""Rows that are answered on the spot."""
WAITING = 256
"""Questions that may wait for the worker; beyond that it is honest to say no."""


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
        return ("direct",) if self.atlas is None else usual_planners(self.model, on_request=())

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


class Wanted(NamedTuple):
    """A goal, and what tells it from others."""

    goal: Floats | dict[int, float | list[float]]
    key: Hashable


class PreparedRequest(NamedTuple):
    """A question that is prepared."""

    rows: Floats
    """Observations (n, o)."""
    plan: Plan
    owner: Integers
    """Which episode of the plan each row belongs to."""
    warning: str | None
    """About the goals."""


class Busy(IELError):
    """More was asked than can be answered."""


class Engine:
    """One model, its agents and its thread. Methods other than `ask`, `quick` and `close` go through `ask`."""

    def __init__(self, served: Served):
        self.served, self.model = served, served.model
        self.planners = served.planners
        """Names of the planners that can be used; the last one is used unless another is requested."""
        self._agents: dict[str, Agent] = {}
        self._plans: OrderedDict[tuple[str, tuple[Hashable, ...]], tuple[Plan, str | None]] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="iel-engine")
        self._queries: set[Future] = set()

    @property
    def waiting(self) -> int:
        """Questions that the worker has not finished, whether or not their answers are still wanted."""
        return len(self._queries)

    async def call(self, question: Callable[[*Arguments], T], *arguments: *Arguments, quick: bool = False) -> T:
        """Run a function in the worker; a `quick` one at once if the worker is idle: then nobody else is asking."""
        if quick and self.waiting == 0:
            return question(*arguments)
        if self.waiting >= WAITING:
            raise Busy(f"{WAITING} requests are waiting already; ask again in a moment.")
        answer = self._worker.submit(question, *arguments)
        self._queries.add(answer)
        answer.add_done_callback(self._queries.discard)
        return await asyncio.wrap_future(answer)

    def quick(self, observations: Floats, goals: list[Wanted], planner: str | None) -> bool:
        """Whether `act` would take well below a millisecond: few rows, and one goal that is remembered."""
        agent = self._agents.get(planner or self.planners[-1])
        if agent is None or len(goals) > 1 or len(observations) > FEW or not is_quick(agent.planner):
            return False
        return (agent.planner.name, (goals[0].key,)) in self._plans

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

    def wanted(self, goal: Goal) -> Wanted:
        """A goal as a client says it: a full observation, or some columns by name or number."""
        width = self.model.observation_size
        if isinstance(goal, Mapping):
            columns = self.model.signals.columns(goal, width)
            return Wanted(columns, tuple((column, np.asarray(columns[column]).tobytes()) for column in sorted(columns)))
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, which is refused
            (row,) = observation_table(goal, width, "goal")
        return Wanted(row, row.tobytes())

    def tables(self, observations: ArrayLike, goals: Sequence[Goal] | Floats) -> tuple[Floats, list[Wanted]]:
        """A table (n, o) and goals: as many of one as of the other, or a single one that stands for all."""
        with np.errstate(over="ignore"):
            rows = observation_table(observations, self.model.observation_size, "observation")
        wanted = [self.wanted(goal) for goal in goals]
        if len(rows) != len(wanted) and 1 not in (len(rows), len(wanted)):
            raise ConfigError(f"There are {len(rows)} observations and {len(wanted)} goals; give one goal, or as many.")
        return rows, wanted

    # ---------------------------------------------------------------- questions about `tables`

    def act(
        self, observations: Floats, goals: list[Wanted], planner: str | None, with_steps: bool = False
    ) -> tuple[Floats, Floats | None, list[str]]:
        """Mean actions (n, a), predicted steps (n,) if they are wanted, and warnings. Nothing is remembered: clients
        share plans, and each row is answered like the first step of an episode."""
        query = self._prepare(observations, goals, planner)
        actions = Controller(self.model, query.plan).act(query.rows, query.owner)
        return actions, self._steps(query) if with_steps else None, self.warnings(query)

    def steps(self, observations: Floats, goals: list[Wanted], planner: str | None) -> tuple[Floats, list[str]]:
        """Predicted steps (n,), by the network alone or along a planner's route, and warnings."""
        query = self._prepare(observations, goals, planner or "direct")
        return self._steps(query), self.warnings(query)

    def routes(self, observations: Floats, goals: list[Wanted], planner: str | None) -> list[Answer]:
        """Waypoints from each observation to its goal."""
        agent, answers = self.agent(planner), []
        count = max(len(observations), len(goals))
        for number in range(count):
            row, wanted = observations[number % len(observations)], goals[number % len(goals)]
            route = agent.plan(row, wanted.goal)
            *steps, total = (finite(value) for value in (*route.steps, route.total))
            answer: Answer = {"waypoints": route.observations.tolist(), "steps": steps, "predicted_steps": total}
            answers.append(answer | warned(self.warnings(self._prepare(row[None], [wanted], planner))))
        return answers

    def warnings(self, query: PreparedRequest) -> list[str]:
        """What lies outside of the training data: the goal, and the observations."""
        own = warning(self.model.support, query.rows, "observation", self.model.outside)
        return [sentence for sentence in (query.warning, own) if sentence is not None]

    def _steps(self, query: PreparedRequest) -> Floats:
        if self.model.metric is None:
            raise GeometryError(f"{self.model.algo} learned no distances, so it predicts no number of steps.")
        return query.plan.steps(self.model.embed(query.rows), rows=query.owner)

    def _prepare(self, observations: Floats, goals: list[Wanted], planner: str | None) -> PreparedRequest:
        """The observations, a plan for the distinct goals, and which of these each observation pursues."""
        chosen = self.agent(planner).planner
        distinct = {each.key: each.goal for each in goals}
        if len(distinct) > GOALS and chosen.name.endswith("graph"):
            raise ConfigError(
                f"There are {len(distinct)} different goals, but {chosen.name} searches for at most {GOALS} "
                "at a time; ask several times, or use direct."
            )
        key = chosen.name, tuple(distinct)
        known = self._plans.pop(key, None)
        if known is None:
            plan = chosen.plan(list(distinct.values()))
            known = plan, warning(self.model.support, plan.known_goals, "goal", self.model.outside)
        self._plans[key] = known
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        count = max(len(observations), len(goals))
        number = {each: position for position, each in enumerate(distinct)}
        owner = np.array([number[each.key] for each in goals], np.int64)
        rows = np.broadcast_to(observations, (count, observations.shape[1]))
        return PreparedRequest(rows, known[0], np.broadcast_to(owner, count), known[1])


def is_quick(planner: Planner) -> bool:
    """Whether a target is found without asking a network about many pairs, or all states about midpoints."""
    return planner.name == "direct" or (isinstance(planner, AsymGraph) and not planner.graph.metric.expensive)


class Control:
    """One control loop: a goal, and the little state that pursuing it needs. A refused message changes none of it."""

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

    def quick(self, message: ControlMessage) -> bool:
        """Whether `answer` would take well below a millisecond: the goal is prepared already."""
        return self._chosen is not None and is_quick(self._chosen) and message.goal is None and message.avoid is None

    def answer(self, message: ControlMessage) -> Answer:
        """Do what a message says; what was done, the action, the predicted steps if they are wanted, and warnings."""
        changed = copy.copy(self)
        changed._forks = dict(self._forks)
        done: Answer = {}
        if message.goal is not None:
            changed._pursue(message.goal, message)
            done |= {"goal": "set"} | warned(changed._goal_warning)
        if message.avoid is not None:
            done["nodes_off"] = changed._avoid([_float32(state) for state in message.avoid], message.radius)
        if message.observation is not None:
            done |= changed._act(_float32(message.observation), message)
        self.__dict__ = changed.__dict__
        return done

    def _pursue(self, goal: Goal, message: ControlMessage) -> None:
        engine = self.engine
        base, wanted = engine.agent(message.planner).planner, engine.wanted(goal)
        planner = self._forks.get(base.name, base).fork()
        planner.prepare(wanted.goal, Acting(message.acting), message.seed)
        self._chosen = self._forks[planner.name] = planner
        self._watched = None
        if message.watchdog is not None:
            self._watched = Watched(message.watchdog.require(engine.model.action_size), planner)
        sentence = warning(engine.model.support, planner.prepared.known_goals, "goal", engine.model.outside)
        self._goal_warning = [] if sentence is None else [sentence]

    def _act(self, row: Floats, message: ControlMessage) -> Answer:
        planner, model, done = self.planner, self.engine.model, Answer()
        if self._watched is not None:
            done["action"] = self._watched.act(row, message.units, message.stamp).tolist()
            done["stopped"] = self._watched.stopped
        else:
            done["action"] = planner.act(row, message.units).tolist()
        if message.steps and done.get("stopped") is None:
            done["steps"] = finite(planner.predicted_steps(row))
        own = None if done.get("stopped") else warning(model.support, row, "observation", model.outside)
        return done | warned([*self._goal_warning, *([] if own is None else [own])])

    def _avoid(self, states: list[Floats], radius: float) -> int:
        """Switch off what is near these states (and everything that was off on again); how many nodes are off."""
        planner = self.planner
        if not isinstance(planner, AsymGraph):
            raise ConfigError(f"{planner.name} has no nodes to switch off; use a graph planner.")
        changed = planner.fork()
        changed.switch_on()
        off = changed.switch_off_near(states, radius) if states else ()
        changed.resume(planner)
        self._chosen = self._forks[planner.name] = changed
        if self._watched is not None:
            self._watched.planner = changed
        return len(off)


def warned(warnings: list[str]) -> Answer:
    """The part of an answer that holds warnings, where there are any."""
    return {"warnings": warnings} if warnings else {}


def _float32(values: list[float]) -> Floats:
    """A number too large becomes infinite, which planners refuse."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(np.float32)


def finite(value: float) -> float | None:
    """A number that JSON has a word for."""
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
