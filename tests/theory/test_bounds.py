"""Projections, Sufficient Capacity, Lemma 3.2 and Theorem 3.3, with the theorem's corrected form."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import hitting_times
from iel.theory.bounds import approximation_bound, compress, fit_readout, invariant_operator, relative_error_bound
from iel.theory.builders import absorbing, corridor, random_process
from iel.theory.chains import killed_operator
from iel.theory.operators import goal_projection, spectral_radius


def orthonormal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(generator.normal(size=(rows, columns)))[0]


def admissible_subspace(generator: np.random.Generator, states: int, goal: int, dimension: int) -> np.ndarray:
    """One-hot features compressed to a random subspace that holds e_g and the unit cost 1 - e_g."""
    outside = np.ones(states)
    outside[goal] = 0.0
    columns = np.column_stack([np.eye(states)[goal], outside, generator.normal(size=(states, dimension - 2))])
    return np.linalg.qr(columns)[0]


def test_lemma_3_2_consistency_of_sufficient_capacity():
    generator = np.random.default_rng(3)
    for _ in range(500):
        states = int(generator.integers(3, 8))
        chain = random_process(states, 1, generator).transitions[0]
        ambient = generator.normal(size=(states, states))
        basis = orthonormal(generator, states, int(generator.integers(1, states)))
        operator = None if generator.random() < 0.5 else generator.normal(size=(basis.shape[1],) * 2)
        found = compress(chain, ambient, basis, operator)
        assert found.consistency <= found.epsilon + 1e-8 * (1 + found.epsilon)
        # The leakage inequality, and the sharper Pythagorean one.
        assert np.all(found.ambient_error <= found.epsilon + found.leakage + 1e-8)
        assert np.all(found.ambient_error <= np.hypot(found.epsilon, found.leakage) + 1e-8)


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
    for _ in range(600):
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
    assert applicable >= 500


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


def test_theorem_3_3_the_resolvent_norm_is_the_longest_hitting_time():
    generator = np.random.default_rng(7)
    for _ in range(50):
        chain = random_process(6, 1, generator).transitions[0]
        killed = killed_operator(chain, 2).toarray()
        norm = np.abs(np.linalg.inv(np.eye(5) - killed)).sum(axis=1).max()
        assert np.isclose(norm, hitting_times(chain, 2).max())


def test_theorem_3_3_is_exact_without_compression():
    generator = np.random.default_rng(8)
    chain = absorbing(random_process(6, 1, generator), 2).transitions[0]
    result = approximation_bound(chain, 2, np.eye(6), chain.toarray().T)
    assert result.applies and result.epsilon < 1e-12 and result.true_error < 1e-9


@pytest.mark.parametrize("states", [6, 12, 24])
def test_theorem_3_3_the_spectral_radius_alone_does_not_bound_the_error(states):
    """A corridor has rho(T_Q) = 0, so 1 / (1 - rho) = 1, yet errors add up over its whole length: C_H = n - 1."""
    chain = corridor(states).transitions[0]
    operator = chain.toarray().T
    for x in range(states - 2):
        operator[x + 1, x] = 0.95  # the latent model loses five per cent of its mass in each step
    result = approximation_bound(chain, states - 1, np.eye(states), operator)
    assert result.applies and result.spectral_radius < 1e-9
    assert result.true_error > np.linalg.norm(result.omega) * result.epsilon / (1 - result.spectral_radius)
    assert np.isclose(result.constant, states - 1)
    assert result.true_error <= result.bound


def test_theorem_3_3_needs_a_transient_spectral_radius_below_one():
    """An orthogonal compression of a killed chain can have radius above one; its predictions are then nonsense."""
    chain = np.array([[0.9, 0, 0, 0.1], [0, 0.95, 0, 0.05], [0, 1.0, 0, 0], [0, 0, 0, 1.0]])
    columns = np.column_stack([[0, 0, 0, 1.0], [1, 1, 1, 0], [4.0, -3, -1, 0]])
    features = np.linalg.qr(columns)[0]
    result = approximation_bound(chain, 3, features, invariant_operator(chain, features, 3))
    assert spectral_radius(killed_operator(chain, 3).toarray()) < 1 < result.spectral_radius
    assert not result.applies and np.isnan(result.bound)
    assert result.predicted[1] < 0 < result.exact[1]


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


def test_theorem_3_3_needs_the_goal_subspace_invariant():
    """The latent model is exact off the goal and off by 0.01 at it; overlap with phi(g) multiplies that error."""
    generator = np.random.default_rng(10)
    chain = absorbing(random_process(4, 1, generator), 3).transitions[0]
    overlap = np.array([100.0, 50.0, 80.0])
    features = np.eye(4)
    features[:3, 3] = overlap
    exact = np.linalg.solve(features, chain @ features).T
    functional = np.append(-overlap, 1.0)  # zero on phi(x) for x != g, one on phi(g)
    operator = exact + 0.01 * np.outer([1.0, -1.0, 0.5, 0.0], functional)
    result = approximation_bound(chain, 3, features, operator)
    broken = [name for name, holds in result.assumptions.items() if not holds]
    assert broken == ["goal subspace invariant"]
    assert result.true_error > result.bound


def test_theorem_3_3_needs_a_goal_that_is_reached():
    chain = np.array([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    result = approximation_bound(chain, 2, np.eye(3), chain.T)
    assert not result.assumptions["goal reached almost surely"]


def test_theorem_3_3_unit_cost_excludes_continuous_features():
    """<phi(x), w_1> must jump from 1 to 0 at the goal: with smooth features the residual stays near one half."""
    x = np.linspace(0, 1, 201)
    smooth = np.column_stack([np.ones(201)] + [np.cos(k * np.pi * x) for k in range(1, 12)])
    chain = absorbing(random_process(201, 1, np.random.default_rng(11)), 100).transitions[0]
    result = approximation_bound(chain, 100, smooth, np.eye(12))
    assert result.unit_cost_residual > 0.3


def test_corrected_bound_is_never_violated_for_any_features_and_readouts():
    generator = np.random.default_rng(12)
    ratios = []
    for _ in range(600):
        states = int(generator.integers(3, 9))
        goal = int(generator.integers(states))
        chain = random_process(states, 1, generator, concentration=float(generator.uniform(0.2, 2))).transitions[0]
        features = generator.normal(size=(states, int(generator.integers(1, states + 1))))
        omega = (
            fit_readout(chain, goal, features) if generator.random() < 0.7 else generator.normal(size=features.shape[1])
        )
        result = relative_error_bound(chain, goal, features, omega)
        assert np.all(result.error <= result.bound * (1 + 1e-9) + 1e-8)
        ratios.append(np.max(result.error[result.exact > 0] / np.maximum(result.bound[result.exact > 0], 1e-9)))
    # It is not vacuous: on some instances the error comes close to the bound.
    assert max(ratios) > 0.9


def test_corrected_bound_is_attained():
    """If every step makes 0.8 of a unit of progress, every prediction is exactly 0.8 of the true time."""
    chain = corridor(7).transitions[0]
    result = relative_error_bound(chain, 6, 0.8 * np.arange(7.0)[:, None], np.ones(1))
    assert np.isclose(result.residual, 0.2)
    assert np.allclose(result.error, result.bound)
