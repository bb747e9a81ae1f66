"""The fast graph is the dense graph to the last bit: edges, costs, distances, next hops, ties included."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_worlds import BETAS, KINDS, Instance, degenerate_points, instances
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, floyd_warshall

from iel.errors import ConfigError, GeometryError
from iel.planning import PlanningGraph, reference
from iel.planning.bottleneck import Pairs, euclidean_tree, line_of
from iel.planning.candidates import TooMany, nearest_pairs, tree_pairs
from iel.planning.edges import bridges
from iel.planning.geometry import lengths_between


def as_matrix(graph: PlanningGraph, case: Instance) -> np.ndarray:
    edges = graph.edges(case.direction, case.goal)
    matrix = np.full((graph.count, graph.count), np.inf)
    matrix[edges.source, edges.target] = edges.cost
    assert len(edges) == np.isfinite(matrix).sum(), "an edge is listed twice"
    return matrix


def check_against_reference(case: Instance, path: str) -> None:
    dense = reference.graph_matrix(reference.cost_matrix(case.points, case.direction, case.beta), case.neighbours)
    node = reference.goal_node(case.points, case.goal, case.direction, case.beta)
    distance, next_hop = reference.search_matrix(dense, node)
    graph = PlanningGraph(case.points, beta=case.beta, neighbours=case.neighbours, path=path)
    field = graph.field(case.goal, case.direction)
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
    graph = PlanningGraph(case.points, beta=case.beta, neighbours=case.neighbours)
    field = graph.field(case.goal, case.direction)
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
def test_bottlenecks_read_off_the_line_are_minimax_distances(case: Instance) -> None:
    count = len(case.points)
    if count < 2:
        return
    near, radii = nearest_pairs(case.points, case.neighbours, 1.0, math.inf)
    line = line_of(euclidean_tree(case.points, near, radii), count)
    minimax = lengths_between(case.points, case.points)
    for middle in range(count):
        np.minimum(minimax, np.maximum(minimax[:, [middle]], minimax[[middle], :]), out=minimax)
    first, second = np.nonzero(~np.eye(count, dtype=bool))
    assert np.array_equal(line.bottlenecks(first, second), minimax[first, second])


@given(instances(most=30))
@settings(max_examples=60, deadline=None)
def test_candidates_hold_exactly_the_pairs_of_the_two_bounds(case: Instance) -> None:
    count = len(case.points)
    if count < 2:
        return
    lengths = lengths_between(case.points, case.points)
    np.fill_diagonal(lengths, np.inf)
    k = min(case.neighbours, count - 1)
    factor = math.exp(2.0 * case.beta)
    near, radii = nearest_pairs(case.points, case.neighbours, factor, math.inf)
    kth = np.sort(lengths, axis=1)[:, k - 1]
    expected = np.argwhere(lengths <= (factor * kth * (1.0 + 1e-9))[:, None])
    assert np.array_equal(np.stack([near.first, near.second], axis=1), expected)
    tree = tree_pairs(case.points, near, radii, case.beta, math.inf)
    assert (tree.first < tree.second).all()
    assert len(tree) >= count - 1


def test_bridges_are_the_edges_whose_loss_disconnects_the_graph() -> None:
    rng = np.random.default_rng(3)
    for extra in (0, 1, 3, 10, 60):
        count = 30
        tree = [(int(rng.integers(node)), node) for node in range(1, count)]
        more = {tuple(sorted(rng.choice(count, 2, replace=False).tolist())) for _ in range(extra)}
        pairs = np.array(sorted({*tree, *more}))
        lengths = np.ones(len(pairs))
        needed = []
        for left_out in range(len(pairs)):
            rest = np.delete(pairs, left_out, axis=0)
            parts, _ = connected_components(coo_array((np.ones(len(rest)), rest.T), shape=(count, count)))
            needed.append(parts > 1)
        found = bridges(Pairs(pairs[:, 0], pairs[:, 1], lengths), count)
        if len(pairs) > 2 * count:
            assert not found.any()
        else:
            assert found.tolist() == needed


def test_a_far_larger_coreset_than_its_lists_still_gets_an_exact_tree() -> None:
    """Three tight clusters: lists of neighbours never leave a cluster, so rows of distances must bridge them."""
    generator = np.random.default_rng(0)
    points = np.concatenate([generator.normal(size=(1500, 2)) + 1000.0 * corner for corner in np.eye(3, 2)])
    near, radii = nearest_pairs(points, 3, 1.0, math.inf)
    tree = euclidean_tree(points, near, radii)
    assert len(tree) == len(points) - 1
    assert (tree.lengths > 900.0).sum() == 2
    pairs = tree_pairs(points, near, radii, 0.1, math.inf)
    assert len(pairs) >= len(points) - 1


def test_pruning_is_given_up_where_it_keeps_too_much() -> None:
    cloud = np.random.default_rng(0).normal(size=(600, 40))
    graph = PlanningGraph(cloud, beta=1.0)
    assert graph.report.neighbours_path == "dense"
    assert "dense" in graph.report.path
    sheet = np.random.default_rng(0).normal(size=(600, 2))
    graph = PlanningGraph(sheet, beta=0.1)
    assert graph.report.path == "pruned"
    assert 10.0 <= graph.report.candidates_per_node <= 30.0
    with pytest.raises(TooMany):
        nearest_pairs(cloud, 10, math.exp(2.0), 1000)


def test_beta_zero_gives_one_graph_for_every_goal() -> None:
    generator = np.random.default_rng(0)
    graph = PlanningGraph(generator.normal(size=(50, 3)), beta=0.0)
    assert graph.edges(np.eye(3)[0]) is graph.edges(np.eye(3)[1])


def test_edges_both_ways_are_each_others_reverse() -> None:
    graph = PlanningGraph(np.random.default_rng(0).normal(size=(80, 3)), beta=0.0, both_ways=True)
    edges = graph.edges(np.eye(3)[0])
    forward = dict(zip(zip(edges.source, edges.target, strict=True), edges.cost, strict=True))
    assert all(forward[(j, i)] == cost for (i, j), cost in forward.items())
    assert len(forward) == len(edges)


@pytest.mark.parametrize("kind", KINDS)
def test_a_users_cost_that_copies_ours_gives_our_graph(kind: str) -> None:
    generator = np.random.default_rng(5)
    points = degenerate_points(kind, 30, 3, generator)
    direction = generator.normal(size=3)
    direction /= np.linalg.norm(direction)

    def cost(sources: np.ndarray, targets: np.ndarray, goal: np.ndarray, way: np.ndarray) -> np.ndarray:
        lengths = lengths_between(sources, targets)
        rises = (points @ way)[find(targets)][None, :] - (points @ way)[find(sources)][:, None]
        return lengths * np.exp(0.3 * (1.0 - np.clip(rises / lengths, -1.0, 1.0)))

    def find(rows: np.ndarray) -> np.ndarray:
        return np.array([int(np.argmin(np.abs(points - row).sum(axis=1))) for row in rows])

    case = Instance(points, points[4], direction, 0.3, 4)
    own = PlanningGraph(points, beta=0.3, neighbours=4)
    users = PlanningGraph(points, neighbours=4, cost=cost)
    assert users.report.path == "dense"
    if kind not in ("one point", "lattice", "line"):  # duplicates: find() cannot tell the rows apart
        assert np.allclose(as_matrix(users, case), as_matrix(own, case), rtol=1e-9)
        assert np.array_equal(users.field(points[4], direction).next_hop, own.field(points[4], direction).next_hop)
    assert np.isfinite(users.field(points[4], direction).distance).all()


@pytest.mark.parametrize(
    ("value", "message"), [(0.0, "positive"), (-1.0, "positive"), (np.nan, "non-finite"), (np.inf, "non-finite")]
)
def test_a_users_cost_must_be_finite_and_positive(value: float, message: str) -> None:
    def cost(sources: np.ndarray, targets: np.ndarray, goal: np.ndarray, way: np.ndarray) -> np.ndarray:
        return np.full((len(sources), len(targets)), value)

    graph = PlanningGraph(np.arange(10.0)[:, None], cost=cost, neighbours=2)
    with pytest.raises(GeometryError, match=message):
        graph.field(np.zeros(1), np.ones(1))


def test_bad_settings_are_refused_in_a_sentence() -> None:
    points = np.random.default_rng(0).normal(size=(10, 2))
    with pytest.raises(ConfigError, match="neighbours is 0"):
        PlanningGraph(points, neighbours=0)
    with pytest.raises(ConfigError, match="choose auto"):
        PlanningGraph(points, path="quick")
    with pytest.raises(GeometryError, match="row 3"):
        PlanningGraph(np.where(np.arange(10)[:, None] == 3, np.nan, points))
    with pytest.raises(GeometryError, match="must be"):
        PlanningGraph(points).field(np.zeros(3), np.zeros(3))
    with pytest.warns(UserWarning, match="triangle inequality"):
        PlanningGraph(points, beta=1.5)
