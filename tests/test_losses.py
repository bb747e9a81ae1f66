"""Losses against numbers computed by hand in float64: each would change if a sign, a mask or a weight were wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iel.losses import (
    awr_loss,
    conservative_gap,
    ddpg_bc_loss,
    expectile_weight,
    goal_reward,
    info_nce_loss,
    iql_critic_loss,
    iql_value_loss,
    ivl_loss,
    regression_expectile_loss,
)


def test_expectile_weight_is_large_for_positive_advantages():
    np.testing.assert_allclose(expectile_weight(jnp.array([-1.0, 0.0, 2.0]), 0.95), [0.05, 0.95, 0.95], rtol=1e-6)


def test_ivl_by_hand():
    # Two heads, three rows: a shorter route found, a longer route found, and the goal itself.
    values = jnp.array([[-10.0, -5.0, -0.5], [-12.0, -4.0, -0.25]])
    target_values = jnp.array([[-10.0, -5.0, -0.5], [-11.0, -5.0, -0.3]])
    target_next = jnp.array([[-7.0, -8.0, -3.0], [-8.0, -6.0, -2.0]])
    success = jnp.array([0.0, 0.0, 1.0])
    # q_e = -1 + 0.9 V'_e, and 0 at the goal
    q = np.array([[-1 - 6.3, -1 - 7.2, 0.0], [-1 - 7.2, -1 - 5.4, 0.0]])
    # A = min_e q_e - mean_e V'_e(s): -8.2 + 10.5 > 0, -8.2 + 5 < 0, 0 + 0.4 > 0
    weight = np.array([0.95, 0.05, 0.95])
    expected = sum((weight * (q[e] - np.asarray(values)[e]) ** 2).mean() for e in range(2))
    assert ivl_loss(values, target_values, target_next, success, 0.95, 0.9) == pytest.approx(expected, rel=1e-6)


def test_ivl_prefers_short_routes():
    """Two targets for one state, costs 4 and 8 equally often: tau = 0.95 must settle near 4, tau = 0.05 near 8."""

    def settle(tau: float) -> float:
        value = jnp.zeros((2, 1))
        costs = jnp.array([[4.0, 8.0]])

        def loss(value):
            values = jnp.broadcast_to(value, (2, 2))
            target_next = jnp.broadcast_to(-(costs - 1.0), (2, 2))
            return ivl_loss(values, jax.lax.stop_gradient(values), target_next, jnp.zeros(2), tau, 1.0)

        gradient = jax.jit(jax.grad(loss))
        for _ in range(2000):
            value = value - 0.05 * gradient(value)
        return -float(value.mean())

    assert settle(0.95) == pytest.approx(4.2, abs=0.05)  # the 0.95 expectile: (0.95 * 4 + 0.05 * 8)
    assert settle(0.05) == pytest.approx(7.8, abs=0.05)


def test_hitting_time_regression_by_hand():
    prediction, target = jnp.array([1.0, 5.0]), jnp.array([3.0, 4.0])
    # residuals 2 (weight 0.25) and -1 (weight 0.75)
    assert regression_expectile_loss(prediction, target, 0.25) == pytest.approx((0.25 * 4 + 0.75 * 1) / 2)


def test_iql_by_hand():
    value, target_q = jnp.array([1.0, 2.0]), jnp.array([[3.0, 1.5], [2.0, 9.0]])
    # u = min Q - V = (1, -0.5)
    assert iql_value_loss(value, target_q, 0.9) == pytest.approx((0.9 * 1 + 0.1 * 0.25) / 2, rel=1e-6)
    q, reward, next_value = jnp.array([[1.0, 2.0], [0.0, 1.0]]), jnp.array([0.5, -1.0]), jnp.array([2.0, 4.0])
    target = np.array([0.5 + 0.9 * 2, -1 + 0.9 * 4])
    expected = sum(((np.asarray(q)[e] - target) ** 2).mean() for e in range(2))
    assert iql_critic_loss(q, reward, next_value, 0.9) == pytest.approx(expected, rel=1e-6)


def test_iql_targets_carry_no_gradient():
    gradient = jax.grad(lambda q: iql_value_loss(jnp.ones(3), q, 0.9))(jnp.zeros((2, 3)))
    assert not gradient.any()
    gradient = jax.grad(lambda v: iql_critic_loss(jnp.ones((2, 3)), jnp.zeros(3), v, 0.9))(jnp.ones(3))
    assert not gradient.any()


def test_awr_weights_are_exponential_and_capped_at_one_hundred():
    log_prob = jnp.array([-1.0, -2.0, -3.0])
    advantage = jnp.array([0.0, 0.1, 50.0])
    expected = -(1.0 * -1.0 + np.exp(1.0) * -2.0 + 100.0 * -3.0) / 3
    assert awr_loss(log_prob, advantage, 10.0) == pytest.approx(expected, rel=1e-5)


def test_reward_and_mask_end_at_the_goal():
    reward, mask = goal_reward(jnp.array([0.0, 1.0]))
    assert reward.tolist() == [-1.0, 0.0] and mask.tolist() == [1.0, 0.0]


def test_ddpg_bc_by_hand_and_whatever_the_scale_of_q():
    q, log_prob = jnp.array([-4.0, -2.0, 3.0]), jnp.array([-1.0, -2.0, -6.0])
    assert ddpg_bc_loss(q, log_prob, 0.5) == pytest.approx(1.0 / 3.0 + 0.5 * 3.0, rel=1e-5)
    assert ddpg_bc_loss(1000 * q, log_prob, 0.5) == pytest.approx(float(ddpg_bc_loss(q, log_prob, 0.5)), rel=1e-5)
    # E|q| = 3 carries no gradient: only the numerator pulls, upwards
    np.testing.assert_allclose(jax.grad(lambda q: ddpg_bc_loss(q, log_prob, 0.5))(q), -1 / 9, rtol=1e-5)


def test_conservative_gap_by_hand():
    q_sampled = jnp.array([[[1.0, -50.0], [2.0, -50.0]]])  # one head, two samples, two rows
    log_density = jnp.array([[0.5, 0.0], [-0.5, 0.0]])
    q_data = jnp.array([[1.0, 0.0]])
    first = 2.0 * np.log(np.exp(0.5 / 2) + np.exp(2.5 / 2)) - 1.0
    expected = (first + -3.0) / 2  # the second row would be about -48.6, but the floor is -3
    np.testing.assert_allclose(conservative_gap(q_sampled, log_density, q_data, 2.0, -3.0), [expected], rtol=1e-5)


def test_info_nce_by_hand():
    anchors = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    positives = jnp.array([[0.6, 0.8], [0.0, 1.0]])
    logits = np.asarray(anchors, np.float64) @ np.asarray(positives, np.float64).T / 0.5
    expected = np.mean([np.log(np.exp(logits[i]).sum()) - logits[i, i] for i in range(2)])
    assert info_nce_loss(anchors, positives, 0.5) == pytest.approx(expected, rel=1e-6)
    assert info_nce_loss(anchors, anchors, 0.01) < 1e-6  # perfectly separated
