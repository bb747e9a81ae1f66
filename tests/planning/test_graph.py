"""The fast graph is the dense graph to the last bit: edges, costs, distances, next hops, ties included."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_worlds import BETAS, KINDS, Instance, degenerate_points, instances
from scipy.sparse.csgraph import floyd_warshall, minimum_spanning_tree

from benchmarks import reference
from iel.distances import Displacement, LatentGoal, Metric, lengths_between
from iel.errors import ConfigError, GeometryError
from iel.planning import PlanningGraph
from iel.planning.coreset import NodeTree, TooMany, euclidean_tree, nearest_pairs
from iel.planning.node_costs import most_pairs


def goal_of(case: Instance) -> LatentGoal:
    return LatentGoal(case.goal, case.direction)


def as_matrix(graph: PlanningGraph, case: Instance) -> np.ndarray:
    edges = graph.edges(goal_of(case))
    matrix = np.full((graph.count, graph.count), np.inf)
    matrix[edges.source, edges.target] = edges.cost
    assert len(edges) == np.isfinite(matrix).sum(), "an edge is listed twice"
    return matrix


MOST = {"pruned": lambda count: math.inf, "dense": lambda count: -1.0, "auto": most_pairs}


def check_against_reference(case: Instance, path: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iel.planning.node_costs.most_pairs", MOST[path])
        graph = PlanningGraph(case.points, Displacement(case.beta), neighbours=case.neighbours)
    tree = np.stack([graph.tree.first, graph.tree.second], axis=1)
    costs = reference.cost_matrix(case.points, case.direction, case.beta)
    dense = reference.graph_matrix(costs, case.neighbours, tree)
    node = reference.goal_node(case.points, case.goal, case.direction, case.beta)
    distance, next_hop = reference.search_matrix(dense, node)
    field = graph.field(goal_of(case))
    assert np.array_equal(as_matrix(graph, case), dense)
    assert field.node == node
    assert np.array_equal(field.distance, distance)
    assert np.array_equal(field.next_hop, next_hop)


@given(instances(), st.sampled_from(["pruned", "dense", "auto"]))
@settings(max_examples=400, deadline=None)
def test_edges_distances_and_next_hops_are_identical_to_the_dense_reference(case: Instance, path: str) -> None:
    check_against_reference(case, path)


@given(instances(most=25, betas=(1.2, 2.0)), st.sampled_from(["pruned", "dense"]))
@settings(max_examples=60, deadline=None)
def test_they_are_identical_above_beta_one_as_well(case: Instance, path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check_against_reference(case, path)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kind", ["random", "clusters", "lattice"])
def test_they_are_identical_on_hundreds_of_nodes(kind: str, beta: float) -> None:
    generator = np.random.default_rng(1)
    points = degenerate_points(kind, 300, 3, generator)
    direction = generator.normal(size=3)
    check_against_reference(Instance(points, points[7], direction / np.linalg.norm(direction), beta, 10), "pruned")


@given(instances())
@settings(max_examples=100, deadline=None)
def test_following_next_hops_reaches_the_goal_at_the_shortest_path_cost(case: Instance) -> None:
    graph = PlanningGraph(case.points, Displacement(case.beta), neighbours=case.neighbours)
    field = graph.field(goal_of(case))
    matrix = as_matrix(graph, case)
    shortest = floyd_warshall(np.where(np.isfinite(matrix), matrix, 0.0))
    assert np.isfinite(field.distance).all(), "the tree makes every node reach every other"
    assert np.allclose(field.distance, shortest[:, field.node], rtol=1e-12)
    for start in range(graph.count):
        node, cost = start, 0.0
        for _ in range(graph.count):
            if node == field.node:
                break
            cost += matrix[node, field.next_hop[node]]
            node = int(field.next_hop[node])
        assert node == field.node
        assert cost == pytest.approx(shortest[start, field.node], rel=1e-9)


@given(instances())
@settings(max_examples=100, deadline=None)
def test_the_tree_is_a_minimum_spanning_tree(case: Instance) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iel.planning.coreset.LISTED", 1 + case.neighbours)
        tree = euclidean_tree(case.points)
    lengths = lengths_between(case.points, case.points)
    assert len(tree) == len(case.points) - 1
    assert tree.lengths.sum() == pytest.approx(minimum_spanning_tree(np.triu(lengths, 1)).sum(), rel=1e-9)
    assert np.array_equal(lengths[tree.first, tree.second], tree.lengths)


@given(instances(), st.sampled_from([0.9, 1.0]))
@settings(max_examples=60, deadline=None)
def test_steps_to_go_are_those_of_the_hops_added_up(case: Instance, discount: float) -> None:
    metric = Displacement(case.beta, discount)
    graph = PlanningGraph(case.points, metric, neighbours=case.neighbours)
    field = graph.field(goal_of(case))
    matrix, steps = as_matrix(graph, case), field.steps(metric)
    for start in range(graph.count):
        node, total = start, 0.0
        while node != field.node:
            total += float(metric.steps(matrix[node, [field.next_hop[node]]])[0])
            node = int(field.next_hop[node])
        assert steps[start] == pytest.approx(total, rel=1e-6, abs=1e-6)


@given(instances(most=30))
@settings(max_examples=60, deadline=None)
def test_candidates_hold_exactly_the_pairs_of_the_bound(case: Instance) -> None:
    count = len(case.points)
    if count < 2:
        return
    lengths = lengths_between(case.points, case.points)
    np.fill_diagonal(lengths, np.inf)
    k = min(case.neighbours, count - 1)
    factor = math.exp(2.0 * case.beta)
    near = nearest_pairs(case.points, NodeTree(case.points), k, factor)
    kth = np.sort(lengths, axis=1)[:, k - 1]
    expected = np.argwhere(lengths <= (factor * kth * (1.0 + 1e-9))[:, None])
    assert np.array_equal(np.stack([near.first, near.second], axis=1), expected)


def test_a_far_larger_coreset_than_its_lists_still_gets_an_exact_tree() -> None:
    """Three tight clusters: lists of neighbours never leave a cluster, so rows of distances must bridge them."""
    generator = np.random.default_rng(0)
    points = np.concatenate([generator.normal(size=(1500, 2)) + 1000.0 * corner for corner in np.eye(3, 2)])
    tree = euclidean_tree(points)
    assert len(tree) == len(points) - 1
    assert (tree.lengths > 900.0).sum() == 2


def test_pruning_is_given_up_where_it_keeps_too_much() -> None:
    cloud = np.random.default_rng(0).normal(size=(600, 40))
    graph = PlanningGraph(cloud, Displacement(1.0))
    assert graph.costs.path == "dense"
    sheet = np.random.default_rng(0).normal(size=(600, 2))
    graph = PlanningGraph(sheet, Displacement(0.1))
    assert graph.costs.path == "pruned"
    assert 10.0 <= graph.costs.candidates / 600 <= 30.0
    with pytest.raises(TooMany):
        nearest_pairs(cloud, NodeTree(cloud), 10, math.exp(2.0), 1000)


def test_beta_zero_gives_one_graph_for_every_goal() -> None:
    generator = np.random.default_rng(0)
    graph = PlanningGraph(generator.normal(size=(50, 3)), Displacement(0.0))
    first, second = (LatentGoal(np.zeros(3), direction) for direction in np.eye(3)[:2])
    assert graph.edges(first) is graph.edges(second)


def test_edges_both_paths_are_each_others_reverse() -> None:
    graph = PlanningGraph(np.random.default_rng(0).normal(size=(80, 3)), Displacement(0.0), symmetric=True)
    edges = graph.edges(LatentGoal(np.zeros(3), np.eye(3)[0]))
    forward = dict(zip(zip(edges.source, edges.target, strict=True), edges.cost, strict=True))
    assert all(forward[(j, i)] == cost for (i, j), cost in forward.items())
    assert len(forward) == len(edges)


class Copy(Metric):
    """Our own costs behind the face of a metric about which nothing is known."""

    discount = 1.0

    def costs(self, sources: np.ndarray, targets: np.ndarray, goal: LatentGoal) -> np.ndarray:
        return Displacement(0.3).costs(sources, targets, goal)


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_that_copies_ours_gives_our_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iel.planning.node_costs.BLOCK_ELEMENTS", 100)  # several blocks of rows
    generator = np.random.default_rng(5)
    points = degenerate_points(kind, 30, 3, generator)
    direction = generator.normal(size=3)
    case = Instance(points, points[4], direction / np.linalg.norm(direction), 0.3, 4)
    own = PlanningGraph(points, Displacement(0.3), neighbours=4)
    other = PlanningGraph(points, Copy(), neighbours=4)
    assert other.costs.path == "metric"
    assert np.array_equal(as_matrix(other, case), as_matrix(own, case))
    assert np.array_equal(other.field(goal_of(case)).next_hop, own.field(goal_of(case)).next_hop)


@pytest.mark.parametrize(("value", "message"), [(-1.0, "negative"), (np.nan, "non-finite"), (np.inf, "non-finite")])
def test_costs_must_be_finite_and_not_negative(value: float, message: str) -> None:
    class Odd(Metric):
        def costs(self, sources: np.ndarray, targets: np.ndarray, goal: LatentGoal) -> np.ndarray:
            return np.full((len(sources), len(targets)), value)

    graph = PlanningGraph(np.arange(10.0)[:, None], Odd(), neighbours=2)
    with pytest.raises(GeometryError, match=message):
        graph.field(LatentGoal(np.zeros(1), np.ones(1)))


def test_bad_settings_are_refused_in_a_sentence() -> None:
    points = np.random.default_rng(0).normal(size=(10, 2))
    with pytest.raises(ConfigError, match="neighbours is 0"):
        PlanningGraph(points, Displacement(), neighbours=0)
    with pytest.raises(GeometryError, match="row 3"):
        PlanningGraph(np.where(np.arange(10)[:, None] == 3, np.nan, points), Displacement())
    with pytest.raises(GeometryError, match="must be"):
        PlanningGraph(points, Displacement()).field(LatentGoal(np.zeros(3), np.zeros(3)))
    with pytest.warns(UserWarning, match="triangle inequality"):
        PlanningGraph(points, Displacement(1.5))
