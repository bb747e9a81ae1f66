"""The planning graph by the paper's formula, as literally as possible: dense matrices.

Slow on purpose (half a minute a goal at 8192 nodes). Tests and the benchmark hold the fast graph against it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from iel.distances import Floats, Integers, checked_points, directed_cost, lengths_between, projections
from iel.planning.dpp import RANK_TOLERANCE


def cost_matrix(points: Floats, direction: Floats, beta: float, lengths: Floats | None = None) -> Floats:
    """C_ij = d(x_i, x_j; g) for all pairs. `lengths` may be passed in: they do not depend on the goal."""
    projection = projections(points, direction)
    lengths = lengths_between(points, points) if lengths is None else lengths
    return directed_cost(lengths, projection[None, :] - projection[:, None], beta)


def top_k(costs: Floats, k: int) -> np.ndarray:
    """Mask of the k cheapest out-edges of each row, equal costs by column."""
    off_diagonal = costs.copy()
    np.fill_diagonal(off_diagonal, np.inf)
    k = min(k, len(costs) - 1)
    order = np.argsort(off_diagonal, axis=1, kind="stable")[:, :k]
    mask = np.zeros(costs.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def nearest_by_partition(costs: Floats, k: int) -> np.ndarray:
    """`top_k` without its tie rule, as fast as a dense matrix allows: what one would write for speed."""
    off_diagonal = costs.copy()
    np.fill_diagonal(off_diagonal, np.inf)
    mask = np.zeros(costs.shape, dtype=bool)
    np.put_along_axis(mask, np.argpartition(off_diagonal, k - 1, axis=1)[:, :k], True, axis=1)
    return mask


def graph_matrix(costs: Floats, k: int, tree: np.ndarray) -> Floats:
    """A_ij = C_ij on the chosen edges and infinity elsewhere: ConstructGraph of the paper, before the transposition.

    `tree` lists the edges (i, j) that are added in both directions for connectivity.
    """
    retained = top_k(costs, k) if len(costs) > 1 else np.zeros((1, 1), dtype=bool)
    return with_tree(costs, retained, tree)


def with_tree(costs: Floats, retained: np.ndarray, tree: np.ndarray) -> Floats:
    """Force the tree's edges in, in both directions."""
    retained[tree[:, 0], tree[:, 1]] = True
    retained[tree[:, 1], tree[:, 0]] = True
    return np.where(retained, costs, np.inf)


def search_matrix(graph: Floats, node: int) -> tuple[Floats, Integers]:
    """Distances to `node` and next hops (smallest index among equals, -1 for none) on a dense graph matrix."""
    source, target = np.nonzero(np.isfinite(graph))
    reverse = csr_array((graph[source, target], (target, source)), shape=graph.shape)
    distance = dijkstra(reverse, directed=True, indices=node)
    through = graph + distance[None, :]
    next_hop = np.where(np.isfinite(distance), np.argmin(through, axis=1), -1)
    next_hop[node] = -1
    return distance, next_hop


def goal_node(points: Floats, goal: Floats, direction: Floats, beta: float) -> int:
    """argmin_i d(x_i, g; g), the smallest index among equals."""
    lengths = lengths_between(points, goal[None, :])[:, 0]
    return int(np.argmin(directed_cost(lengths, float(goal @ direction) - projections(points, direction), beta)))


def current_node(points: Floats, state: Floats, direction: Floats, beta: float) -> int:
    """argmin_i d(x, x_i; g), the smallest index among equals."""
    lengths = lengths_between(state[None, :], points)[0]
    return int(np.argmin(directed_cost(lengths, projections(points, direction) - float(state @ direction), beta)))


def plain_greedy_dpp(points: Any, count: int, sigma: float) -> Integers:
    """The recursion as it is usually written, in float64: the yardstick for `greedy_dpp`."""
    table = checked_points(points)
    count = min(count, len(table))
    residual = np.ones(len(table))
    rows = np.empty((count, len(table)))
    picks: list[int] = []
    while len(picks) < count:
        pick = int(np.argmax(residual))
        if residual[pick] <= RANK_TOLERANCE:
            break
        done = len(picks)
        kernel = np.exp(np.add.reduce(np.square(table - table[pick]), axis=1) / (-2.0 * sigma**2))
        rows[done] = (kernel - rows[:done, pick] @ rows[:done]) / np.sqrt(residual[pick])
        residual -= np.square(rows[done])
        residual[pick] = -np.inf
        picks.append(pick)
    return np.array(picks, dtype=np.int64)
