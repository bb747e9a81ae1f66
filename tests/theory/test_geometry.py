"""The planner's distance: an asymmetric norm for beta <= 1, not beyond, with asymmetry bounded by e^{2 beta}."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iel.distances import directed
from iel.theory.distances import convexity_margin, triangle_gap


def directed_norm(displacement, direction, beta):
    """n(D), the planner's distance from the origin to D."""
    return directed(np.zeros_like(displacement), displacement, direction, beta)


vectors = arrays(np.float64, 4, elements=st.floats(-10, 10).map(lambda v: 0.0 if abs(v) < 1e-6 else v))
betas = st.floats(0.0, 1.0)


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else np.eye(4)[0]


@settings(max_examples=300, deadline=None)
@given(first=vectors, second=vectors, direction=vectors, beta=betas)
def test_the_triangle_inequality_holds_for_beta_up_to_one(first, second, direction, beta):
    size = np.linalg.norm(first) + np.linalg.norm(second)
    assert triangle_gap(first, second, unit(direction), beta) >= -1e-9 * (1 + size)


@settings(max_examples=300, deadline=None)
@given(vector=vectors, direction=vectors, beta=st.floats(0.0, 3.0), factor=st.floats(0.0, 50.0))
def test_bounds_homogeneity_and_asymmetry(vector, direction, beta, factor):
    w, size = unit(direction), np.linalg.norm(vector)
    assume(size > 1e-3 and factor * size > 1e-3)  # shorter displacements count as 1e-3, so that gradients stay finite
    forward, backward = directed_norm(vector, w, beta), directed_norm(-vector, w, beta)
    slack = 1e-9 * (1 + size) * np.exp(2 * beta)
    assert size - slack <= forward <= np.exp(2 * beta) * size + slack
    assert np.isclose(directed_norm(factor * vector, w, beta), factor * forward, rtol=1e-9, atol=1e-9)
    # The distance bounds the projected hitting time, which is the sense in which the norm "upper bounds" it.
    assert vector @ w <= forward + slack
    assert backward <= np.exp(2 * beta) * forward + slack
    assert np.isclose(backward / forward, np.exp(2 * beta * (vector @ w) / size), rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.99, 1.0, 1.01, 1.5, 3.0])
def test_the_convexity_margin_decides(beta):
    angles = np.linspace(0, 2 * np.pi, 20001)
    scan = 1 + beta * np.cos(angles) + (beta * np.sin(angles)) ** 2
    assert np.isclose(scan.min(), convexity_margin(beta), atol=1e-6)


def test_beta_zero_is_the_euclidean_distance():
    generator = np.random.default_rng(0)
    displacement = generator.normal(size=(20, 3))
    assert np.allclose(directed_norm(displacement, np.eye(3)[0], 0.0), np.linalg.norm(displacement, axis=1))
