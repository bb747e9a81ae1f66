"""The planner of GAS (graph-assisted stitching): nodes are clusters of efficient states, edges are short paths.

H is the reach, in the metric's own unit; distances are those of its symmetric form (Euclidean for a displacement).

    efficient    state i of a trajectory is used if H steps lead in the direction in which it first gets H away:
                 cos(p_{i+H} - p_i, p_w - p_i) >= threshold,  w = first later state at least H from i (or the last)
    clusters     one pass over these states: join the nearest centre within H / 2, or open a new one; a node is the
                 mean of its members, and the member nearest to that mean stands for it as a state
    edges        in both directions between nodes at most H apart, and the spanning tree's where that leaves gaps
    goal         one more node, joined to every node closer than max(H, 1.2 times the closest)

At every step: among the nodes within H take the one whose path to the goal is shortest in all; head for the last node
of that path within H; from a node next to the goal on head for the goal itself, for the rest of the episode.
"""

from functools import cached_property

import numpy as np

from iel.distances import (
    Booleans,
    Displacement,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    checked_costs,
    floored_root,
)
from iel.errors import ConfigError, GeometryError
from iel.model.atlas import Atlas, Source
from iel.planning.coreset import euclidean_tree
from iel.planning.graph import NO_HOP, Edges, Field, search
from iel.planning.planner import Aim, Planner, PlanningModel, Pursuit

BLOCK = 1024
"""States that are clustered together."""
MOST_NODES = 20_000
USUAL_REACH = 8.0
REACHING = -2
"""In place of a node: the goal itself is pursued for the rest of the episode."""


# ---------------------------------------------------------------- nodes


def first_beyond(points: Floats, final: Integers, reach: float) -> Integers:
    """For every row the first later row of its trajectory at least `reach` away; the trajectory's last if none is."""
    found = final.copy()
    open_ = np.flatnonzero(np.arange(len(points)) < final)
    ahead = 0
    while len(open_):
        ahead += 1
        far = np.linalg.norm(points[open_ + ahead] - points[open_], axis=1) >= reach
        found[open_[far]] = open_[far] + ahead
        open_ = open_[~far & (open_ + ahead < final[open_])]
    return found


def efficient(points: Floats, final: Integers, reach: float, threshold: float) -> Booleans:
    """Which states of trajectories go on efficiently; the last states of a trajectory always do."""
    steps = max(1, round(reach))
    retained = np.ones(len(points), dtype=bool)
    rows = np.flatnonzero(np.arange(len(points)) + steps <= final)
    by_time = points[rows + steps] - points[rows]
    by_distance = points[first_beyond(points, final, reach)[rows]] - points[rows]
    sizes = np.linalg.norm(by_time, axis=1) * np.linalg.norm(by_distance, axis=1)
    cosines = (by_time * by_distance).sum(axis=1) / np.maximum(sizes, 1e-12)
    retained[rows] = cosines >= threshold - 1e-12
    return retained


def clusters(metric: Metric, points: Floats, radius: float) -> Integers:
    """The cluster of every state, numbered in the order they were opened."""
    centres = points[:1]
    owner = np.zeros(len(points), dtype=np.int64)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        known = distances(metric, block, centres)
        nearest, least = known.argmin(axis=1), known.min(axis=1)
        fresh: list[int] = []
        for row in np.flatnonzero(least > radius):
            if not fresh or distances(metric, block[[row]], block[fresh]).min() > radius:
                fresh.append(int(row))
        if fresh:
            later = distances(metric, block, block[fresh])
            later[np.arange(len(block))[:, None] < np.array(fresh)] = np.inf  # not opened yet
            better = later.min(axis=1) < least
            nearest[better] = len(centres) + later.argmin(axis=1)[better]
            nearest[fresh] = len(centres) + np.arange(len(fresh))
            centres = np.concatenate([centres, block[fresh]])
            if len(centres) > MOST_NODES:
                raise GeometryError(
                    f"A radius of {radius:g} makes more than {MOST_NODES} clusters; give a larger reach."
                )
        owner[start : start + BLOCK] = nearest
    return owner


def distances(metric: Metric, sources: Floats, targets: Floats) -> Floats:
    """The metric between all sources and targets; lengths come from a matrix product, which is enough to compare."""
    if isinstance(metric, Displacement):
        squares = (sources**2).sum(1)[:, None] + (targets**2).sum(1) - 2.0 * sources @ targets.T
        return floored_root(squares)
    anywhere = LatentGoal(targets[0], np.eye(1, targets.shape[1])[0])
    return checked_costs(metric.costs(sources, targets, anywhere), (len(sources), len(targets)))


def means(points: Floats, owner: Integers) -> tuple[Floats, Integers]:
    """The mean of every cluster, and the member nearest to it."""
    sizes = np.bincount(owner)
    nodes = np.stack([np.bincount(owner, column) / sizes for column in points.T], axis=1)
    gaps = np.linalg.norm(points - nodes[owner], axis=1)
    order = np.lexsort((gaps, owner))
    return nodes, order[np.searchsorted(owner[order], np.arange(len(sizes)))]


# ---------------------------------------------------------------- the graph


class ClusterGraph:
    """Nodes within reach of each other, joined in both directions."""

    def __init__(self, points: Floats, metric: Metric, reach: float):
        self.points, self.metric, self.reach, self.count = points, metric, reach, len(points)
        sources, targets, costs = [], [], []
        for start in range(0, len(points), BLOCK):
            table = distances(metric, points[start : start + BLOCK], points)
            table[np.arange(len(table)), start + np.arange(len(table))] = np.inf
            row, column = np.nonzero(table <= reach)
            sources.append(start + row)
            targets.append(column)
            costs.append(table[row, column])
        self._edges = Edges(np.concatenate(sources), np.concatenate(targets), np.concatenate(costs))
        if self.count > 1:  # the tree's edges that are longer than the reach join the pieces by the shortest gaps
            tree = euclidean_tree(points)
            first, second = np.append(tree.first, tree.second), np.append(tree.second, tree.first)
            lengths = distances_of_rows(metric, points[first], points[second])
            far = lengths > reach
            self._edges = self._edges.more(first[far], second[far], lengths[far])

    def edges(self, goal: LatentGoal) -> Edges:
        """One graph for every goal."""
        return self._edges

    def field(self, goal: LatentGoal) -> Field:
        """The paths from every node to the goal, which is node number `count`."""
        gaps = distances(self.metric, self.points, goal.point[None])[:, 0]
        joined = np.flatnonzero(gaps < max(self.reach, 1.2 * gaps.min()))
        edges = self._edges.more(joined, np.full(len(joined), self.count), gaps[joined])
        distance, next_hop = search(edges, self.count + 1, self.count)
        return Field(goal, self.count, 0.0, distance, next_hop)


class AlongClusters(Pursuit):
    """The last node of the best path that is still within reach; the goal from next to it on."""

    def __init__(self, graph: ClusterGraph, states: Integers, fields: list[Field]):
        super().__init__([field.goal for field in fields], graph.metric)
        self.graph, self.node_states, self.fields = graph, states, fields
        self.distances = np.stack([field.distance for field in fields])
        self.next_hops = np.stack([field.next_hop for field in fields])

    @cached_property
    def node_steps(self) -> Floats:
        """Predicted steps from every node to every goal, (m, N + 1)."""
        return np.stack([field.steps(self.graph.metric) for field in self.fields])

    def match(self, states: Floats, goals: Integers, memory: Integers) -> tuple[Integers, Floats]:
        """The node within reach whose path is shortest in all; else the last one; else the nearest. (n,), (n, N)"""
        lengths = distances(self.graph.metric, states, self.graph.points)
        totals = np.where(lengths <= self.graph.reach, lengths + self.distances[goals, :-1], np.inf)
        nodes = totals.argmin(axis=1)
        lost = ~np.isfinite(totals).any(axis=1)
        return np.where(lost, np.where(memory >= 0, memory, lengths.argmin(axis=1)), nodes), lengths

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """The target; what is remembered is the matched node, or that the goal is near."""
        rows, last = np.arange(len(states)), self.graph.count
        nodes, lengths = self.match(states, goals, memory)
        reaching = (memory == REACHING) | (self.next_hops[goals, nodes] == last)
        near = np.column_stack([lengths, distances_of_rows(self.metric, states, self.points[goals])])
        targets, onward = nodes.copy(), self.next_hops[goals, nodes]
        while (onward != NO_HOP).any():
            targets = np.where((onward != NO_HOP) & (near[rows, onward] <= self.graph.reach), onward, targets)
            onward = np.where(onward == NO_HOP, NO_HOP, self.next_hops[goals, onward])
        targets[reaching] = last
        straight = targets == last
        points = np.where(straight[:, None], self.points[goals], self.graph.points[targets * ~straight])
        costs = np.where(reaching, near[:, last], lengths[rows, nodes] + self.distances[goals, nodes])
        states_of = np.where(straight, -1, self.node_states[targets * ~straight])
        matched = np.where(reaching, REACHING, nodes)
        return Aim(points, states_of, costs, matched, matched)

    def steps(self, states: Floats, goals: Integers, aim: Aim) -> Floats:
        """Steps to the matched node and along its path; straight to the goal from next to it."""
        metric = self.graph.metric
        there = metric.steps(aim.costs)
        onward = np.flatnonzero(aim.nodes >= 0)
        first = distances_of_rows(metric, states[onward], self.graph.points[aim.nodes[onward]])
        there[onward] = metric.steps(first) + self.node_steps[goals[onward], aim.nodes[onward]]
        return there

    def route(self, state: Floats, goal: int) -> tuple[list[int], list[float]]:
        """From the state to its node, hop by hop, and on to the goal; straight from next to it."""
        matched, lengths = self.match(state[None, :], np.array([goal]), np.array([-1]))
        field = self.fields[goal]
        nodes = [int(matched[0])]
        if field.next_hop[nodes[0]] == self.graph.count:
            return super().route(state, goal)
        while field.next_hop[nodes[-1]] != self.graph.count:
            nodes.append(int(field.next_hop[nodes[-1]]))
        onward = field.distance[[*nodes, self.graph.count]]
        return nodes, [float(lengths[0, nodes[0]]), *(onward[:-1] - onward[1:]).tolist()]


def distances_of_rows(metric: Metric | None, sources: Floats, targets: Floats) -> Floats:
    """The metric between corresponding rows."""
    assert metric is not None
    anywhere = LatentGoal(np.zeros(sources.shape[1]), np.eye(1, sources.shape[1])[0])
    return checked_costs(metric.row_costs(sources, targets, [anywhere] * len(sources)), (len(sources),))


# ---------------------------------------------------------------- the planner


class GasGraph(Planner):
    """Shortest paths over clusters of efficient states (GAS).

    reach       H: how far apart joined nodes may be, and how far ahead to head for, in the metric's unit; by default
                what the policy was trained with, or 8
    efficiency  least cosine of an efficient state; -1 uses all. Of data without trajectories all states are used
    pool        states, in whole trajectories, that are drawn from the data and embedded
    """

    name = "gas-graph"

    def __init__(
        self,
        model: PlanningModel,
        data: Source,
        *,
        reach: float | None = None,
        efficiency: float = 0.99,
        pool: int = 100_000,
        seed: int = 0,
    ):
        own = model.metric
        super().__init__(model, data, None if own is None else own.symmetric())
        if self.metric is None or not (self.metric.spatial and self.metric.for_every_goal):
            raise GeometryError("This model has no embedding whose states could be clustered; use another planner.")
        if reach is None:
            reach = model.target_spec.ahead or USUAL_REACH
        if not reach > 0.0 or not -1.0 <= efficiency <= 1.0:
            raise ConfigError(f"reach is {reach} and efficiency {efficiency}; give more than 0, and a cosine.")
        rows, final = self._trajectories(pool, seed)
        points = self._embedded(rows)
        if final is not None:
            retained = efficient(points, final, reach, efficiency)
            rows, points = rows[retained], points[retained]
        nodes, members = means(points, clusters(self.metric, points, reach / 2.0))
        self.states = rows[members]
        """Rows of the data's observations that stand for the nodes."""
        self.retained, self.points = rows, points
        """Rows of those that were efficient, and their embeddings."""
        self.graph = ClusterGraph(nodes, self.metric, reach)

    def node_atlas(self) -> Atlas:
        return self._nodes(self.retained, self.points)

    def _trajectories(self, pool: int, seed: int) -> tuple[Integers, Integers | None]:
        """Rows of whole trajectories, about `pool` of them, and the position of each row's last one among them."""
        if pool < 1:
            raise ConfigError(f"pool is {pool}; a planner needs at least one state.")
        if self.atlas.trajectories is None:
            return np.arange(len(self.observations)), None
        offsets = self.atlas.trajectories.offsets
        sizes = np.diff(offsets)
        order = np.random.default_rng(seed).permutation(len(sizes))
        before = np.cumsum(sizes[order]) - sizes[order]
        chosen = np.sort(order[before < pool])
        rows = np.concatenate([np.arange(offsets[e], offsets[e + 1]) for e in chosen])
        return rows, np.repeat(np.cumsum(sizes[chosen]) - 1, sizes[chosen])

    def _pursuit(self, goals: list[LatentGoal]) -> Pursuit:
        return AlongClusters(self.graph, self.states, [self.graph.field(self._state(goal)) for goal in goals])

    def _state(self, goal: LatentGoal) -> LatentGoal:
        """The goal; for a mixture, which is not a state, its nearest node."""
        if goal.observation is not None:
            return goal
        nearest = int(distances(self.graph.metric, self.graph.points, goal.point[None])[:, 0].argmin())
        return goal._replace(observation=self.observations[self.states[nearest]])
