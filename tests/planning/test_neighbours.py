"""Near nodes of many: a tree finds every pair that looking at all pairs finds, with the same bits."""

import numpy as np
import pytest

from iel.distances import Displacement, LatentGoal
from iel.planning import coreset as neighbours
from iel.planning.graph import PlanningGraph


def sheet(count: int, rng: np.random.Generator) -> np.ndarray:
    """A bent surface in ten dimensions."""
    flat = rng.uniform(-1, 1, (count, 2))
    return 20 * np.sin(flat @ rng.normal(size=(2, 10))) + 0.1 * rng.normal(size=(count, 10))


def clusters(count: int, rng: np.random.Generator) -> np.ndarray:
    """Tight groups far from each other, and every fifth point twice."""
    points = rng.normal(size=(8, 6))[rng.integers(0, 8, count)] * 50 + rng.normal(size=(count, 6))
    points[::5] = points[1::5][: len(points[::5])]
    return points


def filling(count: int, rng: np.random.Generator) -> np.ndarray:
    """Points that fill twenty dimensions: nearly all are about equally far."""
    return rng.normal(size=(count, 20))


@pytest.mark.parametrize("make", [sheet, clusters, filling])
@pytest.mark.parametrize("factor", [1.0, np.exp(0.2), np.exp(0.6)])
def test_a_tree_finds_the_pairs_that_all_pairs_contain(make, factor, monkeypatch):
    points = make(1500, np.random.default_rng(1))
    monkeypatch.setattr(neighbours, "TREE_ROWS", 400)
    plain, radii = neighbours.nearest_pairs(points, 7, factor, np.inf)
    monkeypatch.setattr(neighbours, "MANY", 0)
    found, same_radii = neighbours.nearest_pairs(points, 7, factor, np.inf)
    assert np.array_equal(radii, same_radii)
    for name in ("first", "second", "lengths"):
        assert np.array_equal(getattr(plain, name), getattr(found, name)), name


def test_a_graph_by_a_tree_is_the_graph(monkeypatch):
    rng = np.random.default_rng(3)
    points, direction = sheet(800, rng), rng.normal(size=10)
    goal = LatentGoal(points[5], direction / np.linalg.norm(direction))
    plain = PlanningGraph(points, Displacement(0.1)).field(goal)
    monkeypatch.setattr(neighbours, "MANY", 0)
    found = PlanningGraph(points, Displacement(0.1)).field(goal)
    assert np.array_equal(plain.next_hop, found.next_hop) and np.array_equal(plain.distance, found.distance)
