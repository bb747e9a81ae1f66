"""Plans, what agents remember on the way, and how a target becomes an action.

    Plan        goals of G episodes, prepared: immutable, so any number of agents may share one
    Memory      what these episodes remember: the stage of a sequence, the node matched last
    Target      where to head for, for many episodes at once
    Controller  drives episodes: target, command, action; a plan and a memory in one hand

Every goal specification (`goals`) becomes *stages* of *alternatives*. How a single goal is approached is a `Pursuit`,
one per planner.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

from iel.errors import ConfigError, GeometryError, NoPath
from iel.metrics import FLOOR, Booleans, Floats, Integers, LatentGoal, Metric, checked_costs, row_products
from iel.model.model import TargetSpec
from iel.model.support import Outside, Support
from iel.planning.goals import LatentWish


class PlanningModel(Protocol):
    """What a planner needs of a model: embeddings, goals, a metric, and how a target becomes an action.

    A class of your own inherits from it, and with that the defaults of what it does not know.
    """

    metric: Metric | None = None
    """Costs between embeddings; None for a method that has no distances and can only be pursued directly."""
    algo: str = ""
    """The method that trained it."""
    support: Support | None = None
    """Where the training data was, if it is known."""
    outside: Outside = "warn"
    """What to do about goals and observations far outside of it."""

    @property
    def target_spec(self) -> TargetSpec:
        """Which targets the policy was trained for."""
        return TargetSpec()

    def embed(self, observations: Floats, /) -> Floats:
        """phi: (n, obs_dim) -> (n, d)."""

    def goals(self, states: Floats, /) -> tuple[Floats, Floats]:
        """(phi(g), omega_g): (n, obs_dim) -> (n, d) and (n, d), unit vectors."""

    def command(self, observations: Floats, target: Target, embeddings: Floats, /) -> Floats:
        """The policy's input beside the observation: (n, c)."""

    def act(self, observations: Floats, commands: Floats, generator: np.random.Generator | None = None, /) -> Floats:
        """The policy's mean action for each observation and command, or a sample of it: (n, act_dim)."""


# ---------------------------------------------------------------- what is answered


class Target(NamedTuple):
    """What a planner answers for n episodes at once."""

    point: Floats
    """(n, d) where to in the latent."""
    observation: Floats
    """(n, o) the same place as a state of the data, or the goal; NaN for a mixture or a direction, which is none."""
    is_goal: Booleans
    """(n,) whether the target is the goal itself."""
    goal_point: Floats
    """(n, d) phi(g) of the goal that is pursued."""
    goal_direction: Floats
    """(n, d) omega_g of the goal that is pursued."""
    cost: Floats
    """(n,) predicted cost to the goal from here; infinite where nothing is known."""


class Aim(NamedTuple):
    """What a pursuit answers for n states: points (n, d), the rows of `targets` they stand for (-1: the goal itself),
    the predicted cost to the goal (n,), and the matched nodes (n,).

    Where there is no way the cost is infinite and the target is the goal itself.
    """

    points: Floats
    states: Integers
    costs: Floats
    nodes: Integers


class Pursuit:
    """How goals that were prepared together are approached; they are numbered. This one heads straight for phi(g)."""

    def __init__(self, goals: list[LatentGoal], metric: Metric | None):
        self.goals, self.metric = goals, metric
        self.points = np.array([goal.point for goal in goals])
        """phi(g) of every goal, (m, d)."""
        self.directions = np.array([goal.direction for goal in goals])
        """omega_g of every goal, (m, d)."""
        self.collects = np.array([goal.rewards is not None for goal in goals])

    def direct_costs(self, states: Floats, goals: Integers) -> Floats:
        """d(x, g; g) from states[r] straight to goal goals[r]; infinite for a method without distances.

        For a reward: how much higher <phi, z> is where the data has it highest.
        """
        if self.metric is None:
            return np.full(len(states), np.inf)
        wanted = [self.goals[goal] for goal in goals]
        costs = checked_costs(self.metric.row_costs(states, self.points[goals], wanted), (len(states),))
        climb = np.maximum(row_products(self.points[goals] - states, self.directions[goals]), FLOOR)
        return np.where(self.collects[goals], climb, costs)

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """Where to head for from states[r] to goal goals[r]: the goal itself, for a reward whatever lies ahead along z.

        memory[r] is the node matched last time, or -1.
        """
        nowhere = np.full(len(states), -1, dtype=np.int64)
        points = np.where(self.collects[goals, None], states + self.directions[goals], self.points[goals])
        return Aim(points, nowhere, self.direct_costs(states, goals), nowhere)

    def steps(self, states: Floats, goals: Integers, aim: Aim) -> Floats:
        """Predicted steps to the goals, given what `aim` answered."""
        assert self.metric is not None
        return self.metric.steps(aim.costs)


@dataclass(frozen=True, repr=False)
class Route:
    """A way for people to look at: the nodes from a state to its goal, and what each part of the way costs."""

    nodes: Integers
    """Nodes of the coreset along the way (empty where the planner has none)."""
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
        """Predicted steps from the state to the goal along this way."""
        return float(self.steps.sum())

    @property
    def steps_to_go(self) -> Floats:
        """Predicted steps to the goal from the state and from each place of the way."""
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

    def __repr__(self) -> str:
        return f"Memory({len(self.nodes)} episodes)"


class Plan:
    """Prepared goals of G episodes. It is never changed: `target` writes to the memory that it is given, and without
    one it answers as on the first step of an episode. `rows` are the episodes that the embeddings belong to."""

    def __init__(
        self,
        pursuit: Pursuit,
        observations: Floats,
        wishes: list[LatentWish],
        numbers: list[list[list[int]]],
        *,
        pursue_blindly: bool = False,
    ):
        """`numbers[e][s]` are the pursuit's goal numbers of the alternatives of stage s of episode e.

        `observations` are what an aim's states are rows of. Where there is no path to a goal, `target` raises `NoPath`,
        or heads straight for it if `pursue_blindly`.
        """
        self.pursuit, self.observations = pursuit, observations
        self.pursue_blindly = pursue_blindly
        unknown = np.full(observations.shape[1], np.nan, np.float32)
        known = [unknown if goal.observation is None else goal.observation for goal in pursuit.goals]
        self.goal_observations = np.array(known, np.float32)
        self.within = np.array([wish.within for wish in wishes])
        self.alternatives = [[np.array(stage) for stage in stages] for stages in numbers]
        self.stages = np.array([len(stages) for stages in numbers])
        self.simple = bool(all(len(stages) == 1 and len(stages[0]) == 1 for stages in numbers))
        self.only = np.array([stages[0][0] for stages in numbers])

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        return f"Plan({len(self)} episodes, {len(self.pursuit.goals)} goals, {type(self.pursuit).__name__})"

    def target(self, embeddings: Any, memory: Memory | None = None, rows: Integers | None = None) -> Target:
        """Where to head for from each embedding."""
        _, aim, goals = self._aim(embeddings, memory, rows)
        if not self.pursue_blindly and not np.isfinite(aim.costs).all():
            stuck = np.flatnonzero(~np.isfinite(aim.costs))
            names = stuck if rows is None else np.asarray(rows)[stuck]
            raise NoPath(
                f"No way leads to the goal of episode {int(names[0])} ({len(stuck)} of {len(aim.costs)} episodes); "
                "switch nodes or edges back on, avoid less, or allow direct pursuit with unreachable='direct'."
            )
        is_goal = aim.states < 0
        observation = self.observations[aim.states]
        if is_goal.any():
            observation[is_goal] = self.goal_observations[goals[is_goal]]
        pursuit = self.pursuit
        return Target(aim.points, observation, is_goal, pursuit.points[goals], pursuit.directions[goals], aim.costs)

    def costs(self, embeddings: Any, memory: Memory | None = None, rows: Integers | None = None) -> Floats:
        """Predicted cost from each embedding to the goal of its current stage; infinite where there is no path."""
        return self._aim(embeddings, memory, rows)[1].costs

    def steps(self, embeddings: Any, memory: Memory | None = None, rows: Integers | None = None) -> Floats:
        """Predicted steps from each embedding to the goal of its current stage."""
        states, aim, goals = self._aim(embeddings, memory, rows)
        return self.pursuit.steps(states, goals, aim)

    def _aim(self, embeddings: Any, memory: Memory | None, rows: Integers | None) -> tuple[Floats, Aim, Integers]:
        """(checked embeddings, where to, which goals); the memory is brought up to date."""
        states = np.asarray(embeddings, dtype=np.float64)
        rows = np.arange(len(self)) if rows is None else np.asarray(rows, np.int64)
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
        memory.nodes[known], memory.stages[known] = aim.nodes, stages
        return states, aim, goals

    def _advance(self, states: Floats, rows: Integers, nodes: Integers, stages: Integers) -> None:
        """Move those that reached the goal of their stage on to the next stage, where no node is matched yet."""
        pending = np.arange(len(rows))
        while len(pending):
            pending = pending[stages[pending] + 1 < self.stages[rows[pending]]]
            members, owner = self._members(rows[pending], stages[pending])
            done = np.zeros(len(pending), dtype=bool)
            done[owner[self._near(states[pending[owner]], members, self.within[rows[pending[owner]]])]] = True
            pending = pending[done]
            stages[pending] += 1
            nodes[pending] = -1

    def _near(self, states: Floats, goals: Integers, within: Floats) -> Booleans:
        """Whether states[r] is within[r] predicted steps of goal goals[r]."""
        metric = self.pursuit.metric
        assert metric is not None, "planners refuse sequences for methods without distances"
        return metric.steps(self.pursuit.direct_costs(states, goals)) <= within

    def _members(self, rows: Integers, stages: Integers) -> tuple[Integers, Integers]:
        """Goal numbers of the alternatives of each row's stage, and which row each belongs to."""
        lists = [self.alternatives[row][stage] for row, stage in zip(rows, stages, strict=True)]
        owner = np.repeat(np.arange(len(rows)), [len(each) for each in lists])
        return (np.concatenate(lists) if lists else np.empty(0, dtype=np.int64)), owner

    def _best_alternative(
        self, states: Floats, rows: Integers, nodes: Integers, stages: Integers
    ) -> tuple[Aim, Integers]:
        """Aim at every alternative, keep the cheapest of each episode (the first among equals)."""
        members, owner = self._members(rows, stages)
        aim = self.pursuit.aim(states[owner], members, nodes[owner])
        order = np.lexsort((aim.costs, owner))
        best = order[np.searchsorted(owner[order], np.arange(len(rows)))]
        return Aim(aim.points[best], aim.states[best], aim.costs[best], aim.nodes[best]), members[best]


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
    """Drives the episodes of a plan: target, command, action. It remembers for all of them, and for nobody else."""

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

    def follow(self, plan: Plan) -> Controller:
        """One that goes on with another plan for the same goals: all is remembered but the matched nodes."""
        other = copy.copy(self)
        other.plan, other.memory = plan, copy.deepcopy(self.memory)
        other.memory.nodes[:] = -1
        return other

    def act(self, observations: Floats, rows: Integers | None = None) -> Floats:
        """Actions of all episodes, or of the listed ones, from their observations."""
        embeddings = self.model.embed(observations)
        started = time.perf_counter()
        target = self.plan.target(embeddings, self.memory, rows)
        self.seconds += time.perf_counter() - started
        command = self.model.command(observations, target, embeddings)
        if self.acting.kind == "sample":
            return self.model.act(observations, command, self.generator)
        actions = self.model.act(observations, command)
        if self.acting.kind == "unstick":
            shaken = self._stuck(target.cost, np.arange(len(self.plan)) if rows is None else np.asarray(rows))
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
