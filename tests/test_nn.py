"""Networks against plain numpy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from iel.nn import (
    MLP,
    GaussianPolicy,
    LayerNorm,
    TanhGaussianPolicy,
    apply_heads,
    ensemble,
    head,
    normalise,
    unit,
)


def test_layer_norm_centres_and_scales_the_last_axis():
    x = np.random.default_rng(0).standard_normal((5, 16)) * 3 + 2
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(LayerNorm(16)(jnp.asarray(x, jnp.float32)), expected, atol=1e-5)


def test_the_gradient_of_normalise_is_that_of_its_formula():
    def formula(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)

    x, weight = jax.random.normal(jax.random.key(0), (2, 5, 16))
    np.testing.assert_allclose(normalise(x), formula(x), atol=1e-5)
    mine, plain = (jax.grad(lambda x, f=f: (f(x) ** 3 * weight).sum())(x) for f in (normalise, formula))
    np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-5)


def test_mlp_is_dense_gelu_norm_and_a_linear_output():
    network = MLP(jax.random.key(0), 3, (8, 8), 2)
    x = jnp.ones((4, 3))
    for layer, norm_ in zip(network.layers[:-1], network.norms, strict=True):
        x = norm_(jax.nn.gelu(x @ layer.kernel + layer.bias, approximate=True))
    expected = x @ network.layers[-1].kernel + network.layers[-1].bias
    assert np.array_equal(network(jnp.ones((4, 3))), expected)


def test_an_ensemble_is_its_members():
    heads = ensemble(jax.random.key(0), 2, 3, (8,), 4)
    x = jax.random.normal(jax.random.key(1), (5, 3))
    together = apply_heads(heads, x)
    for index in range(2):
        np.testing.assert_allclose(together[index], head(heads, index)(x), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(together[0], together[1])


def test_gaussian_log_probability_is_scipys():
    policy = GaussianPolicy(jax.random.key(0), 3, (8,), 2)
    x = jax.random.normal(jax.random.key(1), (6, 3))
    action = jax.random.normal(jax.random.key(2), (6, 2))
    np.testing.assert_allclose(policy.log_prob(x, action), norm.logpdf(action, policy(x), 1.0).sum(-1), rtol=1e-5)


def test_a_policy_of_several_heads_acts_by_their_mean_and_each_learns_by_itself():
    policy = GaussianPolicy(jax.random.key(0), 3, (8,), 2, heads=3)
    x, action = jax.random.normal(jax.random.key(1), (6, 3)), jax.random.normal(jax.random.key(2), (6, 2))
    means = np.stack([head(policy.mean, index)(x) for index in range(3)])
    np.testing.assert_allclose(policy(x), means.mean(0), rtol=1e-5, atol=1e-6)
    each = norm.logpdf(action, means, 1.0).sum(-1)
    np.testing.assert_allclose(policy.log_prob(x, action), each.mean(0), rtol=1e-5)
    # The gradient of one head does not depend on what the others answer.
    gradient = jax.grad(lambda p: p.log_prob(x, action).sum())
    moved = eqx.tree_at(lambda p: p.mean.layers[-1].bias, policy, policy.mean.layers[-1].bias.at[1:].add(1.0))
    ours, theirs = (gradient(p).mean.layers[0].kernel[0] for p in (policy, moved))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_unit_log_probability_ignores_the_learned_sigma():
    policy = eqx.tree_at(lambda p: p.log_std, GaussianPolicy(jax.random.key(0), 3, (8,), 2), jnp.ones(2))
    x, action = jnp.ones((1, 3)), jnp.array([[0.3, -0.4]])
    np.testing.assert_allclose(policy.unit_log_prob(x, action), norm.logpdf(action, policy(x), 1.0).sum(-1), rtol=1e-5)


def test_the_density_of_a_squashed_gaussian_integrates_to_one_and_its_samples_follow_it():
    policy = TanhGaussianPolicy(jax.random.key(0), 3, (8,), 1)
    x = jnp.ones((1, 3))
    grid = jnp.linspace(-0.998, 0.998, 4001)[:, None]
    density = np.exp(policy.log_prob(jnp.tile(x, (4001, 1)), grid))
    cumulative = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid[:, 0]))])
    assert abs(cumulative[-1] - 1.0) < 0.01
    action, log_prob = policy.sample(jax.random.key(1), x, 20_000)
    assert action.shape == (20_000, 1, 1) and log_prob.shape == (20_000, 1)
    expected = np.interp([-0.3, 0.0, 0.4], grid[:, 0], cumulative)
    np.testing.assert_allclose([(action < a).mean() for a in (-0.3, 0.0, 0.4)], expected, atol=0.015)
    np.testing.assert_allclose(log_prob[:50, 0], policy.log_prob(jnp.tile(x, (50, 1)), action[:50, 0]), atol=1e-3)
    np.testing.assert_allclose(policy(x), jnp.tanh(policy.network(x)[:, :1]))


def test_unit_is_finite_at_zero():
    assert np.isfinite(jax.grad(lambda x: unit(x).sum())(jnp.zeros(3))).all()
    np.testing.assert_allclose(np.linalg.norm(unit(jnp.array([3.0, 4.0]))), 1.0, atol=1e-6)
