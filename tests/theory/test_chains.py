"""Finite chains: exact hitting times, their infinities, and the errors of malformed input."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from iel.errors import ChainError
from iel.theory import ControlledProcess, grid, hitting_time_matrix, hitting_times, policy_chain, uniform_policy
from iel.theory.builders import corridor, directed_ring, drift_walk, random_policy, random_process
from iel.theory.chains import (
    eliminate,
    killed_operator,
    poisson_residual,
    simulate,
)
from iel.theory.optimal import optimal_hitting_times


def gambler(states: int, right: float) -> np.ndarray:
    """A walk on 0 .. n-1 that steps right with probability `right`; both ends are absorbing."""
    chain = np.zeros((states, states))
    chain[0, 0] = chain[-1, -1] = 1.0
    for x in range(1, states - 1):
        chain[x, x + 1], chain[x, x - 1] = right, 1.0 - right
    return chain


def test_poisson_equation_lemma_needs_finite_hitting_times():
    # From state 1 the walk may fall into the trap 0, so V(1, goal) is infinite although the goal can be reached.
    times = hitting_times(gambler(4, 0.5), 3)
    assert np.array_equal(np.isinf(times), [True, True, True, False])
    # The linear system of the lemma is singular there: any constant may be added on the trap.
    killed = killed_operator(gambler(4, 0.5), 3).toarray()
    assert np.linalg.matrix_rank(np.eye(3) - killed) < 3


def test_definition_policy_induced_markov_operator():
    generator = np.random.default_rng(7)
    process = random_process(5, 3, generator)
    policy, function = random_policy(process, generator), generator.normal(size=5)
    means = [sum(policy[x, a] * process.dense()[a, x] @ function for a in range(3)) for x in range(5)]
    assert np.allclose(policy_chain(process, policy) @ function, means)
    # A deterministic policy can be given by its action numbers.
    chosen = policy_chain(process, np.array([0, 1, 2, 0, 1])).toarray()
    assert np.allclose(chosen[2], process.dense()[2, 2])


def test_hitting_times_have_their_closed_forms():
    ring = directed_ring(7, slip=0.25).transitions[0]
    expected = ((3 - np.arange(7)) % 7) / 0.75
    assert np.allclose(hitting_times(ring, 3), expected, atol=1e-10)
    assert np.allclose(hitting_times(corridor(6, 0.5).transitions[0], 5), 2.0 * np.arange(5, -1, -1), atol=1e-10)
    # Symmetric walk between two goals: V(x) = x (n - 1 - x).
    x = np.arange(9)
    assert np.allclose(hitting_times(gambler(9, 0.5), [0, 8]), x * (8 - x), atol=1e-9)


def test_hitting_times_agree_with_simulation():
    generator = np.random.default_rng(1)
    process = random_process(5, 1, generator)
    chain = process.transitions[0]
    walks = np.array([simulate(chain, 0, 100, generator) for _ in range(800)])
    first = (walks == 3).argmax(axis=1)
    exact = hitting_times(chain, 3)[0]
    assert abs(first.mean() - exact) < 5 * first.std() / np.sqrt(len(first))


def test_the_all_pairs_formula_agrees_with_one_solve_per_goal():
    generator = np.random.default_rng(2)
    for _ in range(20):
        chain = random_process(7, 1, generator, concentration=0.3).transitions[0]
        singly = np.stack([hitting_times(chain, goal) for goal in range(7)], axis=1)
        assert np.allclose(hitting_time_matrix(chain), singly, rtol=1e-8)
    # A reducible chain has infinite entries, which the formula for irreducible chains could not give.
    assert np.isinf(hitting_time_matrix(corridor(4).transitions[0])[3, 0])


def test_expected_times_satisfy_the_triangle_inequality():
    generator = np.random.default_rng(3)
    for _ in range(100):
        times = hitting_time_matrix(random_process(6, 1, generator).transitions[0])
        assert np.all(times[:, None, :] <= times[:, :, None] + times[None] + 1e-9)


def test_ninety_thousand_states_are_solved_exactly():
    process = grid(300, 300)
    chain = policy_chain(process, uniform_policy(process))
    times = hitting_times(chain, 0)
    assert np.all(np.isfinite(times))
    assert np.abs(poisson_residual(chain, 0, times)).max() < 1e-6


def test_sparse_and_dense_input_are_the_same_chain():
    dense = random_process(5, 1, np.random.default_rng(6)).dense()[0]
    assert np.allclose(hitting_times(dense, 2), hitting_times(sp.coo_array(dense), 2))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[0.5, 0.4], [0.0, 1.0]]), r"Row 0 .* sums to 0.9, not 1"),
        (np.array([[1.2, -0.2], [0.0, 1.0]]), "negative probability in row 0"),
        (np.array([[np.nan, 1.0], [0.0, 1.0]]), "not finite"),
        (np.ones((2, 3)) / 3, "square"),
    ],
)
def test_malformed_chains_are_refused_with_a_sentence(matrix, message):
    with pytest.raises(ChainError, match=message):
        hitting_times(matrix, 0)


def test_malformed_processes_policies_and_goals_are_refused():
    with pytest.raises(ChainError, match="at least one action"):
        ControlledProcess.of([])
    with pytest.raises(ChainError, match="different shapes"):
        ControlledProcess.of([np.eye(2), np.eye(3)])
    process = directed_ring(3)
    with pytest.raises(ChainError, match="not a state"):
        hitting_times(process.transitions[0], 3)
    with pytest.raises(ChainError, match=r"sums to 0\.5"):
        policy_chain(process, np.full((3, 1), 0.5))
    with pytest.raises(ChainError, match="shape"):
        policy_chain(process, np.ones((2, 1)))
    with pytest.raises(ChainError, match="negative"):
        policy_chain(ControlledProcess.of([np.eye(1), np.eye(1)]), np.array([[1.5, -0.5]]))
    with pytest.raises(ChainError, match="outside 0 to 0"):
        policy_chain(process, np.array([0, 1, 0]))
    with pytest.raises(ChainError, match="slip"):
        directed_ring(3, slip=1.0)


def drift_times(states: int, right: Fraction) -> list[list[Fraction]]:
    """All hitting times of the drift walk in exact arithmetic: one rung at a time, up and down."""
    left = 1 - right
    up, down = [1 / right] + [Fraction(0)] * (states - 1), [Fraction(0)] * (states - 1) + [1 / left]
    for x in range(1, states):
        up[x] = (1 + left * up[x - 1]) / right
    for x in range(states - 2, -1, -1):
        down[x] = (1 + right * down[x + 1]) / left
    return [[sum(up[x:g]) if x < g else sum(down[g + 1 : x + 1]) for g in range(states)] for x in range(states)]


@pytest.mark.parametrize("states", [5, 20, 24, 40])
def test_the_drift_walk_is_right_to_eight_digits_even_where_times_exceed_1e30(states):
    """The fundamental matrix alone gave NaN at n = 20 and V(0, 22) = -35.7 at n = 40."""
    times, exact = hitting_time_matrix(drift_walk(states, 0.9)), drift_times(states, Fraction(0.9))
    for x in range(states):
        for g in range(states):
            assert abs(Fraction(times[x, g]) - exact[x][g]) <= Fraction(1e-8) * exact[x][g]


def test_a_drift_walk_beyond_float64_is_refused_in_a_sentence():
    with pytest.raises(ChainError, match="numerically singular"):
        hitting_times(drift_walk(400, 0.9), 0)


def test_elimination_agrees_with_the_solver_and_keeps_digits_the_solver_loses():
    generator = np.random.default_rng(10)
    chain = random_process(30, 1, generator, concentration=0.2).transitions[0].toarray()
    leaving = chain[1:, 0]
    assert np.allclose(eliminate(chain[1:, 1:], leaving), hitting_times(chain, 0)[1:], rtol=1e-9)
    # 1 - (1 - 1e-14) has two digits; the probability of leaving itself has all of them.
    assert hitting_times(np.array([[1.0 - 1e-14, 1e-14], [0.0, 1.0]]), 1)[0] == pytest.approx(1e14, rel=1e-12)


def test_goals_are_state_numbers_or_masks_and_nothing_else():
    chain = random_process(5, 1, np.random.default_rng(11)).transitions[0]
    mask = np.array([False, False, True, False, True])
    assert np.array_equal(hitting_times(chain, mask), hitting_times(chain, [2, 4]))
    for goal, message in (
        (mask[:3], "one entry per state"),
        (np.zeros(5, bool), "not a state"),
        (4.7, "whole numbers"),
        ([1.0, 2.0], "whole numbers"),
        (-1, "not a state"),
        ([], "not a state"),
    ):
        with pytest.raises(ChainError, match=message):
            hitting_times(chain, goal)


def test_a_chain_with_one_state_has_an_answer():
    assert np.array_equal(hitting_time_matrix(np.eye(1)), [[0.0]])
    assert np.array_equal(hitting_times(np.eye(1), 0), [0.0])
    process = ControlledProcess.of([np.eye(1)])
    assert optimal_hitting_times(process, 0).values[0] == 0.0
