"""Finite controlled Markov processes and their exact hitting times.

A controlled Markov process (X, A, P) with |X| = n states and |A| actions is one row-stochastic matrix per action:

    transitions[a][x, x'] = P(x' | x, a)            each (n, n), dense or sparse in, CSR float64 inside
    policy[x, a]          = pi(a | x)               (n, |A|)
    chain[x, x']          = P^pi(x' | x)            (n, n), the policy-induced scalar Markov operator

Everything else follows from the Poisson equation of the hitting time V(x) = E[inf{t : x_t in goal} | x_0 = x]:

    (I - P^pi) V = 1 off the goal,      V = 0 on the goal,

which, with the killed operator P_Q (rows and columns of the goal removed), is the sparse system (I - P_Q) V_Q = 1.
Where the goal is not reached almost surely V is +infinity, and that is what is returned: the infinite part is found by
graph search before anything is solved, so no singular system is ever handed to the solver.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from iel.errors import ChainError
from iel.theory.reachability import Goal, goal_indices, reached_almost_surely
from iel.theory.solvers import solve_killed

Matrix = Any
"""A dense array or any scipy sparse matrix."""
ROW_TOLERANCE = 1e-9
MATRIX_TOLERANCE = 1e-9
"""Largest Poisson residual, and so relative error, of a column of `hitting_time_matrix` that is not solved again."""


def as_chain(matrix: Matrix, name: str = "transition matrix") -> sp.csr_array:
    """A validated row-stochastic CSR matrix."""
    chain = sp.csr_array(matrix, dtype=np.float64)
    if chain.ndim != 2 or chain.shape[0] != chain.shape[1] or chain.shape[0] == 0:
        raise ChainError(f"The {name} has shape {chain.shape}: pass a square, non-empty matrix of probabilities.")
    if not np.all(np.isfinite(chain.data)):
        raise ChainError(f"The {name} holds values that are not finite: replace NaN and infinity by probabilities.")
    if chain.nnz and chain.data.min() < 0:
        row = int(np.repeat(np.arange(chain.shape[0]), np.diff(chain.indptr))[np.argmin(chain.data)])
        raise ChainError(f"The {name} has a negative probability in row {row}: every entry must be at least 0.")
    sums = np.asarray(chain.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > ROW_TOLERANCE:
        raise ChainError(
            f"Row {worst} of the {name} sums to {sums[worst]:.6g}, not 1: normalise each row over the next states."
        )
    chain.eliminate_zeros()
    return chain


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
    if not np.all(np.isfinite(table)) or table.min() < 0:
        raise ChainError("The policy has negative or non-finite probabilities: every entry must be at least 0.")
    if np.abs(table.sum(axis=1) - 1).max() > ROW_TOLERANCE:
        row = int(np.argmax(np.abs(table.sum(axis=1) - 1)))
        raise ChainError(f"Row {row} of the policy sums to {table[row].sum():.6g}, not 1: normalise over the actions.")
    return table


def policy_chain(process: ControlledProcess, policy: np.ndarray) -> sp.csr_array:
    """P^pi(x' | x) = sum_a pi(a | x) P(x' | x, a)."""
    table = as_policy(process, policy)
    total = sum((sp.diags_array(table[:, a]) @ chain for a, chain in enumerate(process.transitions)), start=0)
    return sp.csr_array(total)


def killed_operator(chain: Matrix, goal: Goal) -> sp.csr_array:
    """P_Q: the chain's rows and columns off the goal, (P_Q f)(x) = E[f(x') 1{x' not in goal} | x]."""
    matrix = as_chain(chain)
    keep = np.setdiff1d(np.arange(matrix.shape[0]), goal_indices(goal, matrix.shape[0]))
    return matrix[keep][:, keep]


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
        times[inside] = solve_killed(leaving[:, inside], np.ones(inside.size), leaving[:, target].sum(axis=1))
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
    times = np.full((states, states), np.nan)
    if connected_components(matrix, connection="strong", return_labels=False) == 1:
        times = _by_fundamental_matrix(matrix.toarray())
    with np.errstate(invalid="ignore", over="ignore"):
        residual = np.abs(times - matrix @ times - 1.0)
        sound = (times > 0) & (residual <= MATRIX_TOLERANCE)
    np.fill_diagonal(sound, True)
    np.fill_diagonal(times, 0.0)
    for goal in np.flatnonzero(~sound.all(axis=0)):
        times[:, goal] = hitting_times(matrix, int(goal))
    return times


def _by_fundamental_matrix(dense: np.ndarray) -> np.ndarray:
    """(Z_gg - Z_xg) / mu_g for an irreducible chain, as accurate as the chain is well conditioned."""
    identity = np.eye(len(dense))
    system = np.vstack([dense.T - identity, np.ones(len(dense))])
    measure = np.linalg.lstsq(system, np.append(np.zeros(len(dense)), 1.0), rcond=None)[0]
    try:
        fundamental = np.linalg.inv(identity - dense + measure[None])
    except np.linalg.LinAlgError:
        return np.full(dense.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return (np.diag(fundamental)[None] - fundamental) / measure[None]


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
    path = np.empty(operator.index(steps) + 1, dtype=np.int64)
    path[0] = goal_indices(start, matrix.shape[0])[0]
    draws = generator.random(steps)
    for step in range(steps):
        path[step + 1] = _next_state(matrix, path[step], draws[step])
    return path


def _next_state(matrix: sp.csr_array, state: int, draw: float) -> int:
    """The next state whose slice of [0, 1) holds `draw`."""
    begin, end = matrix.indptr[state], matrix.indptr[state + 1]
    return int(matrix.indices[begin + _pick(np.cumsum(matrix.data[begin:end]), draw)])


def _pick(cumulative: np.ndarray, draw: float) -> int:
    """Index of the first cumulative weight above draw * total; never an entry of weight zero."""
    return int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
