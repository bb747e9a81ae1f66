"""The appendix "Problem span": which other tasks a representation solves."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import policy_chain
from iel.theory.builders import random_policy, random_process
from iel.theory.representation import fit_representation
from iel.theory.span import (
    DISCOUNT,
    action_values,
    bellman_closure,
    bilinear_values,
    discounted_values,
    evaluation_operator,
    lumped,
    optimal_values,
    policy_reward_operator,
    reward_table,
)


def test_definition_latent_bilinear_rewards_and_their_four_families():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(6, 3))
    similarity = np.array([1.0, -0.5])[:, None, None] * np.eye(3)  # R_a = alpha_a I
    assert np.allclose(reward_table(features, similarity)[1], -0.5 * features @ features.T)
    directions = generator.normal(size=(2, 3, 1))
    anisotropic = reward_table(features, directions @ directions.swapaxes(1, 2))
    assert np.allclose(anisotropic[0], np.outer(features @ directions[0, :, 0], features @ directions[0, :, 0]))
    assert np.linalg.matrix_rank(anisotropic[0]) == 1
    # A region's reward is the mean of its members' rewards; a composed goal's reward the same mixture.
    weights = generator.dirichlet(np.ones(6))
    table = reward_table(features, similarity)
    region = reward_table(features, similarity, weights[None] @ features)
    assert np.allclose(region[:, :, 0], table @ weights)
    composed = reward_table(features, similarity, (2.0 * features[1] - features[4])[None])
    assert np.allclose(composed[:, :, 0], 2 * table[:, :, 1] - table[:, :, 4])


def test_proposition_evaluation_needs_transition_closure():
    generator = np.random.default_rng(3)
    process = random_process(5, 1, generator)
    representation = fit_representation(process, generator.normal(size=(5, 2)))
    rewards = generator.normal(size=(1, 2, 2))
    value_operator = evaluation_operator(representation.operators[0], rewards[0])
    exact = discounted_values(process.transitions[0], reward_table(representation.features, rewards)[0])
    assert np.abs(bilinear_values(representation.features, value_operator) - exact).max() > 0.1


def test_proposition_evaluation_needs_policy_reward_closure():
    generator = np.random.default_rng(4)
    features = np.eye(2)[[0, 0, 1]]
    rewards = generator.normal(size=(2, 2, 2))
    with pytest.raises(ChainError, match="not latent-linear"):
        policy_reward_operator(features, rewards, np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    # A state-independent mixture always closes.
    policy_reward_operator(features, rewards, np.full((3, 2), 0.5))


def test_the_radius_of_operators_on_the_feature_span_is_at_most_one():
    generator = np.random.default_rng(5)
    for _ in range(100):
        _, representation, _ = lumped(generator, 5, 1)
        assert np.abs(np.linalg.eigvals(representation.operators[0])).max() < 1 + 1e-9


def test_optimal_values_are_the_fixed_point_and_dominate_every_policy():
    generator = np.random.default_rng(8)
    process = random_process(5, 3, generator)
    rewards = generator.normal(size=(3, 5, 5))
    best = optimal_values(process, rewards, DISCOUNT)
    assert np.abs(action_values(process, rewards, best, DISCOUNT).max(axis=0) - best).max() < 1e-9
    policy = random_policy(process, generator)
    other = discounted_values(policy_chain(process, policy), np.einsum("xa,axg->xg", policy, rewards))
    assert np.all(other <= best + 1e-9)


def test_definition_bellman_closure_is_certified_where_it_holds():
    generator = np.random.default_rng(10)
    process, representation, _ = lumped(generator, 5, 2)
    rewards = generator.normal(size=(2, 3, 3))
    closed, distance = bellman_closure(process, representation, rewards, generator)
    assert closed is True and distance < 1e-8
    process = random_process(4, 1, generator)
    values, vectors = np.linalg.eig(process.dense()[0])
    real = vectors[:, np.abs(values.imag) < 1e-12].real[:, :1]
    assert bellman_closure(process, fit_representation(process, real), np.ones((1, 1, 1)), generator)[0] is True
