"""When the planner's directed distance (`iel.distances.directed`) is a norm of the displacement, for one fixed goal.

    n(D) = ||D|| exp(beta (1 - cos(D, w))),   D = phi(t) - phi(s),   w = omega_g of length one.

n is positively homogeneous, and in the plane of D and w it is the gauge with polar radius
N(theta) = exp(beta (1 - cos theta)). Such a gauge is convex iff N + N'' >= 0, here 1 + beta cos + beta^2 sin^2 >= 0
for every angle, whose minimum 1 - beta is at theta = pi. So in two or more dimensions and for a fixed goal

    n is an asymmetric norm (triangle inequality)  iff  0 <= beta <= 1,
    ||D|| <= n(D) <= e^{2 beta} ||D||,     n(-D) / n(D) = exp(2 beta cos) <= e^{2 beta},     <D, w> <= ||D|| <= n(D).

With the goal's own direction on every leg, d(x, y; y) + d(y, g; g) may be smaller than d(x, g; g): the triangle
inequality belongs to one goal at a time.
"""

from collections.abc import Iterator

import numpy as np

from iel.distances import directed
from iel.theory.evidence import Evidence, statement


def triangle_gap(first: np.ndarray, second: np.ndarray, direction: np.ndarray, beta: float) -> np.ndarray:
    """n(D1) + n(D2) - n(D1 + D2): negative where the triangle inequality fails."""
    start = np.zeros_like(first)
    through = directed(start, first, direction, beta) + directed(start, second, direction, beta)
    return through - directed(start, first + second, direction, beta)


def convexity_margin(beta: float) -> float:
    """min over angles of (N + N'') / N = 1 + beta cos + beta^2 sin^2: negative iff n is not a norm."""
    # Concave in the cosine, so the minimum sits at cos = -1 or cos = +1.
    return min(1.0 - beta, 1.0 + beta)


@statement("Planner's distance", "d(s, t; g) obeys the triangle inequality for a fixed goal", "holds")
def triangle(generator: np.random.Generator) -> Iterator[Evidence]:
    first, second = generator.normal(size=(2, 20_000, 3))
    direction = generator.normal(size=(20_000, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    gaps = {f"beta = {beta}": float(triangle_gap(first, second, direction, beta).min()) for beta in (0.1, 1.0)}
    yield Evidence("20,000 random pairs, smallest d1 + d2 - d", gaps, min(gaps.values()) > -1e-9)
    beyond = float(triangle_gap(np.array([-1.0, 0.3]), np.array([-1.0, -0.3]), np.array([1.0, 0.0]), 1.2))
    numbers = {"d1 + d2 - d": beyond, "convexity margin": convexity_margin(1.2)}
    cheaper = beyond < -0.01 and convexity_margin(1.2) < 0 <= convexity_margin(1.0)
    text = "beta = 1.2 in the plane: around is cheaper than straight against the direction"
    yield Evidence(text, numbers, cheaper)
    own = float(triangle_gap(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0]), 1.0))
    mixed = own - (np.e - 1.0)  # the first leg read along its own goal's direction costs 1, not e
    yield Evidence("beta = 1, every leg with its own goal's direction", {"d1 + d2 - d": mixed}, mixed < -1.0)
