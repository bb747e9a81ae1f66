"""When the planner's directed distance (`iel.distances.directed`) is a norm of the displacement, for one fixed goal.

    n(D) = ||D|| exp(beta (1 - cos(D, w))),   D = phi(t) - phi(s),   w = omega_g of length one.

n is positively homogeneous, and in the plane of D and w it is the gauge with polar radius N(theta) = exp(beta (1 - cos
theta)). Such a gauge is convex iff N + N'' >= 0, here 1 + beta cos + beta^2 sin^2 >= 0 for every angle, whose minimum
1 - beta is at theta = pi. So in two or more dimensions and for a fixed goal

    n is an asymmetric norm (triangle inequality)  iff  0 <= beta <= 1,
    ||D|| <= n(D) <= e^{2 beta} ||D||,     n(-D) / n(D) = exp(2 beta cos) <= e^{2 beta},     <D, w> <= ||D|| <= n(D).

With the goal's own direction on every leg, d(x, y; y) + d(y, g; g) may be smaller than d(x, g; g): the triangle
inequality belongs to one goal at a time.
"""

from __future__ import annotations

import numpy as np

from iel.distances import directed


def triangle_gap(first: np.ndarray, second: np.ndarray, direction: np.ndarray, beta: float) -> np.ndarray:
    """n(D1) + n(D2) - n(D1 + D2): negative where the triangle inequality fails."""
    start = np.zeros_like(first)
    through = directed(start, first, direction, beta) + directed(start, second, direction, beta)
    return through - directed(start, first + second, direction, beta)


def convexity_margin(beta: float) -> float:
    """min over angles of (N + N'') / N = 1 + beta cos + beta^2 sin^2: negative iff n is no norm."""
    # Concave in the cosine, so the minimum sits at cos = -1 or cos = +1.
    return min(1.0 - beta, 1.0 + beta)
