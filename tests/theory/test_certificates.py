"""Certificates keep their promise, exactly or with the stated confidence; diagnostics on worlds that are known."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from iel.errors import ChainError
from iel.theory import ControlledProcess, hitting_time_matrix, optimal_hitting_times
from iel.theory.builders import affine_process, directed_ring, lumpable, random_process
from iel.theory.certificates import error_certificate, greedy_certificate, plan_certificate
from iel.theory.chains import simulate
from iel.theory.diagnostics import held_out_misfit, isomorphism_gap, policy_readout, spectrum, when_it_works


def test_the_error_certificate_fails_no_more_often_than_it_says():
    """Errors uniform on [0, 1]: the true 90 % quantile is 0.9; the bound is below it in at most 5 % of worlds."""
    generator = np.random.default_rng(0)
    below, bounds = 0, []
    for _ in range(2000):
        found = error_certificate(1.0 + generator.random(100), np.ones(100))
        below += found.bound < 0.9
        bounds.append(found.bound)
    assert 0.01 < below / 2000 <= 0.065  # neither broken nor idle
    assert np.mean(bounds) < 0.97


def test_the_error_certificate_needs_enough_pairs_and_says_how_many():
    few, enough = error_certificate(np.ones(28), np.ones(28)), error_certificate(np.ones(29), np.ones(29))
    assert np.isinf(few.bound) and "at least 29" in few.sentence
    assert enough.bound == 0.0 and "drawn like the 29 measured ones" in enough.sentence
    assert np.isinf(error_certificate(np.full(50, np.inf), np.ones(50)).bound)
    with pytest.raises(ChainError, match="above zero"):
        error_certificate(np.ones(3), np.zeros(3))
    with pytest.raises(ChainError, match="between 0 and 1"):
        error_certificate(np.ones(3), np.ones(3), share=1.0)


def test_the_plan_certificate_bounds_shortest_paths_of_wrong_edges():
    generator = np.random.default_rng(1)
    closest = 0.0
    for _ in range(200):
        edges = np.triu(generator.random((8, 8)) < 0.6, 1)
        edges[np.arange(7), np.arange(1, 8)] = True
        truth = np.where(edges, generator.uniform(1, 10, (8, 8)), 0.0)
        guess = truth * (1 + generator.choice([-0.3, 0.3], (8, 8)))
        found = plan_certificate(guess[edges], truth[edges])
        assert found.delta == pytest.approx(0.3) and found.factor == pytest.approx(1.3 / 0.7)
        _, before = dijkstra(sp.csr_array(guess), indices=0, return_predecessors=True)
        best = dijkstra(sp.csr_array(truth), indices=0)[7]
        node, length = 7, 0.0
        while node != 0:
            length, node = length + truth[before[node], node], int(before[node])
        assert length <= found.factor * best * (1 + 1e-12)
        closest = max(closest, length / best / found.factor)
    assert closest > 0.75
    # Two parallel ways attain the factor: the short one overestimated, the long one underestimated.
    assert plan_certificate(np.array([1.3, 1.3]), np.array([1.0, 1.3 / 0.7])).factor == pytest.approx(1.3 / 0.7)
    assert "Nothing can be said" in plan_certificate(np.array([3.0]), np.array([1.0])).sentence


def test_the_greedy_certificate_holds_on_random_processes_and_is_one_for_optimal_times():
    generator = np.random.default_rng(2)
    applied = 0
    for _ in range(150):
        process = random_process(int(generator.integers(3, 8)), 3, generator, concentration=0.3)
        best = optimal_hitting_times(process, 0).values
        exact = greedy_certificate(process, 0, best)
        assert exact.residual < 1e-8 and np.allclose(exact.greedy, best, rtol=1e-6)
        bent = greedy_certificate(process, 0, best * (1 + generator.uniform(-0.05, 0.05, len(best))))
        if np.isfinite(bent.factor):
            applied += 1
            assert np.all(bent.greedy <= bent.factor * bent.optimal * (1 + 1e-9))
    assert applied > 50
    with pytest.raises(ChainError, match="zero at the goal"):
        greedy_certificate(process, 0, np.ones(process.states))


def test_the_spectrum_counts_the_dimensions_that_times_need():
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T
    cube = spectrum((corners[:, None] != corners[None]).sum(axis=2))
    assert (cube.values > 1e-9).sum() == 5 and cube.effective_rank == pytest.approx(5.0)
    ring = spectrum(hitting_time_matrix(directed_ring(12).transitions[0]))
    assert (ring.values > 1e-9).sum() == 11 and 1.0 < ring.effective_rank < 11.0
    with pytest.raises(ChainError, match="no geometry"):
        spectrum(np.ones((3, 3)))
    with pytest.raises(ChainError, match="finite table"):
        spectrum(np.array([[0.0, np.inf], [1.0, 0.0]]))


def test_the_isomorphism_gap_is_zero_for_linear_images_and_one_for_strangers():
    generator = np.random.default_rng(3)
    first = generator.normal(size=(2000, 4))
    assert isomorphism_gap(first, first @ generator.normal(size=(4, 4)) + 3.0, generator) < 1e-6
    assert isomorphism_gap(first, generator.normal(size=(2000, 4)), generator) == pytest.approx(1.0, abs=0.1)
    # Losing one of four directions is seen from the other side, though the first explains the second.
    assert isomorphism_gap(first, first[:, :3], generator) == pytest.approx(0.25, abs=0.03)
    assert 0.0 < isomorphism_gap(first, np.tanh(first), generator) < 0.5


def logged(process: ControlledProcess, features: np.ndarray, generator: np.random.Generator, steps: int = 60):
    """3600 states of random actions on a small process: embeddings, one-hot actions, states."""
    chains = [simulate_actions(process, steps, generator) for _ in range(3600 // steps)]
    states = np.concatenate([chain[0] for chain in chains])
    return features[states], np.concatenate([np.eye(process.actions)[chain[1]] for chain in chains]), states


def simulate_actions(process: ControlledProcess, steps: int, generator: np.random.Generator):
    state, path, taken = int(generator.integers(process.states)), [], generator.integers(process.actions, size=steps)
    for action in taken:
        path.append(state)
        state = int(simulate(process.transitions[action], state, 1, generator)[1])
    return np.array(path), taken


def test_the_five_conditions_on_features_that_satisfy_them_and_on_features_that_do_not():
    generator = np.random.default_rng(4)
    groups = np.array([0, 1, 2, 0, 1])
    process = lumpable(groups, 2, generator)
    phi, actions, states = logged(process, np.eye(3)[groups], generator)
    offsets = np.arange(61) * 60
    good = when_it_works(
        phi,
        actions,
        offsets,
        generator,
        attributes=np.eye(3)[groups[states]],
        rewards=np.array([1.0, -2.0, 0.5])[groups[states]],
        predicted=lambda i, j: np.full(len(i), 118.0),
    )
    assert good.closure < 0.02 and good.goals < 1e-6 and good.rewards < 1e-6 and good.maximum < 1e-6
    assert good.horizon == pytest.approx(2.0) and len(good.sentences()) == 5
    # Attributes and rewards that differ inside a group are outside the span.
    bad = when_it_works(
        phi, actions, offsets, generator, attributes=np.eye(5)[states], rewards=(states == 3).astype(float)
    )
    assert bad.goals > 0.1 and bad.rewards > 0.1 and bad.horizon is None and len(bad.sentences()) == 4


def test_a_maximum_over_actions_leaves_the_span_of_a_line():
    generator = np.random.default_rng(5)
    points = np.linspace(-1.5, 1.5, 7)
    line = affine_process(points, np.array([0.8, -0.8]), np.zeros(2))
    phi, actions, _ = logged(line, points[:, None], generator, steps=2)  # always a new start: it jumps to the ends
    offsets = np.arange(1801) * 2
    found = when_it_works(phi, actions, offsets, generator)
    assert found.closure < 0.15  # each action is affine in phi
    assert found.maximum > 0.5  # the better of two affine functions is not
    alone, single, _ = logged(ControlledProcess.of([line.transitions[0]]), points[:, None], generator, steps=2)
    assert when_it_works(alone, single, offsets, generator).maximum < 1e-6


def test_readouts_of_too_few_rows_are_refused():
    with pytest.raises(ChainError, match="at least four rows"):
        held_out_misfit(np.ones((3, 1)), np.ones(3), np.random.default_rng(0))


def test_the_time_to_a_set_is_read_off_logged_steps_and_is_below_the_time_to_its_nearest_state():
    """State 0 leads to 1 or 2 with equal chance, and both lead back: {1, 2} takes one step, either alone three."""
    chain = sp.csr_array(np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    generator = np.random.default_rng(0)
    walks = np.concatenate([simulate(chain, 0, 300, generator) for _ in range(60)])
    offsets, phi = np.arange(61) * 301, np.eye(3)[walks]

    def time(members):
        return policy_readout(phi, offsets, np.ones(len(walks)), stop=np.isin(walks, members))[walks == 0].mean()

    assert time([1, 2]) == pytest.approx(1.0, abs=1e-6)
    assert time([1]) == pytest.approx(3.0, abs=0.1) and time([2]) == pytest.approx(3.0, abs=0.1)


def test_values_of_the_policy_that_made_the_data_are_the_exact_ones():
    """w = (I - gamma K*)^-1 R, estimated from steps; and with one feature too few it is not exact."""
    generator = np.random.default_rng(1)
    chain = random_process(6, 1, generator, concentration=0.5).transitions[0]
    reward = generator.normal(size=6)
    walks = np.concatenate([simulate(chain, int(generator.integers(6)), 400, generator) for _ in range(150)])
    exact = np.linalg.solve(np.eye(6) - 0.9 * chain.toarray(), reward)
    found = policy_readout(np.eye(6)[walks], np.arange(151) * 401, reward[walks], discount=0.9)
    assert found == pytest.approx(exact[walks], abs=0.15 * np.ptp(exact))
    assert np.corrcoef(found, exact[walks])[0, 1] > 0.995
    poor = policy_readout(np.eye(6)[walks][:, :2], np.arange(151) * 401, reward[walks], discount=0.9)
    assert np.corrcoef(poor, exact[walks])[0, 1] < 0.99
    with pytest.raises(ChainError, match="discount below one"):
        policy_readout(np.eye(6)[walks], np.arange(151) * 401, reward[walks])
    with pytest.raises(ChainError, match="one entry per stored state"):
        policy_readout(np.eye(6)[walks], np.arange(151) * 401, reward, discount=0.9)
