"""Networks and nothing else: an MLP with LayerNorm, ensembles and Gaussian heads.

Modules are Equinox dataclasses whose leaves are arrays only, so a module is a pytree that scan, vmap, grad and the
checkpoint writer all understand. Every module takes a whole batch: a layer is one matrix product.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iel.data.goals import Table
from iel.model import Network, Norm, Perceptron
from iel.model.model import LOG_STD_RANGE

LARGEST_SQUASHED = 0.999
"""Actions of the data are clipped to this before they are un-squashed: tanh never reaches 1."""


class Dense(eqx.Module):
    """x -> x W + b, with W drawn Glorot-uniform times `scale` and b = 0."""

    kernel: jax.Array
    bias: jax.Array

    def __init__(self, key: jax.Array, inputs: int, outputs: int, scale: float = 1.0):
        self.kernel = scale * jax.nn.initializers.glorot_uniform()(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel + self.bias


@jax.custom_vjp
def normalise(x: jax.Array) -> jax.Array:
    """y = (x - mean) / sqrt(variance + 1e-6) over the last axis.

    With r = 1 / sqrt(variance + 1e-6), its gradient is r (g - mean(g) - y mean(g y)): two reductions. Differentiating
    the formula above step by step takes more passes over the activations, which is where a narrow network on a CPU
    spends its time (docs/performance.md).
    """
    return _normalise_forward(x)[0]


def _normalise_forward(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    centred = x - x.mean(-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
    return centred * rate, (centred * rate, rate)


def _normalise_backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array]:
    y, rate = saved
    mean, along = gradient.mean(-1, keepdims=True), (gradient * y).mean(-1, keepdims=True)
    return (rate * (gradient - mean - y * along),)


normalise.defvjp(_normalise_forward, _normalise_backward)


class LayerNorm(eqx.Module):
    """(x - mean) / sqrt(variance + 1e-6), times a learned scale plus a learned offset, over the last axis."""

    scale: jax.Array
    offset: jax.Array

    def __init__(self, size: int):
        self.scale, self.offset = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x: jax.Array) -> jax.Array:
        return normalise(x) * self.scale + self.offset


class Lens(NamedTuple):
    """How a network sees its inputs: some of them, as (x - mean) / deviation. It is the same for all of training and no
    part of what is trained; what is exported takes all inputs as they are (`frozen`)."""

    columns: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        seen = x if len(self.columns) == x.shape[-1] else x[..., jnp.array(self.columns)]
        return (seen - jnp.array(self.mean, x.dtype)) / jnp.array(self.deviation, x.dtype)


class MLP(eqx.Module):
    """Hidden layers, then a linear output.

    With `layer_norm`, a hidden layer is Dense -> GELU -> LayerNorm (values and embeddings); without, Dense -> ReLU, or
    with `gelu` Dense -> GELU (policies).
    """

    layers: tuple[Dense, ...]
    norms: tuple[LayerNorm, ...]
    gelu: bool = eqx.field(static=True)
    inputs: int = eqx.field(static=True)
    lens: Lens | None = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        layer_norm: bool = True,
        gelu: bool = False,
        last_scale: float = 1.0,
        lens: Lens | None = None,
    ):
        sizes = [inputs if lens is None else len(lens.columns), *hidden, outputs]
        scales = [1.0] * len(hidden) + [last_scale]
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Dense(k, a, b, s) for k, a, b, s in zip(keys, sizes[:-1], sizes[1:], scales, strict=True))
        self.norms = tuple(LayerNorm(size) for size in hidden) if layer_norm else ()
        self.gelu, self.inputs, self.lens = gelu or layer_norm, inputs, lens

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x if self.lens is None else self.lens(x)
        for index, layer in enumerate(self.layers[:-1]):
            x = jax.nn.gelu(layer(x)) if self.gelu else jax.nn.relu(layer(x))
            x = self.norms[index](x) if self.norms else x
        return self.layers[-1](x)


POLICY_SCALE = 0.1
"""A policy's last kernel starts ten times smaller: its variance is scaled by 1e-2, as in the field's reference code."""


class GaussianPolicy(eqx.Module):
    """pi(a | x) = N(mu(x), diag(sigma^2)) with one learned log sigma per action, clipped to [-5, 2].

    With several heads mu is the mean of mu_h, and each mu_h learns by itself: log pi is the mean of theirs.
    """

    mean: MLP
    log_std: jax.Array
    heads: int = eqx.field(static=True, default=1)

    def __init__(
        self,
        key: jax.Array,
        inputs: int,
        hidden: Sequence[int],
        actions: int,
        *,
        layer_norm: bool = False,
        gelu: bool = False,
        heads: int = 1,
        lens: Lens | None = None,
    ):
        kind: dict[str, Any] = {"layer_norm": layer_norm, "gelu": gelu, "last_scale": POLICY_SCALE, "lens": lens}
        shape = inputs, hidden, actions
        self.mean = MLP(key, *shape, **kind) if heads == 1 else ensemble(key, heads, *shape, **kind)
        self.log_std, self.heads = jnp.zeros(actions), heads

    def _means(self, x: jax.Array) -> jax.Array:
        """mu(x), or mu_h(x) with a leading axis of heads."""
        return self.mean(x) if self.heads == 1 else apply_heads(self.mean, x)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The mean action."""
        return self._means(x) if self.heads == 1 else self._means(x).mean(0)

    def log_prob(self, x: Float[Array, "*batch inputs"], action: Float[Array, "*batch a"]) -> Float[Array, "*batch"]:
        """log pi(a | x), summed over action dimensions."""
        log_std = jnp.clip(self.log_std, *LOG_STD_RANGE)
        z = (action - self._means(x)) * jnp.exp(-log_std)
        each = -0.5 * jnp.sum(jnp.square(z) + 2.0 * log_std + jnp.log(2.0 * jnp.pi), axis=-1)
        return each if self.heads == 1 else each.mean(0)

    def unit_log_prob(
        self, x: Float[Array, "*batch inputs"], action: Float[Array, "*batch a"]
    ) -> Float[Array, "*batch"]:
        """log N(a; mu(x), 1), up to a constant -||a - mu(x)||^2 / 2: the learned sigma plays no part."""
        return -0.5 * jnp.sum(jnp.square(action - self(x)) + jnp.log(2.0 * jnp.pi), axis=-1)


class TanhGaussianPolicy(eqx.Module):
    """a = tanh(u), u ~ N(mu(x), diag(sigma(x)^2)), with log sigma(x) clipped to [-5, 2] and starting near -1.

    log pi(a | x) = log N(u; mu, sigma) - sum_j log(1 - tanh(u_j)^2).
    """

    network: MLP

    def __init__(self, key: jax.Array, inputs: int, hidden: Sequence[int], actions: int, **kind: Any):
        """`kind`: `layer_norm` (default False) and `lens`, as for `MLP`."""
        self.network = MLP(key, inputs, hidden, 2 * actions, last_scale=POLICY_SCALE, **{"layer_norm": False, **kind})

    def __call__(self, x: jax.Array) -> jax.Array:
        """The action at the Gaussian's mean, tanh(mu(x))."""
        return jnp.tanh(self._moments(x)[0])

    def sample(self, key: jax.Array, x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """`count` actions for every row, (count, batch, actions), and their log-probabilities, (count, batch)."""
        mean, log_std = self._moments(x)
        u = mean + jnp.exp(log_std) * jax.random.normal(key, (count, *mean.shape))
        return jnp.tanh(u), _squashed_log_prob(u, mean, log_std)

    def log_prob(self, x: Float[Array, "*batch inputs"], action: Float[Array, "*batch a"]) -> Float[Array, "*batch"]:
        """log pi(a | x), summed over action dimensions; actions are first clipped to +-0.999."""
        u = jnp.arctanh(jnp.clip(action, -LARGEST_SQUASHED, LARGEST_SQUASHED))
        return _squashed_log_prob(u, *self._moments(x))

    def _moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(self.network(x), 2, axis=-1)
        return mean, jnp.clip(log_std - 1.0, *LOG_STD_RANGE)


def _squashed_log_prob(u: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    z = (u - mean) * jnp.exp(-log_std)
    gaussian = -0.5 * (jnp.square(z) + 2.0 * log_std + jnp.log(2.0 * jnp.pi))
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which does not overflow
    return (gaussian - 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))).sum(-1)


def ensemble(key: jax.Array, heads: int, inputs: int, hidden: Sequence[int], outputs: int, **kind: Any) -> MLP:
    """`heads` independent MLPs as one MLP whose arrays have a leading axis of heads."""
    return jax.vmap(lambda k: MLP(k, inputs, hidden, outputs, **kind))(jax.random.split(key, heads))


def apply_heads(heads: MLP, x: Float[Array, "*batch inputs"]) -> Float[Array, "heads *batch outputs"]:
    """Every member of an ensemble on the same inputs."""
    return jax.vmap(lambda head: head(x))(heads)


def head(heads: MLP, index: int) -> MLP:
    """One member of an ensemble."""
    return jax.tree.map(lambda leaf: leaf[index], heads)


def unit(x: Float[Array, "*n d"], epsilon: float = 1e-6) -> Float[Array, "*n d"]:
    """x / (||x|| + epsilon) along the last axis; the norm is floored so that its gradient is finite at zero."""
    norm = jnp.sqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))
    return x / (norm + epsilon)


def on_sphere(x: Float[Array, "*n c"]) -> Float[Array, "*n c"]:
    """Rows of c numbers scaled to length sqrt(c), so that their numbers are of size one."""
    return jnp.sqrt(float(x.shape[-1])) * unit(x)


def scalars(heads: MLP, *parts: Float[Array, "*batch _"]) -> Float[Array, "heads *batch"]:
    """An ensemble with one output on the concatenated inputs."""
    return apply_heads(heads, jnp.concatenate(parts, -1))[..., 0]


def frozen(network: MLP, *inputs: str, logit: bool = False) -> Network:
    """A trained network, or an ensemble of them, as the exported numpy network. `logit`: its output is a log-odds."""
    leaves: Any = jax.tree.map(np.asarray, network)
    first = leaves.layers[0].kernel
    heads = [leaves] if first.ndim == 2 else [head(leaves, index) for index in range(len(first))]
    return Network(inputs, tuple(_perceptron(each) for each in heads), logit=logit)


def frozen_policy(policy: GaussianPolicy | TanhGaussianPolicy, *inputs: str, stochastic: bool = False) -> Network:
    """Convert a policy to numpy. `stochastic`: its sigma was trained, so that actions may be sampled."""
    if isinstance(policy, TanhGaussianPolicy):
        return Network(inputs, frozen(policy.network).heads, squash=True)
    return Network(inputs, frozen(policy.mean).heads, log_std=np.asarray(policy.log_std) if stochastic else None)


def with_constants(network: Network, constants: Sequence[float], scale: float = 1.0) -> Network:
    """The network's outputs times `scale`, and after them more that are always `constants`."""
    heads = []
    for head in network.heads:
        kernel, bias = (np.float32(scale) * part for part in (head.kernels[-1], head.biases[-1]))
        wider = np.concatenate([kernel, np.zeros((len(kernel), len(constants)), np.float32)], 1)
        longer = np.concatenate([bias, np.array(constants, np.float32)])
        heads.append(replace(head, kernels=(*head.kernels[:-1], wider), biases=(*head.biases[:-1], longer)))
    return replace(network, heads=tuple(heads))


def _perceptron(network: Any) -> Perceptron:
    kernels, biases = [layer.kernel for layer in network.layers], [layer.bias for layer in network.layers]
    if network.lens is not None:
        kernels[0], biases[0] = _through(network.lens, kernels[0], biases[0], network.inputs)
    return Perceptron(
        tuple(kernels),
        tuple(biases),
        tuple(Norm(norm.scale, norm.offset) for norm in network.norms),
        network.gelu,
    )


def _through(lens: Lens, kernel: np.ndarray, bias: np.ndarray, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """A first layer that takes all inputs as they are: (x - m) / s W + b = x W' + b', W' = W / s, b' = b - m W'."""
    scaled = kernel.astype(np.float64) / np.array(lens.deviation)[:, None]
    whole = np.zeros((inputs, kernel.shape[1]))
    whole[list(lens.columns)] = scaled
    return whole.astype(np.float32), (bias - np.array(lens.mean) @ scaled).astype(np.float32)


def in_blocks(network: Callable[[jax.Array], jax.Array], rows: jax.Array, block: int = 8192) -> jax.Array:
    """`network` on all rows, a block at a time, so that a million states need no gigabytes of activations.

    Of rows that stay on the disk it is computed for the requested ones.
    """
    if isinstance(rows, Table):
        return rows.through(network)  # type: ignore[return-value]
    block = min(block, len(rows))
    padding = -len(rows) % block
    blocks = jnp.pad(rows, ((0, padding), (0, 0))).reshape(-1, block, rows.shape[1])
    result = jax.lax.map(network, blocks)
    return result.reshape(-1, result.shape[-1])[: len(rows)]
