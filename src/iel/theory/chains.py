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
from iel.theory.reachability import can_reach, reached_almost_surely
from iel.theory.solvers import solve_killed

Matrix = Any
"""A dense array or any scipy sparse matrix."""
Goal = int | Sequence[int] | np.ndarray
"""One state, or several states any of which counts as arrived."""

ROW_TOLERANCE = 1e-9


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


def goal_indices(goal: Goal, states: int) -> np.ndarray:
    """The goal as a sorted array of distinct state numbers."""
    indices = np.unique(np.atleast_1d(np.asarray(goal, dtype=np.int64)))
    if indices.size == 0 or indices[0] < 0 or indices[-1] >= states:
        raise ChainError(f"The goal {goal!r} is not a state of this chain: choose numbers from 0 to {states - 1}.")
    return indices


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


def transient_states(states: int, goal: Goal) -> np.ndarray:
    """X without the goal, in order: the index set of the killed operator."""
    return np.setdiff1d(np.arange(states), goal_indices(goal, states))


def killed_operator(chain: Matrix, goal: Goal) -> sp.csr_array:
    """P_Q: the chain's rows and columns off the goal, (P_Q f)(x) = E[f(x') 1{x' not in goal} | x]."""
    matrix = as_chain(chain)
    keep = transient_states(matrix.shape[0], goal)
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
        killed = matrix[inside][:, inside]
        times[inside] = solve_killed(killed, np.ones(inside.size))
    return times


def hitting_time_matrix(chain: Matrix) -> np.ndarray:
    """V(x, g) for all pairs, (n, n).

    For an irreducible chain one inverse gives all goals: V(x, g) = (Z_gg - Z_xg) / mu_g with the fundamental matrix
    Z = (I - P + 1 mu)^{-1}. Otherwise one sparse solve per goal.
    """
    matrix = as_chain(chain)
    if connected_components(matrix, connection="strong", return_labels=False) == 1:
        fundamental, measure = fundamental_matrix(matrix)
        return (np.diag(fundamental)[None] - fundamental) / measure[None]
    return np.stack([hitting_times(matrix, goal) for goal in range(matrix.shape[0])], axis=1)


def fundamental_matrix(chain: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Z = (I - P + 1 mu)^{-1} and the stationary distribution mu of an irreducible chain."""
    dense = as_chain(chain).toarray()
    measure = stationary_distribution(chain)
    return np.linalg.inv(np.eye(len(dense)) - dense + measure[None]), measure


def stationary_distribution(chain: Matrix) -> np.ndarray:
    """mu with mu P = mu, for a chain with one recurrent class."""
    dense = as_chain(chain).toarray()
    system = np.vstack([dense.T - np.eye(len(dense)), np.ones(len(dense))])
    right = np.append(np.zeros(len(dense)), 1.0)
    measure, _, rank, _ = np.linalg.lstsq(system, right, rcond=None)
    if rank < len(dense):
        raise ChainError("The chain has several recurrent classes: its stationary distribution is not unique.")
    return np.clip(measure, 0.0, None) / np.clip(measure, 0.0, None).sum()


def poisson_residual(chain: Matrix, goal: Goal, values: np.ndarray) -> np.ndarray:
    """((I - P) V - 1)(x) off the goal and V(x) on it: zero exactly for the hitting time (lemma "Poisson equation")."""
    matrix = as_chain(chain)
    target = goal_indices(goal, matrix.shape[0])
    residual = values - matrix @ values - 1.0
    residual[target] = values[target]
    return residual


def absorption_probability(chain: Matrix, goal: Goal) -> np.ndarray:
    """P(the goal is ever hit | x_0 = x): the smallest non-negative solution of h = P h with h = 1 on the goal."""
    matrix = as_chain(chain)
    target = goal_indices(goal, matrix.shape[0])
    probability = np.zeros(matrix.shape[0])
    probability[reached_almost_surely(matrix, target)] = 1.0
    # Only states that can reach the goal and can also miss it need a linear system; it is regular, because from each
    # of them the walk leaves that set with positive probability.
    middle = np.flatnonzero(can_reach(matrix, target) & (probability == 0.0))
    if middle.size:
        inward = np.asarray(matrix[middle] @ probability).ravel()
        probability[middle] = solve_killed(matrix[middle][:, middle], inward)
    return probability


def simulate(chain: Matrix, start: int, steps: int, generator: np.random.Generator) -> np.ndarray:
    """A trajectory x_0 .. x_steps of the chain, (steps + 1,)."""
    matrix = as_chain(chain)
    path = np.empty(operator.index(steps) + 1, dtype=np.int64)
    path[0] = goal_indices(start, matrix.shape[0])[0]
    draws = generator.random(steps)
    for step in range(steps):
        path[step + 1] = _next_state(matrix, path[step], draws[step])
    return path


def simulate_process(
    process: ControlledProcess, policy: np.ndarray, start: int, steps: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A trajectory (x_0 .. x_steps) with its actions (a_0 .. a_{steps-1})."""
    table = np.cumsum(as_policy(process, policy), axis=1)
    path, taken = np.empty(steps + 1, dtype=np.int64), np.empty(steps, dtype=np.int64)
    path[0] = goal_indices(start, process.states)[0]
    draws = generator.random((steps, 2))
    for step in range(steps):
        taken[step] = _pick(table[path[step]], draws[step, 0])
        path[step + 1] = _next_state(process.transitions[taken[step]], path[step], draws[step, 1])
    return path, taken


def _next_state(matrix: sp.csr_array, state: int, draw: float) -> int:
    """The next state whose slice of [0, 1) holds `draw`."""
    begin, end = matrix.indptr[state], matrix.indptr[state + 1]
    return int(matrix.indices[begin + _pick(np.cumsum(matrix.data[begin:end]), draw)])


def _pick(cumulative: np.ndarray, draw: float) -> int:
    """Index of the first cumulative weight above draw * total; never an entry of weight zero."""
    return int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))


@dataclass(frozen=True)
class EmpiricalProcess:
    """Maximum-likelihood process of logged trajectories; `counts[x, a]` says how much each row can be trusted."""

    process: ControlledProcess
    counts: np.ndarray

    @property
    def support(self) -> np.ndarray:
        """The actions the data holds in each state: pi << pi_B allows exactly these (the admissible set Pi_D)."""
        return self.counts > 0


def empirical_process(
    paths: Sequence[np.ndarray], taken: Sequence[np.ndarray], states: int, actions: int
) -> EmpiricalProcess:
    """Count transitions of trajectories (T + 1 states, T actions each).

    A pair (x, a) the data never shows stays where it is: pairs outside the data's support can then only make a hitting
    time infinite, never finite. `optimal_hitting_times(allowed=EmpiricalProcess.support)` leaves them out.
    """
    tally = np.zeros((actions, states, states))
    for path, chosen in zip(paths, taken, strict=True):
        if len(path) != len(chosen) + 1:
            raise ChainError(
                f"A trajectory of {len(path)} states has {len(chosen)} actions: it needs one fewer than states."
            )
        np.add.at(tally, (np.asarray(chosen), np.asarray(path[:-1]), np.asarray(path[1:])), 1.0)
    counts = tally.sum(axis=2)
    unseen = counts == 0
    tally[unseen[:, :, None] & np.eye(states, dtype=bool)[None]] = 1.0
    return EmpiricalProcess(ControlledProcess.of(tally / tally.sum(axis=2, keepdims=True)), counts.T.astype(np.int64))
