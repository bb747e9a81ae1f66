"""The linear analysis of the paper's appendix: each definition and the lemma on the goal projection."""

from __future__ import annotations

import numpy as np

from iel.theory.bounds import goal_projection, transient_basis
from iel.theory.representation import span_basis


def orthonormal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(generator.normal(size=(rows, columns)))[0]


def test_definition_orthogonal_projection_and_complement():
    generator = np.random.default_rng(12)
    direction = orthonormal(generator, 6, 1)
    rest = transient_basis(3.0 * direction.T, 0)
    assert rest.shape == (6, 5) and np.abs(direction.T @ rest).max() < 1e-12
    assert np.allclose(direction @ direction.T + rest @ rest.T, np.eye(6))
    basis = orthonormal(generator, 6, 2)
    assert span_basis(basis.T @ generator.normal(size=(6, 6))).shape == (6, 2)


def test_a_goal_at_the_origin_spans_nothing_so_nothing_is_projected_away():
    assert np.array_equal(goal_projection(np.zeros((1, 3)), 0), np.eye(3))
