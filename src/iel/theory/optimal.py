"""Optimal hitting times: the stochastic shortest path problem min_pi V^pi(x, g), solved by policy iteration.

    V*(x) = 1 + min_{a allowed in x} sum_x' P(x' | x, a) V*(x'),      V* = 0 on the goal.

`allowed` is the support of the behaviour policy: restricting to it gives the paper's in-distribution optimum over
Pi_D = {pi : pi(.|x) << pi_B(.|x)}. States from which no policy reaches the goal almost surely are +infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from iel.errors import ChainError
from iel.theory.chains import ControlledProcess, policy_chain
from iel.theory.reachability import Goal, goal_indices, winning_states
from iel.theory.solvers import solve_killed

SWEEPS = 200


@dataclass(frozen=True)
class OptimalTimes:
    """V* (n,), one optimal action per state (n,), and the number of policy-improvement rounds."""

    values: np.ndarray
    policy: np.ndarray
    rounds: int


def optimal_hitting_times(
    process: ControlledProcess, goal: Goal, allowed: np.ndarray | None = None, max_rounds: int = 1000
) -> OptimalTimes:
    """Exact V* and an optimal deterministic policy (arbitrary where V* is 0 or infinite)."""
    target = goal_indices(goal, process.states)
    permitted = np.ones((process.states, process.actions), dtype=bool) if allowed is None else np.asarray(allowed, bool)
    if permitted.shape != (process.states, process.actions):
        wanted = (process.states, process.actions)
        raise ChainError(f"The mask of allowed actions has shape {permitted.shape}, not {wanted}: one row per state.")
    winning, safe = winning_states(process.transitions, target, permitted)
    values = np.full(process.states, np.inf)
    values[target] = 0.0
    inside = np.flatnonzero(winning & ~np.isin(np.arange(process.states), target))
    if inside.size == 0:
        return OptimalTimes(values, np.zeros(process.states, dtype=np.int64), 0)
    policy = _proper_policy(process, target, winning, safe)
    # All actions' moves among the finite states in one tall matrix: row a * len(inside) + i is action a in state i.
    moves = sp.vstack([chain[inside][:, inside] for chain in process.transitions], format="csr")
    price = np.where(safe[inside].T, 1.0, np.inf)
    for rounds in range(1, max_rounds + 1):
        chain = policy_chain(process, policy)[inside]
        values[inside] = solve_killed(chain[:, inside], np.ones(inside.size), chain[:, target].sum(axis=1))
        improved = _improve(moves, price, values[inside], policy[inside])
        if np.array_equal(improved, policy[inside]):
            return OptimalTimes(values, policy, rounds)
        policy[inside] = improved
    raise ChainError(f"Policy iteration did not settle in {max_rounds} rounds: raise max_rounds.")


def _improve(moves: sp.csr_array, price: np.ndarray, values: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """The greedy policy after up to SWEEPS Bellman backups Q(x, a) = price + E[V(x')] of a proper policy's values.

    Starting from V >= T V every backup stays above V* and V >= T V remains true, so the greedy policy's own value is
    below V: it is finite, and the policy proper. The backups replace dozens of linear solves on large grids.
    """
    everywhere = np.arange(len(values))
    for sweep in range(SWEEPS):
        costs = price + (moves @ values).reshape(price.shape)
        chosen, best = costs[policy, everywhere], costs.min(axis=0)
        # Change only on a real improvement: equal actions must not make the iteration go round in circles.
        better = best < chosen - 1e-10 * np.maximum(1.0, chosen)
        if sweep == 0 and not better.any():
            return policy
        if np.abs(best - values).max() < 1e-12 * best.max():
            break
        values = best
    return np.where(better, costs.argmin(axis=0), policy)


def _proper_policy(process: ControlledProcess, target: np.ndarray, winning: np.ndarray, safe: np.ndarray) -> np.ndarray:
    """A first policy that reaches the goal almost surely: follow the path with the fewest expected tries.

    An edge taken with probability p costs 1 / p, the mean number of tries until it succeeds. Following these shortest
    paths leads every winning state to the goal with positive probability by safe actions, hence almost surely.
    """
    backward = [_tries(chain, safe[:, a] & winning) for a, chain in enumerate(process.transitions)]
    rows = np.concatenate([edges[0] for edges in backward])
    columns = np.concatenate([edges[1] for edges in backward])
    costs = np.concatenate([edges[2] for edges in backward])
    actions = np.repeat(np.arange(process.actions), [len(edges[0]) for edges in backward])
    # Of parallel edges only the cheapest may enter the matrix, because building a CSR adds duplicates up.
    order = np.lexsort((costs, columns, rows))
    first = np.ones(len(order), dtype=bool)
    first[1:] = (np.diff(rows[order]) != 0) | (np.diff(columns[order]) != 0)
    keep = order[first]
    graph = sp.csr_array((costs[keep], (columns[keep], rows[keep])), shape=(process.states, process.states))
    distance = dijkstra(graph, indices=target, min_only=True)
    total = costs + distance[columns]
    policy = np.zeros(process.states, dtype=np.int64)
    best = np.lexsort((total, rows))
    starts = np.ones(len(best), dtype=bool)
    starts[1:] = np.diff(rows[best]) != 0
    policy[rows[best[starts]]] = actions[best[starts]]
    return policy


def _tries(chain: sp.csr_array, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The action's edges (from, to, 1 / probability) out of the usable states."""
    edges = sp.coo_array(chain)
    keep = usable[edges.row]
    return edges.row[keep], edges.col[keep], 1.0 / edges.data[keep]
