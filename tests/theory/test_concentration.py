"""The probabilistic lemmas, checked by exact enumeration rather than by Monte Carlo."""

from __future__ import annotations

import numpy as np

from iel.theory.concentration import (
    contraction_sides,
    deviation_term,
    failure_probability,
    multinomial_law,
    regression_control,
)


def test_enumeration_covers_all_outcomes():
    counts, law = multinomial_law(np.array([0.2, 0.3, 0.5]), 5)
    assert len(counts) == 21 and np.all(counts.sum(axis=1) == 5) and counts.min() == 0
    assert np.isclose(law.sum(), 1.0)


def test_lemma_mcdiarmid_needs_the_bound():
    """Functions with values up to ten but B = 1 concentrate ten times more slowly than promised."""
    failure = failure_probability(np.array([0.5, 0.5]), np.array([[0.0, 10.0]]), 4, 0.1, bound=1.0)
    assert failure > 0.1


def test_lemma_mcdiarmid_needs_independent_trajectories():
    """If all N trajectories are copies of one, the mean does not concentrate at all."""
    law, values, samples, delta = np.array([0.1, 0.9]), np.array([0.0, 1.0]), 400, 0.05
    deviation = np.abs(law @ values - values)  # of the mean of N equal draws
    threshold = law @ deviation + deviation_term(1.0, samples, delta)
    assert law[deviation > threshold].sum() > delta
    assert failure_probability(law, values[None], samples, delta, 1.0) <= delta


def test_lemma_contraction_needs_bounded_predictions():
    """f = 0 or f = 10 with B = 1: the squared loss is steeper than 2 (B + H)."""
    left, right = contraction_sides(np.array([[0.0] * 4, [10.0] * 4]), np.zeros(4), 1.0, 0.0)
    assert left > right


def test_lemma_contraction_needs_bounded_labels():
    left, right = contraction_sides(np.array([[-1.0] * 4, [1.0] * 4]), np.full(4, 9.0), 1.0, 0.0)
    assert left > right


def test_lemma_tuple_regression_needs_the_bounds():
    """With B and H understated Gamma is tiny, and the empirical minimiser is worse than that too often."""
    probabilities = np.array([0.9, 0.1])
    values = np.array([[[0.0], [0.0]], [[0.1], [-10.0]]])
    labels = np.array([[0.1], [0.0]])
    honest = regression_control(probabilities, values, labels, 4, 0.2, bound=10.0, label_bound=0.1)
    understated = regression_control(probabilities, values, labels, 4, 0.2, bound=0.01, label_bound=0.01)
    assert honest.failure <= 0.2 < understated.failure
