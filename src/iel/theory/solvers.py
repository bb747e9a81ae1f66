"""Solving (I - P_Q) V = cost for a hundred thousand states: directly where factors stay sparse, iteratively elsewhere.

Grids and mazes have narrow bands: after a Cuthill-McKee ordering an elimination touches few entries. Chains that jump
anywhere do not, and their factors would fill the memory; but they mix fast, which is when Krylov iterations converge in
a few dozen steps. `envelope_size` decides. Either answer is checked against the equation, and since a residual r of the
equation changes V by at most a factor 1 +- max|r| (the corrected Theorem 3.3), that check bounds the relative error.

A walk that drifts away from its goal has times beyond 1e16, whose residual no float64 can tell from zero. There
`eliminate` takes over for small systems: it never subtracts, so every entry has nearly all its digits.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from scipy.sparse.csgraph import reverse_cuthill_mckee

from iel.errors import ChainError

DIRECT_LIMIT = 3e8
"""Envelope entries up to which a direct factorisation is used."""


ELIMINATION_LIMIT = 600
"""States up to which an ill-conditioned system is solved again without subtractions, in cubic time."""


def solve_killed(killed: sp.csr_array, cost: np.ndarray, leaving: np.ndarray) -> np.ndarray:
    """Solve (I - P_Q) V = cost, cost > 0; `leaving` is the probability of stepping onto the goal from each state.

    `leaving` says the same as 1 - (row sums of P_Q), with all its digits. An answer that does not satisfy the equation
    is replaced by `eliminate`, or refused.
    """
    size = killed.shape[0]
    system = sp.csc_array(sp.eye_array(size) - killed)
    direct = size**2 <= DIRECT_LIMIT or envelope_size(killed) <= DIRECT_LIMIT
    try:
        solution = solve_directly(system, cost) if direct else solve_iteratively(system, cost)
    except ChainError:
        if size > ELIMINATION_LIMIT:
            raise
        solution = np.full(size, np.nan)
    # A residual r means a relative error of at most max |r| / min(cost); rounding 1 - P_xx alone makes r = 1e-16 V.
    small = size <= ELIMINATION_LIMIT
    residual = np.abs(system @ solution - cost).max() + np.finfo(np.float64).eps * solution.max()
    if np.all(solution > 0) and residual <= (1e-7 if small else 1e-4) * cost.min():
        return solution
    if small:
        solution = eliminate(killed.toarray(), cost, leaving)
        if np.all(np.isfinite(solution)):
            return solution
    raise ChainError(
        "The hitting-time system is numerically singular: the goal is reached with vanishing probability, "
        "so treat it as unreachable or raise the smallest transition probability."
    )


def eliminate(killed: np.ndarray, cost: np.ndarray, leaving: np.ndarray) -> np.ndarray:
    """V = cost + P_Q V by cutting out one state after the other: sums, products and quotients of positive numbers only.

    A walk that never shows state k moves from i to j with P_ij + P_ik P_kj / s_k, where s_k is the probability of
    leaving k: the sum of the rest of its row, never 1 - P_kk (Grassmann, Taksar and Heyman).
    """
    moves, price, exits = killed.copy(), cost.astype(np.float64), leaving.astype(np.float64)
    solution = np.empty(len(cost))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for k in range(len(cost) - 1, -1, -1):
            gone = moves[k, :k].sum() + exits[k]
            share = moves[:k, k] / gone
            price[:k] += share * price[k]
            exits[:k] += share * exits[k]
            moves[:k, :k] += np.outer(share, moves[k, :k])
            moves[k, :k] /= gone
            price[k] /= gone
        for k in range(len(cost)):
            solution[k] = price[k] + moves[k, :k] @ solution[:k]
    return solution


def solve_directly(system: sp.csc_array, cost: np.ndarray) -> np.ndarray:
    """Sparse LU."""
    try:
        # The pattern of a walk is close to symmetric: minimum degree on A + A^T fills in far less than COLAMD.
        factors = spla.splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.01, options={"SymmetricMode": True})
    except RuntimeError as error:
        raise ChainError(
            "The system (I - P_Q) V = cost is singular: some state never leaves the transient set; mark it infinite."
        ) from error
    return factors.solve(cost)


def solve_iteratively(system: sp.csc_array, cost: np.ndarray, tolerance: float = 1e-11) -> np.ndarray:
    """Stabilised bi-conjugate gradients; an error when they do not converge."""
    rows = sp.csr_array(system)
    solution, failed = spla.bicgstab(rows, cost, rtol=tolerance, maxiter=5000)
    if failed or not np.all(np.isfinite(solution)):
        raise ChainError(
            f"The iterative solve of {len(cost)} hitting times did not converge: the chain mixes too slowly for its "
            "size, so coarsen it or renumber its states so that neighbours have near numbers."
        )
    return solution


def envelope_size(killed: sp.csr_array) -> float:
    """Entries a banded elimination would touch after a Cuthill-McKee ordering: the cost of solving directly."""
    pattern = sp.csr_matrix(killed + killed.T)
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    rows = position[np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))]
    reach = np.zeros(pattern.shape[0])
    np.maximum.at(reach, rows, np.abs(rows - position[pattern.indices]))
    return float(reach.sum())
