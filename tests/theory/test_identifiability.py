"""Theorem 2.3 and Corollary 2.4: exact representations differ by a linear isomorphism, and readouts pull back."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import ControlledProcess, hitting_time_matrix, optimal_hitting_times, policy_chain, uniform_policy
from iel.theory.builders import directed_ring, random_policy, random_process
from iel.theory.identifiability import (
    analysis_operator,
    displacement_basis,
    displacement_isomorphism,
    displacement_residual,
    intertwining_residual,
    pullback,
)
from iel.theory.recovery import predictions
from iel.theory.representation import (
    Representation,
    hitting_time_representation,
    one_hot_representation,
    policy_operator,
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


def test_theorem_2_3_isomorphism_and_intertwining():
    generator = np.random.default_rng(0)
    for _ in range(500):
        process, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
        measure = generator.dirichlet(np.full(process.states, 5.0))
        found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas, measure)
        scale = np.abs(canonical.features).max()
        assert found.holds
        assert displacement_residual(found, first.features, canonical.features) < 1e-8 * scale
        assert intertwining_residual(found, process, first, canonical) < 1e-8 * scale
        other = random_policy(process, generator)
        assert intertwining_residual(found, process, first, canonical, other) < 1e-8 * scale
        assert found.condition <= found.condition_bound * (1 + 1e-6)


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
    stranger, stranger_omegas = hitting_time_representation(process, random_policy(process, generator))
    found = displacement_isomorphism(first.features, omegas, stranger.features, stranger_omegas)
    assert displacement_residual(found, first.features, stranger.features) > 1e-2
    # The range of A is the complement of the stationary distribution, which differs between the two policies.
    assert not found.holds and found.range_gap > 1e-3


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
    process, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
    found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
    wrong = Representation(first.features, first.operators + 0.1 * generator.normal(size=first.operators.shape))
    scale = np.abs(canonical.features).max()
    assert displacement_residual(found, wrong.features, canonical.features) < 1e-8 * scale
    assert intertwining_residual(found, process, wrong, canonical) > 1e-3 * scale


def test_on_a_finite_chain_exact_representations_of_all_goals_have_n_minus_one_dimensions():
    """Assumption (ii) comes for free: hitting-time differences have rank n - 1, so no exact compression exists."""
    generator = np.random.default_rng(5)
    for _ in range(100):
        process = random_process(int(generator.integers(2, 9)), 1, generator, concentration=0.5)
        times = hitting_time_matrix(process.transitions[0])
        assert np.linalg.matrix_rank(times[0] - times, tol=1e-9 * times.max()) == process.states - 1
    process, _, first, omegas, _, _ = random_pair(generator)
    assert displacement_basis(first.features).shape[1] == process.states - 1
    measure = np.full(process.states, 1 / process.states)
    assert analysis_operator(first.features, omegas, measure).lower > 0


@pytest.mark.parametrize("slip", [0.0, 0.5])
def test_the_lower_constant_is_free_but_not_uniform(slip):
    """On longer rings the isomorphism onto hitting-time coordinates is worse conditioned; slower ones are the same."""
    conditions = []
    for states in (4, 8, 16, 32):
        process = directed_ring(states, slip)
        one_hot = one_hot_representation(process)
        canonical, canonical_omegas = hitting_time_representation(process, uniform_policy(process))
        omegas = readouts(process, one_hot, uniform_policy(process))
        found = displacement_isomorphism(one_hot.features, omegas, canonical.features, canonical_omegas)
        conditions.append(found.condition)
    assert np.all(np.diff(conditions) > 0) and conditions[-1] == pytest.approx(10.2, abs=0.05)


def test_optimal_times_of_the_cube_are_exact_for_all_goals_in_few_dimensions():
    """Rank n - 1 is about one fixed policy: 32 corners, all optimal times, five dimensions."""
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T
    apart = (corners[:, None] != corners[None]).sum(axis=2)
    flipped = (corners[:, None] != corners[None]) & (apart == 1)[..., None]
    cube = ControlledProcess.of([flipped[..., k].astype(float) for k in range(5)])
    best = np.stack([optimal_hitting_times(cube, goal).values for goal in range(32)], axis=1)
    assert np.array_equal(best, apart)
    assert np.allclose(predictions(corners, corners / 2), best)
    times = hitting_time_matrix(policy_chain(cube, uniform_policy(cube)))
    assert np.linalg.matrix_rank(times[0] - times, tol=1e-9 * times.max()) == 31


def test_corollary_2_4_pullback_of_readouts():
    generator = np.random.default_rng(6)
    for _ in range(500):
        process, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
        found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
        # Any other policy: its canonical readouts, pulled back, give its hitting times on the first features.
        other = random_policy(process, generator)
        other_omegas = readouts(process, canonical, other)
        pulled = pullback(found, other_omegas)
        times = hitting_time_matrix(policy_chain(process, other))
        assert np.abs(predictions(first.features, pulled) - times).max() < 1e-8 * times.max()
        # Moreover: the one-step form with K_pi agrees on both sides.
        step = first.features @ policy_operator(process, first, other).T
        canonical_step = canonical.features @ policy_operator(process, canonical, other).T
        left = np.einsum("gd,gd->g", canonical.features, other_omegas)[None] - canonical_step @ other_omegas.T
        right = np.einsum("gd,gd->g", first.features, pulled)[None] - step @ pulled.T
        assert np.abs(left - right).max() < 1e-8 * times.max()


def test_corollary_2_4_per_action_is_the_time_left_after_that_action():
    """<phi(g) - K_a phi(x), omega_bar_g> = <phi*(g) - K*_a phi*(x), omega*_g> = E[V(x', g) | x, a] for every action."""
    generator = np.random.default_rng(9)
    for _ in range(200):
        process, _, first, omegas, canonical, canonical_omegas = random_pair(generator)
        found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
        other = random_policy(process, generator)
        other_omegas = readouts(process, canonical, other)
        times = hitting_time_matrix(policy_chain(process, other))
        left_over = process.expected(times)  # (actions, states, goals)
        assert np.abs(left_over[0] - left_over[1]).max() > 1e-3  # the actions differ
        for representation, readout in ((first, pullback(found, other_omegas)), (canonical, other_omegas)):
            moved = np.einsum("xd,aed->axe", representation.features, representation.operators)
            at_goal = np.einsum("gd,gd->g", representation.features, readout)
            assert np.abs(at_goal[None, None] - moved @ readout.T - left_over).max() < 1e-8 * times.max()


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


def test_degenerate_input_is_refused():
    with pytest.raises(ChainError, match="same features"):
        displacement_basis(np.ones((3, 2)))
    with pytest.raises(ChainError, match="one probability per state"):
        analysis_operator(np.eye(3), np.eye(3), np.ones(3))
