"""The linear analysis of the paper's appendix: each definition and the lemma on the goal projection."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory.operators import (
    compression,
    goal_projection,
    orthogonal_complement,
    span_basis,
    spectral_radius,
)


def orthonormal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(generator.normal(size=(rows, columns)))[0]


def test_definition_orthogonal_projection_and_complement():
    generator = np.random.default_rng(12)
    basis = orthonormal(generator, 6, 2)
    rest = orthogonal_complement(basis)
    assert rest.shape == (6, 4) and np.abs(basis.T @ rest).max() < 1e-12
    assert np.allclose(basis @ basis.T + rest @ rest.T, np.eye(6))
    assert span_basis(basis.T @ generator.normal(size=(6, 6))).shape == (6, 2)


def test_lemma_orthogonality_of_the_goal_projection():
    generator = np.random.default_rng(0)
    for _ in range(500):
        features = generator.normal(size=(4, int(generator.integers(1, 6))))
        keep = goal_projection(features, 2)
        assert np.allclose(keep @ keep, keep, atol=1e-12)
        assert np.allclose(keep, keep.T)
        assert np.allclose(keep @ features[2], 0.0, atol=1e-12)
        # Its range is the whole complement: one dimension less than the space.
        assert np.linalg.matrix_rank(keep, tol=1e-9) == features.shape[1] - 1
    # A goal at the origin spans nothing, so nothing is projected away.
    assert np.array_equal(goal_projection(np.zeros((1, 3)), 0), np.eye(3))


def test_definition_compression_equals_projecting_on_both_sides():
    generator = np.random.default_rng(1)
    operator, basis = generator.normal(size=(5, 5)), orthonormal(generator, 5, 3)
    projection = basis @ basis.T
    assert np.allclose(basis @ compression(operator, basis) @ basis.T, projection @ operator @ projection)
    with pytest.raises(ChainError, match="not orthonormal"):
        compression(operator, 2 * basis)


def test_definition_spectral_radius():
    generator = np.random.default_rng(2)
    matrix = generator.normal(size=(6, 6))
    power = np.linalg.matrix_power(matrix / spectral_radius(matrix), 400)
    assert 1e-6 < np.linalg.norm(power) < 1e6
    assert spectral_radius(np.diag(np.ones(3), 1)) < 1e-3  # nilpotent: the norm is one, the radius is zero
