"""Planners over the graph of a coreset, and all planners by name.

An agent at x is matched to the node v = argmin_i d(x, x_i; g). From there its path begins like that of a node: of v and
the out-edges of v it enters the graph where

    argmin_j d(x, x_j; g) C_vj / d(x_v, x_j; g) + distance(j),     j = v or v -> j        (the fraction is 1 unless
                                                                                            the edge was penalised)
and heads for the next node of that path, or for the first one that is `lookahead` away from j. The goal is joined in
the same way, to the nodes that are nearest to it, and from each of them it may be next. With `join` "nearest", as in
the paper, paths begin at v and end at the goal's own node: then an agent may turn around where nodes on both sides of a
corner take turns at being the nearest, and one wrong node beside the goal misleads it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from iel.distances import Booleans, Displacement, Floats, Integers, LatentGoal, Metric, SupportFunction, checked_costs
from iel.errors import ConfigError, NoPath, unknown_name
from iel.model.atlas import Atlas, ObservedEdges, ObservedTeleports, Source, rows_before
from iel.planning.clusters import GasGraph
from iel.planning.coreset import DEFAULT_NODES, nearest_picks, select_coreset
from iel.planning.goals import Regions, inside, observation_table
from iel.planning.graph import NO_HOP, Field, PlanningGraph, recall, without
from iel.planning.greedy import Greedy
from iel.planning.midpoints import RecMid
from iel.planning.observed import assign, passages, positions, window_for
from iel.planning.planner import Aim, Direct, Planner, PlanningModel, Pursuit
from iel.planning.rewards import RewardModel, reward_field
from iel.planning.teleports import find_teleports

FEW_NODES = 512
"""Default size of the coreset for metrics that must be asked for every pair."""
NODES_FOR_WAYPOINTS = 8192
"""Default where the agent heads for places further on than the next node: near nodes have few wrong edges. Not where
witnesses are asked: of near nodes few pairs were passed by the same trajectory."""

REMEMBERED = 64
"""Recent goals whose searches are remembered."""
SAMPLED = 1024
"""Pairs of the data that tell what a number of steps costs."""


class AlongGraph(Pursuit):
    """Next hops of prepared fields, re-matched at every call."""

    def __init__(
        self,
        graph: PlanningGraph,
        states: Integers,
        fields: list[Field],
        nodes_off: np.ndarray | None,
        lookahead: float = 0.0,
        node_positions: Floats | None = None,
        entries: tuple[Integers, Floats] | None = None,
    ):
        """`states` are the rows of the planner's `targets` that are the graph's nodes, and then its teleports;
        `nodes_off` (m, N) are the nodes not used per goal; `entries` the ends of out-edges at which paths may begin."""
        super().__init__([field.goal for field in fields], graph.metric)
        self.graph, self.hop_states, self.fields = graph, states, fields
        self.matcher = graph.matcher(self.goals, nodes_off)
        self.next_hops = np.stack([field.beyond(lookahead, node_positions) for field in fields])
        self.hop_points = np.concatenate([graph.points, graph.teleport_points])
        self.distances = np.stack([field.distance for field in fields])
        ends = [(field.next_hop == NO_HOP) & np.isfinite(field.distance) & (field.node >= 0) for field in fields]
        self.final = np.stack(ends)
        """Nodes from which the goal is next, (m, N)."""
        self.last_costs = np.array([field.last_cost for field in fields])
        self.entries, self.lookahead = entries, lookahead

    @cached_property
    def node_steps(self) -> Floats:
        """Predicted steps from every node to every goal, (m, N)."""
        last = self.graph.metric.steps(self.last_costs)
        return np.stack([field.steps(self.graph.metric) for field in self.fields]) + last[:, None]

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The next hop from the matched node, or the goal from the goal's own node; or that node, to collect there."""
        matched, costs = self.matcher.match(states, goals, memory)
        nodes, costs = self._enter(states, goals, matched, costs)
        slot = goals * self.graph.count + nodes
        hops = self.next_hops.take(slot)
        if self.lookahead == 0.0:  # the next node is the one at which the path begins, unless that is the matched one
            hops = np.where(nodes != matched, nodes, hops)
        hops = np.where((hops == NO_HOP) & self.collects[goals], nodes, hops)  # a reward is best collected right here
        targets = self.hop_points.take(hops, axis=0, mode="wrap")
        rows = np.where(hops == NO_HOP, -1, self.hop_states.take(hops, mode="wrap"))
        totals = costs + self.distances.take(slot) + self.last_costs[goals]
        last = np.flatnonzero(hops == NO_HOP)
        targets[last] = self.points[goals[last]]
        beside = np.flatnonzero(self.final.take(slot) & np.isfinite(totals))
        if len(beside):  # there is no detour over a node
            totals[beside] = self.direct_costs(states[beside], goals[beside])
        return Aim(targets, rows, totals, nodes, matched)

    def _enter(self, states: Floats, goals: Integers, matched: Integers, costs: Floats) -> tuple[Integers, Floats]:
        """The nodes at which the paths of states begin, given the nodes they were matched to, and the costs to them."""
        if self.entries is None:
            return matched, costs
        ends, penalties = self.entries
        slot = (goals % len(ends), matched)  # one table for all goals, or one per goal
        listed, penalty = ends[slot], penalties[slot]
        rows = np.repeat(np.arange(len(states)), listed.shape[1])
        table = self.matcher.costs(states, goals, rows, listed.ravel()).reshape(listed.shape)
        table = np.column_stack([costs, table])
        listed = np.column_stack([matched, listed])
        totals = table * np.column_stack([np.ones(len(states)), penalty]) + self.distances[goals[:, None], listed]
        totals[self.collects[goals], 1:] = np.inf  # where a reward is collected, its distance is not what matters
        best = (np.arange(len(states)), totals.argmin(axis=1))
        return listed[best], table[best]

    def steps(self, states: Floats, goals: Integers, aim: Aim) -> Floats:
        """Steps to the node where the path begins, along it, and from its end to the goal; straight from beside it."""
        there = self.graph.metric.steps(aim.costs)
        onward = np.flatnonzero(np.isfinite(aim.costs) & ~self.final[goals, aim.nodes])
        first = self.matcher.costs(states, goals, onward, aim.nodes[onward])
        there[onward] = self.graph.metric.steps(first) + self.node_steps[goals[onward], aim.nodes[onward]]
        return there

    def route(self, state: Floats, goal: int) -> tuple[list[int], list[float]]:
        """From the state to its node, hop by hop to the last node, and on to the goal; or to a portal, with what is
        expected of it as the last cost."""
        goals = np.array([goal])
        entered, cost = self._enter(state[None, :], goals, *self.matcher.match(state[None, :], goals, np.array([-1])))
        field = self.fields[goal]
        nodes = [int(entered[0])]
        if self.final[goal, nodes[0]]:
            return super().route(state, goal)
        while NO_HOP != field.next_hop[nodes[-1]] < self.graph.count:
            nodes.append(int(field.next_hop[nodes[-1]]))
        hops = np.array(nodes)
        between = self.graph.costs.pair_costs(hops[:-1], hops[1:], field.goal)
        if self.final[goal, hops[-1]]:
            rest = float(self.direct_costs(self.graph.points[hops[-1:]], goals)[0])
        else:
            rest = float(field.distance[hops[-1]]) + field.last_cost
        return nodes, [float(cost[0]), *between.tolist(), rest]


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """What can be set of `asym-graph` and `sym-graph`."""

    nodes: int | None = None
    """Size of the coreset; by default 2048 (8192 where the policy is steered by places and no witnesses are asked, 512
    for a metric that must be asked for every pair), or as many as there are distinct states."""
    neighbours: int = 10
    """Cheapest out-edges kept per node."""
    join: str | None = None
    """How agents and goals are joined to the graph: like nodes of it, at the "best" of several nodes, which is the
    default unless every cost is a network's answer, or at their "nearest" node alone, as in the paper."""
    pool: int = 50_000
    """States drawn from the data, embedded, and offered to the coreset."""
    coreset: str | None = None
    """How nodes are chosen: "farthest" (the default), "dpp", or "all", which is the default for an atlas of nodes."""
    sigma: float | None = None
    """The DPP's kernel width; by default half the mean pair distance."""
    beta: float | None = None
    """Sharpness of a displacement; by default the model's."""
    lookahead: float | None = None
    """Head for the first node on the way that is this far from the matched one, by place where the policy is steered by
    it, else by cost; by default as far as its waypoints were in training, or for a policy that is sent to states what
    10 steps of the data cost, else 0: the next node, as always where nodes or edges are switched off or avoided."""
    unobserved_cost: float | None = None
    """An edge that no trajectory was seen to take costs so many times as much (`iel.planning.observed`); inf takes it
    out, 1 asks nobody, which is the default but for exports that took them along and for data whose places jump
    (teleports; 1000)."""
    teleports: bool = True
    """Whether places that throw the agent somewhere else, as the data shows, may be entered, at the expected cost of
    where they lead (`iel.planning.teleports`); needs a model that is steered by places."""
    unreachable: str = "error"
    """Where switched-off nodes leave no way, "error" raises `NoPath` and "direct" heads straight for the goal."""
    path: str = "auto"
    """How the cheapest edges of a displacement are found: "pruned", "dense", or whatever is cheaper."""
    seed: int = 0
    """Of the states that are drawn."""

    def __post_init__(self) -> None:
        if self.lookahead is not None and not 0.0 <= self.lookahead < np.inf:
            raise ConfigError(f"lookahead is {self.lookahead}; give a distance of 0 or more.")
        if self.join not in (None, "best", "nearest"):
            raise ConfigError(f"join is '{self.join}'; choose best or nearest.")
        if self.unreachable not in ("error", "direct"):
            raise ConfigError(f"unreachable is '{self.unreachable}'; choose error or direct.")


class AsymGraph(Planner):
    """Shortest ways over the directed graph of a coreset (the paper's planner).

    `settings` are those of `GraphSettings`; `metric` are costs of your own instead of the model's
    (`iel.distances.Metric`).
    """

    name = "asym-graph"
    collects = True
    symmetric: ClassVar[bool] = False

    def __init__(self, model: PlanningModel, data: Source, *, metric: Metric | None = None, **settings: Any):
        self.settings = chosen = GraphSettings(**settings)
        super().__init__(model, data, self._own_metric(model.metric if metric is None else metric, chosen.beta))
        costs = self._distances("there is nothing to build a graph of")
        own = metric is None and chosen.beta is None
        self.lookahead = self._ahead(costs, own) if chosen.lookahead is None else chosen.lookahead
        unobserved_cost = self.atlas.penalty_for(chosen.unobserved_cost, model.target_spec.columns)
        self._choose_nodes(costs, unobserved_cost)
        self.graph = PlanningGraph(
            self.pool_embeddings[self.coreset.indices],
            costs,
            neighbours=chosen.neighbours,
            symmetric=self.symmetric,
            path=chosen.path,
            tree_points=self.coreset.points,
            unobserved_cost=unobserved_cost,
        )
        # What an atlas says of its nodes holds for a graph of all of them, in their order.
        whole = self.coreset.method == "all" and self.graph.count == len(self.atlas)
        known = self.atlas if whole else Atlas(self.observations)
        if unobserved_cost > 1.0:
            self.graph.observed_edges = known.edges or self._observed_edges()
        self.node_positions = model.target_spec.positions(self.observations[self.states])
        self.hop_states = self.states
        if chosen.teleports:
            self._enter(known.teleports)
        self.allow_direct = chosen.unreachable == "direct"
        self.nodes_off = np.zeros(self.graph.count, dtype=bool)
        self.edges_off: set[tuple[int, int]] = set()
        self._fields: OrderedDict[tuple[bytes, ...], Field] = OrderedDict()

    def _choose_nodes(self, metric: Metric, unobserved_cost: float) -> None:
        """Draw states from the data, embed them, and choose the coreset."""
        chosen = self.settings
        near = NODES_FOR_WAYPOINTS if self.model.target_spec.reach and unobserved_cost == 1.0 else DEFAULT_NODES
        usual = near if isinstance(metric, Displacement | SupportFunction) else FEW_NODES
        pool = max(chosen.pool, chosen.nodes or 0) if chosen.pool >= 1 else chosen.pool
        self.pool_states, self.pool_embeddings = self._embedded_pool(pool, chosen.seed)
        self.node_scale: Floats = np.ones(1)
        """What columns of embeddings are divided by to tell how far apart nodes are."""
        if not metric.spatial:
            self.node_scale = self._column_scale(metric, self.pool_embeddings, chosen.nodes or usual)
        self.pool_points = self.pool_embeddings / self.node_scale
        method = chosen.coreset or ("all" if self.atlas.chosen else "farthest")
        self.coreset = select_coreset(self.pool_points, chosen.nodes, method=method, sigma=chosen.sigma, default=usual)
        self.states = self.pool_states[self.coreset.indices]

    @classmethod
    def setting_names(cls) -> list[str]:
        return [field.name for field in fields(GraphSettings)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.graph.count} nodes of {len(self.observations)} states)"

    def _column_scale(self, metric: Metric, embedded: Floats, nodes: int) -> Floats:
        """Where embeddings are no space, states are spread out by their columns, each measured by its own spread.

        Where they are the observations themselves, columns that are no positions count nothing (their scale is
        infinite): farthest points among all columns of a legged robot are rare poses, of which its values know least.
        """
        if self.atlas.node_scale is not None:
            return self.atlas.node_scale
        scale = np.maximum(embedded.std(axis=0), 1e-8)
        if metric.expensive:
            columns = list(self.model.target_spec.columns or self.atlas.position_columns)
            if columns and len(np.unique(embedded[:, columns], axis=0)) >= nodes:
                scale[np.setdiff1d(np.arange(len(scale)), columns)] = np.inf
        return scale

    def _ahead(self, metric: Metric, own: bool) -> float:
        """How far ahead to head: as far as waypoints were in training; for a policy that is sent to states, what some
        steps of the data cost, as an export says for the model's `own` metric."""
        spec, exported = self.model.target_spec, self.atlas.lookahead
        if not spec.steps:
            return spec.reach
        if exported is not None:
            return exported[self.symmetric] if own else 0.0
        return self._cost_of_steps(spec.steps, metric)

    def _cost_of_steps(self, steps: int, metric: Metric) -> float:
        """The median cost of `steps` steps of the data's trajectories; 0 where none is that long, or there are none."""
        data = self.atlas.trajectories
        rows = np.zeros(0, int) if data is None else rows_before(data.offsets, steps, SAMPLED)
        if not len(rows):
            return 0.0
        later = self.observations[rows + steps]
        goals = [LatentGoal(*goal) for goal in zip(*self.model.goals(later), later, strict=True)]
        costs = metric.row_costs(self._embedded(rows), self._embedded(rows + steps), goals)
        return float(np.median(checked_costs(costs, (len(rows),))))

    def _own_metric(self, metric: Metric | None, beta: float | None) -> Metric | None:
        if beta is None:
            return metric
        if not isinstance(metric, Displacement):
            raise ConfigError(f"beta is {beta}, but this model's distances have no beta; leave it out.")
        return replace(metric, beta=beta)

    def _observed_edges(self) -> ObservedEdges:
        """Which edges all trajectories of the data took."""
        graph, offsets, columns = self.graph, self.atlas.walked(), self.model.target_spec.columns
        goal = LatentGoal(graph.points[0], np.eye(graph.dimension)[0], self.observations[self.states[0]])
        window = window_for(graph.predicted(graph.geometric(goal).cost))
        if columns:
            states = positions(columns, self.observations)
            points: Floats = states[self.states].astype(np.float64)
        else:
            states = np.asarray(self._embedded(np.arange(len(self.observations))) / self.node_scale, np.float32)
            points = self.coreset.points
        return passages(assign(states, points), offsets, graph.count, window)

    def _enter(self, teleports: ObservedTeleports | None) -> None:
        """Let the graph use these teleports, or those that the data's jumps show to a policy that is sent to positions;
        their aims are rows beyond those of the data."""
        data, spec = self.atlas.resident, self.model.target_spec
        if not teleports and data is not None and self.node_positions is not None:
            teleports = find_teleports(data, list(spec.columns), np.array(spec.scale), self.node_positions)
        if teleports is None:
            return
        self.graph.teleports = teleports
        self.graph.teleport_points = np.asarray(self.model.embed(teleports.aims), np.float64)
        self.hop_states = np.append(self.states, len(self.observations) + np.arange(len(teleports)))
        self.targets = np.concatenate([self.observations, teleports.aims.astype(self.observations.dtype)])

    def node_atlas(self) -> Atlas:
        """Its nodes, and what the data says about them: enough for the same graph without the data."""
        graph, steps = self.graph, self.model.target_spec.steps
        symmetric = self._cost_of_steps(steps, graph.metric.symmetric()) if steps else 0.0
        return replace(
            self._nodes(self.states, graph.points),
            edges=graph.observed_edges,
            penalty=None if graph.observed_edges is None else graph.unobserved_cost,
            teleports=graph.teleports,
            lookahead=(self.lookahead, symmetric) if steps else None,
            node_scale=None if graph.metric.spatial else self.node_scale,
        )

    def fork(self) -> Self:
        fork = super().fork()
        fork.nodes_off, fork.edges_off, fork._fields = self.nodes_off.copy(), set(self.edges_off), OrderedDict()
        return fork

    def coverage(self) -> dict[str, float]:
        """Mean distance of a node to its k nearest others, its standard deviation over that mean, and the largest
        distance of a state of the pool to its nearest node."""
        near = np.arange(2, self.graph.neighbours + 2)
        tree = cKDTree(self.coreset.points)
        spacing, gaps = tree.query(self.coreset.points, near)[0].mean(axis=1), tree.query(self.pool_points)[0]
        return {"distance": spacing.mean(), "dispersion": spacing.std() / spacing.mean(), "largest_gap": gaps.max()}

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        off = np.stack([self.nodes_off if goal.off is None else self.nodes_off | goal.off for goal in goals])
        if off.all(axis=1).any():
            raise NoPath("Every node is switched off or avoided; switch some back on with switch_on(), or avoid less.")
        fields = [self._field(goal, mask if mask.any() else None) for goal, mask in zip(goals, off, strict=True)]
        # A straight line to a node further on might cross what is to be avoided; the edge to the next one does not.
        closed = off.any() or bool(self.edges_off)
        lookahead = 0.0 if closed else self.lookahead
        entries = self.graph.entries([field.goal for field in fields]) if self._joins > 1 and not closed else None
        return AlongGraph(
            self.graph,
            self.hop_states,
            fields,
            off if off.any() else None,
            lookahead,
            self.node_positions,
            entries,
        )

    @cached_property
    def reward_model(self) -> RewardModel:
        cells = nearest_picks(self.pool_points, self.coreset.indices)[1]
        pool = self.pool_states, self.pool_embeddings
        return RewardModel(self.model, self.observations, *pool, self.graph.points, cells)

    def avoided(self, node_positions: Regions) -> Booleans:
        """Which nodes lie in places to avoid."""
        return inside(node_positions, self.observations[self.states], self.column_std, self.model.signals)

    @property
    def _joins(self) -> int:
        """At how many nodes agents and goals are joined to the graph, where nothing is switched off."""
        best = not self.graph.metric.expensive if self.settings.join is None else self.settings.join == "best"
        return self.graph.neighbours if best else 1

    def _field(self, goal: LatentGoal, off: Booleans | None) -> Field:
        """Search for one goal, or recall it. For a mixture, which is no state, its nearest node stands."""

        def searched() -> Field:
            if goal.rewards is not None:
                edges = without(self.graph.edges(goal), self.graph.count, off, self.edges_off)
                return reward_field(self.graph.points, edges, self.graph.metric, goal, off)
            joins = 1 if self.edges_off or off is not None else self._joins
            field = self.graph.field(goal, nodes_off=off, edges_off=self.edges_off, joins=joins)
            if goal.observation is not None:
                return field
            return replace(field, goal=goal._replace(observation=self.observations[self.states[field.node]]))

        return recall(self._fields, REMEMBERED, goal.key, searched)

    def switch_off(
        self, nodes: Iterable[int] = (), edges: Iterable[tuple[int, int]] = (), *, one_way: bool = False
    ) -> None:
        """Take nodes and edges (pairs of nodes, both ways unless `one_way`) out of use and replan the prepared goal."""
        off = [self._node(node) for node in nodes]  # all are checked before any is switched off
        pairs = {(self._node(source), self._node(target)) for source, target in edges}
        self.nodes_off[off] = True
        self.edges_off |= pairs if one_way else pairs | {(target, source) for source, target in pairs}
        self._replan()

    def switch_off_near(self, states: ArrayLike, radius: float) -> Integers:
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

    def _replan(self) -> None:
        """Forget searches of the old graph and repeat that of the prepared goal; its stage is kept."""
        self._fields.clear()
        if (before := self._controller) is not None:
            self._controller = None  # where there is no plan any more, nobody drives by the old one
            self._controller = before.follow(self.plan(self._goals))

    def _node(self, node: int) -> int:
        number = int(node)
        if not 0 <= number < self.graph.count:
            raise ConfigError(f"Node {node} does not exist; the coreset has nodes 0 to {self.graph.count - 1}.")
        return number


class SymGraph(AsymGraph):
    """The same without directions: the metric's symmetric form (Euclidean for a displacement), edges both ways."""

    name = "sym-graph"
    symmetric = True

    def _own_metric(self, metric: Metric | None, beta: float | None) -> Metric | None:
        if beta not in (None, 0, 0.0):
            raise ConfigError(f"beta is {beta} but sym-graph is the planner with beta = 0; use asym-graph.")
        return None if metric is None else metric.symmetric()


# ---------------------------------------------------------------- planners by name


PLANNERS: dict[str, type[Planner]] = {
    planner.name: planner for planner in (Direct, RecMid, Greedy, SymGraph, AsymGraph, GasGraph)
}


def planners_for(model: PlanningModel) -> tuple[str, ...]:
    """Names of the planners that this model can be used with."""
    metric = model.metric
    if metric is None:
        return ("direct",)
    missing = set() if metric.spatial else {"rec-mid", "gas-graph", "greedy"}
    if not metric.for_every_goal or metric.discount is None:
        missing.add("greedy")
    if not metric.symmetric().for_every_goal:
        missing.add("gas-graph")  # clusters are the same for all goals
    return tuple(name for name in PLANNERS if name not in missing)


def usual_planners(model: PlanningModel, on_request: Sequence[str] = (Greedy.name,)) -> tuple[str, ...]:
    """The same without those that are only used on request, and for other methods without GAS's own graph."""
    left_out = {*on_request, *(() if model.algo == "gas" else (GasGraph.name,))}
    return tuple(name for name in planners_for(model) if name not in left_out)


def over_coreset(name: str) -> bool:
    """Whether a planner's graph is that of a coreset, with so many nodes and neighbours."""
    return issubclass(PLANNERS.get(name, Direct), AsymGraph)


def make_planner(name: str, model: PlanningModel, data: Source, **settings: Any) -> Planner:
    """A planner by name: direct, rec-mid, greedy, sym-graph, asym-graph or gas-graph."""
    if name not in PLANNERS:
        raise unknown_name("planner", name, PLANNERS)
    try:
        return PLANNERS[name](model, data, **settings)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise ConfigError(f"The planner {name} has no such setting: {error}.") from error
        raise
