"""Finite controlled Markov processes and their exact hitting times.

A controlled Markov process (X, A, P) with |X| = n states and |A| actions is one row-stochastic matrix per action:

    transitions[a][x, x'] = P(x' | x, a)            each (n, n), dense or sparse in, CSR float64 inside
    policy[x, a]          = pi(a | x)               (n, |A|)
    chain[x, x']          = P^pi(x' | x)            (n, n), the policy-induced scalar Markov operator

Everything else follows from the Poisson equation of the hitting time V(x) = E[inf{t : x_t in goal} | x_0 = x]:

    (I - P^pi) V = 1 off the goal,      V = 0 on the goal,

which, with the killed operator P_Q (rows and columns of the goal removed), is the sparse system (I - P_Q) V_Q = 1.
Where the goal is not reached almost surely V is +infinity, and that is what is returned: the infinite part is found by
graph search before anything is solved, so no singular system is ever handed to the solver. Two questions are often
confused (the paper's problem statement assumes that the first implies the second, for some policy):

    can_reach               P(hit the goal | x) > 0
    reached_almost_surely   P(hit the goal | x) = 1; on a finite chain this is the same as E[T] < infinity

Systems are factorised directly: grids and mazes have narrow bands, while a chain that jumps anywhere fills its factors
and needs memory like the square of its states. A residual r of the equation changes V by at most a factor 1 +- max|r|
(the corrected Theorem 3.3), so checking it bounds the relative error. A walk that drifts away from its goal has times
beyond 1e16, whose residual no float64 can tell from zero. There `eliminate` takes over for small systems: it never
subtracts, so every entry has nearly all its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from scipy.sparse.csgraph import connected_components, dijkstra

from iel.errors import ChainError

Matrix: TypeAlias = np.ndarray | sp.sparray
"""A dense array or any scipy sparse array."""
Goal = int | Sequence[int] | np.ndarray
"""One state, several states (any of them ends the walk), or a mask with one True or False per state."""
ELIMINATION_LIMIT = 600
"""States up to which an ill-conditioned system is solved again without subtractions, in cubic time."""
ROW_TOLERANCE = 1e-9
MATRIX_TOLERANCE = 1e-9
"""Largest Poisson residual, and so relative error, of a column of `hitting_time_matrix` that is not solved again."""


def as_chain(matrix: Matrix, name: str = "transition matrix") -> sp.csr_array:
    """A validated row-stochastic CSR matrix."""
    chain = sp.csr_array(matrix, dtype=np.float64)
    if chain.ndim != 2 or chain.shape[0] != chain.shape[1] or chain.shape[0] == 0:
        raise ChainError(f"The {name} has shape {chain.shape}: pass a square, non-empty matrix of probabilities.")
    _check_rows(chain, name, "next states")
    chain.eliminate_zeros()
    return chain


def _check_rows(table: sp.csr_array, name: str, over: str) -> None:
    """Refuse rows that are not probabilities."""
    if not np.all(np.isfinite(table.data)):
        raise ChainError(f"The {name} holds values that are not finite: replace NaN and infinity by probabilities.")
    if table.nnz and table.data.min() < 0:
        row = int(table.nonzero()[0][np.argmin(table.data[table.data != 0])])
        raise ChainError(f"The {name} has a negative probability in row {row}: every entry must be at least 0.")
    sums = np.asarray(table.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > ROW_TOLERANCE:
        raise ChainError(
            f"Row {worst} of the {name} sums to {sums[worst]:.6g}, not 1: normalise each row over the {over}."
        )


@dataclass(frozen=True)
class ControlledProcess:
    """A finite controlled Markov process: `transitions[a]` is the (n, n) CSR matrix of action a."""

    transitions: tuple[sp.csr_array, ...]

    @classmethod
    def of(cls, transitions: Sequence[Matrix] | np.ndarray) -> ControlledProcess:
        """Build from one matrix per action, or from a dense tensor of shape (actions, states, states)."""
        chains = tuple(as_chain(matrix, f"transition matrix of action {a}") for a, matrix in enumerate(transitions))
        if not chains:
            raise ChainError("A controlled process needs at least one action: pass one transition matrix per action.")
        if len({chain.shape for chain in chains}) > 1:
            shapes = ", ".join(str(chain.shape) for chain in chains)
            raise ChainError(f"The actions' transition matrices have different shapes ({shapes}): use one state space.")
        return cls(chains)

    @property
    def states(self) -> int:
        return int(self.transitions[0].shape[0])

    @property
    def actions(self) -> int:
        return len(self.transitions)

    def dense(self) -> np.ndarray:
        """The transition tensor (actions, states, states)."""
        return np.stack([chain.toarray() for chain in self.transitions])

    def expected(self, features: np.ndarray) -> np.ndarray:
        """E[phi(x') | x, a] for every pair: features (n, d) -> (actions, n, d)."""
        return np.stack([chain @ features for chain in self.transitions])


def uniform_policy(process: ControlledProcess) -> np.ndarray:
    """pi(a | x) = 1 / |A|."""
    return np.full((process.states, process.actions), 1.0 / process.actions)


def as_policy(process: ControlledProcess, policy: np.ndarray) -> np.ndarray:
    """Validate pi (n, |A|); a vector of action numbers (n,) is turned into a deterministic policy."""
    table = np.asarray(policy)
    if table.ndim == 1 and table.shape == (process.states,) and np.issubdtype(table.dtype, np.integer):
        if table.min() < 0 or table.max() >= process.actions:
            raise ChainError(f"The policy names an action outside 0 to {process.actions - 1}: use those numbers.")
        return np.eye(process.actions)[table]
    table = table.astype(np.float64)
    if table.shape != (process.states, process.actions):
        wanted = (process.states, process.actions)
        raise ChainError(
            f"The policy has shape {table.shape}, not {wanted}: one row of action probabilities per state."
        )
    _check_rows(sp.csr_array(table), "policy", "actions")
    return table


def policy_chain(process: ControlledProcess, policy: np.ndarray) -> sp.csr_array:
    """P^pi(x' | x) = sum_a pi(a | x) P(x' | x, a)."""
    chances = as_policy(process, policy).T
    moves = zip(chances, process.transitions, strict=True)
    return sp.csr_array(sum((sp.diags_array(chance) @ chain for chance, chain in moves), start=0))


def killed_operator(chain: Matrix, goal: Goal) -> sp.csr_array:
    """P_Q: the chain's rows and columns off the goal, (P_Q f)(x) = E[f(x') 1{x' not in goal} | x]."""
    matrix = as_chain(chain)
    keep = np.setdiff1d(np.arange(matrix.shape[0]), goal_indices(goal, matrix.shape[0]))
    return matrix[keep][:, keep]


def goal_indices(goal: Goal, states: int) -> np.ndarray:
    """The goal as a sorted array of distinct state numbers."""
    given = np.atleast_1d(np.asarray(goal))
    if given.dtype == bool:
        if given.shape != (states,):
            raise ChainError(f"The goal is a mask of shape {given.shape}: it needs one entry per state, ({states},).")
        given = np.flatnonzero(given)
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise ChainError(f"The goal {goal!r} is not made of whole numbers: pass state numbers or a mask.")
    indices = np.unique(given)
    if indices.size == 0 or indices[0] < 0 or indices[-1] >= states:
        raise ChainError(f"The goal {goal!r} is not a state of this chain: choose numbers from 0 to {states - 1}.")
    return indices


def leads_into(edges: sp.csr_array, seeds: np.ndarray) -> np.ndarray:
    """The mask of states with a path along `edges` into one of the states `seeds`; seeds belong to it."""
    if not len(seeds):
        return np.zeros(edges.shape[0], dtype=bool)
    return np.isfinite(dijkstra(edges.T, indices=seeds, unweighted=True, min_only=True))


def can_reach(chain: Matrix, goal: Goal) -> np.ndarray:
    """States from which the goal has positive probability, as a mask."""
    matrix = sp.csr_array(chain)
    return leads_into(matrix, goal_indices(goal, matrix.shape[0]))


def reached_almost_surely(chain: Matrix, goal: Goal) -> np.ndarray:
    """States from which the goal is hit with probability one, as a mask.

    A state fails exactly when it can walk, without touching the goal, into a state that cannot reach the goal.
    """
    matrix = sp.csr_array(chain)
    elsewhere = np.ones(matrix.shape[0])
    elsewhere[goal_indices(goal, len(elsewhere))] = 0.0
    before_goal = sp.csr_array(sp.diags_array(elsewhere) @ matrix)
    before_goal.eliminate_zeros()
    return ~leads_into(before_goal, np.flatnonzero(~can_reach(matrix, goal)))


def hitting_times(chain: Matrix, goal: Goal) -> np.ndarray:
    """V(x, goal) for every state x, +infinity where the goal is not reached almost surely."""
    matrix = as_chain(chain)
    target = goal_indices(goal, matrix.shape[0])
    times = np.full(matrix.shape[0], np.inf)
    times[target] = 0.0
    finite = reached_almost_surely(matrix, target)
    finite[target] = False
    inside = np.flatnonzero(finite)
    if inside.size:
        # A finite state never leads to an infinite one, so the block (finite, finite) is closed up to the goal.
        leaving = matrix[inside]
        times[inside] = solve_killed(leaving[:, inside], leaving[:, target].sum(axis=1))
    return times


def hitting_time_matrix(chain: Matrix) -> np.ndarray:
    """V(x, g) for all pairs, (n, n).

    For an irreducible chain one inverse gives all goals: V(x, g) = (Z_gg - Z_xg) / mu_g with the fundamental matrix
    Z = (I - P + 1 mu)^{-1}. It subtracts nearly equal numbers when some state is hardly ever visited, so a goal's
    column counts only if it is positive off the goal and solves the Poisson equation: a residual r there means a
    relative error of at most max |r| (the corrected Theorem 3.3). Other columns get a solve of their own.
    """
    matrix = as_chain(chain)
    states = matrix.shape[0]
    times, identity = np.full((states, states), np.nan), np.eye(states)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"), suppress(np.linalg.LinAlgError):
        if connected_components(matrix, connection="strong", return_labels=False) == 1:
            dense = matrix.toarray()
            system = np.vstack([dense.T - identity, np.ones(states)])
            measure = np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]
            fundamental = np.linalg.inv(identity - dense + measure[None])
            times = (np.diag(fundamental)[None] - fundamental) / measure[None]
    with np.errstate(invalid="ignore", over="ignore"):
        residual = np.abs(times - matrix @ times - 1.0)
        sound = (times > 0) & (residual <= MATRIX_TOLERANCE)
    np.fill_diagonal(sound, True)
    np.fill_diagonal(times, 0.0)
    for goal in np.flatnonzero(~sound.all(axis=0)):
        times[:, goal] = hitting_times(matrix, int(goal))
    return times


def poisson_residual(chain: Matrix, goal: Goal, values: np.ndarray) -> np.ndarray:
    """((I - P) V - 1)(x) off the goal and V(x) on it: zero exactly for the hitting time (lemma "Poisson equation")."""
    matrix = as_chain(chain)
    target = goal_indices(goal, matrix.shape[0])
    residual = values - matrix @ values - 1.0
    residual[target] = values[target]
    return residual


def simulate(chain: Matrix, start: int, steps: int, generator: np.random.Generator) -> np.ndarray:
    """A trajectory x_0 .. x_steps of the chain, (steps + 1,)."""
    matrix = as_chain(chain)
    path = [int(goal_indices(start, matrix.shape[0])[0])]
    for draw in generator.random(steps):
        begin, end = matrix.indptr[path[-1] : path[-1] + 2]
        cumulative = np.cumsum(matrix.data[begin:end])  # the next state is the one whose slice holds the draw
        path.append(int(matrix.indices[begin + np.searchsorted(cumulative, draw * cumulative[-1], side="right")]))
    return np.array(path, dtype=np.int64)


# ---------------------------------------------------------------- solving (I - P_Q) V = 1


def solve_killed(killed: sp.csr_array, leaving: np.ndarray) -> np.ndarray:
    """Solve (I - P_Q) V = 1; `leaving` is the probability of stepping onto the goal from each state.

    `leaving` says the same as 1 - (row sums of P_Q), with all its digits. An answer that does not satisfy the equation
    is replaced by `eliminate`, or refused.
    """
    size = killed.shape[0]
    small = size <= ELIMINATION_LIMIT
    system = sp.csc_array(sp.eye_array(size) - killed)
    with suppress(RuntimeError):  # exactly singular
        # The pattern of a walk is close to symmetric: minimum degree on A + A^T fills in far less than COLAMD.
        factors = spla.splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.01, options={"SymmetricMode": True})
        solution = factors.solve(np.ones(size))
        # A residual r means a relative error of at most max |r|; rounding 1 - P_xx alone makes r = 1e-16 V.
        residual = np.abs(system @ solution - 1.0).max() + np.finfo(np.float64).eps * solution.max()
        if np.all(solution > 0) and residual <= (1e-7 if small else 1e-4):
            return solution
    if small:
        solution = eliminate(killed.toarray(), leaving)
        if np.all(np.isfinite(solution)):
            return solution
    raise ChainError(
        "The hitting-time system is numerically singular: the goal is reached with vanishing probability, "
        "so treat it as unreachable or raise the smallest transition probability."
    )


def eliminate(killed: np.ndarray, leaving: np.ndarray) -> np.ndarray:
    """V = 1 + P_Q V by cutting out one state after the other: sums, products and quotients of positive numbers only.

    A walk that never shows state k moves from i to j with P_ij + P_ik P_kj / s_k, where s_k is the probability of
    leaving k: the sum of the rest of its row, never 1 - P_kk (Grassmann, Taksar and Heyman).
    """
    moves, exits = killed.copy(), leaving.astype(np.float64)
    price, solution = np.ones(len(exits)), np.empty(len(exits))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for k in range(len(exits) - 1, -1, -1):
            gone = moves[k, :k].sum() + exits[k]
            share = moves[:k, k] / gone
            price[:k] += share * price[k]
            exits[:k] += share * exits[k]
            moves[:k, :k] += np.outer(share, moves[k, :k])
            moves[k, :k] /= gone
            price[k] /= gone
        for k in range(len(exits)):
            solution[k] = price[k] + moves[k, :k] @ solution[:k]
    return solution
