"""Theorem 3.5: finite-sample recovery of the displacement geometry, with every part computed."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import ControlledProcess, grid, hitting_time_matrix, policy_chain, uniform_policy
from iel.theory.builders import directed_ring, random_process
from iel.theory.recovery import Reference
from iel.theory.representation import one_hot_representation, readouts
from iel.theory.sample_bound import (
    coverage,
    empirical_weight,
    fit_encoder,
    ideal_target,
    predictor,
    rademacher_complexity,
    sample_bound,
    sample_tuples,
    statistical_term,
    tuple_law,
)

SLOTS = [(0, 1, 3), (0, 2, 4), (1, 2, 2), (0, 2, 0)]


def exact_reference(process: ControlledProcess) -> Reference:
    canonical = one_hot_representation(process)
    return Reference(canonical.features, readouts(process, canonical, uniform_policy(process)), 0.0)


def class_error(chain, law, omegas: np.ndarray) -> float:
    """inf over tabular encoders of || f - G ||."""
    ideal = ideal_target(chain)
    return law.norm(predictor(fit_encoder(law.weight, ideal, omegas), omegas) - ideal)


def random_setup(generator: np.random.Generator, dimension: int = 3):
    process = random_process(4, 1, generator)
    chain = process.transitions[0]
    start = generator.dirichlet(np.full(4, 3.0))
    omegas = generator.normal(size=(4, dimension))
    omegas /= np.linalg.norm(omegas, axis=1, keepdims=True)
    return process, chain, start, omegas, tuple_law(chain, start, SLOTS)


def test_the_exact_tuple_law_agrees_with_sampling():
    generator = np.random.default_rng(0)
    _, chain, start, _, law = random_setup(generator)
    tuples = sample_tuples(chain, start, SLOTS, 4000, generator)
    weight, mean = empirical_weight(tuples, 4)
    assert np.isclose(law.weight.sum(), 1.0)
    assert np.abs(weight - law.weight).max() < 0.01
    assert np.abs((weight * mean).sum() - (law.weight * law.mean_gap).sum()) < 1e-9  # the slots fix the mean gap


def test_theorem_3_5_population_limit_is_never_violated():
    """N to infinity: the encoder is the population minimiser and Gamma is zero, the tightest case of the theorem."""
    generator = np.random.default_rng(1)
    for _ in range(500):
        process, chain, _, omegas, law = random_setup(generator, int(generator.integers(1, 5)))
        encoder = fit_encoder(law.weight, law.mean_gap, omegas)
        measure = generator.dirichlet(np.full(4, 4.0))
        result = sample_bound(
            chain, law, encoder, omegas, exact_reference(process), measure, class_error(chain, law, omegas), 0.0
        )
        assert all(result.assumptions.values())
        assert result.distance <= result.bound * (1 + 1e-9) + 1e-9
        # The middle of the proof: || f - G ||^2 <= 2 (class + mismatch)^2 + 2 mismatch^2.
        middle = 2 * (result.class_error + result.label_mismatch) ** 2 + 2 * result.label_mismatch**2
        assert result.target_error <= middle + 1e-9


def test_theorem_3_5_on_sampled_trajectories():
    generator = np.random.default_rng(2)
    delta, failures = 0.1, 0
    for _ in range(500):
        process, chain, start, omegas, law = random_setup(generator)
        tuples = sample_tuples(chain, start, SLOTS, 30, generator)
        weight, mean = empirical_weight(tuples, 4)
        encoder = fit_encoder(weight, mean, omegas)
        radius = float(np.linalg.norm(encoder, axis=1).max())
        complexity = rademacher_complexity(tuples, omegas, radius, 20, generator)
        gamma = statistical_term(complexity, radius, 1.0, 2.0, 30, delta)
        measure = np.full(4, 0.25)
        result = sample_bound(
            chain, law, encoder, omegas, exact_reference(process), measure, class_error(chain, law, omegas), gamma
        )
        failures += result.distance > result.bound
        assert result.statistical == gamma > 0
    assert failures <= delta * 500


def test_the_statistical_term_shrinks_like_the_root_of_the_sample_size():
    generator = np.random.default_rng(3)
    _, chain, start, omegas, _ = random_setup(generator)
    small = rademacher_complexity(sample_tuples(chain, start, SLOTS, 50, generator), omegas, 1.0, 200, generator)
    large = rademacher_complexity(sample_tuples(chain, start, SLOTS, 800, generator), omegas, 1.0, 200, generator)
    assert 3.0 < small / large < 5.5
    assert np.isclose(
        statistical_term(0.0, 1.0, 1.0, 1.0, 50, 0.1) / statistical_term(0.0, 1.0, 1.0, 1.0, 800, 0.1), 4.0
    )


def test_rademacher_closed_form_is_the_supremum_over_the_ball():
    """For fixed signs no encoder in the ball beats the closed form, and the aligned one attains it."""
    generator = np.random.default_rng(4)
    _, chain, start, omegas, _ = random_setup(generator)
    tuples = sample_tuples(chain, start, [(0, 1, 2)], 3, generator)
    complexity = rademacher_complexity(tuples, omegas, 2.0, 4000, generator)
    best = []
    for signs in np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T:
        table = np.zeros((4, omegas.shape[1]))
        for sign, (s, u, g, _) in zip(signs, tuples[:, 0], strict=True):
            table[u] += sign * omegas[g]
            table[s] -= sign * omegas[g]
        aligned = 2.0 * table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        scores = predictor(aligned, omegas)[tuples[:, 0, 0], tuples[:, 0, 1], tuples[:, 0, 2]]
        best.append((signs * scores).mean())
    assert np.isclose(np.mean(best), complexity, rtol=0.1)


def test_theorem_3_5_needs_the_label_mismatch():
    """A class rich enough for G, exact readouts, infinite data: what error remains is the labels', and only theirs."""
    generator = np.random.default_rng(5)
    process = random_process(4, 1, generator)
    chain, measure = process.transitions[0], np.full(4, 0.25)
    reference = exact_reference(process)
    law = tuple_law(chain, measure, SLOTS)
    encoder = fit_encoder(law.weight, law.mean_gap, reference.omegas)
    honest = sample_bound(chain, law, encoder, reference.omegas, reference, measure, 0.0, 0.0)
    blind = sample_bound(chain, law, encoder, reference.omegas, reference, measure, 0.0, 0.0, label_mismatch=0.0)
    assert class_error(chain, law, reference.omegas) < 1e-8
    assert honest.distance <= honest.bound
    assert blind.distance > blind.bound == 0.0


def test_theorem_3_5_needs_goal_coverage():
    """Tuples that only ever show one goal say nothing about the others, though the regression is perfect."""
    process = directed_ring(4)
    chain, measure = process.transitions[0], np.full(4, 0.25)
    start = np.eye(4)[0]
    law = tuple_law(chain, start, [(0, 1, 2)])
    reference = exact_reference(process)
    encoder = fit_encoder(law.weight, law.mean_gap, reference.omegas)
    result = sample_bound(chain, law, encoder, reference.omegas, reference, measure, 0.0, 0.0)
    assert coverage(law, measure) == 0.0 and np.isinf(result.bound)
    assert result.target_error < 1e-12  # regression error zero on every tuple that occurs
    assert result.distance > 1e-2  # yet the displacement geometry is not recovered


def test_theorem_3_5_needs_a_reference_operator_bounded_below():
    generator = np.random.default_rng(6)
    _, chain, _, omegas, law = random_setup(generator)
    blind = Reference(np.eye(4), np.zeros((4, 4)), 0.0)
    with pytest.raises(ChainError, match="not bounded below"):
        sample_bound(chain, law, np.eye(4)[:, :3], omegas, blind, np.full(4, 0.25), 0.0, 0.0)


def test_labels_of_a_ring_are_exact_and_labels_of_a_random_walk_are_not():
    """eta_traj vanishes when every path is the shortest one, and is large when the data wanders."""
    ring = directed_ring(5)
    law = tuple_law(ring.transitions[0], np.full(5, 0.2), [(0, 1, 2), (0, 1, 3), (0, 2, 4)])
    assert law.norm(law.mean_gap - ideal_target(ring.transitions[0])) < 1e-9
    line = grid(1, 5)
    walk = policy_chain(line, uniform_policy(line))
    wandering = tuple_law(walk, np.full(5, 0.2), [(0, 1, 2), (0, 1, 3), (0, 2, 4)])
    assert wandering.norm(wandering.mean_gap - ideal_target(walk)) > 1.0
    # V(s, g) - V(u, g) never exceeds V(s, u): the ideal target can be negative, a label cannot.
    times = hitting_time_matrix(walk)
    assert (
        np.all(ideal_target(walk) <= times[:, :, None] + 1e-9)
        and ideal_target(walk).min() < 0 <= wandering.mean_gap.min()
    )


def test_malformed_slots_and_radii_are_refused():
    generator = np.random.default_rng(7)
    _, chain, start, omegas, law = random_setup(generator)
    with pytest.raises(ChainError, match="extraction slot"):
        tuple_law(chain, start, [(2, 1, 3)])
    with pytest.raises(ChainError, match="raise the radius"):
        fit_encoder(law.weight, law.mean_gap, omegas, radius=1e-3)
    with pytest.raises(ChainError, match="irreducible"):
        ideal_target(np.eye(3))
