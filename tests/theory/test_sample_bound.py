"""Theorem 3.5: finite-sample recovery of the displacement geometry, with every part computed."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import hitting_time_matrix
from iel.theory.builders import directed_ring, random_process
from iel.theory.recovery import Reference
from iel.theory.sample_bound import (
    SLOTS,
    coverage,
    empirical_weight,
    exact_reference,
    fit_encoder,
    ideal_target,
    predictor,
    rademacher_complexity,
    random_omegas,
    sample_bound,
    sample_tuples,
    statistical_term,
    tuple_law,
)


def class_error(chain, law, omegas: np.ndarray) -> float:
    """inf over tabular encoders of || f - G ||."""
    ideal = ideal_target(chain)
    return law.norm(predictor(fit_encoder(law.weight, ideal, omegas), omegas) - ideal)


def random_setup(generator: np.random.Generator, dimension: int = 3):
    process = random_process(4, 1, generator)
    chain = process.transitions[0]
    start = generator.dirichlet(np.full(4, 3.0))
    omegas = random_omegas(generator, dimension)
    return process, chain, start, omegas, tuple_law(chain, start, SLOTS)


def test_the_exact_tuple_law_agrees_with_sampling():
    generator = np.random.default_rng(0)
    _, chain, start, _, law = random_setup(generator)
    tuples = sample_tuples(chain, start, SLOTS, 4000, generator)
    weight, mean = empirical_weight(tuples, 4)
    assert np.isclose(law.weight.sum(), 1.0)
    assert np.abs(weight - law.weight).max() < 0.01
    assert np.abs((weight * mean).sum() - (law.weight * law.mean_gap).sum()) < 1e-9  # the slots fix the mean gap


def two_states(stay: float, slots: list[tuple[int, int, int]]):
    """Two states; the exact reference lives on a line, and with rows alike the goals are independent of the pair."""
    a = 0.3
    chain = stay * np.eye(2) + (1 - stay) * np.array([[1 - a, a], [1 - a, a]])
    times = hitting_time_matrix(chain)
    reference = Reference(np.array([[0.0], [1.0]]), np.array([[-times[1, 0]], [times[0, 1]]]), 0.0)
    law = tuple_law(chain, np.array([1 - a, a]), slots)
    encoder = fit_encoder(law.weight, law.mean_gap, reference.omegas)
    return chain, reference, law, encoder, np.array([1 - a, a])


def test_theorem_3_5_its_last_step_is_attained_so_a_wrong_constant_would_show():
    """With independent goals 1 / (c_cov m_B^2) is exact: any smaller factor is violated; the rest loses a factor 12."""
    chain, reference, law, encoder, measure = two_states(0.0, [(0, 1, 3), (0, 1, 4)])
    found = sample_bound(chain, law, encoder, reference.omegas, reference, measure, 0.0, 0.0)
    assert found.coverage == pytest.approx(1.0)
    assert found.distance == pytest.approx(found.sharp_bound, rel=1e-9) and found.distance > 0.1
    assert 0.05 < found.distance / found.bound < 0.2
    # Its encoder is one point, but for rounding: no displacement is learned, and all there is to find is missed.
    assert np.abs(encoder).max() < 1e-9
    alone = sample_bound(chain, law, np.zeros((2, 1)), reference.omegas, reference, measure, 0.0, 0.0)
    assert alone.distance == pytest.approx(law.pairs[0, 1] + law.pairs[1, 0]) == pytest.approx(found.distance)


@pytest.mark.parametrize("stay", [0.0, 0.5, 0.8])
def test_theorem_3_5_needs_the_coverage_constant(stay):
    """Goals that depend on the pair: c_cov < 1, and the last step without it is violated for some measure."""
    chain, reference, law, encoder, _ = two_states(stay, [(0, 1, 1)])
    measures = [np.array([1 - w, w]) for w in np.linspace(0.05, 0.95, 19)]
    found = [sample_bound(chain, law, encoder, reference.omegas, reference, m, 0.0, 0.0) for m in measures]
    assert all(result.distance <= result.sharp_bound * (1 + 1e-9) for result in found)
    without = [result.distance / (result.sharp_bound * result.coverage) for result in found if result.coverage > 0]
    assert not without or max(without) > 1.0


def test_theorem_3_5_on_sampled_trajectories():
    """The empirical minimiser over the ball ||phi|| <= 2, fixed before the data: excess risk and recovery."""
    generator = np.random.default_rng(2)
    delta, failures, understated, radius = 0.1, 0, 0, 2.0
    for _ in range(40):
        process, chain, start, omegas, law = random_setup(generator)
        tuples = sample_tuples(chain, start, SLOTS, 30, generator)
        encoder = fit_encoder(*empirical_weight(tuples, 4), omegas, radius)
        best = fit_encoder(law.weight, law.mean_gap, omegas, radius)
        assert max(np.linalg.norm(phi, axis=1).max() for phi in (encoder, best)) <= radius * (1 + 1e-9)
        risk = [law.norm(predictor(phi, omegas) - law.mean_gap) ** 2 for phi in (encoder, best)]
        gamma = statistical_term(rademacher_complexity(tuples, omegas, radius, 20, generator), radius, 2.0, 30, delta)
        ideal = ideal_target(chain)
        within = fit_encoder(law.weight, ideal, omegas, radius)
        capacity = law.norm(predictor(within, omegas) - ideal)
        result = sample_bound(chain, law, encoder, omegas, exact_reference(process), np.full(4, 0.25), capacity, gamma)
        assert risk[0] >= risk[1] - 1e-9  # the population minimiser is one
        failures += risk[0] - risk[1] > gamma or result.distance > result.bound
        # With bounds understated a hundredfold (C_phi = H_max = 0.02) the promise is broken most of the time.
        understated += risk[0] - risk[1] > statistical_term(0.0, 0.02, 0.02, 30, delta)
    assert failures <= delta * 40 and understated > 20


def test_the_constrained_minimiser_is_one():
    """No member of the ball has a smaller risk than the one projected gradients find, and the plain one is outside."""
    generator = np.random.default_rng(9)
    _, _, _, omegas, law = random_setup(generator)
    radius = 0.5
    assert np.linalg.norm(fit_encoder(law.weight, law.mean_gap, omegas), axis=1).max() > radius
    found = fit_encoder(law.weight, law.mean_gap, omegas, radius)
    least = law.norm(predictor(found, omegas) - law.mean_gap)
    for _ in range(500):
        other = found + 10.0 ** generator.uniform(-4, 0) * generator.normal(size=found.shape)
        other *= np.minimum(1.0, radius / np.linalg.norm(other, axis=1, keepdims=True))
        assert law.norm(predictor(other, omegas) - law.mean_gap) >= least - 1e-9


def test_the_statistical_term_shrinks_like_the_root_of_the_sample_size():
    generator = np.random.default_rng(3)
    _, chain, start, omegas, _ = random_setup(generator)
    small = rademacher_complexity(sample_tuples(chain, start, SLOTS, 50, generator), omegas, 1.0, 200, generator)
    large = rademacher_complexity(sample_tuples(chain, start, SLOTS, 800, generator), omegas, 1.0, 200, generator)
    assert 3.0 < small / large < 5.5
    assert np.isclose(statistical_term(0.0, 1.0, 1.0, 50, 0.1) / statistical_term(0.0, 1.0, 1.0, 800, 0.1), 4.0)


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
    assert class_error(chain, law, reference.omegas) < 1e-8
    # Without the mismatch the bound would be zero: capacity, reference and sampling error all vanish here.
    assert 1e-3 < honest.distance <= honest.bound


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
