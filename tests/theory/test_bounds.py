"""Projections, Sufficient Capacity, Lemma 3.2 and Theorem 3.3, with the theorem's corrected form."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory.bounds import approximation_bound, compress, goal_projection, invariant_operator
from iel.theory.builders import absorbing, random_process


def orthonormal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(generator.normal(size=(rows, columns)))[0]


def admissible_subspace(generator: np.random.Generator, states: int, goal: int, dimension: int) -> np.ndarray:
    """One-hot features compressed to a random subspace that holds e_g and the unit cost 1 - e_g."""
    outside = np.ones(states)
    outside[goal] = 0.0
    columns = np.column_stack([np.eye(states)[goal], outside, generator.normal(size=(states, dimension - 2))])
    return np.linalg.qr(columns)[0]


def test_lemma_3_2_no_leakage_when_the_features_lie_in_the_subspace():
    generator = np.random.default_rng(4)
    chain = random_process(5, 1, generator).transitions[0]
    found = compress(chain, np.eye(5), np.eye(5))
    assert found.leakage.max() < 1e-12 and found.epsilon < 1e-12
    assert compress(chain, np.eye(5), np.eye(5)[:, :3]).leakage.max() > 1e-3


def test_lemma_3_2_needs_an_ambient_transition_operator():
    generator = np.random.default_rng(5)
    chain = random_process(5, 1, generator).transitions[0]
    with pytest.raises(ChainError, match="do not close linearly"):
        compress(chain, generator.normal(size=(5, 3)), np.eye(3)[:, :2])


def test_theorem_3_3_bound_is_never_violated():
    generator = np.random.default_rng(6)
    applicable = 0
    for _ in range(250):
        states = int(generator.integers(4, 9))
        goal = int(generator.integers(states))
        process = random_process(states, 1, generator, concentration=float(generator.uniform(0.3, 2)))
        chain = absorbing(process, goal).transitions[0]
        features = admissible_subspace(generator, states, goal, int(generator.integers(2, states + 1)))
        # Other coordinates keep the assumptions and make phi(x) overlap phi(g).
        features = features @ (np.eye(features.shape[1]) + 0.2 * generator.normal(size=(features.shape[1],) * 2))
        operator = invariant_operator(chain, features, goal)
        keep = goal_projection(features, goal)
        # Any T that keeps the goal's line will do, not only the fitted one.
        operator = operator + 0.02 * generator.normal(size=operator.shape) @ keep
        result = approximation_bound(chain, goal, features, operator)
        if result.applies:
            applicable += 1
            assert result.true_error <= result.bound * (1 + 1e-9) + 1e-8
            assert result.true_error <= result.sharp_bound * (1 + 1e-9) + 1e-8
    assert applicable >= 200


def test_theorem_3_3_the_fitted_operator_keeps_the_goal_and_is_exact_at_full_dimension():
    generator = np.random.default_rng(13)
    chain = absorbing(random_process(5, 1, generator), 1).transitions[0]
    features = generator.normal(size=(5, 5))
    operator = invariant_operator(chain, features, 1)
    assert np.allclose(operator @ features[1], features[1])
    assert np.abs(chain @ features - features @ operator.T).max() < 1e-8
    small = features[:, :3]
    operator = invariant_operator(chain, small, 1)
    assert np.allclose(operator @ small[1], small[1])


def test_theorem_3_3_is_exact_without_compression():
    generator = np.random.default_rng(8)
    chain = absorbing(random_process(6, 1, generator), 2).transitions[0]
    result = approximation_bound(chain, 2, np.eye(6), chain.toarray().T)
    assert result.applies and result.epsilon < 1e-12 and result.true_error < 1e-9


def test_theorem_3_3_needs_the_unit_cost():
    generator = np.random.default_rng(9)
    violated = 0
    for _ in range(100):
        chain = absorbing(random_process(5, 1, generator), 4).transitions[0]
        features = np.linalg.qr(np.column_stack([np.eye(5)[4], generator.normal(size=(5, 2))]))[0]
        result = approximation_bound(chain, 4, features, invariant_operator(chain, features, 4))
        assert not result.assumptions["unit cost represented orthogonally to the goal"]
        violated += result.spectral_radius < 1 and result.true_error > result.bound
    assert violated > 20


def test_theorem_3_3_needs_a_goal_that_is_reached():
    chain = np.array([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    result = approximation_bound(chain, 2, np.eye(3), chain.T)
    assert not result.assumptions["goal reached almost surely"]
