"""Definition 2.1 and Theorem 2.2: when hitting times are linear in latent displacements."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import ControlledProcess, hitting_time_matrix, hitting_times, policy_chain, uniform_policy
from iel.theory.builders import absorbing, lumpable, random_policy, random_process
from iel.theory.representation import (
    Representation,
    existence,
    fit_representation,
    hitting_time_representation,
    one_hot_representation,
    policy_operator,
    predictions,
    range_condition,
    readouts,
    sufficiency_residual,
    unit_readouts,
)


def test_theorem_2_2_needs_sufficiency():
    """With n - 1 random features the range condition can be solved, yet the predicted times are wrong."""
    generator = np.random.default_rng(3)
    process = random_process(5, 1, generator)
    result = existence(process, fit_representation(process, generator.normal(size=(5, 4))), uniform_policy(process), 2)
    assert result.epsilon > 1e-3
    assert result.range_condition.holds
    assert result.error > 0.1


def test_theorem_2_2_needs_the_range_condition():
    """A single eigenfunction is sufficient (K = its eigenvalue) but cannot express the passage of time."""
    chain = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])
    values, vectors = np.linalg.eigh(chain)
    process = ControlledProcess.of([chain])
    representation = Representation(vectors[:, [0]], values[0] * np.ones((1, 1, 1)))
    result = existence(process, representation, uniform_policy(process), 0)
    assert result.epsilon < 1e-12
    assert not result.range_condition.holds and not result.representable


def test_theorem_2_2_needs_a_goal_that_is_reached_almost_surely():
    trap = np.array([[0.2, 0.4, 0.4], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    process = ControlledProcess.of([trap])
    result = existence(process, one_hot_representation(process), uniform_policy(process), 1)
    assert np.isinf(result.exact[0]) and not result.representable and not result.range_condition.holds


def test_theorem_2_2_needs_a_policy_that_closes_linearly():
    generator = np.random.default_rng(4)
    groups = np.array([0, 1, 1, 2])
    process = lumpable(groups, 2, generator)
    representation = fit_representation(process, np.eye(3)[groups])
    policy = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    # States 1 and 2 look the same but act differently, and their hitting times differ: no readout can exist.
    times = hitting_times(policy_chain(process, policy), 0)
    assert abs(times[1] - times[2]) > 1e-3
    with pytest.raises(ChainError, match="close linearly"):
        policy_operator(process, representation, policy)


def test_theorem_2_2_holds_on_the_transient_span_and_not_on_all_of_it():
    """With w_1 = 1 everywhere the range condition fails for every finite chain: stationarity forbids it."""
    generator = np.random.default_rng(5)
    for _ in range(50):
        process = random_process(5, 1, generator)
        features = one_hot_representation(process).features
        operator = policy_operator(process, one_hot_representation(process), uniform_policy(process))
        assert range_condition(features, operator, 1).holds
        assert not range_condition(features, operator, 1, everywhere=True).holds
        # An absorbing goal fails too: (K_pi - I) phi(g) = 0 can never give one.
        ended = absorbing(process, 1)
        operator = policy_operator(ended, one_hot_representation(ended), uniform_policy(ended))
        assert range_condition(features, operator, 1).holds
        assert not range_condition(features, operator, 1, everywhere=True).holds


def test_canonical_coordinates_are_the_hitting_times_themselves():
    generator = np.random.default_rng(7)
    process = random_process(5, 2, generator)
    policy = random_policy(process, generator)
    times = hitting_time_matrix(policy_chain(process, policy))
    representation, omegas = hitting_time_representation(process, policy)
    assert np.allclose(predictions(representation.features, omegas), times)
    assert sufficiency_residual(process, representation).max() < 1e-8
    assert np.allclose(
        predictions(representation.features, readouts(process, representation, policy)), times, atol=1e-7
    )


def test_readouts_of_length_one_cost_one_dimension_and_nothing_else():
    generator = np.random.default_rng(8)
    process = random_process(6, 1, generator)
    policy = uniform_policy(process)
    representation = one_hot_representation(process)
    omegas = readouts(process, representation, policy)
    times = hitting_time_matrix(policy_chain(process, policy))
    features, units = unit_readouts(representation.features, omegas)
    assert np.allclose(np.linalg.norm(units, axis=1), 1.0)
    assert np.allclose(predictions(features, units), times, atol=1e-9)
    # Normalising in place, without the extra dimension, changes the times unless all readouts are equally long.
    shortened = omegas / np.linalg.norm(omegas, axis=1, keepdims=True)
    ratio = predictions(representation.features, shortened)[times > 0] / times[times > 0]
    assert np.ptp(ratio) > 0.01


def test_readouts_need_the_range_condition():
    process = random_process(4, 1, np.random.default_rng(9))
    with pytest.raises(ChainError, match="range condition fails for goal 0"):
        readouts(process, fit_representation(process, np.ones((4, 1))), uniform_policy(process))
