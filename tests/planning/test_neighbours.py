"""Near nodes of many: the k-d tree finds every pair that looking at all pairs finds, with the same bits."""

import numpy as np
import pytest

from iel.distances import lengths_between
from iel.planning import coreset


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
    points = make(600, np.random.default_rng(1))
    monkeypatch.setattr(coreset, "TREE_ROWS", 200)
    lengths = lengths_between(points, points)
    np.fill_diagonal(lengths, np.inf)
    kth = np.sort(lengths, axis=1)[:, 6]
    first, second = np.nonzero(lengths <= factor * kth[:, None] * coreset.WIDEN)
    found = coreset.nearest_pairs(points, coreset.NodeTree(points), 7, factor)
    assert np.array_equal(found.first, first) and np.array_equal(found.second, second)
    assert np.array_equal(found.lengths, lengths[first, second])
