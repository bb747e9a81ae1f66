"""Distances between embeddings: one formula for JAX (losses), numpy (models) and theory.

Directed displacement distance, for a fixed goal g with unit direction omega = omega_g and Delta = phi(t) - phi(s):

    l = sqrt(max(||Delta||^2, 1e-6)),   c = <Delta, omega> / l,   d(s, t; g) = l exp(beta (1 - c))

beta = 0 is the Euclidean distance of HILP. For 0 <= beta <= 1 it is an asymmetric norm of Delta, so the triangle
inequality holds; it fails for beta > 1. Going back costs d(t, s; g) = exp(2 beta c) d(s, t; g).

Every function takes arrays of either library and answers in the same one (their `__array_namespace__`). Planning has a
version of its own (`iel.metrics`), whose numbers do not depend on how pairs are batched; a test holds it against this.
"""

from __future__ import annotations

import math
from typing import Any

Array = Any
"""A numpy or a JAX array."""

SQUARED_FLOOR = 1e-6
"""Keeps the gradient of the square root finite at Delta = 0; d(g, g; g) is 1e-3 e^beta, not 0."""
REMAINING_FLOOR = 1e-3
"""gamma^H is never taken to be smaller: the longest time that discounted costs tell apart (687 steps at 0.99)."""


def euclidean(source: Array, target: Array) -> Array:
    """sqrt(max(||phi(t) - phi(s)||^2, 1e-6)) along the last axis."""
    xp = source.__array_namespace__()
    squared = xp.square(target - source).sum(-1)
    return xp.sqrt(xp.maximum(squared, SQUARED_FLOOR))


def directed(source: Array, target: Array, omega: Array, beta: float) -> Array:
    """d(s, t; g) = l exp(beta (1 - <Delta, omega> / l)) along the last axis."""
    xp = source.__array_namespace__()
    length = euclidean(source, target)
    cosine = projection(source, target, omega) / length
    return length * xp.exp(beta * (1.0 - cosine))


def projection(source: Array, target: Array, omega: Array) -> Array:
    """<phi(t) - phi(s), omega_g>: the displacement read along the goal's direction."""
    return ((target - source) * omega).sum(-1)


def discounted_steps(steps: Array, discount: float) -> Array:
    """h(H) = 1 + gamma + ... + gamma^(H - 1) = (1 - gamma^H) / (1 - gamma): what H steps cost when discounted."""
    return steps if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)


def undiscounted_steps(cost: Array, discount: float) -> Array:
    """H = log(1 - (1 - gamma) h) / log(gamma), the inverse of `discounted_steps`; gamma = 1 leaves costs as they are.

    Costs at or above 1 / (1 - gamma) are reached by no number of steps: they become `longest_steps(gamma)`.
    """
    if discount == 1.0:
        return cost
    xp = cost.__array_namespace__()
    remaining = xp.maximum(1.0 - (1.0 - discount) * cost, REMAINING_FLOOR)
    return xp.maximum(xp.log(remaining) / math.log(discount), 0.0)


def longest_steps(discount: float) -> float:
    """The ceiling of `undiscounted_steps`: where predictions saturate."""
    return math.inf if discount == 1.0 else math.log(REMAINING_FLOOR) / math.log(discount)
