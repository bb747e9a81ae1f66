"""Exact representations of a process differ by a linear isomorphism (Theorem 2.3); readouts pull back (Corollary 2.4).

    D   = span{phi(g) - phi(x0)}          displacement space of the first representation
    D*  = span{phi*(g) - phi*(x0)}        displacement space of the second, the canonical one
    A d = (<d, omega_h>)_h,  B d* = (<d*, omega*_h>)_h      analysis operators into L^2(X, nu)
    M   = B^{-1} A : D -> D*              M (phi(g) - phi(x)) = phi*(g) - phi*(x)

On a finite chain the lower bound assumed of A and B comes for free: if V is finite for all pairs the chain is
irreducible and the matrix V(x0, h) - V(g, h) has rank n - 1 (its rows are differences of rows of the invertible
fundamental matrix, its columns scaled by 1 / mu(h)). So every exact representation of all goals has dim D = n - 1:
exact compression is impossible, and what remains interesting is how well conditioned M is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.theory.chains import ControlledProcess, as_policy
from iel.theory.representation import TOLERANCE, Representation, span_basis


def displacement_basis(features: np.ndarray) -> np.ndarray:
    """An orthonormal basis (d, k) of span{phi(g) - phi(x0)}; it does not depend on x0."""
    basis = span_basis(features - features[0])
    if basis.shape[1] == 0:
        raise ChainError("All states have the same features: there are no displacements to compare.")
    return basis


@dataclass(frozen=True)
class AnalysisOperator:
    """A on an orthonormal basis of D: `matrix` (n, k) maps coordinates to sqrt(nu(h)) <d, omega_h>."""

    basis: np.ndarray
    matrix: np.ndarray
    lower: float
    """m_A with ||A d|| >= m_A ||d||."""
    upper: float


def analysis_operator(features: np.ndarray, omegas: np.ndarray, measure: np.ndarray) -> AnalysisOperator:
    """The analysis operator of a representation, with its two constants."""
    weights = np.asarray(measure, dtype=np.float64)
    if weights.shape != (len(omegas),) or weights.min() < 0 or abs(weights.sum() - 1.0) > 1e-9:
        raise ChainError("The measure on goals must be one probability per state, summing to 1.")
    return operator_on(displacement_basis(features), omegas, weights)


def operator_on(basis: np.ndarray, omegas: np.ndarray, weights: np.ndarray) -> AnalysisOperator:
    """A on the span of orthonormal columns; without any (all states are one point) everything bounds it from below."""
    matrix = np.sqrt(weights)[:, None] * (omegas @ basis)
    singular = np.linalg.svd(matrix, compute_uv=False)
    lower = float(singular.min(initial=np.inf)) if len(singular) == basis.shape[1] else 0.0
    return AnalysisOperator(basis, matrix, lower, float(singular.max(initial=0.0)))


def require_bounded_below(operator: AnalysisOperator, name: str) -> None:
    """Refuse an analysis operator that is not injective: B^{-1} would not exist."""
    if operator.lower <= 1e-12 * max(operator.upper, 1e-300):
        raise ChainError(
            f"The analysis operator of the {name} representation is not bounded below: some displacement is invisible "
            "to every goal with positive weight, so use a measure of full support or drop that direction."
        )


@dataclass(frozen=True)
class Isomorphism:
    """M : D -> D* as a matrix (d*, d) that vanishes on the complement of D, and how well it is conditioned."""

    matrix: np.ndarray
    range_gap: float
    """|| A - B M || / || A ||: zero iff both representations describe the same hitting times (assumption i)."""
    condition: float
    first: AnalysisOperator
    second: AnalysisOperator

    @property
    def holds(self) -> bool:
        return self.range_gap <= TOLERANCE


def displacement_isomorphism(
    features: np.ndarray,
    omegas: np.ndarray,
    canonical_features: np.ndarray,
    canonical_omegas: np.ndarray,
    measure: np.ndarray | None = None,
) -> Isomorphism:
    """M = B^{-1} A from the two analysis operators; uniform `measure` unless given."""
    weights = np.full(len(features), 1.0 / len(features)) if measure is None else measure
    first = analysis_operator(features, omegas, weights)
    second = analysis_operator(canonical_features, canonical_omegas, weights)
    require_bounded_below(first, "first")
    require_bounded_below(second, "canonical")
    # The range of A equals the range of B under the assumptions; the gap records when it does not.
    inner = np.linalg.lstsq(second.matrix, first.matrix, rcond=None)[0]
    gap = float(np.linalg.norm(first.matrix - second.matrix @ inner) / np.linalg.norm(first.matrix))
    singular = np.linalg.svd(inner, compute_uv=False)
    square = inner.shape[0] == inner.shape[1] and singular[-1] > 0
    condition = float(singular[0] / singular[-1]) if square else np.inf
    return Isomorphism(second.basis @ inner @ first.basis.T, gap, condition, first, second)


def displacement_residual(isomorphism: Isomorphism, features: np.ndarray, canonical_features: np.ndarray) -> float:
    """max over x, g of || M (phi(g) - phi(x)) - (phi*(g) - phi*(x)) ||."""
    mapped = features @ isomorphism.matrix.T - canonical_features
    return float(np.linalg.norm(mapped[:, None] - mapped[None], axis=2).max())


def intertwining_residual(
    isomorphism: Isomorphism,
    process: ControlledProcess,
    first: Representation,
    canonical: Representation,
    policy: np.ndarray | None = None,
) -> float:
    """max over x, g of || M (phi(g) - K phi(x)) - (phi*(g) - K* phi*(x)) ||, over all actions or for one policy."""
    moved = np.einsum("xd,aed->axe", first.features, first.operators)
    canonical_moved = np.einsum("xd,aed->axe", canonical.features, canonical.operators)
    if policy is not None:
        table = as_policy(process, policy)
        moved = np.einsum("xa,axe->xe", table, moved)[None]
        canonical_moved = np.einsum("xa,axe->xe", table, canonical_moved)[None]
    goal_part = first.features @ isomorphism.matrix.T - canonical.features
    step_part = moved @ isomorphism.matrix.T - canonical_moved
    return float(np.linalg.norm(goal_part[None, None] - step_part[:, :, None], axis=3).max())


def pullback(isomorphism: Isomorphism, canonical_omegas: np.ndarray) -> np.ndarray:
    """Corollary 2.4: the unique omega_bar_g = M^T P_D* omega*_g in D that reads the same values off phi, (n, d)."""
    return canonical_omegas @ isomorphism.matrix
