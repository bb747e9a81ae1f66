"""Quasimetric heads: the axioms on random embeddings, a slow float64 version, gradients, planning over them."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.runtime import random_model
from iel.distances import FLOOR, LatentGoal, Quasimetric
from iel.errors import ConfigError, GeometryError, RunError
from iel.files import seal, write_json
from iel.loader import read_json
from iel.model import Model, load_model, save_model
from iel.planning import Atlas, PlanningGraph, make_planner, planners_for
from iel.quasimetrics import HEADS, distance, mrn, pairwise, union_lengths

GROUPS, MIX = 4, 0.3
ANYWHERE = LatentGoal(np.zeros(16), np.eye(16)[0])


def points(seed: int, count: int = 2000, dimension: int = 16) -> np.ndarray:
    """A grid in part of the coordinates, so that intervals meet and coincide."""
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    drawn[:, ::3] = np.round(drawn[:, ::3])
    return drawn


def slow(head: str, source: np.ndarray, target: np.ndarray) -> float:
    """One pair, in Python's float64: intervals merged one after another, norms coordinate by coordinate."""
    each = []
    for x, y in zip(np.split(source, GROUPS), np.split(target, GROUPS), strict=True):
        if head == "iqe":
            length, reached = 0.0, -np.inf
            for start, end in sorted((float(a), float(b)) for a, b in zip(x, y, strict=True) if a < b):
                length += max(0.0, end - max(start, reached))
                reached = max(reached, end)
            each.append(length)
        else:
            half = len(x) // 2
            down = max(0.0, *(float(a - b) for a, b in zip(x[:half], y[:half], strict=True)))
            each.append(down + sum(float(a - b) ** 2 for a, b in zip(x[half:], y[half:], strict=True)) ** 0.5)
    return MIX * np.mean(each) + (1 - MIX) * max(each) if head == "iqe" else float(np.mean(each))


@pytest.mark.parametrize("head", HEADS)
def test_both_libraries_agree_with_a_slow_float64_version(head):
    source, target = points(0, 300), points(1, 300)
    expected = [slow(head, x, y) for x, y in zip(source, target, strict=True)]
    np.testing.assert_allclose(distance(head, source, target, GROUPS, MIX), expected, rtol=1e-12)
    ours = distance(head, jnp.asarray(source), jnp.asarray(target), GROUPS, MIX)
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


@pytest.mark.parametrize("dimension", [16, 64], ids=["few", "many"])  # coordinates of a group
@pytest.mark.parametrize("head", HEADS)
def test_all_pairs_in_jax_are_the_pairs_one_by_one_with_their_gradients(head, dimension):
    """37 rows: two blocks and a rest."""
    x, y = (jnp.asarray(points(seed, 2 * n, dimension)).reshape(2, n, dimension) for seed, n in ((10, 37), (11, 5)))
    weight = jax.random.normal(jax.random.key(0), (2, 37, 5))
    plain = lambda x, y: distance(head, x[:, :, None], y[:, None], GROUPS, MIX)  # noqa: E731
    blocks = lambda x, y: pairwise(head, x, y, GROUPS, MIX)  # noqa: E731
    np.testing.assert_allclose(jax.jit(blocks)(x, y), plain(x, y), rtol=1e-5, atol=1e-6)
    x, y = (jax.random.normal(jax.random.key(part.size), part.shape) for part in (x, y))  # ties have several slopes
    slopes = [jax.jit(jax.grad(lambda x, y, f=f: (weight * f(x, y)).sum(), (0, 1)))(x, y) for f in (plain, blocks)]
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_lengths_of_unions_by_hand():
    """[0, 2] and [1, 3] cover 3; [0, 1] and [1, 2] meet; equal intervals count once; a backward one is empty."""
    left = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    right = np.array([[2.0, 3.0], [1.0, 2.0], [1.0, 1.0], [2.0, 1.0], [9.0, 2.0]])
    assert union_lengths(left, right).tolist() == [3.0, 2.0, 1.0, 1.0, 9.0]


def test_the_downward_half_of_mrn_is_paid_downwards():
    up, origin = np.array([3.0, 0.0]), np.zeros(2)
    assert (mrn(up, origin, 1), mrn(origin, up, 1)) == (3.0, 0.0)
    assert mrn(np.array([0.0, -2.0]), origin, 1) == 2.0


@pytest.mark.parametrize("head", HEADS)
def test_the_axioms_hold_for_any_embeddings(head):
    a, b, c = (points(seed, 20_000) for seed in range(3))
    d = lambda x, y: distance(head, x, y, GROUPS, MIX)  # noqa: E731
    assert (d(a, a) == 0.0).all() and (d(a, b) >= 0.0).all()
    assert (d(a, c) <= (d(a, b) + d(b, c)) * (1 + 1e-12)).all()
    there, back = d(a, b), d(b, a)
    assert np.median(np.abs(there - back) / (there + back)) > 0.05
    one_way = np.zeros((1, 16))
    one_way[0, 0] = 1.0
    assert sorted([float(d(one_way, 0 * one_way)[0]), float(d(0 * one_way, one_way)[0])])[0] == 0.0
    squared = lambda x, y: np.square(x - y).sum(-1)  # noqa: E731  the root left out, as MRN first had it
    assert (squared(a, c) > squared(a, b) + squared(b, c)).any()


@pytest.mark.parametrize("head", HEADS)
def test_gradients_are_finite_at_zero_and_those_of_differences_elsewhere(head):
    def total(x, y):
        return distance(head, x, y, GROUPS, MIX).sum()

    slope = jax.jit(jax.grad(total, (0, 1)))
    same = jnp.asarray(points(3, 4))
    assert all(not part.any() for part in slope(same, same))
    tiny = jnp.full((4, 16), 1e-20)
    assert all(jnp.isfinite(part).all() for part in slope(tiny, 0 * tiny))
    x, y = (np.random.default_rng(seed).normal(size=(4, 16)) for seed in (4, 5))  # away from ties
    for position, gradient in enumerate(map(np.asarray, slope(jnp.asarray(x), jnp.asarray(y)))):
        for row, column in np.ndindex(4, 16):
            ends = [x.copy(), y.copy()], [x.copy(), y.copy()]
            ends[0][position][row, column] += 1e-6
            ends[1][position][row, column] -= 1e-6
            assert gradient[row, column] == pytest.approx((total(*ends[0]) - total(*ends[1])) / 2e-6, abs=1e-3)


# ---------------------------------------------------------------- the metric and its models


@pytest.mark.parametrize("head", HEADS)
def test_tables_of_costs_are_the_rows_whatever_the_blocks(head, monkeypatch):
    sources, targets = points(6, 30), points(7, 20)
    sources[0] = targets[0]
    metric = Quasimetric(head, GROUPS, MIX, scale=2.0)
    whole = metric.costs(sources, targets, ANYWHERE)
    assert whole[0, 0] == FLOOR and whole[3, 4] == pytest.approx(2.0 * slow(head, sources[3], targets[4]))
    rows = metric.row_costs(np.repeat(sources, 20, 0), np.tile(targets, (30, 1)), [])
    np.testing.assert_allclose(rows.reshape(30, 20), whole, rtol=1e-12)
    np.testing.assert_allclose(metric.costs(sources, targets[:5], ANYWHERE), whole[:, :5], rtol=1e-12)
    monkeypatch.setattr("iel.quasimetrics.NUMBERS", 100)
    np.testing.assert_array_equal(metric.costs(sources, targets, ANYWHERE), whole)
    np.testing.assert_allclose(metric.costs(sources, targets[:5], ANYWHERE), whole[:, :5], rtol=1e-12)
    assert metric.costs(sources[:0], targets, ANYWHERE).shape == (0, 20)
    assert metric.for_every_goal and np.array_equal(metric.steps(whole), whole)
    with pytest.raises(GeometryError, match="not in steps"):
        Quasimetric(head, GROUPS, discount=None).steps(whole)


def test_a_table_of_many_states_takes_the_memory_of_its_numbers():
    """600 states of 256 numbers: their differences would take 700 MB."""
    many = points(9, 600, 256)
    tracemalloc.start()
    Quasimetric("mrn", 8).costs(many, many, ANYWHERE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 8 * 600 * 600 + 2**23


def test_one_directed_graph_serves_all_goals_and_its_paths_are_never_shorter_than_the_metric():
    nodes = points(8, 60)
    metric = Quasimetric("iqe", GROUPS, MIX)
    graph = PlanningGraph(nodes, metric, neighbours=5)
    goals = [LatentGoal(nodes[i], np.eye(16)[i]) for i in (0, 7)]
    assert graph.edges(goals[0]) is graph.edges(goals[1])
    for node, goal in zip((0, 7), goals, strict=True):
        field = graph.field(goal)
        assert field.node == node
        straight = metric.costs(nodes, nodes[[node]], goal)[:, 0]
        assert (field.distance >= straight - 0.002)[np.arange(60) != node].all()


@pytest.mark.parametrize("head", HEADS)
def test_a_quasimetric_model_says_its_metric_and_plans(head, tmp_path):
    model = random_model(head, (16,), 5, 3, 8)
    save_model(model, tmp_path)
    assert read_json(tmp_path / "config.json")["metric"]["head"] == head
    loaded = load_model(tmp_path)
    assert loaded.metric == model.metric and isinstance(loaded.metric, Quasimetric)
    assert ("rec-mid" in planners_for(loaded)) == (head == "mrn")
    states = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    planner = make_planner("asym-graph", loaded, Atlas(states), coreset="all")
    planner.prepare(states[3])
    assert planner.act(states[9]).shape == (3,) and planner.predicted_steps(states[9]) > 0
    there, back = (loaded.cost(x, y, y) for x, y in ((states[:9], states[9:18]), (states[9:18], states[:9])))
    assert np.abs(there - back).max() > 0.01


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "hyperbolic"}, "metric.kind: invalid value 'hyperbolic'"),
        ({"head": "deep"}, "metric.head: invalid enum value 'deep'"),
        ({"groups": 3}, "does not fall into 3 equal groups"),
        ({"groups": 0}, "metric.groups: expected `int` >= 1"),
        ({"mix": 1.5}, "metric.mix: expected `float` <= 1.0"),
        ({"scale": None}, "metric.scale: expected `float`"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_a_damaged_metric_is_refused(change, message, tmp_path):
    save_model(random_model("iqe", (8,), 5, 3, 8), tmp_path)
    config = read_json(tmp_path / "config.json")
    config["metric"] |= change
    write_json(tmp_path / "config.json", config)
    seal(tmp_path, 1, {})
    with pytest.raises(RunError, match=message):
        load_model(tmp_path)


def test_an_embedding_that_does_not_fall_into_groups_is_refused():
    model = random_model("iqe", (8,), 5, 3, 8)
    for metric, message in ((Quasimetric("mrn", 8), "of an even size"), (Quasimetric("iqe", 3), "3 equal groups")):
        with pytest.raises(ConfigError, match=message):
            Model("x", 5, 3, model.networks, model.conditioning, metric=metric)
