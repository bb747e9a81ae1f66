"""Support functions over landmarks: the axioms, and a graph that equals the full table to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import dijkstra

from iel.distances import FLOOR, LatentGoal, SupportFunction
from iel.model.atlas import ObservedEdges
from iel.planning import PlanningGraph
from iel.planning.graph import NO_HOP
from iel.planning.landmarks import SupportCosts
from iel.planning.planners import AlongGraph


def instance(seed: int, count: int = 60, dimension: int = 4, landmarks: int = 40) -> tuple[np.ndarray, SupportFunction]:
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(count, dimension)) * 10.0
    points[count // 2] = points[0]  # a duplicate
    return points, SupportFunction(generator.normal(size=(landmarks, dimension)))


def full_table(points: np.ndarray, metric: SupportFunction) -> np.ndarray:
    heights = metric.heights(points)
    return np.maximum((heights[None, :, :] - heights[:, None, :]).max(axis=-1).astype(float), FLOOR)


def anywhere(points: np.ndarray) -> LatentGoal:
    return LatentGoal(points[1], np.eye(points.shape[1])[0], None)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_a_support_function_is_a_quasimetric(seed: int) -> None:
    points, metric = instance(seed, count=12)
    table = metric.costs(points, points, anywhere(points))
    assert (np.diagonal(table) == FLOOR).all() and (table > 0.0).all()
    around = table[:, :, None] + table[None, :, :]
    assert (table[:, None, :] <= around * (1 + 1e-5) + 1e-4).all(), "the triangle inequality"
    rows = metric.row_costs(np.repeat(points, 12, 0), np.tile(points, (12, 1)), [])
    assert np.allclose(rows.reshape(12, 12), table)
    back = metric.symmetric().costs(points, points, anywhere(points))
    assert np.allclose(back, np.maximum(table, table.T)) and np.allclose(back, back.T)


@pytest.mark.parametrize(("count", "landmarks", "neighbours"), [(60, 40, 5), (60, 3, 5), (300, 200, 10), (20, 64, 19)])
def test_the_nearest_nodes_are_those_of_the_full_table(count: int, landmarks: int, neighbours: int) -> None:
    points, metric = instance(3, count, 4, landmarks)
    nodes = SupportCosts(points, metric, neighbours)
    table = full_table(points, metric)
    table[np.arange(count), np.arange(count)] = np.inf
    order = np.argsort(table, axis=1, kind="stable")[:, : nodes.lists.shape[1]]
    assert np.array_equal(nodes.lists, order)
    assert np.array_equal(nodes.list_costs, np.maximum(np.take_along_axis(table, order, axis=1).astype(float), FLOOR))
    cheapest, _ = nodes.cheapest(anywhere(points))
    assert np.array_equal(np.sort(order[:, :neighbours], axis=1), cheapest)


def test_the_search_is_dijkstra_on_the_full_table() -> None:
    """With every node a neighbour the graph is complete, and by the triangle inequality edges are shortest paths."""
    points, metric = instance(5, 40)
    graph = PlanningGraph(points, metric, neighbours=39)
    table = np.maximum(full_table(points, metric), FLOOR)
    goal = LatentGoal(points[7], np.eye(4)[0], None)
    field = graph.field(goal)
    assert field.node == 7 and field.last_cost == FLOOR
    away = np.arange(40) != 7
    assert (field.distance[away] <= table[away, 7]).all()
    assert np.allclose(field.distance[away], table[away, 7], atol=0.05)
    other = LatentGoal(points[9], np.eye(4)[1], None)
    assert graph.edges(goal) is graph.edges(other), "one graph for all goals"


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=25, deadline=None)
def test_matching_from_memory_is_matching_from_scratch(seed: int, closed: bool) -> None:
    """Along random walks with jumps, and with nodes switched off, the node is always argmin_i d(x, x_i)."""
    generator = np.random.default_rng(seed)
    points, metric = instance(seed % 1000, 120)
    graph = PlanningGraph(points, metric, neighbours=8)
    goals = [LatentGoal(points[i], np.eye(4)[0], None) for i in (3, 4)]
    off = generator.random((2, 120)) < 0.3 if closed else None
    pursuit = AlongGraph(graph, np.arange(120), [graph.field(goal) for goal in goals], off)
    states, wanted, memory = generator.normal(size=(6, 4)) * 10.0, np.arange(6) % 2, np.full(6, -1)
    for step in range(8):
        states = states + (8.0 if step % 4 == 3 else 0.3) * generator.normal(size=states.shape)
        memory, costs = pursuit.matcher.match(metric.heights(states), wanted, memory)
        heights = metric.heights(states)
        table = np.maximum((graph.costs.heights[None] - heights[:, None]).max(axis=-1).astype(float), FLOOR)
        if off is not None:
            table[off[wanted]] = np.inf
        assert np.array_equal(memory, table.argmin(axis=1))
        assert np.array_equal(costs, np.maximum(table.min(axis=1), FLOOR))


@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_path_begins_where_it_is_shortest_in_all(seed: int, observed: bool, trusted: bool) -> None:
    """Of the matched node and the ends of its out-edges the one with the least cost and path to the goal; edges that
    were not observed are penalised here only where the metric cannot tell one-way steps."""
    generator = np.random.default_rng(seed)
    points, metric = instance(seed % 1000, 90)
    graph = PlanningGraph(points, replace(metric, one_way=trusted), neighbours=6)
    if observed:
        codes = np.flatnonzero(generator.random(90 * 90) < 0.1)
        graph.observed_edges, graph.unobserved_cost = ObservedEdges(90, codes, np.full(len(codes), 200)), 7.0
    goals = [LatentGoal(points[i], np.eye(4)[0], None) for i in (3, 4)]
    fields = [graph.field(goal) for goal in goals]
    pursuit = AlongGraph(graph, np.arange(90), fields, None, entries=graph.entries(goals))
    states, wanted = points[:30] + generator.normal(size=(30, 4)) * (np.arange(30) % 2)[:, None], np.arange(30) % 2
    aim = pursuit.aim(states, wanted, np.full(30, -1))
    nearest = AlongGraph(graph, np.arange(90), fields, None).aim(states, wanted, np.full(30, -1))
    heights, edges = metric.heights(states), graph.geometric(goals[0])
    table = np.maximum((graph.costs.heights[None] - heights[:, None]).max(axis=-1).astype(float), FLOOR)
    assert np.array_equal(aim.matched, nearest.matched)
    for row in range(30):
        node, distance = aim.matched[row], fields[wanted[row]].distance
        out = [edge for edge in range(90 * 6) if edges.source[edge] == node]
        totals = {int(node): table[row, node] + distance[node]}
        for edge in out:
            penalty = 7.0 if observed and not trusted and not graph.seen(edges)[edge] else 1.0
            totals[int(edges.target[edge])] = penalty * table[row, edges.target[edge]] + distance[edges.target[edge]]
        assert aim.nodes[row] == min(totals, key=lambda key: totals[key])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_a_goal_is_joined_like_a_node(seed: int) -> None:
    """Distances to a goal that is joined to its 6 nearest nodes are those of a graph in which it is one node more."""
    generator = np.random.default_rng(seed)
    points, metric = instance(seed % 1000, 80)
    graph = PlanningGraph(points, metric, neighbours=6)
    goal = LatentGoal(points[5] + generator.normal(size=4), np.eye(4)[0], np.zeros(2))
    field, edges = graph.field(goal, joins=6), graph.edges(goal)
    last = np.maximum((metric.heights(goal.point[None]) - graph.costs.heights).max(axis=1).astype(float), FLOOR)
    near = np.argsort(last, kind="stable")[:6]
    routes = dijkstra(edges.more(near, np.full(6, 80), last[near]).matrix(81), indices=80)
    assert np.allclose(field.distance, routes[:80], rtol=1e-12) and field.node == near[0]
    final = np.flatnonzero(field.next_hop == NO_HOP)
    assert len(final) and np.isin(final, near).all() and np.array_equal(field.distance[final], last[final])
    pursuit = AlongGraph(graph, np.arange(80), [field], None, entries=graph.entries([goal]))
    aim = pursuit.aim(points[final], np.zeros(len(final), np.int64), np.full(len(final), -1))
    assert (aim.states == -1).any() and np.allclose(aim.points[aim.states == -1], goal.point)
