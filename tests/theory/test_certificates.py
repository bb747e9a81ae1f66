"""Certificates keep their promise, exactly or with the stated confidence; diagnostics on worlds that are known."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import ControlledProcess
from iel.theory.builders import affine_process, lumpable
from iel.theory.calibration import error_certificate
from iel.theory.chains import simulate
from iel.theory.diagnostics import held_out_misfit, when_it_works


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
