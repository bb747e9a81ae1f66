"""The losses several methods share. Each is a pure function of arrays; gradients are stopped by the caller's choice.

Expectile weight: W_tau(A) = tau where A >= 0, 1 - tau where A < 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

AWR_WEIGHT_CAP = 100.0


def expectile_weight(advantage: jax.Array, tau: float) -> jax.Array:
    """W_tau(A)."""
    return jnp.where(advantage >= 0, tau, 1.0 - tau)


def ivl_loss(
    values: jax.Array, target_values: jax.Array, target_next: jax.Array, success: jax.Array, tau: float, discount: float
) -> jax.Array:
    """Implicit V-learning with two heads; all values are negative costs of shape (heads, batch).

    q_e = r + gamma m V'_e(s', g),  A = min_e q_e - mean_e V'_e(s, g),  L = sum_e E[W_tau(A) (q_e - V_e(s, g))^2],
    where V' is the Polyak target, r = -1 and m = 1 unless s is the goal (then r = m = 0). With tau near 1 the weight
    is large where the target value is larger, that is where the target *cost is smaller*: short ways win.
    """
    reward, mask = goal_reward(success)
    targets = jax.lax.stop_gradient(reward + discount * mask * target_next)
    advantage = jax.lax.stop_gradient(targets.min(0) - target_values.mean(0))
    weight = expectile_weight(advantage, tau)
    return (weight * jnp.square(targets - values)).mean(-1).sum()


def regression_expectile_loss(prediction: jax.Array, target: jax.Array, tau: float) -> jax.Array:
    """E[W(l) l^2] with the residual l = target - prediction and weight tau where l > 0, 1 - tau elsewhere."""
    residual = target - prediction
    weight = jnp.where(residual > 0, tau, 1.0 - tau)
    return (weight * jnp.square(residual)).mean()


def iql_value_loss(value: jax.Array, target_q: jax.Array, tau: float) -> jax.Array:
    """E[W_tau(u) u^2] with u = min_e Q'_e(s, a) - V(s); `target_q` is (heads, batch)."""
    gap = jax.lax.stop_gradient(target_q.min(0)) - value
    return (expectile_weight(gap, tau) * jnp.square(gap)).mean()


def iql_critic_loss(q: jax.Array, reward: jax.Array, next_value: jax.Array, discount: float) -> jax.Array:
    """E[sum_e (Q_e(s, a) - (r + gamma V(s')))^2]; `q` is (heads, batch), the target carries no gradient."""
    target = jax.lax.stop_gradient(reward + discount * next_value)
    return jnp.square(q - target).mean(-1).sum()


def goal_reward(success: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(r, m) of reaching a goal: r = -1 and m = 1 before it, r = m = 0 at it, so that -V counts discounted steps."""
    return success - 1.0, 1.0 - success


def awr_loss(log_prob: jax.Array, advantage: jax.Array, temperature: float) -> jax.Array:
    """-E[min(exp(alpha A), 100) log pi(a | s)]."""
    weight = jnp.minimum(jnp.exp(temperature * jax.lax.stop_gradient(advantage)), AWR_WEIGHT_CAP)
    return -(weight * log_prob).mean()


def ddpg_bc_loss(q: jax.Array, log_prob: jax.Array, bc_weight: float) -> jax.Array:
    """-E[q] / E|q| - alpha E[log pi(a | s)], with q = min_e Q_e(s, pi(s)) differentiable in the policy's action.

    The scale E|q| carries no gradient: alpha means the same whatever the size of Q.
    """
    scale = jax.lax.stop_gradient(jnp.abs(q).mean() + 1e-6)
    return -q.mean() / scale - bc_weight * log_prob.mean()


def conservative_gap(
    q_sampled: jax.Array, log_density: jax.Array, q_data: jax.Array, temperature: float, floor: float
) -> jax.Array:
    """How much higher a critic rates other actions than the data's, averaged over the batch: (heads,).

    max(T log sum_j exp((Q(s, a_j) - log mu(a_j)) / T) - Q(s, a), floor), where a_j was drawn with density mu(a_j).
    `q_sampled` is (heads, samples, batch), `log_density` (samples, batch), `q_data` (heads, batch).
    """
    soft_maximum = temperature * jax.nn.logsumexp((q_sampled - log_density) / temperature, axis=1)
    return jnp.maximum(soft_maximum - q_data, floor).mean(-1)


def diagonal_cross_entropy(logits: jax.Array) -> jax.Array:
    """Cross-entropy of every row, the diagonal being right: (..., n, n) -> (..., n)."""
    right = jnp.broadcast_to(jnp.arange(logits.shape[-1]), logits.shape[:-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, right)


def info_nce_loss(anchors: jax.Array, positives: jax.Array, temperature: float) -> jax.Array:
    """Row-wise cross-entropy of <z_i, z~_j> / T with the diagonal as label; rows are unit vectors."""
    return diagonal_cross_entropy(anchors @ positives.T / temperature).mean()
