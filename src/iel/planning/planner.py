"""What all planners share, the plans they make, and the controllers that follow them.

planner = AsymGraph(model, data, nodes=8192)
planner.prepare(goal)                 # once per goal, milliseconds
action = planner.act(observation)     # every step
print(planner.path(observation))      # for people

controller = Controller(model, planner.plan(goals))    # many episodes at once
actions = controller.act(observations)

    Plan        goals of G episodes, prepared: immutable, so any number of agents may share one
    Memory      what these episodes remember: the stage of a sequence, the node matched last
    Target      where to head for, for many episodes at once
    Controller  drives episodes: target, command, action; it holds a plan and a memory

Every goal specification (`goals`) becomes *stages* of *alternatives*. How a single goal is approached is a `Pursuit`,
one per planner.
"""

from __future__ import annotations

import copy
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from iel.distances import (
    FLOOR,
    Booleans,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    checked_costs,
    checked_points,
    row_products,
)
from iel.errors import ConfigError, GeometryError, NoPath
from iel.model.atlas import Atlas, Source
from iel.model.model import PlanningModel, Target
from iel.model.support import OutOfDistributionMonitor, report
from iel.planning.goals import Goal, Regions, Reward, Weighted, observation_table, staged_goals
from iel.planning.rewards import READOUT_POOL, RewardModel
from iel.signals import Units


class Aim(NamedTuple):
    """What a pursuit returns for n states: points (n, d), the rows of `targets` they stand for (-1: the goal itself),
    the predicted cost to the goal (n,), the nodes at which paths begin (n,), and those that were matched (n,).

    Where no path leads to the goal the cost is infinite and the target is the goal itself.
    """

    points: Floats
    states: Integers
    costs: Floats
    nodes: Integers
    matched: Integers


class Pursuit:
    """How goals that were prepared together are approached; they are numbered. This one heads straight for phi(g)."""

    def __init__(self, goals: list[LatentGoal], metric: Metric | None):
        self.goals, self.metric = goals, metric
        self.points = np.array([goal.point for goal in goals])
        """phi(g) of every goal, (m, d)."""
        self.directions = np.array([goal.direction for goal in goals])
        """omega_g of every goal, (m, d)."""
        self.collects = np.array([goal.rewards is not None for goal in goals])
        self.any_reward = bool(self.collects.any())

    def direct_costs(self, states: Floats, goals: Integers) -> Floats:
        """d(x, g; g) from states[r] straight to goal goals[r]; infinite for a method without distances.

        For a reward: how much higher <phi, z> is where the data has it highest.
        """
        if self.metric is None:
            return np.full(len(states), np.inf)
        wanted = [self.goals[goal] for goal in goals]
        costs = checked_costs(self.metric.row_costs(states, self.points[goals], wanted), (len(states),))
        if not self.any_reward:
            return costs
        climb = np.maximum(row_products(self.points[goals] - states, self.directions[goals]), FLOOR)
        return np.where(self.collects[goals], climb, costs)

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """Where to head for from states[r] to goal goals[r]: the goal itself; for a reward, a point ahead along z.

        memory[r] is the node matched last time, or -1.
        """
        unmatched = np.full(len(states), -1, dtype=np.int64)
        points = np.where(self.collects[goals, None], states + self.directions[goals], self.points[goals])
        return Aim(points, unmatched, self.direct_costs(states, goals), unmatched, unmatched)

    def steps(self, states: Floats, goals: Integers, aim: Aim) -> Floats:
        """Predicted steps to the goals, given what `aim` returned."""
        assert self.metric is not None
        return self.metric.steps(aim.costs)

    def route(self, state: Floats, goal: int) -> tuple[list[int], list[float]]:
        """Nodes and costs of the whole path to a goal; without a graph it is the straight line."""
        return [], [float(self.direct_costs(state[None, :], np.array([goal]))[0])]


@dataclass(frozen=True, repr=False)
class Route:
    """A planned path for people to look at: the nodes from a state to its goal, and what each part costs."""

    nodes: Integers
    """Nodes of the coreset along the path (empty where the planner has none)."""
    states: Integers
    """The same nodes as rows of the data's observations."""
    observations: Floats
    """Their observations, (len(nodes), obs_dim)."""
    costs: Floats
    """Cost of each part: state to first node, node to node, last node to goal; one more than there are nodes."""
    steps: Floats
    """The same in predicted steps; NaN where the metric's costs are not steps."""
    stages: list[int] = field(default_factory=lambda: [0])
    """For a sequence: position in `costs` at which each stage begins."""

    @property
    def total(self) -> float:
        """Predicted steps from the state to the goal along this path."""
        return float(self.steps.sum())

    @property
    def steps_to_go(self) -> Floats:
        """Predicted steps to the goal from the state and from each node of the path."""
        return np.cumsum(self.steps[::-1])[::-1]

    def __repr__(self) -> str:
        return f"Route({len(self.nodes)} nodes, {self.total:.1f} predicted steps)"


class Memory:
    """What the agents of a plan remember, one row per episode; a new one knows nothing."""

    def __init__(self, episodes: int):
        self.nodes: Integers = np.full(episodes, -1, dtype=np.int64)
        """The node each was matched to last, -1 before the first match."""
        self.stages: Integers = np.zeros(episodes, dtype=np.int64)
        """The stage of its goal that each is in."""
        self.least: Floats = np.full(episodes, np.inf)
        """`Acting` by "unstick": the least predicted cost so far,"""
        self.least_of: Integers = np.zeros(episodes, dtype=np.int64)
        """the stage that it belongs to,"""
        self.since: Integers = np.zeros(episodes, dtype=np.int64)
        """the steps without progress,"""
        self.shaking: Integers = np.zeros(episodes, dtype=np.int64)
        """and the steps with noise still to come."""


class Plan:
    """Prepared goals of G episodes. It is never changed: `target` writes to the memory that it is given, and without
    one it returns what it returns on the first step of an episode. `rows` are the episodes that the embeddings belong
    to."""

    def __init__(
        self,
        pursuit: Pursuit,
        observations: Floats,
        alternatives: list[list[Integers]],
        within: Floats,
        allow_direct: bool = False,
    ):
        """`alternatives[e][s]` are the pursuit's goal numbers of the alternatives of stage s of episode e, which is
        done within[e] predicted steps.

        `observations` are what an aim's states are rows of. Where the goal cannot be reached, `target` raises `NoPath`,
        or heads straight for it if `allow_direct`.
        """
        self.pursuit, self.observations, self.alternatives, self.within = pursuit, observations, alternatives, within
        self.allow_direct = allow_direct
        unknown = np.full(observations.shape[1], np.nan, np.float32)
        known = [unknown if goal.observation is None else goal.observation for goal in pursuit.goals]
        self.goal_observations = np.array(known, np.float32)
        self.known_goals = self.goal_observations[np.isfinite(self.goal_observations).all(axis=1)]
        """Goals that are states, (m, o)."""
        self.everyone = np.arange(len(alternatives))
        self.stages = np.array([len(stages) for stages in alternatives])
        self.simple = all(len(stages) == 1 and len(stages[0]) == 1 for stages in alternatives)
        self.only = np.array([stages[0][0] for stages in alternatives])

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        return f"Plan({len(self)} episodes, {len(self.pursuit.goals)} goals, {type(self.pursuit).__name__})"

    def target(self, embeddings: ArrayLike, memory: Memory | None = None, rows: Integers | None = None) -> Target:
        """Where to head for from each embedding; raises `NoPath` where no path leads to a goal."""
        _, aim, goals = self._aim(embeddings, memory, rows)
        if not (self.allow_direct or np.isfinite(aim.costs).all()):
            stuck = np.flatnonzero(~np.isfinite(aim.costs))
            names = stuck if rows is None else np.asarray(rows)[stuck]
            raise NoPath(
                f"No path leads to the goal of episode {int(names[0])} ({len(stuck)} of {len(aim.costs)} episodes); "
                "switch nodes or edges back on, avoid less, or allow direct pursuit with unreachable='direct'.",
                names.tolist(),
            )
        is_goal = aim.states < 0
        observation = self.observations.take(aim.states, axis=0, mode="wrap")
        if is_goal.any():
            observation[is_goal] = self.goal_observations[goals[is_goal]]
        pursuit = self.pursuit
        points, directions = pursuit.points.take(goals, axis=0), pursuit.directions.take(goals, axis=0)
        return Target(aim.points, observation, is_goal, points, directions, aim.costs)

    def costs(self, embeddings: ArrayLike, memory: Memory | None = None, rows: Integers | None = None) -> Floats:
        """Predicted cost from each embedding to the goal of its current stage; infinite where no path leads there."""
        return self._aim(embeddings, memory, rows)[1].costs

    def steps(self, embeddings: ArrayLike, memory: Memory | None = None, rows: Integers | None = None) -> Floats:
        """Predicted steps from each embedding to the goal of its current stage."""
        states, aim, goals = self._aim(embeddings, memory, rows)
        return self.pursuit.steps(states, goals, aim)

    def _aim(self, embeddings: ArrayLike, memory: Memory | None, rows: Integers | None) -> tuple[Floats, Aim, Integers]:
        """(checked embeddings, where to, which goals); the memory is brought up to date."""
        states = np.asarray(embeddings, dtype=np.float64)
        rows = self.everyone if rows is None else np.asarray(rows, np.int64)
        dimension = self.pursuit.points.shape[1]
        if states.shape != (len(rows), dimension):
            raise GeometryError(
                f"The embeddings have shape {states.shape}; {len(rows)} episodes need ({len(rows)}, {dimension})."
            )
        if not np.isfinite(states).all():
            row = int(np.argmin(np.isfinite(states).all(axis=1)))
            raise GeometryError(f"The embedding of episode {int(rows[row])} is not finite; check its observation.")
        known = rows
        if memory is None:  # a first step that is not remembered
            memory, known = Memory(len(rows)), np.arange(len(rows))
        nodes, stages = memory.nodes[known], memory.stages[known]
        if self.simple:
            goals = self.only[rows]
            aim = self.pursuit.aim(states, goals, nodes)
        else:
            self._advance(states, rows, nodes, stages)
            aim, goals = self._best_alternative(states, rows, nodes, stages)
        memory.nodes[known], memory.stages[known] = aim.matched, stages
        return states, aim, goals

    def _advance(self, states: Floats, rows: Integers, nodes: Integers, stages: Integers) -> None:
        """Move those that reached the goal of their stage on to the next stage, where no node is matched yet."""
        pending = np.flatnonzero(stages + 1 < self.stages[rows])
        while len(pending):
            members, owner = self._members(rows[pending], stages[pending])
            metric = self.pursuit.metric
            assert metric is not None, "planners refuse sequences for methods without distances"
            steps = metric.steps(self.pursuit.direct_costs(states[pending[owner]], members))
            pending = pending[np.unique(owner[steps <= self.within[rows[pending[owner]]]])]
            stages[pending] += 1
            nodes[pending] = -1
            pending = pending[stages[pending] + 1 < self.stages[rows[pending]]]

    def _members(self, rows: Integers, stages: Integers) -> tuple[Integers, Integers]:
        """Goal numbers of the alternatives of each row's stage, and which row each belongs to."""
        lists = [self.alternatives[row][stage] for row, stage in zip(rows, stages, strict=True)]
        owner = np.repeat(np.arange(len(rows)), [len(each) for each in lists])
        return np.concatenate(lists), owner

    def _best_alternative(
        self, states: Floats, rows: Integers, nodes: Integers, stages: Integers
    ) -> tuple[Aim, Integers]:
        """Aim at every alternative, choose the cheapest of each episode (the first among equals)."""
        members, owner = self._members(rows, stages)
        aim = self.pursuit.aim(states[owner], members, nodes[owner])
        order = np.lexsort((aim.costs, owner))
        best = order[np.searchsorted(owner[order], np.arange(len(rows)))]
        chosen = Aim(aim.points[best], aim.states[best], aim.costs[best], aim.nodes[best], aim.matched[best])
        return chosen, members[best]


# ---------------------------------------------------------------- acting


ActionKind = Literal["mean", "sample", "unstick"]
ACTION_KINDS: tuple[ActionKind, ...] = get_args(ActionKind)


@dataclass(frozen=True)
class Acting:
    """How actions are taken from the policy: by its `mean`, by a `sample`, or `unstick`: by its mean, with noise only
    while no progress is made.

    A cloned policy can stand still for hundreds of steps where the data's controller never did; noise as large as the
    data's own frees it. An episode is stuck if the least predicted cost to its goal fell by less than `progress` per
    step over the last `patience` steps; it then gets N(0, `noise`^2) on every action for `burst` steps.
    """

    kind: ActionKind = "mean"
    noise: float = 0.4
    patience: int = 30
    burst: int = 20
    progress: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in ACTION_KINDS:
            raise ConfigError(f"action is '{self.kind}'; choose mean, sample or unstick.")


class Controller:
    """Drives the episodes of a plan: target, command, action. Its memory holds these episodes and no others."""

    def __init__(
        self,
        model: PlanningModel,
        plan: Plan,
        acting: Acting | None = None,
        generator: np.random.Generator | None = None,
    ):
        """By default actions are the policy's mean; what is random comes from the `generator` (seed 0)."""
        self.model, self.plan, self.acting = model, plan, acting or Acting()
        self.generator = np.random.default_rng(0) if generator is None else generator
        self.memory = Memory(len(plan))
        self.seconds = 0.0
        """Time spent choosing targets."""
        self.costs: Floats = np.full(len(plan), np.inf)
        """Predicted costs to go, from the observations that were acted on last."""

    def follow(self, plan: Plan) -> Controller:
        """A controller that goes on with another plan for the same goals; it forgets the matched nodes only."""
        other = copy.copy(self)
        other.plan, other.memory = plan, copy.deepcopy(self.memory)
        other.memory.nodes[:] = -1
        return other

    def act(self, observations: Floats, rows: Integers | None = None) -> Floats:
        """Actions of all episodes, or of the listed ones, from their observations."""

        def target(embeddings: Floats) -> Target:
            started = time.perf_counter()
            found = self.plan.target(embeddings, self.memory, rows)
            self.seconds += time.perf_counter() - started
            self.costs = found.cost
            return found

        generator = self.generator if self.acting.kind == "sample" else None
        actions = self.model.drive(observations, target, generator)
        if self.acting.kind == "unstick":
            shaken = self._stuck(self.costs, self.plan.everyone if rows is None else np.asarray(rows))
            noise = self.acting.noise * self.generator.standard_normal(actions.shape)
            actions = np.clip(actions + shaken[:, None] * noise, -1.0, 1.0).astype(np.float32)
        return actions

    def _stuck(self, costs: Floats, rows: Integers) -> Booleans:
        """Which episodes get noise now, given their predicted cost to go. An unknown cost counts as progress."""
        acting, memory = self.acting, self.memory
        moved_on = memory.least_of[rows] != memory.stages[rows]
        memory.least_of[rows] = memory.stages[rows]
        memory.least[rows[moved_on]] = np.inf
        least = memory.least[rows]
        better = ~np.isfinite(costs) | (costs < least - acting.progress * acting.patience)
        since = np.where(better, 0, memory.since[rows] + 1)
        stuck = since >= acting.patience
        memory.least[rows] = np.where(better | stuck | ~np.isfinite(least), costs, least)
        memory.since[rows] = np.where(stuck, 0, since)
        memory.shaking[rows] = np.where(stuck, acting.burst, np.maximum(memory.shaking[rows] - 1, 0))
        return memory.shaking[rows] > 0


# ---------------------------------------------------------------- planners


class Planner(ABC):
    """What all planners share: goals in, targets out. Planners differ in the pursuit that they build."""

    name: ClassVar[str]
    collects: ClassVar[bool] = False
    """Whether rewards can be followed."""

    def __init__(self, model: PlanningModel, data: Source, metric: Metric | None = None):
        """`data` are trajectories, an `Atlas`, or a table of observations; `metric` replaces the model's own."""
        self.model = model
        self.atlas = Atlas.of(data)
        self.observations = self.atlas.observations
        self.targets = self.observations
        """What rows of an `Aim` are rows of: the states of the data, and on a graph the aims of teleports."""
        self.width = self.observations.shape[1]
        """Numbers in one observation."""
        self.states: Integers = np.empty(0, np.int64)
        """Rows of the data's observations that are nodes."""
        self.metric = model.metric if metric is None else metric
        self.allow_direct = self.metric is None
        """Whether to head for a goal also where no path to it is known."""
        self._goals: list[Goal] = []
        self._controller: Controller | None = None
        self._monitor = OutOfDistributionMonitor()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.observations)} states)"

    @classmethod
    def setting_names(cls) -> list[str]:
        """Names of the settings that a file can give."""
        given = inspect.signature(cls).parameters.values()
        return [each.name for each in given if each.kind is each.KEYWORD_ONLY]

    def plan(self, goals: Sequence[Goal] | Floats) -> Plan:
        """Prepare the goals of G episodes together: an array (G, obs_dim), or a list of states and other goals.

        Goals far outside of the training data are reported, or refused if the model's `outside` says so.
        """
        staged = staged_goals(goals, self)
        wanted = [goal for stages, _ in staged for stage in stages for goal in stage]
        known = [goal.observation for goal in wanted if goal.observation is not None]
        report(self.model.support, known, "goal", self.model.outside, self.model.signals)
        distinct = {goal.key: goal for goal in reversed(wanted)}
        number = {key: position for position, key in enumerate(dict.fromkeys(goal.key for goal in wanted))}
        numbers = [[np.array([number[goal.key] for goal in stage]) for stage in stages] for stages, _ in staged]
        within = np.array([within for _, within in staged])
        pursuit = self._pursuit([distinct[key] for key in number])
        return Plan(pursuit, self.targets, numbers, within, self.allow_direct)

    @abstractmethod
    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        """How this planner approaches these goals."""

    def fork(self) -> Self:
        """Another planner over the same nodes, with a goal (and, on a graph, obstacles) of its own.

        It takes no time. Both remember edges together, so they are for one thread.
        """
        fork = copy.copy(self)
        fork._goals, fork._controller, fork._monitor = [], None, OutOfDistributionMonitor()
        return fork

    def node_atlas(self) -> Atlas | None:
        """The states that the same planner can be built from without the data; None if it looks at none."""
        return None

    @cached_property
    def column_std(self) -> Floats:
        """Standard deviations of the data's columns."""
        return self.observations.std(axis=0, dtype=np.float64)

    @cached_property
    def reward_model(self) -> RewardModel:
        """States of the data that rewards are read off."""
        self._distances("it has nothing to read a reward off")
        return RewardModel(self.model, self.observations, *self._embedded_pool(READOUT_POOL, seed=0))

    def attracted(self, prompt: Reward | Weighted) -> LatentGoal:
        """The latent goal of a reward."""
        if not self.collects:
            raise GeometryError(f"The planner {self.name} cannot follow a reward; use direct, sym-graph or asym-graph.")
        return self.reward_model.attracted(prompt)

    def avoided(self, regions: Regions) -> Booleans:
        """Which nodes lie in regions to avoid, (nodes,)."""
        raise GeometryError(f"The planner {self.name} cannot avoid regions; use asym-graph or sym-graph.")

    def prepare(self, goal: Goal, acting: Acting | None = None, seed: int = 0) -> None:
        """Get ready for one goal: an observation, columns as in {0: 8.5}, or any goal of `iel.planning.goals`.

        `acting` says how actions are taken from the policy (by default its mean); what is random follows from `seed`.
        """
        self._controller = Controller(self.model, self.plan([goal]), acting, np.random.default_rng(seed))
        self._goals = [goal]

    def resume(self, other: Self) -> None:
        """Pursue the goal of another planner of this kind, from where its agent stands."""
        self._controller = other.controller.follow(self.plan(other._goals))
        self._goals, self._monitor = other._goals, other._monitor

    @property
    def controller(self) -> Controller:
        """What drives to the prepared goal."""
        if self._controller is None:
            raise ConfigError("No goal is prepared; call prepare(goal) first.")
        return self._controller

    @property
    def prepared(self) -> Plan:
        """The plan of the prepared goal."""
        return self.controller.plan

    def target(self, observation: ArrayLike) -> Target:
        """Where to head for from this observation: one row of everything."""
        return self.prepared.target(self._embed(observation), self.controller.memory)

    def act(self, observation: ArrayLike, units: Units = "unit") -> Floats:
        """The policy's action towards the target, (act_dim,), within [-1, 1], or in the units of the "robot".

        An observation far outside of the training data is reported when the agent gets there, not at every step.
        """
        controller, row = self.controller, self._row(observation)
        self._monitor.step(self.model.support, row, self.model.outside, self.model.signals)
        return self.model.signals.in_units(np.asarray(controller.act(row))[0], units)

    def predicted_steps(self, observation: ArrayLike) -> float:
        """Predicted steps to the goal of the current stage; infinite where no path leads there."""
        plan = self.prepared
        self._distances("it predicts no number of steps")
        return float(plan.steps(self._embed(observation), self.controller.memory)[0])

    def path(self, observation: ArrayLike) -> Route:
        """The whole path from this observation, through all stages still to come."""
        plan, metric = self.prepared, self._distances("it plans no paths")
        row = self._row(observation)
        report(self.model.support, row, "start", self.model.outside, self.model.signals)
        state = np.asarray(self.model.embed(row))[0].astype(np.float64)
        plan.costs(state[None, :], self.controller.memory)  # brings the stage up to date
        nodes: list[int] = []
        costs: list[float] = []
        begins = []
        for stage in plan.alternatives[0][self.controller.memory.stages[0] :]:
            aim = plan.pursuit.aim(np.repeat(state[None, :], len(stage), axis=0), stage, np.full(len(stage), -1))
            best = int(np.argmin(aim.costs))
            if not np.isfinite(aim.costs[best]):
                raise NoPath("No path leads to the goal; switch nodes or edges back on, avoid less, or choose another.")
            begins.append(len(costs))
            stage_nodes, stage_costs = plan.pursuit.route(state, int(stage[best]))
            nodes.extend(stage_nodes)
            costs.extend(stage_costs)
            state = plan.pursuit.points[stage[best]]
        route, parts = np.array(nodes, dtype=np.int64), np.array(costs)
        states = self.states[route]
        steps = np.full(len(parts), np.nan) if metric.discount is None else metric.steps(parts)
        return Route(route, states, self.observations[states], parts, steps, begins)

    def _distances(self, lack: str) -> Metric:
        if self.metric is None:
            raise GeometryError(f"This model learned no distances, so {lack}; it can only act.")
        return self.metric

    def _embed(self, observation: ArrayLike) -> Floats:
        return np.asarray(self.model.embed(self._row(observation)))

    def _row(self, observation: ArrayLike) -> Floats:
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
        blocks = (self.observations[rows[start : start + 16384]] for start in range(0, len(rows), 16384))
        embedded = np.concatenate([np.asarray(self.model.embed(block)) for block in blocks])
        return checked_points(embedded, "embeddings of the data")


class Direct(Planner):
    """Head straight for phi(g)."""

    name = "direct"
    collects = True

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Pursuit(goals, self.metric)
