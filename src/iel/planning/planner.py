"""The planners behind one face: prepare a goal, then ask where to head for.

planner = AsymGraph(model, data, nodes=8192)
planner.prepare(goal)                 # once per goal, milliseconds
action = planner.act(observation)     # every step
print(planner.path(observation))      # for people

controller = Controller(model, planner.plan(goals))    # many episodes at once
actions = controller.act(observations)
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from iel.errors import ConfigError, GeometryError, NoPath
from iel.metrics import Booleans, Floats, Integers, LatentGoal, Metric, checked_points
from iel.model.atlas import Atlas, Source
from iel.model.support import OutOfDistributionMonitor, report
from iel.planning.goals import Goal, Reward, Weighted, latent_wishes, observation_table
from iel.planning.plan import Acting, Controller, Memory, Plan, PlanningModel, Pursuit, Route, Target
from iel.planning.rewards import READOUT_POOL, Landscape


class Planner(ABC):
    """What all planners share: goals in, targets out; a planner differs in the pursuit it builds."""

    name: ClassVar[str]
    collects: ClassVar[bool] = False
    """Whether rewards can be followed."""

    def __init__(self, model: PlanningModel, data: Source, metric: Metric | None = None):
        """`data` are trajectories, an `Atlas`, or a table of observations; `metric` replaces the model's own."""
        self.model = model
        self.atlas = Atlas.of(data)
        self.observations = self.atlas.observations
        self.targets = self.observations
        """What rows of an `Aim` are rows of: the states of the data, and on a graph the aims of portals."""
        self.metric = model.metric if metric is None else metric
        self.blind = self.metric is None
        """Whether to head for a goal also where no way to it is known."""
        self._goal: Goal = None
        self._controller: Controller | None = None
        self._monitor = OutOfDistributionMonitor()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.observations)} states)"

    @property
    def width(self) -> int:
        """Numbers in one observation."""
        return self.observations.shape[1]

    def plan(self, goals: Any) -> Plan:
        """Prepare the goals of G episodes together: an array (G, obs_dim), or a list of states and other goals.

        Goals far outside of the training data are reported, or refused if the model's `outside` says so.
        """
        wishes = latent_wishes(goals, self)
        known = [g.observation for w in wishes for s in w.stages for g in s if g.observation is not None]
        report(self.model.support, known, "goal", self.model.outside)
        distinct: dict[tuple[bytes, ...], LatentGoal] = {}
        for wish in wishes:
            for stage in wish.stages:
                for goal in stage:
                    distinct.setdefault(goal.key, goal)
        number = {key: position for position, key in enumerate(distinct)}
        numbers = [[[number[goal.key] for goal in stage] for stage in wish.stages] for wish in wishes]
        pursuit = self._pursuit(list(distinct.values()))
        return Plan(pursuit, self.targets, wishes, numbers, pursue_blindly=self.blind)

    @abstractmethod
    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        """How this planner approaches these goals."""

    def fork(self) -> Self:
        """Another planner over the same nodes, with a goal (and, on a graph, obstacles) of its own.

        It takes no time. Both remember edges together, so they are for one thread.
        """
        fork = copy.copy(self)
        fork._goal, fork._controller, fork._monitor = None, None, OutOfDistributionMonitor()
        return fork

    def node_atlas(self) -> Atlas | None:
        """The states that the same planner can be built from without the data; None if it looks at none."""
        return None

    @cached_property
    def spread(self) -> Floats:
        """Standard deviations of the data's columns."""
        return self.observations.std(axis=0, dtype=np.float64)

    @cached_property
    def landscape(self) -> Landscape:
        """States of the data that rewards are read off."""
        self._distances("it has nothing to read a reward off")
        return Landscape(self.model, self.observations, *self._embedded_pool(READOUT_POOL, seed=0))

    def attracted(self, prompt: Reward | Weighted) -> LatentGoal:
        """The latent goal of a reward."""
        if not self.collects:
            raise GeometryError(f"The planner {self.name} cannot follow a reward; use direct, sym-graph or asym-graph.")
        return self.landscape.attracted(prompt)

    def avoided(self, places: Any) -> Booleans:
        """Which nodes lie in places to avoid."""
        raise GeometryError(f"The planner {self.name} knows no ways around places; use asym-graph or sym-graph.")

    def prepare(self, goal: Goal, acting: Acting | None = None, seed: int = 0) -> None:
        """Get ready for one goal: an observation, columns as in {0: 8.5}, or any goal of `iel.planning.goals`.

        `acting` says how actions are taken from the policy (by default its mean); what is random follows from `seed`.
        """
        self._controller = Controller(self.model, self.plan([goal]), acting, np.random.default_rng(seed))
        self._goal = goal

    def resume(self, other: Self) -> None:
        """Pursue the goal of another planner of this kind, from where its agent stands."""
        self._controller = other._prepared().follow(self.plan([other._goal]))
        self._goal, self._monitor = other._goal, other._monitor

    def _prepared(self) -> Controller:
        if self._controller is None:
            raise ConfigError("No goal is prepared; call prepare(goal) before asking where to go.")
        return self._controller

    @property
    def prepared(self) -> Plan:
        """The plan of the prepared goal."""
        return self._prepared().plan

    @property
    def memory(self) -> Memory:
        """What is remembered on the way to the prepared goal."""
        return self._prepared().memory

    def target(self, observation: Any) -> Target:
        """Where to head for from this observation: one row of everything."""
        return self.prepared.target(self._embed(observation), self.memory)

    def act(self, observation: Any) -> Floats:
        """The policy's action towards the target, (act_dim,).

        An observation far outside of the training data is reported when the agent gets there, not at every step.
        """
        controller, row = self._prepared(), self._row(observation)
        self._monitor.step(self.model.support, row, self.model.outside)
        return np.asarray(controller.act(row))[0]

    def predicted_steps(self, observation: Any) -> float:
        """Predicted steps to the goal of the current stage; infinite where no way leads there."""
        plan = self.prepared
        self._distances("it predicts no number of steps")
        return float(plan.steps(self._embed(observation), self.memory)[0])

    def path(self, observation: Any) -> Route:
        """The whole way from this observation, through all stages still to come."""
        plan, metric = self.prepared, self._distances("it knows no ways")
        row = self._row(observation)
        report(self.model.support, row, "start", self.model.outside)
        state = np.asarray(self.model.embed(row))[0].astype(np.float64)
        plan.costs(state[None, :], self.memory)  # brings the stage up to date
        nodes: list[int] = []
        costs: list[float] = []
        begins = []
        for stage in plan.alternatives[0][self.memory.stages[0] :]:
            aim = plan.pursuit.aim(np.repeat(state[None, :], len(stage), axis=0), stage, np.full(len(stage), -1))
            best = int(np.argmin(aim.costs))
            if not np.isfinite(aim.costs[best]):
                raise NoPath("No way leads to the goal; switch nodes or edges back on, avoid less, or choose another.")
            begins.append(len(costs))
            stage_nodes, stage_costs = self._way(plan.pursuit, state, int(stage[best]))
            nodes.extend(stage_nodes)
            costs.extend(stage_costs)
            state = plan.pursuit.points[stage[best]]
        way, parts = np.array(nodes, dtype=np.int64), np.array(costs)
        states = self._node_states(way)
        steps = np.full(len(parts), np.nan) if metric.discount is None else metric.steps(parts)
        return Route(way, states, self.observations[states], parts, steps, begins)

    def _way(self, pursuit: Pursuit, state: Floats, goal: int) -> tuple[list[int], list[float]]:
        """Nodes and costs of one stage; without a graph there is only the straight way."""
        return [], [float(pursuit.direct_costs(state[None, :], np.array([goal]))[0])]

    def _node_states(self, nodes: Integers) -> Integers:
        """Rows of the data that are these nodes."""
        return nodes

    def _distances(self, lack: str) -> Metric:
        if self.metric is None:
            raise GeometryError(f"This model learned no distances, so {lack}; it can only act.")
        return self.metric

    def _embed(self, observation: Any) -> Floats:
        return np.asarray(self.model.embed(self._row(observation)))

    def _row(self, observation: Any) -> Floats:
        """One observation as a checked row."""
        rows = observation_table(observation, self.width, "observation")
        if len(rows) != 1:
            raise GeometryError(f"One observation was expected, not {len(rows)}; use plan(goals) for many episodes.")
        return rows

    def _embedded_pool(self, pool: int, seed: int) -> tuple[Integers, Floats]:
        """Rows of the data drawn without replacement (all of them if there are no more), and their embeddings."""
        if pool < 1:
            raise ConfigError(f"pool is {pool}; a planner needs at least one state.")
        total = len(self.observations)
        if pool < total and not self.atlas.chosen:
            rows = np.sort(np.random.default_rng(seed).choice(total, size=pool, replace=False))
        else:
            rows = np.arange(total)
        return rows, self._embedded(rows)

    def _nodes(self, rows: Integers, embedded: Floats) -> Atlas:
        """These rows of the data alone, and their embeddings."""
        return Atlas(np.asarray(self.observations[rows], np.float32), chosen=True, embeddings=embedded)

    def _embedded(self, rows: Integers) -> Floats:
        """Embeddings of these rows of the data."""
        if self.atlas.embeddings is not None:
            return checked_points(self.atlas.embeddings[rows], "embeddings of the data")
        embedded = [
            np.asarray(self.model.embed(self.observations[rows[start : start + 16384]]))
            for start in range(0, len(rows), 16384)
        ]
        return checked_points(np.concatenate(embedded), "embeddings of the data")


class Direct(Planner):
    """Head straight for phi(g)."""

    name = "direct"
    collects = True

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Pursuit(goals, self.metric)
