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

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from iel.errors import ConfigError, GeometryError, NoPath
from iel.metrics import Booleans, Displacement, Floats, Integers, LatentGoal, Metric, checked_points
from iel.model.support import Watch
from iel.planning.coreset import DEFAULT_NODES, Coreset, Coverage, coverage, nearest_picks, select_coreset
from iel.planning.field import NO_HOP, Field
from iel.planning.goals import (
    Goal,
    Mixture,
    Region,
    Reward,
    Sequence,
    Weighted,
    inside,
    latent_wishes,
    observation_table,
)
from iel.planning.graph import PlanningGraph, without
from iel.planning.plan import Acting, Agent, Pilot, Plan, Pursuit, Route, States, Target
from iel.planning.pursuits import AlongGraph, Straight
from iel.planning.rewards import READOUT_POOL, Landscape, reward_field
from iel.planning.witness import Witnesses, factor_for, places_of, walked, window_for

FEW_NODES = 512
"""Default size of the coreset for metrics that must be asked for every pair."""
NODES_FOR_PLACES = 8192
"""Default where the agent heads for places further on than the next node: near nodes have few wrong edges. Not where
witnesses are asked: of near nodes few pairs were passed by the same trajectory."""


class Planner(ABC):
    """What all planners share: goals in, targets out; a planner differs in the pursuit it builds."""

    name: ClassVar[str]
    collects: ClassVar[bool] = False
    """Whether rewards can be followed."""

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
        self._watch = Watch(model)
        self._pilot: Pilot

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
        self._watch.check(known, "goal")
        distinct: dict[tuple[bytes, ...], LatentGoal] = {}
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

    def twin(self) -> Self:
        """Another planner over the same nodes, with a goal (and, on a graph, obstacles) of its own.

        It takes no time. Both remember edges together, so they are for one thread.
        """
        twin = copy.copy(self)
        twin._plan, twin._goal = None, None
        return twin

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
        """The policy's action towards the target, (act_dim,).

        An observation far outside of the training data is reported when the way leads there, not at every step.
        """
        plan = self.prepared
        self._pilot.plan = plan  # it is another one after replanning
        row = self._row(observation)
        self._watch.step(row)
        return np.asarray(self._pilot.act(row))[0]

    def predicted_steps(self, observation: Any) -> float:
        """Predicted steps to the goal of the current stage; infinite where no way leads there."""
        plan = self.prepared
        self._distances("it predicts no number of steps")
        return float(plan.steps(self._embed(observation))[0])

    def path(self, observation: Any) -> Route:
        """The whole way from this observation, through all stages still to come."""
        plan, metric = self.prepared, self._distances("it knows no ways")
        row = self._row(observation)
        self._watch.check(row, "start")
        state = np.asarray(self.model.embed(row))[0].astype(np.float64)
        plan.costs(state[None, :])  # brings the stage up to date
        nodes: list[int] = []
        costs: list[float] = []
        begins = []
        for stage in plan.alternatives[0][plan.stage[0] :]:
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
    collects = True

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return Straight(goals, self.metric)


class AsymGraph(Planner):
    """Shortest ways over the directed graph of a coreset (the paper's planner).

    nodes       size of the coreset; by default 2048 (8192 where the policy is steered by places and no witnesses are
                asked, 512 for a metric that must be asked for every pair), or as many as there are distinct states
    neighbours  cheapest out-edges kept per node
    pool        states drawn from the data, embedded, and offered to the coreset
    coreset     "farthest", "dpp", or "all" where the data is a coreset already
    sigma       the DPP's kernel width; by default half the mean pair distance
    beta        sharpness of a displacement; by default the model's
    hysteresis  stay at a matched node until another is cheaper by more than this fraction (0: re-match freely)
    lookahead   head for the first node on the way that is this far from the matched one, by place where the policy is
                steered by it, else by cost; by default as far as its waypoints were in training, else 0: the next node,
                as always where nodes or edges are switched off or avoided
    cache       how many recent goals to remember
    metric      costs of your own instead of the model's (`iel.metrics.Metric`)
    witnesses   an edge that no trajectory was seen to take costs so many times as much (`iel.planning.witness`); inf
                takes it out, 1 asks nobody, which is the default but for exports that took them along and for
                data whose places jump (teleports; 1000)
    unreachable "error" raises `NoPath` where switched-off nodes leave no way, "direct" heads straight for the goal
    """

    name = "asym-graph"
    collects = True
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
        lookahead: float | None = None,
        cache: int = 64,
        metric: Metric | None = None,
        witnesses: float | None = None,
        unreachable: str = "error",
        path: str = "auto",
        seed: int = 0,
    ):
        super().__init__(model, data, self._own_metric(model.metric if metric is None else metric, beta))
        steering: Any = getattr(model, "steering", None)
        reach = float(getattr(steering, "reach", 0.0))
        self.hysteresis, self.lookahead = hysteresis, reach if lookahead is None else lookahead
        self._check_settings(nodes, unreachable)
        chosen = self._distances("there is nothing to build a graph of")
        unseen = factor_for(witnesses, data, getattr(steering, "columns", ()))
        near = NODES_FOR_PLACES if reach and unseen == 1.0 else DEFAULT_NODES
        usual = near if isinstance(chosen, Displacement) else FEW_NODES
        rows, embedded = self._embedded_pool(max(pool, nodes or 0) if pool >= 1 else pool, seed)
        # Where embeddings are no space, states are spread out by their columns, each measured by its own spread.
        scale = 1.0 if chosen.spatial else np.maximum(embedded.std(axis=0), 1e-8)
        places = embedded / scale
        self.coreset: Coreset = select_coreset(places, nodes, method=coreset, sigma=sigma, default=usual)
        self.states = rows[self.coreset.indices]
        """Rows of the data's observations that are nodes."""
        self.pool_states, self.pool_points = rows, places
        self.pool_embeddings = embedded
        self.graph = PlanningGraph(
            embedded[self.coreset.indices],
            chosen,
            neighbours=neighbours,
            both_ways=self.both_ways,
            path=path,
            tree_points=self.coreset.points,
            unseen=unseen,
        )
        if self.graph.unseen > 1.0:
            self.graph.witnesses = self._witnesses(data, scale)
        self.places = steering.places(self.observations[self.states]) if hasattr(steering, "places") else None
        self.blind = unreachable == "direct"
        self.nodes_off = np.zeros(self.graph.count, dtype=bool)
        self.edges_off: set[tuple[int, int]] = set()
        self._fields: OrderedDict[tuple[bytes, ...], Field] = OrderedDict()
        self._capacity = max(0, cache)

    def _check_settings(self, nodes: int | None, unreachable: str) -> None:
        if not 0.0 <= self.hysteresis < 1.0:
            raise ConfigError(f"hysteresis is {self.hysteresis}; give a fraction from 0 to below 1.")
        if not 0.0 <= self.lookahead < np.inf:
            raise ConfigError(f"lookahead is {self.lookahead}; give a distance of 0 or more.")
        if unreachable not in ("error", "direct"):
            raise ConfigError(f"unreachable is '{unreachable}'; choose error or direct.")
        if nodes is not None and nodes > len(self.observations):
            raise GeometryError(
                f"A coreset of {nodes} nodes was asked for but the data has only {len(self.observations)} states; "
                "ask for fewer nodes."
            )

    def _own_metric(self, metric: Metric | None, beta: float | None) -> Metric | None:
        if beta is None:
            return metric
        if not isinstance(metric, Displacement):
            raise ConfigError(f"beta is {beta}, but this model's distances have no beta; leave it out.")
        return replace(metric, beta=beta)

    def _witnesses(self, data: States, scale: Any) -> Witnesses:
        """Who was seen where, by all trajectories of the data, or as it was exported."""
        graph, exported = self.graph, getattr(data, "passages", None)
        if exported is not None and graph.count == len(self.observations):
            return Witnesses(graph.count, **exported)
        offsets = walked(data)
        goal = LatentGoal(graph.points[0], np.eye(graph.dimension)[0], self.observations[self.states[0]])
        window = window_for(graph.metric.steps(graph.geometric(goal).cost))
        states = places_of(self.model, self.observations)
        if states is not None:
            return Witnesses.of(states, offsets, states[self.states].astype(np.float64), window)
        states = np.asarray(self._embedded(np.arange(len(self.observations))) / scale, np.float32)
        return Witnesses.of(states, offsets, self.coreset.points, window)

    def twin(self) -> Self:
        twin = super().twin()
        twin.nodes_off, twin.edges_off, twin._fields = self.nodes_off.copy(), set(self.edges_off), OrderedDict()
        return twin

    def coverage(self) -> Coverage:
        """How well the coreset covers the states it was chosen from."""
        return coverage(self.coreset.points, self.pool_points, self.graph.neighbours or 1)

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        off = np.stack([self.nodes_off if goal.off is None else self.nodes_off | goal.off for goal in goals])
        if off.all(axis=1).any():
            raise NoPath("Every node is switched off or avoided; switch some back on with switch_on(), or avoid less.")
        fields = [self._field(goal, mask if mask.any() else None) for goal, mask in zip(goals, off, strict=True)]
        # A straight line to a node further on might cross what is to be avoided; the edge to the next one does not.
        closed = off.any() or bool(self.edges_off)
        ways = self.hysteresis, 0.0 if closed else self.lookahead, self.places
        return AlongGraph(self.graph, self.states, fields, off if off.any() else None, *ways)

    @cached_property
    def landscape(self) -> Landscape:
        cells = nearest_picks(self.pool_points, self.coreset.indices)[1]
        pool = self.pool_states, self.pool_embeddings
        return Landscape(self.model, self.observations, *pool, self.graph.points, cells)

    def avoided(self, places: Any) -> Booleans:
        """Which nodes lie in places to avoid."""
        return inside(places, self.observations[self.states], self.spread)

    def _field(self, goal: LatentGoal, off: np.ndarray | None) -> Field:
        """Search for one goal, or recall it. For a mixture, which is no state, its nearest node stands."""
        if goal.key in self._fields:
            self._fields.move_to_end(goal.key)
            return self._fields[goal.key]
        if goal.rewards is not None:
            edges = without(self.graph.edges(goal), self.graph.count, off, self.edges_off)
            field = reward_field(self.graph.points, edges, self.graph.metric, goal, off)
        else:
            field = self.graph.field(goal, nodes_off=off, edges_off=self.edges_off)
        if goal.observation is None and goal.rewards is None:
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
