"""The losses several methods share. Each is a pure function of arrays; gradients are stopped by the caller's choice.

Expectile weight: W_tau(A) = tau where A >= 0, 1 - tau where A < 0.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Scalar = Float[Array, ""]
AWR_WEIGHT_CAP = 100.0


def expectile_weight(advantage: Float[Array, "*n"], tau: float) -> Float[Array, "*n"]:
    """W_tau(A)."""
    return jnp.where(advantage >= 0, tau, 1.0 - tau)


def ivl_loss(
    values: Float[Array, "heads batch"],
    target_values: Float[Array, "heads batch"],
    target_next: Float[Array, "heads batch"],
    success: Float[Array, " batch"],
    tau: float,
    discount: float,
) -> Scalar:
    """Implicit V-learning with two heads; all values are negative costs of shape (heads, batch).

    q_e = r + gamma m V'_e(s', g),  A = min_e q_e - mean_e V'_e(s, g),  L = sum_e E[W_tau(A) (q_e - V_e(s, g))^2],
    where V' is the Polyak target, r = -1 and m = 1 unless s is the goal (then r = m = 0). With tau near 1 the weight
    is large where the target value is larger, that is where the target *cost is smaller*: short routes win.
    """
    reward, mask = goal_reward(success)
    targets = jax.lax.stop_gradient(reward + discount * mask * target_next)
    advantage = jax.lax.stop_gradient(targets.min(0) - target_values.mean(0))
    weight = expectile_weight(advantage, tau)
    return (weight * jnp.square(targets - values)).mean(-1).sum()


def regression_expectile_loss(
    prediction: Float[Array, "*n"], target: Float[Array, "*m"], tau: float, counted: Float[Array, "*m"] | None = None
) -> Scalar:
    """E[W_tau(l) l^2] with l = target - prediction; rows that are not `counted` add nothing to the mean over all."""
    residual = target - prediction
    return (expectile_weight(residual, tau) * jnp.square(residual) * (1.0 if counted is None else counted)).mean()


def iql_value_loss(value: Float[Array, " batch"], target_q: Float[Array, "heads batch"], tau: float) -> Scalar:
    """E[W_tau(u) u^2] with u = min_e Q'_e(s, a) - V(s); `target_q` is (heads, batch)."""
    return regression_expectile_loss(value, jax.lax.stop_gradient(target_q.min(0)), tau)


def iql_critic_loss(
    q: Float[Array, "heads batch"],
    reward: Float[Array, " batch"],
    next_value: Float[Array, " batch"],
    discount: float,
) -> Scalar:
    """E[sum_e (Q_e(s, a) - (r + gamma V(s')))^2]; `q` is (heads, batch), the target carries no gradient."""
    target = jax.lax.stop_gradient(reward + discount * next_value)
    return jnp.square(q - target).mean(-1).sum()


def goal_reward(success: Float[Array, " batch"]) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
    """(r, m) of reaching a goal: r = -1 and m = 1 before it, r = m = 0 at it, so that -V counts discounted steps."""
    return success - 1.0, 1.0 - success


def awr_loss(log_prob: Float[Array, " batch"], advantage: Float[Array, " batch"], temperature: float) -> Scalar:
    """-E[min(exp(alpha A), 100) log pi(a | s)]."""
    weight = jnp.minimum(jnp.exp(temperature * jax.lax.stop_gradient(advantage)), AWR_WEIGHT_CAP)
    return -(weight * log_prob).mean()


def ddpg_bc_loss(q: Float[Array, " batch"], log_prob: Float[Array, " batch"], bc_weight: float) -> Scalar:
    """-E[q] / E|q| - alpha E[log pi(a | s)], with q = min_e Q_e(s, pi(s)) differentiable in the policy's action.

    The scale E|q| carries no gradient: alpha means the same whatever the size of Q.
    """
    scale = jax.lax.stop_gradient(jnp.abs(q).mean() + 1e-6)
    return -q.mean() / scale - bc_weight * log_prob.mean()


def conservative_gap(
    q_sampled: Float[Array, "heads samples batch"],
    log_density: Float[Array, "samples batch"],
    q_data: Float[Array, "heads batch"],
    temperature: float,
    floor: float,
) -> Float[Array, " heads"]:
    """How much higher a critic rates other actions than the data's, averaged over the batch: (heads,).

    max(T log sum_j exp((Q(s, a_j) - log mu(a_j)) / T) - Q(s, a), floor), where a_j was drawn with density mu(a_j).
    """
    soft_maximum = temperature * jax.nn.logsumexp((q_sampled - log_density) / temperature, axis=1)
    return jnp.maximum(soft_maximum - q_data, floor).mean(-1)


def diagonal_cross_entropy(logits: Float[Array, "*heads n n"]) -> Float[Array, "*heads n"]:
    """Cross-entropy of every row, the diagonal being right: (..., n, n) -> (..., n)."""
    right = jnp.broadcast_to(jnp.arange(logits.shape[-1]), logits.shape[:-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, right)


def info_nce_loss(anchors: Float[Array, "n d"], positives: Float[Array, "n d"], temperature: float) -> Scalar:
    """Row-wise cross-entropy of <z_i, z~_j> / T with the diagonal as label; rows are unit vectors."""
    return diagonal_cross_entropy(anchors @ positives.T / temperature).mean()


def pessimistic(values: Float[Array, "2 *n"], pessimism: float) -> Float[Array, "*n"]:
    """Mean over two heads less `pessimism` times their difference: (2, ...) -> (...); 0.5 is their minimum."""
    return values.mean(0) - pessimism * jnp.abs(values[0] - values[1])


def measure_loss(measures: Float[Array, "heads n n"], target: Float[Array, "n n"], discount: float) -> Scalar:
    """TD for successor measures: sum_k [mean_{i != j} (M_k,ij - gamma M'_ij)^2 / 2 - mean_i M_k,ii].

    Row i is a state with an action, column j the state that row j went to: M_ij is how much more often (discounted,
    from the next step on) i's policy will be there than the data is. The squares alone would be least at M = gamma M';
    the term without a square adds the visit of the next step. `measures` is (heads, n, n); `target` is (n, n) and
    carries no gradient.
    """
    residual = measures - discount * jax.lax.stop_gradient(target)
    visits = jnp.diagonal(measures, axis1=-2, axis2=-1)
    return (0.5 * off_diagonal_mean(jnp.square(residual)) - visits.mean(-1)).sum()


def orthonormality_loss(features: Float[Array, "n d"]) -> Scalar:
    """mean_{i != j} <B_i, B_j>^2 - 2 mean_i ||B_i||^2: least where E[B B^T] is the identity; (n, d)."""
    gram = features @ features.T
    return off_diagonal_mean(jnp.square(gram)) - 2.0 * jnp.diagonal(gram).mean()


def off_diagonal_mean(squares: Float[Array, "*heads n n"]) -> Float[Array, "*heads"]:
    """The mean of (..., n, n) tables without their diagonals."""
    size = squares.shape[-1]
    inside = squares.sum((-2, -1)) - jnp.diagonal(squares, axis1=-2, axis2=-1).sum(-1)
    return inside / (size * (size - 1))


def contrastive_loss(logits: Float[Array, "heads n n"]) -> Scalar:
    """Binary cross-entropy of f_ij with labels 1[i = j], averaged over heads, rows and columns; (heads, B, B).

    -log sigmoid(f_ii) where goal i belongs to row i, -log(1 - sigmoid(f_ij)) where it belongs to another. With goals j
    drawn from p, the best f is log p(g | i) / p(g) - log(B - 1).
    """
    return optax.sigmoid_binary_cross_entropy(logits, jnp.eye(logits.shape[-1])).mean()


def recursive_classification_loss(
    positive: Float[Array, "heads batch"],
    negative: Float[Array, "heads batch"],
    ratio: Float[Array, " batch"],
    discount: float,
) -> Scalar:
    """mean_e E[-(1 - gamma) log C(s') - gamma w log C(g) - log(1 - C(g))], with C = sigmoid of logits (heads, batch).

    `positive` are logits of the next state s', `negative` those of a random g; `ratio` is w = p(g | s') / p(g) as the
    target has it. Then C / (1 - C) = ((1 - gamma) p(s' = g) + gamma w p(g)) / p(g): the recursion of p(g | s) / p(g).
    """
    ahead = (1.0 - discount) * jax.nn.softplus(-positive) + discount * ratio * jax.nn.softplus(-negative)
    return (ahead + jax.nn.softplus(negative)).mean()
