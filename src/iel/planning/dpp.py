"""Greedy picks of a determinantal point process with a Gaussian kernel, exact and fast.

With K_ij = exp(-||x_i - x_j||^2 / (2 sigma^2)) and picks S so far, every state has a residual variance

    r_i = K_ii - K_iS K_SS^{-1} K_Si = 1 - ||c_i||^2,     K_SS = L L^T,  c_i = L^{-1} K_Si,

and the greedy step takes the largest: it multiplies det K_SS by r_i. The plain recursion extends
c_i of all n states by one number per pick: n k^2 / 2 multiply-adds, as matrix-vector products.

Here the same picks come from matrix products, and from fewer of them:

Lazy.     r_i never grows, so a stale r_i is an upper bound; a state is only brought up to date when its bound is among
          the m largest. States near a pick wait long for that.
Blocked.  The m states with the largest bounds are brought up to date together and get their own residual kernel
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
PANEL = 256
"""Picks that states are brought up to date with in one go."""
NARROWEST, WIDEST = 64, 512
"""Smallest and largest number of states picked from at a time."""
FIRST_PICKS = 128
"""Picks made by the plain recursion first, while every bound is still near one and laziness saves nothing."""

WORKING_NUMBERS = 1 << 22
"""Numbers of c brought up to date in one go: bounds the working memory."""


class LazyGreedy:
    """The state of the recursion: bounds of all states, and how many picks each has taken into account."""

    def __init__(self, table: Floats, sigma: float, count: int):
        # Scaled and moved so that K = exp(<x, y> - |x|^2/2 - |y|^2/2); near the origin rounding is least.
        self.table = (table - table.mean(axis=0)) / sigma
        self.half_squares = 0.5 * np.einsum("nd,nd->n", self.table, self.table)
        # Far more than sigma across, the product form would lose the distances between neighbours to rounding.
        self.wide = float(self.half_squares.max()) > 1e5
        self.bound = np.ones(len(table))
        self.level = np.zeros(len(table), dtype=np.int64)
        self.columns = np.empty((len(table), count))
        """c of every state, as far as its level; those of the picks are the rows of L."""
        self.picks, self.picked = np.empty(count, dtype=np.int64), 0

    def kernel(self, first: Integers, second: Integers) -> Floats:
        """K between two lists of states."""
        if self.wide:
            return np.exp(-0.5 * cdist(self.table[first], self.table[second], "sqeuclidean"))
        exponent = self.table[first] @ self.table[second].T
        exponent -= self.half_squares[first][:, None]
        exponent -= self.half_squares[second][None, :]
        np.minimum(exponent, 0.0, out=exponent)
        return np.exp(exponent, out=exponent)

    def factors(self, states: Integers) -> Floats:
        """c of these states, brought up to date with all picks: (len(states), picked).

        PANEL picks after PANEL; states that lack the picks [a, e) get C = (K - C_{<a} R^T) L^{-T}, with R and L the
        picks' own rows before and after a.
        """
        result, level = self.columns[states, : self.picked], self.level[states]
        for begin in range(0, self.picked, PANEL):
            end, lacking = min(begin + PANEL, self.picked), np.maximum(level, begin)
            for start in np.unique(lacking[lacking < end]).tolist():
                lack = np.flatnonzero(lacking == start)
                known = result[:, :start] if len(lack) == len(states) else result[lack, :start]
                picks = self.picks[start:end]
                own = self.columns[picks, :end]
                fresh = self.kernel(picks, states[lack])
                fresh -= own[:, :start] @ known.T
                fresh = solve_triangular(own[:, start:], fresh, lower=True, overwrite_b=True, check_finite=False)
                result[lack, start:end] = self.columns[states[lack], start:end] = fresh.T
                self.bound[states[lack]] -= np.einsum("pn,pn->n", fresh, fresh)
        self.level[states] = self.picked
        return result

    def largest(self, size: int) -> tuple[Integers, Floats, float, int]:
        """The `size` states with the largest residuals, all up to date, with their factors; and what is outside.

        Returns the states in ascending order, c of each, the largest bound outside and the first state that has it.
        """
        batch = size
        while True:
            # Ordered by (bound, index), so that equal bounds keep the rule that the first state wins.
            top = largest_first(self.bound, max(size + 1, batch))
            inside, outside = np.sort(top[:size]), top[size : size + 1]
            if (self.level[inside] == self.picked).all():
                limit = float(self.bound[outside[0]]) if len(outside) else -np.inf
                return inside, self.factors(inside), limit, int(outside[0]) if len(outside) else -1
            self.factors(top[self.level[top] < self.picked])
            # Few large products beat many small ones: what stays stale at the top is fetched in growing batches.
            batch = max(size, min(2 * batch, WORKING_NUMBERS // self.picked))

    def pick_block(self, size: int, wanted: int) -> bool:
        """Take picks among the `size` largest residuals until one outside may be larger; False at the rank's end."""
        states, factors, limit, limit_state = self.largest(size)
        gram = self.kernel(states, states)
        gram -= factors @ factors.T
        return self.pick(states, min(wanted, len(states)), lambda best: gram[best], limit, limit_state)

    def pick(
        self,
        states: Integers,
        most: int,
        gram: Callable[[int], Floats],
        limit: float = -np.inf,
        limit_state: int = -1,
    ) -> bool:
        """The plain recursion over some states, given rows of their residual kernel, until the largest bound outside
        may be larger; False at the rank's end."""
        residual = self.bound[states]
        columns = np.empty((most, len(states)))
        chosen: list[int] = []
        exhausted = False
        while len(chosen) < most:
            best = int(np.argmax(residual))
            value = residual[best]
            if value <= RANK_TOLERANCE:
                exhausted = max(value, limit) <= RANK_TOLERANCE
                break
            if value < limit or (value == limit and states[best] > limit_state):
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
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(above)]
    chosen = np.sort(np.concatenate([above, equal]))
    return chosen[np.argsort(-values[chosen], kind="stable")]


def greedy_dpp(points: ArrayLike, count: int, sigma: float, *, width: int = 256) -> Integers:
    """At most `count` greedy picks; fewer where the kernel's numerical rank ends. Among equal residuals the first wins.

    `width` is the number of states picked from at a time. It follows the kernel: with a narrow one many picks fit a
    block, with a wide one every pick changes all residuals around it and only small blocks pay.
    """
    table = checked_points(points)
    if not (np.isfinite(sigma) and sigma > 0.0):
        raise ConfigError(f"sigma is {sigma}; the kernel width must be a positive number.")
    count, everyone = min(count, len(table)), np.arange(len(table))
    greedy = LazyGreedy(table, float(sigma), count)
    # Blocks are small: threads that wait for each other after every product cost more than they compute.
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        more = greedy.pick(everyone, min(FIRST_PICKS, count), lambda best: greedy.kernel(everyone[[best]], everyone)[0])
        while more and greedy.picked < count:
            before = greedy.picked
            more = greedy.pick_block(min(width, len(table)), count - before)
            if greedy.picked - before < width // 16:
                width = max(width // 2, NARROWEST)
            elif greedy.picked - before > width // 4:
                width = min(width * 2, WIDEST)
    return greedy.picks[: greedy.picked]
