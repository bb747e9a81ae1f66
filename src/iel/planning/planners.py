"""The planners behind one face: prepare a goal, then ask where to head for.

planner = AsymGraph(model, data, nodes=8192)
planner.prepare(goal)                 # once per goal, milliseconds
action = planner.act(observation)     # every step
print(planner.path(observation))      # for people

plan = planner.plan(goals)            # many episodes at once
embeddings = model.embed(observations)
target = plan.target(embeddings)      # a latent point, and the state of the data it stands for
actions = model.act(observations, model.command(observations, target, embeddings))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from iel.errors import ConfigError, GeometryError, NoPath
from iel.metrics import Displacement, Floats, Integers, LatentGoal, Metric, checked_points
from iel.planning.coreset import DEFAULT_NODES, Coreset, Coverage, coverage, select_coreset
from iel.planning.graph import NO_HOP, Field, PlanningGraph
from iel.planning.plan import (
    Acting,
    Agent,
    Goal,
    Mixture,
    Pilot,
    Plan,
    Pursuit,
    Region,
    Route,
    Sequence,
    States,
    Target,
    latent_wishes,
    observation_table,
)
from iel.planning.pursuits import AlongGraph, Midpoints, Straight
from iel.planning.screen import affordable_screen

NODES_WITHOUT_STRUCTURE = 512
"""Default size of the coreset for metrics that must be asked for every pair."""


class Planner(ABC):
    """What all planners share: goals in, targets out; a planner differs in the pursuit it builds."""

    name: ClassVar[str]

    def __init__(self, model: Agent, data: States, metric: Metric | None = None):
        """`metric` replaces the model's own."""
        observations = np.asarray(data.observations)
        if observations.ndim != 2 or len(observations) == 0:
            raise GeometryError(
                f"The data's observations have shape {observations.shape}; a planner needs a table with some rows."
            )
        self.model = model
        self.observations = observations
        self.metric = model.metric if metric is None else metric
        self.blind = self.metric is None
        """Whether to head for a goal also where no way to it is known."""
        self._plan: Plan | None = None
        self._goal: Goal = None
        self._pilot: Pilot

    @property
    def width(self) -> int:
        """Numbers in one observation."""
        return self.observations.shape[1]

    def plan(self, goals: Any) -> Plan:
        """Prepare the goals of G episodes together: an array (G, obs_dim), or a list of states and goal sets."""
        wishes = latent_wishes(goals, self.model, self.metric, self.width)
        distinct: dict[tuple[bytes, bytes, bytes], LatentGoal] = {}
        for wish in wishes:
            for stage in wish.stages:
                for goal in stage:
                    distinct.setdefault(goal.key, goal)
        number = {key: position for position, key in enumerate(distinct)}
        numbers = [[[number[goal.key] for goal in stage] for stage in wish.stages] for wish in wishes]
        pursuit = self._pursuit(list(distinct.values()))
        return Plan(pursuit, self.observations, wishes, numbers, pursue_blindly=self.blind)

    @abstractmethod
    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        """How this planner approaches these goals."""

    def prepare(self, goal: Goal, acting: Acting | None = None, seed: int = 0) -> None:
        """Get ready for one goal: an observation, a `Region`, a `Mixture` or a `Sequence`.

        `acting` says how actions are taken from the policy (by default its mean); what is random follows from `seed`.
        """
        self._plan = self.plan([goal])
        self._goal = goal
        self._pilot = Pilot(self.model, self._plan, acting or Acting(), np.random.default_rng(seed))

    def prepare_region(self, goals: Any) -> None:
        """Get ready to reach any of these states."""
        self.prepare(Region(goals))

    def prepare_mixture(self, goals: Any, weights: Any = None) -> None:
        """Get ready to reach the weighted blend of these states."""
        self.prepare(Mixture(goals, weights))

    def prepare_sequence(self, goals: Any, within: float | None = None) -> None:
        """Get ready to visit these goals in order."""
        self.prepare(Sequence(goals) if within is None else Sequence(goals, within))

    @property
    def prepared(self) -> Plan:
        """The plan of the prepared goal."""
        if self._plan is None:
            raise ConfigError("No goal is prepared; call prepare(goal) before asking where to go.")
        return self._plan

    def target(self, observation: Any) -> Target:
        """Where to head for from this observation: one row of everything."""
        return self.prepared.target(self._embed(observation))

    def act(self, observation: Any) -> Floats:
        """The policy's action towards the target, (act_dim,)."""
        plan = self.prepared
        self._pilot.plan = plan  # it is another one after replanning
        return np.asarray(self._pilot.act(self._row(observation)))[0]

    def predicted_steps(self, observation: Any) -> float:
        """Predicted steps to the goal of the current stage; infinite where no way leads there."""
        plan = self.prepared
        self._distances("it predicts no number of steps")
        return float(plan.steps(self._embed(observation))[0])

    def path(self, observation: Any) -> Route:
        """The whole way from this observation, through all stages still to come."""
        plan, metric = self.prepared, self._distances("it knows no ways")
        state = self._embed(observation)[0].astype(np.float64)
        plan.costs(state[None, :])  # brings the stage up to date
        nodes: list[int] = []
        costs: list[float] = []
        begins = []
        for stage in plan.alternatives[0][plan.stage[0] :]:
            aim = plan.pursuit.aim(np.repeat(state[None, :], len(stage), axis=0), stage, np.full(len(stage), -1))
            best = int(np.argmin(aim.costs))
            if not np.isfinite(aim.costs[best]):
                raise NoPath("No way leads to the goal; switch nodes or edges back on, or choose another goal.")
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
        if pool < total:
            rows = np.sort(np.random.default_rng(seed).choice(total, size=pool, replace=False))
        else:
            rows = np.arange(total)
        return rows, self._embedded(rows)

    def _embedded(self, rows: Integers) -> Floats:
        """Embeddings of these rows of the data."""
        embedded = [
            np.asarray(self.model.embed(self.observations[rows[start : start + 16384]]))
            for start in range(0, len(rows), 16384)
        ]
        return checked_points(np.concatenate(embedded), "embeddings of the data")


class Direct(Planner):
    """Head straight for phi(g)."""

    name = "direct"

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Straight(goals, self.metric)


class RecMid(Planner):
    """Recursive midpoints (HILP's planner): `rounds` halvings, each the mean of the `average` most central states."""

    name = "rec-mid"

    def __init__(
        self,
        model: Agent,
        data: States,
        *,
        pool: int = 50_000,
        rounds: int = 3,
        average: int = 50,
        seed: int = 0,
    ):
        super().__init__(model, data)
        if self.metric is None or not self.metric.spatial:
            raise GeometryError(
                "This model has no embedding that midpoints could be taken in; use a graph planner or direct."
            )
        if rounds < 1 or average < 1:
            raise ConfigError(f"rounds is {rounds} and average is {average}; both must be at least 1.")
        self.states, self.points = self._embedded_pool(pool, seed)
        self.rounds, self.average = rounds, min(average, len(self.points))
        self.screen = affordable_screen(self.points, float(np.var(self.points, axis=0).sum()))

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Midpoints(goals, self.metric, self.points, self.states, self.screen, self.rounds, self.average)


class AsymGraph(Planner):
    """Shortest ways over the directed graph of a coreset (the paper's planner).

    nodes       size of the coreset; by default 2048 (512 for a metric that must be asked for every pair), or as many
                distinct states as there are
    neighbours  cheapest out-edges kept per node
    pool        states drawn from the data, embedded, and offered to the coreset
    coreset     "farthest", "dpp", or "all" where the data is a coreset already
    sigma       the DPP's kernel width; by default half the mean pair distance
    beta        sharpness of a displacement; by default the model's
    hysteresis  stay at a matched node until another is cheaper by more than this fraction (0: re-match freely)
    cache       how many recent goals to remember
    metric      costs of your own instead of the model's (`iel.metrics.Metric`)
    unreachable "error" raises `NoPath` where switched-off nodes leave no way, "direct" heads straight for the goal
    """

    name = "asym-graph"
    both_ways: ClassVar[bool] = False

    def __init__(
        self,
        model: Agent,
        data: States,
        *,
        nodes: int | None = None,
        neighbours: int = 10,
        pool: int = 50_000,
        coreset: str = "farthest",
        sigma: float | None = None,
        beta: float | None = None,
        hysteresis: float = 0.0,
        cache: int = 64,
        metric: Metric | None = None,
        unreachable: str = "error",
        path: str = "auto",
        seed: int = 0,
    ):
        super().__init__(model, data, self._own_metric(model.metric if metric is None else metric, beta))
        if not 0.0 <= hysteresis < 1.0:
            raise ConfigError(f"hysteresis is {hysteresis}; give a fraction from 0 to below 1.")
        if unreachable not in ("error", "direct"):
            raise ConfigError(f"unreachable is '{unreachable}'; choose error or direct.")
        if nodes is not None and nodes > len(self.observations):
            raise GeometryError(
                f"A coreset of {nodes} nodes was asked for but the data has only {len(self.observations)} states; "
                "ask for fewer nodes."
            )
        chosen = self._distances("there is nothing to build a graph of")
        usual = DEFAULT_NODES if isinstance(chosen, Displacement) else NODES_WITHOUT_STRUCTURE
        rows, embedded = self._embedded_pool(max(pool, nodes or 0) if pool >= 1 else pool, seed)
        # Where embeddings are no space, states are spread out by their columns, each measured by its own spread.
        places = embedded if chosen.spatial else embedded / np.maximum(embedded.std(axis=0), 1e-8)
        self.coreset: Coreset = select_coreset(places, nodes, method=coreset, sigma=sigma, default=usual)
        self.states = rows[self.coreset.indices]
        """Rows of the data's observations that are nodes."""
        self.pool_points = places
        self.graph = PlanningGraph(
            embedded[self.coreset.indices],
            chosen,
            neighbours=neighbours,
            both_ways=self.both_ways,
            path=path,
            tree_points=self.coreset.points,
        )
        self.hysteresis = hysteresis
        self.blind = unreachable == "direct"
        self.nodes_off = np.zeros(self.graph.count, dtype=bool)
        self.edges_off: set[tuple[int, int]] = set()
        self._fields: OrderedDict[tuple[bytes, bytes, bytes], Field] = OrderedDict()
        self._capacity = max(0, cache)

    def _own_metric(self, metric: Metric | None, beta: float | None) -> Metric | None:
        if beta is None:
            return metric
        if not isinstance(metric, Displacement):
            raise ConfigError(f"beta is {beta}, but this model's distances have no beta; leave it out.")
        return replace(metric, beta=beta)

    def coverage(self) -> Coverage:
        """How well the coreset covers the states it was chosen from."""
        return coverage(self.coreset.points, self.pool_points, self.graph.neighbours or 1)

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        off = self.nodes_off.copy() if self.nodes_off.any() else None
        if off is not None and off.all():
            raise NoPath("Every node is switched off; switch some back on with switch_on().")
        fields = [self._field(goal, off) for goal in goals]
        return AlongGraph(self.graph, self.states, fields, off, self.hysteresis)

    def _field(self, goal: LatentGoal, off: np.ndarray | None) -> Field:
        """Search for one goal, or recall it. For a mixture, which is no state, its nearest node stands."""
        if goal.key in self._fields:
            self._fields.move_to_end(goal.key)
            return self._fields[goal.key]
        field = self.graph.field(goal, nodes_off=off, edges_off=self.edges_off)
        if goal.observation is None:
            field = replace(field, goal=goal._replace(observation=self.observations[self.states[field.node]]))
        self._fields[goal.key] = field
        if len(self._fields) > self._capacity:
            self._fields.popitem(last=False)
        return field

    def switch_off(
        self, nodes: Iterable[int] = (), edges: Iterable[tuple[int, int]] = (), *, one_way: bool = False
    ) -> None:
        """Take nodes and edges (pairs of nodes, both ways unless `one_way`) out of use and replan the prepared goal."""
        off = [self._node(node) for node in nodes]  # all are checked before any is switched off
        pairs = {(self._node(source), self._node(target)) for source, target in edges}
        self.nodes_off[off] = True
        self.edges_off |= pairs if one_way else pairs | {(target, source) for source, target in pairs}
        self._replan()

    def switch_off_near(self, states: Any, radius: float) -> Integers:
        """Switch off the nodes within a latent distance of any of these observations; returns them."""
        table = observation_table(states, self.width, "obstacle")
        embedded = np.asarray(self.model.embed(table), dtype=np.float64)
        gaps = np.min([np.linalg.norm(self.graph.points - point, axis=1) for point in embedded], axis=0)
        hit = np.flatnonzero(gaps <= radius)
        self.switch_off(hit)
        return hit

    def switch_on(self) -> None:
        """Put every node and edge back into use and replan the prepared goal."""
        self.nodes_off[:] = False
        self.edges_off.clear()
        self._replan()

    def _node(self, node: Any) -> int:
        number = int(node)
        if not 0 <= number < self.graph.count:
            raise ConfigError(f"Node {node} does not exist; the coreset has nodes 0 to {self.graph.count - 1}.")
        return number

    def _replan(self) -> None:
        """Forget searches of the old graph and repeat that of the prepared goal; its stage is kept."""
        self._fields.clear()
        if self._plan is not None:
            stage, self._plan = self._plan.stage, None  # where there is no plan any more, nobody drives by the old one
            self._plan = self.plan([self._goal])
            self._plan.stage = stage

    def _way(self, pursuit: Pursuit, state: Floats, goal: int) -> tuple[list[int], list[float]]:
        """From the state to its node, hop by hop to the goal's node, and on to the goal."""
        assert isinstance(pursuit, AlongGraph)
        matched, cost = pursuit.match(state[None, :], np.array([goal]), np.array([-1]))
        field = pursuit.fields[goal]
        nodes = [int(matched[0])]
        if nodes[0] == field.node:
            return super()._way(pursuit, state, goal)
        while field.next_hop[nodes[-1]] != NO_HOP:
            nodes.append(int(field.next_hop[nodes[-1]]))
        hops = np.array(nodes)
        between = self.graph.edge_costs(hops[:-1], hops[1:], field.goal)
        return nodes, [float(cost[0]), *between.tolist(), field.last_cost]

    def _node_states(self, nodes: Integers) -> Integers:
        return self.states[nodes]


class SymGraph(AsymGraph):
    """The same without directions: the metric's symmetric form (Euclidean for a displacement), edges both ways."""

    name = "sym-graph"
    both_ways = True

    def _own_metric(self, metric: Metric | None, beta: float | None) -> Metric | None:
        if beta not in (None, 0, 0.0):
            raise ConfigError(f"beta is {beta} but sym-graph is the planner with beta = 0; use asym-graph.")
        return None if metric is None else metric.symmetric()
