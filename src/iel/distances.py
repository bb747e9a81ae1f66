"""Distances between embeddings: geometry and nothing else.

Directed displacement distance, for a fixed goal g with unit direction omega = omega_g and Delta = phi(t) - phi(s):

    l = sqrt(max(||Delta||^2, 1e-6)),   c = <Delta, omega> / l,   d(s, t; g) = l exp(beta (1 - c))

beta = 0 is the Euclidean distance of HILP. For 0 <= beta <= 1 it is an asymmetric norm of Delta, so the triangle
inequality holds; it fails for beta > 1. Going back costs d(t, s; g) = exp(2 beta c) d(s, t; g).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

SQUARED_FLOOR = 1e-6
"""Keeps the gradient of the square root finite at Delta = 0; d(g, g; g) is 1e-3 e^beta, not 0."""


def euclidean(source: jax.Array, target: jax.Array) -> jax.Array:
    """sqrt(max(||phi(t) - phi(s)||^2, 1e-6)) along the last axis."""
    squared = jnp.square(target - source).sum(-1)
    return jnp.sqrt(jnp.maximum(squared, SQUARED_FLOOR))


def directed(source: jax.Array, target: jax.Array, omega: jax.Array, beta: float) -> jax.Array:
    """d(s, t; g) = l exp(beta (1 - <Delta, omega> / l)) along the last axis."""
    length = euclidean(source, target)
    cosine = projection(source, target, omega) / length
    return length * jnp.exp(beta * (1.0 - cosine))


def projection(source: jax.Array, target: jax.Array, omega: jax.Array) -> jax.Array:
    """<phi(t) - phi(s), omega_g>: the displacement read along the goal's direction."""
    return ((target - source) * omega).sum(-1)


def discounted_steps(steps: jax.Array, discount: float) -> jax.Array:
    """h(H) = 1 + gamma + ... + gamma^(H - 1) = (1 - gamma^H) / (1 - gamma): what H steps cost when discounted."""
    return (1.0 - discount**steps) / (1.0 - discount)


def undiscounted_steps(cost: jax.Array, discount: float, longest: float = 1e-3) -> jax.Array:
    """H = log(1 - (1 - gamma) h) / log(gamma), the inverse of `discounted_steps`.

    Costs at or above 1 / (1 - gamma) are reached by no number of steps; gamma^H is floored at `longest`.
    """
    remaining = jnp.clip(1.0 - (1.0 - discount) * cost, longest, None)
    return jnp.maximum(jnp.log(remaining) / jnp.log(discount), 0.0)
