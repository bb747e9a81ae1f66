"""Theorem 2.3 and Corollary 2.4: exact representations differ by a linear isomorphism, and readouts pull back."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import hitting_time_matrix, policy_chain
from iel.theory.builders import random_policy, random_process
from iel.theory.identifiability import (
    displacement_basis,
    displacement_isomorphism,
    intertwining_residual,
    missed_displacements,
    pullback,
)
from iel.theory.representation import (
    Representation,
    hitting_time_representation,
    one_hot_representation,
    predictions,
    readouts,
    transform,
)


def random_pair(generator: np.random.Generator):
    """A process, a policy, and two exact representations in unrelated coordinates with their readouts."""
    process = random_process(int(generator.integers(3, 8)), 2, generator)
    policy = random_policy(process, generator)
    states = process.states
    rotation, _ = np.linalg.qr(generator.normal(size=(states, states)))
    first = transform(one_hot_representation(process), rotation * generator.uniform(0.3, 3.0, states))
    canonical, canonical_omegas = hitting_time_representation(process, policy)
    return process, policy, first, readouts(process, first, policy), canonical, canonical_omegas


def test_theorem_2_3_the_isomorphism_is_unique_whatever_the_measure():
    generator = np.random.default_rng(1)
    _, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
    states = len(omegas)
    maps = [
        displacement_isomorphism(
            first.features, omegas, canonical.features, canonical_omegas, generator.dirichlet(np.ones(states))
        ).matrix
        for _ in range(3)
    ]
    assert np.allclose(maps[0], maps[1], atol=1e-8) and np.allclose(maps[0], maps[2], atol=1e-8)


def test_theorem_2_3_needs_the_same_hitting_times_on_both_sides():
    """Assumption (i) broken: the second representation describes another policy."""
    generator = np.random.default_rng(2)
    process, _, first, omegas, _, _ = random_pair(generator)
    other, other_omegas = hitting_time_representation(process, random_policy(process, generator))
    found = displacement_isomorphism(first.features, omegas, other.features, other_omegas)
    assert missed_displacements(found.matrix, first.features, other.features).max() > 1e-4
    # The range of A is the complement of the stationary distribution, which differs between the two policies.
    assert found.range_gap > 1e-3


def test_theorem_2_3_needs_an_analysis_operator_bounded_below():
    """Assumption (ii) broken by a measure that ignores two goals: some displacement becomes invisible."""
    generator = np.random.default_rng(3)
    process, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
    measure = np.ones(process.states)
    measure[:2] = 0.0
    with pytest.raises(ChainError, match="not bounded below"):
        displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas, measure / measure.sum())


def test_theorem_2_3_intertwining_needs_sufficiency():
    generator = np.random.default_rng(4)
    _, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
    found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
    wrong = Representation(first.features, first.operators + 0.1 * generator.normal(size=first.operators.shape))
    scale = np.abs(canonical.features).max()
    assert missed_displacements(found.matrix, wrong.features, canonical.features).max() < (1e-8 * scale) ** 2
    assert intertwining_residual(found, wrong, canonical) > 1e-3 * scale


def test_corollary_2_4_the_pulled_back_readout_is_the_only_one_in_the_displacement_space():
    generator = np.random.default_rng(7)
    _, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
    found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
    pulled = pullback(found, canonical_omegas)
    basis = displacement_basis(first.features)
    assert np.allclose(pulled @ basis @ basis.T, pulled, atol=1e-9)
    # A readout outside D predicts the same but is another vector; projecting it back gives the same one.
    assert np.allclose(omegas @ basis @ basis.T, pulled, atol=1e-8)


def test_corollary_2_4_needs_the_canonical_readout():
    generator = np.random.default_rng(8)
    process, policy, first, omegas, canonical, canonical_omegas = random_pair(generator)
    found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
    wrong = pullback(found, canonical_omegas + 0.1 * generator.normal(size=canonical_omegas.shape))
    times = hitting_time_matrix(policy_chain(process, policy))
    assert np.abs(predictions(first.features, wrong) - times).max() > 1e-3
