"""The linear analysis the theorems need, for matrices: spans, complements, compressions, the spectral radius.

compression    P A on a subspace with orthonormal basis B, in its coordinates: B^T A B
spectral radius = the largest modulus of an eigenvalue, at most ||A|| and possibly far below it
"""

from __future__ import annotations

import numpy as np

from iel.errors import ChainError


def spectral_radius(matrix: np.ndarray) -> float:
    """The largest modulus of an eigenvalue; zero for an operator on the zero space."""
    return float(np.abs(np.linalg.eigvals(matrix)).max(initial=0.0))


def span_basis(vectors: np.ndarray) -> np.ndarray:
    """An orthonormal basis (d, k) of the span of the rows of `vectors` (m, d)."""
    _, singular, right = np.linalg.svd(np.atleast_2d(vectors), full_matrices=False)
    return right[singular > singular.max(initial=0.0) * 1e-11].T


def orthogonal_complement(basis: np.ndarray) -> np.ndarray:
    """An orthonormal basis (d, d - k) of the complement of orthonormal columns (d, k)."""
    check_orthonormal(basis)
    complete, _ = np.linalg.qr(np.column_stack([basis, np.eye(len(basis))]))
    return complete[:, basis.shape[1] : len(basis)]


def compression(operator: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """P A restricted to the span of orthonormal columns, in their coordinates: B^T A B."""
    check_orthonormal(basis)
    return basis.T @ operator @ basis


def check_orthonormal(basis: np.ndarray) -> None:
    """Refuse a basis whose columns are not orthonormal."""
    if np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0.0) > 1e-8:
        raise ChainError("The basis of the subspace is not orthonormal: orthonormalise it with numpy.linalg.qr first.")


def goal_projection(features: np.ndarray, goal: int) -> np.ndarray:
    """P_Q: the orthogonal projection onto the complement of phi(g); the identity when phi(g) = 0."""
    keep = transient_basis(features, goal)
    return keep @ keep.T


def transient_basis(features: np.ndarray, goal: int) -> np.ndarray:
    """An orthonormal basis of H_Q, the complement of phi(g): (d, d - 1), or the identity when phi(g) = 0."""
    direction = features[goal]
    if not np.any(direction):
        return np.eye(len(direction))
    return orthogonal_complement(direction[:, None] / np.linalg.norm(direction))
