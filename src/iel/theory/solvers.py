"""Solving (I - P_Q) V = cost for a hundred thousand states: directly where factors stay sparse, iteratively elsewhere.

Grids and mazes have narrow bands: after a Cuthill-McKee ordering an elimination touches few entries. Chains that jump
anywhere do not, and their factors would fill the memory; but they mix fast, which is when Krylov iterations converge in
a few dozen steps. `envelope_size` decides. Either answer is checked against the equation, and since a residual r of the
equation changes V by at most a factor 1 +- max|r| (the corrected Theorem 3.3), that check bounds the relative error.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from scipy.sparse.csgraph import reverse_cuthill_mckee

from iel.errors import ChainError

DIRECT_LIMIT = 3e8
"""Envelope entries up to which a direct factorisation is used."""


def solve_killed(killed: sp.csr_array, cost: np.ndarray) -> np.ndarray:
    """Solve (I - P_Q) V = cost, and refuse an answer that does not satisfy the equation."""
    system = sp.csc_array(sp.eye_array(killed.shape[0]) - killed)
    if killed.shape[0] ** 2 <= DIRECT_LIMIT or envelope_size(killed) <= DIRECT_LIMIT:
        solution = solve_directly(system, cost)
    else:
        solution = solve_iteratively(system, cost)
    # The answer grows like the condition number: past 1e12 a float64 has no digit left to spare.
    sound = np.all(np.isfinite(solution)) and np.abs(solution).max() < 1e12
    if not sound or np.abs(system @ solution - cost).max() > 1e-4 * np.abs(cost).max():
        raise ChainError(
            "The hitting-time system is numerically singular: the goal is reached with vanishing probability, "
            "so treat it as unreachable or raise the smallest transition probability."
        )
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
