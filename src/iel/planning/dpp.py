"""Greedy picks of a determinantal point process with a Gaussian kernel, exact and fast.

With K_ij = exp(-||x_i - x_j||^2 / (2 sigma^2)) and picks S so far, every state has a residual variance

    r_i = K_ii - K_iS K_SS^{-1} K_Si = 1 - ||c_i||^2,     K_SS = L L^T,  c_i = L^{-1} K_Si,

and the greedy step takes the largest: it multiplies det K_SS by r_i. The plain recursion extends
c_i of all n states by one number per pick: n k^2 / 2 multiply-adds, as matrix-vector products.

Here the same picks come from matrix products, and from fewer of them:

Lazy.     r_i never grows, so a stale r_i is an upper bound; a state is only brought up to date when its bound is among
          the `BLOCK` largest. States near a pick wait long for that.
Blocked.  The `BLOCK` states with the largest bounds are brought up to date together and get their own residual kernel
          G = K - C C^T (one product). Picks are taken inside G until the best residual falls below the largest bound
          outside; all picks of such a block reach the other states later, by products again.

No state is picked twice. Where the best residual falls to RANK_TOLERANCE the kernel's numerical rank is exhausted and
further picks would be rounding noise: picking stops.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist

from iel.distances import Floats, Integers, checked_points
from iel.errors import ConfigError

RANK_TOLERANCE = 1e-6
BLOCK = 256
"""States picked from at a time, and picks that states are brought up to date with in one go."""
FIRST_PICKS = 128
"""Picks made by the plain recursion first, while every bound is still near one and laziness saves nothing."""


class LazyGreedy:
    """The state of the recursion: bounds of all states, and how many picks each has taken into account."""

    def __init__(self, table: Floats, count: int):
        self.table = table
        self.bound = np.ones(len(table))
        self.level = np.zeros(len(table), dtype=np.int64)
        self.columns = np.empty((len(table), count))
        """c of every state, as far as its level; those of the picks are the rows of L."""
        self.picks, self.picked = np.empty(count, dtype=np.int64), 0

    def kernel(self, first: Integers, second: Integers) -> Floats:
        """K between two lists of states."""
        return np.exp(-0.5 * cdist(self.table[first], self.table[second], "sqeuclidean"))

    def update(self, states: Integers) -> None:
        """Bring c and r of these states up to date with all picks.

        States that lack the picks [a, e) get C = (K - C_{<a} R^T) L^{-T}, with R and L the picks' own rows before and
        after a.
        """
        starts, end = self.level[states] // BLOCK * BLOCK, self.picked  # so that few groups differ
        for start in np.unique(starts).tolist():
            late, new = states[starts == start], self.picks[start:end]
            own = self.columns[new, :end]
            fresh = self.kernel(new, late) - own[:, :start] @ self.columns[late, :start].T
            fresh = solve_triangular(own[:, start:], fresh, lower=True, overwrite_b=True, check_finite=False)
            self.columns[late, start:end] = fresh.T
            residual = 1.0 - np.einsum("np,np->n", self.columns[late, :end], self.columns[late, :end])
            self.bound[late] = np.minimum(self.bound[late], residual)  # that of a pick stays minus infinity
        self.level[states] = end

    def pick_block(self, wanted: int) -> bool:
        """Take at most `wanted` picks among the states with the largest residuals; False at the rank's end."""
        while True:
            top = largest_first(self.bound, 4 * BLOCK)
            states, outside = np.sort(top[:BLOCK]), top[BLOCK : BLOCK + 1]
            if (self.level[states] == self.picked).all():
                break
            self.update(top[self.level[top] < self.picked])
        factors = self.columns[states, : self.picked]
        gram = self.kernel(states, states) - factors @ factors.T
        limit = float(self.bound[outside[0]]) if len(outside) else -np.inf
        beyond = int(outside[0]) if len(outside) else -1
        return self.pick(states, min(wanted, len(states)), lambda best: gram[best], limit, beyond)

    def pick(
        self, states: Integers, most: int, gram: Callable[[int], Floats], limit: float = -np.inf, beyond: int = -1
    ) -> bool:
        """The plain recursion over some states, given rows of their residual kernel, until `limit`, the largest bound
        outside, which state `beyond` has, may be larger; False at the rank's end."""
        residual = self.bound[states]
        columns = np.empty((most, len(states)))
        chosen: list[int] = []
        exhausted = False
        while len(chosen) < most and not exhausted:
            best = int(np.argmax(residual))
            value = residual[best]
            exhausted = max(value, limit) <= RANK_TOLERANCE
            if value <= RANK_TOLERANCE or value < limit or (value == limit and states[best] > beyond):
                break
            done = len(chosen)
            columns[done] = (gram(best) - columns[:done, best] @ columns[:done]) / np.sqrt(value)
            residual -= np.square(columns[done])
            residual[best] = -np.inf
            chosen.append(best)
        new = slice(self.picked, self.picked + len(chosen))
        self.picks[new] = states[chosen]
        self.columns[states, new] = columns[: len(chosen)].T
        self.picked = new.stop
        self.bound[states], self.level[states] = residual, self.picked
        return not exhausted


def largest_first(values: Floats, count: int) -> Integers:
    """The positions of the `count` largest values in the order (largest, first position)."""
    order = np.flatnonzero(values >= np.partition(values, -count)[-count]) if count < len(values) else slice(None)
    positions = np.arange(len(values))[order]
    return positions[np.argsort(-values[positions], kind="stable")][:count]


def greedy_dpp(points: ArrayLike, count: int, sigma: float) -> Integers:
    """At most `count` greedy picks; fewer where the kernel's numerical rank ends. Among equal residuals the first wins.

    `sigma` is the kernel's width, in the unit of the points.
    """
    table = checked_points(points)
    if not (np.isfinite(sigma) and sigma > 0.0):
        raise ConfigError(f"sigma is {sigma}; the kernel width must be a positive number.")
    count, everyone = min(count, len(table)), np.arange(len(table))
    greedy = LazyGreedy(table / sigma, count)
    # Blocks are small: threads that wait for each other after every product cost more than they compute.
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        more = greedy.pick(everyone, min(FIRST_PICKS, count), lambda best: greedy.kernel(everyone[[best]], everyone)[0])
        while more and greedy.picked < count:
            more = greedy.pick_block(count - greedy.picked)
    return greedy.picks[: greedy.picked]
