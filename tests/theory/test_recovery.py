"""Theorem 3.4: a good predictor of hitting times has, up to a linear map, the reference's displacements."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import hitting_time_matrix
from iel.theory.builders import drift_walk, random_process
from iel.theory.identifiability import analysis_operator
from iel.theory.recovery import (
    Reference,
    fit_predictor,
    oracle_recovery,
    reference_level,
)
from iel.theory.representation import one_hot_representation, predictions, readouts


def references(generator: np.random.Generator, chain, states: int) -> list[Reference]:
    """Compressed references of random dimension whose analysis operators are bounded below."""
    found = []
    while len(found) < 2:
        reference = reference_level(chain, generator.normal(size=(states, int(generator.integers(1, states)))))
        measure = np.full(states, 1.0 / states)
        if analysis_operator(reference.features, reference.omegas, measure).lower > 1e-6:
            found.append(reference)
    return found


def test_theorem_3_4_reference_levels_are_honest():
    generator = np.random.default_rng(1)
    for _ in range(50):
        chain = random_process(5, 1, generator).transitions[0]
        reference = reference_level(chain, generator.normal(size=(5, 3)))
        error = np.abs(predictions(reference.features, reference.omegas) - hitting_time_matrix(chain)).max()
        assert error <= reference.level + 1e-9


@pytest.mark.parametrize("states", [20, 24, 40])
def test_theorem_3_4_reference_levels_are_honest_on_the_drift_walk(states):
    """Times up to 1e37: the level was NaN at n = 24 when the fundamental matrix was believed."""
    chain = drift_walk(states, 0.9)
    reference = reference_level(chain, np.random.default_rng(states).normal(size=(states, 6)))
    error = np.abs(predictions(reference.features, reference.omegas) - hitting_time_matrix(chain)).max()
    assert 0 < error <= reference.level < np.inf


def test_theorem_3_4_is_exact_for_exact_references_and_exact_learners():
    generator = np.random.default_rng(2)
    process = random_process(5, 1, generator)
    canonical = one_hot_representation(process)
    exact = Reference(canonical.features, readouts(process, canonical, np.ones((5, 1))), 0.0)
    result = oracle_recovery(process.transitions[0], generator.normal(size=(5, 5)), exact)
    assert result.distance < 1e-7 and result.class_excess < 1e-8


def test_theorem_3_4_needs_an_honest_reference_level():
    """Claiming level zero for a compressed reference makes the right side too small."""
    generator = np.random.default_rng(3)
    violated = 0
    for _ in range(50):
        process = random_process(5, 1, generator)
        chain = process.transitions[0]
        honest = references(generator, chain, 5)[0]
        result = oracle_recovery(chain, generator.normal(size=(5, 5)), Reference(honest.features, honest.omegas, 0.0))
        violated += result.distance > result.bound + 1e-6
    assert violated > 10


def test_theorem_3_4_needs_a_reference_operator_bounded_below():
    generator = np.random.default_rng(4)
    chain = random_process(4, 1, generator).transitions[0]
    blind = Reference(generator.normal(size=(4, 3)), np.zeros((4, 3)), 1.0)
    with pytest.raises(ChainError, match="not bounded below"):
        oracle_recovery(chain, np.eye(4), blind)


def test_theorem_3_4_needs_the_population_minimiser():
    """Another member of a class that contains the truth may be arbitrarily far from the reference."""
    generator = np.random.default_rng(5)
    process = random_process(5, 1, generator)
    chain, canonical = process.transitions[0], one_hot_representation(process)
    exact = Reference(canonical.features, readouts(process, canonical, np.ones((5, 1))), 0.0)
    features = generator.normal(size=(5, 5))
    best = fit_predictor(hitting_time_matrix(chain), features)
    at_optimum = oracle_recovery(chain, features, exact, omegas=best)
    elsewhere = oracle_recovery(chain, features, exact, omegas=best + 0.1 * generator.normal(size=best.shape))
    assert at_optimum.distance < 1e-7
    assert elsewhere.distance > 1e-2 > elsewhere.bound
