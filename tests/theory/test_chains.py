"""Finite chains: exact hitting times, their infinities, and the errors of malformed input."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from iel.errors import ChainError
from iel.theory import ControlledProcess, grid, hitting_time_matrix, hitting_times, policy_chain, uniform_policy
from iel.theory.builders import corridor, directed_ring, random_policy, random_process
from iel.theory.chains import (
    absorption_probability,
    empirical_process,
    killed_operator,
    poisson_residual,
    simulate,
    simulate_process,
    stationary_distribution,
)
from iel.theory.solvers import envelope_size, solve_directly, solve_iteratively


def gambler(states: int, right: float) -> np.ndarray:
    """A walk on 0 .. n-1 that steps right with probability `right`; both ends are absorbing."""
    chain = np.zeros((states, states))
    chain[0, 0] = chain[-1, -1] = 1.0
    for x in range(1, states - 1):
        chain[x, x + 1], chain[x, x - 1] = right, 1.0 - right
    return chain


def test_poisson_equation_lemma_on_random_chains():
    generator = np.random.default_rng(0)
    for _ in range(500):
        process = random_process(int(generator.integers(2, 9)), 2, generator, concentration=0.5)
        chain = policy_chain(process, random_policy(process, generator))
        goal = int(generator.integers(process.states))
        times = hitting_times(chain, goal)
        assert np.abs(poisson_residual(chain, goal, times)).max() < 1e-8 * times.max()
        assert times[goal] == 0


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


def test_absorption_probability_of_the_gambler():
    right = 0.6
    ratio = (1 - right) / right
    x = np.arange(8)
    assert np.allclose(absorption_probability(gambler(8, right), 7), (1 - ratio**x) / (1 - ratio**7), atol=1e-10)
    assert np.allclose(absorption_probability(directed_ring(5).transitions[0], 2), 1.0)


def test_the_stationary_distribution_is_invariant():
    chain = random_process(6, 1, np.random.default_rng(4)).transitions[0]
    measure = stationary_distribution(chain)
    assert np.allclose(measure @ chain.toarray(), measure, atol=1e-12)
    with pytest.raises(ChainError, match="several recurrent classes"):
        stationary_distribution(gambler(4, 0.5))


def test_ninety_thousand_states_are_solved_exactly():
    process = grid(300, 300)
    chain = policy_chain(process, uniform_policy(process))
    times = hitting_times(chain, 0)
    assert np.all(np.isfinite(times))
    assert np.abs(poisson_residual(chain, 0, times)).max() < 1e-6


def test_chains_that_jump_anywhere_are_solved_iteratively_and_agree_with_the_direct_solver():
    generator = np.random.default_rng(8)
    states = 3000
    chain = jumping(states, generator)
    system = sp.csc_array(sp.eye_array(states - 1) - killed_operator(chain, 0))
    cost = np.ones(states - 1)
    assert np.allclose(solve_iteratively(system, cost), solve_directly(system, cost), rtol=1e-8)
    # A grid has a narrow envelope, jumps fill the matrix: this is what chooses the solver.
    walk = policy_chain(grid(50, 60), uniform_policy(grid(50, 60)))
    assert envelope_size(walk) < 0.1 * states**2 < envelope_size(chain)


def test_a_hundred_thousand_jumping_states_do_not_fill_the_memory():
    chain = jumping(100_000, np.random.default_rng(9))
    times = hitting_times(chain, 0)
    assert np.abs(poisson_residual(chain, 0, times)).max() < 1e-6
    assert times[1:].min() > 1


def jumping(states: int, generator: np.random.Generator) -> sp.csr_array:
    """Four uniformly random successors per state, and the next number to keep the chain irreducible."""
    successors = np.column_stack([generator.integers(0, states, (states, 4)), (np.arange(states) + 1) % states])
    rows = np.repeat(np.arange(states), 5)
    return sp.csr_array((np.full(5 * states, 0.2), (rows, successors.ravel())), shape=(states, states))


def test_an_empirical_process_converges_and_keeps_its_support():
    generator = np.random.default_rng(5)
    process = random_process(4, 2, generator)
    policy = np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    runs = [simulate_process(process, policy, 0, 2000, generator) for _ in range(5)]
    estimate = empirical_process([run[0] for run in runs], [run[1] for run in runs], 4, 2)
    assert not estimate.support[0, 1] and estimate.support[0, 0] and estimate.support[1:].all()
    assert np.abs(estimate.process.dense()[0] - process.dense()[0]).max() < 0.06
    # The pair that was never seen stays put rather than inventing a transition.
    assert estimate.process.dense()[1, 0, 0] == 1.0
    with pytest.raises(ChainError, match="one fewer than states"):
        empirical_process([np.zeros(3, int)], [np.zeros(3, int)], 4, 2)


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


def test_a_goal_behind_a_vanishing_probability_is_an_error_not_a_number():
    # The exact answer 1e14 would be computed from 1 - (1 - 1e-14), of which float64 keeps two digits.
    chain = np.array([[1.0 - 1e-14, 1e-14], [0.0, 1.0]])
    with pytest.raises(ChainError, match="numerically singular"):
        hitting_times(chain, 1)
