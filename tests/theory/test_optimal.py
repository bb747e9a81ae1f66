"""Optimal hitting times and the three notions of reachability."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import ControlledProcess, grid, hitting_times, optimal_hitting_times, policy_chain
from iel.theory.builders import random_policy, random_process
from iel.theory.chains import can_reach, reached_almost_surely
from iel.theory.optimal import winning_states


def backup(process: ControlledProcess, values: np.ndarray, goal: int) -> np.ndarray:
    """One step of the optimality equation."""
    best = (1.0 + np.einsum("axy,y->ax", process.dense(), values)).min(axis=0)
    best[goal] = 0.0
    return best


def test_optimal_times_solve_the_optimality_equation_and_beat_every_policy():
    generator = np.random.default_rng(0)
    for _ in range(100):
        process = random_process(int(generator.integers(3, 8)), 3, generator, concentration=0.3)
        goal = int(generator.integers(process.states))
        answer = optimal_hitting_times(process, goal)
        assert np.allclose(backup(process, answer.values, goal), answer.values, rtol=1e-8)
        assert np.allclose(hitting_times(policy_chain(process, answer.policy), goal), answer.values, rtol=1e-8)
        other = hitting_times(policy_chain(process, random_policy(process, generator)), goal)
        assert np.all(answer.values <= other + 1e-9)


def test_on_an_open_grid_the_optimal_time_is_the_manhattan_distance():
    answer = optimal_hitting_times(grid(6, 9), 0)
    i, j = np.divmod(np.arange(54), 9)
    assert np.allclose(answer.values, i + j)


def test_slipping_costs_time():
    calm, slippery = optimal_hitting_times(grid(5, 5), 0), optimal_hitting_times(grid(5, 5, slip=0.3), 0)
    assert np.all(slippery.values[1:] > calm.values[1:])


def test_the_in_distribution_optimum_only_uses_actions_of_the_data():
    process = grid(1, 4)
    allowed = np.ones((4, 4), dtype=bool)
    allowed[2, 0] = False  # the data never moves right from cell 2
    free, bound = optimal_hitting_times(process, 3), optimal_hitting_times(process, 3, allowed)
    assert free.values[2] == 1
    assert np.all(np.isinf(bound.values[:3]))
    with pytest.raises(ChainError, match="allowed actions"):
        optimal_hitting_times(process, 3, np.ones((2, 2), dtype=bool))


def test_reachable_does_not_mean_some_policy_has_a_finite_expected_time():
    """The problem statement assumes a finite expected time whenever g is reachable; a trap refutes that."""
    # From 0 the only action reaches the goal 1 or the trap 2 with equal probability.
    process = ControlledProcess.of([np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])])
    assert can_reach(process.transitions[0], 1)[0]
    assert not reached_almost_surely(process.transitions[0], 1)[0]
    assert np.isinf(optimal_hitting_times(process, 1).values[0])


def test_policies_avoid_traps_even_when_the_short_path_risks_one():
    # Action 0 in state 0: goal with 0.9, trap with 0.1. Action 1: a detour 0 -> 1 -> goal without risk.
    risky = np.array([[0, 0, 0.9, 0.1], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    detour = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    answer = optimal_hitting_times(ControlledProcess.of([risky, detour]), 2)
    assert np.array_equal(answer.values, [2, 1, 0, np.inf])
    assert answer.policy[0] == 1


def test_almost_sure_reachability_equals_finite_expectation_on_random_sparse_chains():
    generator = np.random.default_rng(1)
    outcomes = set()
    for _ in range(300):
        states = int(generator.integers(3, 8))
        chain = generator.random((states, states)) * (generator.random((states, states)) < 0.35)
        chain += np.eye(states) * 1e-3 * (chain.sum(axis=1) == 0)[:, None]
        chain /= chain.sum(axis=1, keepdims=True)
        sure = reached_almost_surely(chain, 0)
        # Independent check: the probability of not having hit the goal after many steps goes to zero.
        stopped = chain.copy()
        stopped[0] = np.eye(states)[0]
        hit = np.linalg.matrix_power(stopped, 2**14)[:, 0]
        assert np.array_equal(sure, hit > 1 - 1e-6)
        outcomes.update(sure[1:].tolist())
    assert outcomes == {True, False}


def shrinking_rounds(process: ControlledProcess, goal: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Winning states by the definition: shrink the set and search the whole graph again until nothing changes."""
    dense, winning = process.dense(), np.ones(process.states, dtype=bool)
    while True:
        safe = allowed & ~(dense[:, :, ~winning].sum(axis=2) > 0).T
        steps = ((dense > 0) & (safe & winning[:, None]).T[:, :, None]).any(axis=0)
        reached = np.arange(process.states) == goal
        for _ in range(process.states):
            reached = reached | (steps & reached[None]).any(axis=1)
        if np.array_equal(reached, winning):
            return winning, safe
        winning = reached


def test_winning_states_agree_with_their_definition_on_random_sparse_processes():
    generator = np.random.default_rng(2)
    lost = 0
    for _ in range(400):
        states, actions = int(generator.integers(2, 12)), int(generator.integers(1, 4))
        weights = generator.random((actions, states, states))
        weights *= generator.random(weights.shape) < generator.uniform(0.1, 0.4)
        weights += np.eye(states) * (weights.sum(axis=2) == 0)[:, :, None]
        process = ControlledProcess.of(weights / weights.sum(axis=2, keepdims=True))
        allowed, goal = generator.random((states, actions)) < 0.85, int(generator.integers(states))
        winning, safe = winning_states(process.transitions, goal, allowed)
        expected, expected_safe = shrinking_rounds(process, goal, allowed)
        assert np.array_equal(winning, expected) and np.array_equal(safe, expected_safe)
        lost += not winning.all()
    assert 100 < lost < 350
