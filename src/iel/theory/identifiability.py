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

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from iel.errors import ChainError
from iel.theory.builders import directed_ring, random_policy, random_process
from iel.theory.chains import ControlledProcess, hitting_time_matrix, policy_chain, uniform_policy
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, coordinates, statement
from iel.theory.optimal import optimal_hitting_times
from iel.theory.representation import (
    Representation,
    hitting_time_representation,
    one_hot_representation,
    predictions,
    readouts,
    span_basis,
    transform,
)


def displacement_basis(features: np.ndarray) -> np.ndarray:
    """An orthonormal basis (d, k) of span{phi(g) - phi(x0)}; it does not depend on x0."""
    return span_basis(features - features[0])


class AnalysisOperator(NamedTuple):
    """A on an orthonormal basis of D: `matrix` (n, k) maps coordinates to sqrt(nu(h)) <d, omega_h>."""

    basis: np.ndarray
    matrix: np.ndarray
    lower: float  # m_A with ||A d|| >= m_A ||d||
    upper: float


def analysis_operator(features: np.ndarray, omegas: np.ndarray, measure: np.ndarray) -> AnalysisOperator:
    """The analysis operator of a representation under a measure nu on goals, with its two constants."""
    return operator_on(displacement_basis(features), omegas, measure)


def operator_on(basis: np.ndarray, omegas: np.ndarray, weights: np.ndarray) -> AnalysisOperator:
    """A on the span of orthonormal columns; without any (all states are one point) everything bounds it from below."""
    matrix = np.sqrt(weights)[:, None] * (omegas @ basis)
    singular = np.linalg.svd(matrix, compute_uv=False)
    lower = float(singular.min(initial=np.inf)) if len(singular) == basis.shape[1] else 0.0
    return AnalysisOperator(basis, matrix, lower, float(singular.max(initial=0.0)))


def require_bounded_below(operator: AnalysisOperator) -> None:
    """Refuse an analysis operator that is not injective: B^{-1} would not exist."""
    if operator.lower <= 1e-12 * max(operator.upper, 1e-300):
        raise ChainError(
            "The analysis operator is not bounded below: some displacement is invisible to every goal with positive "
            "weight, so use a measure of full support or drop that direction."
        )


def transport(learned: AnalysisOperator, reference: AnalysisOperator) -> np.ndarray:
    """B^{-1} Pi_{range B} A in the coordinates of both bases: the best linear map of displacements."""
    require_bounded_below(reference)
    return np.linalg.lstsq(reference.matrix, learned.matrix, rcond=None)[0]


class Isomorphism(NamedTuple):
    """M : D -> D* as a matrix (d*, d) that vanishes on the complement of D, and how well it is conditioned."""

    matrix: np.ndarray
    range_gap: float  # || A - B M || / || A ||: zero iff both describe the same hitting times (assumption i)
    condition: float


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
    require_bounded_below(first)
    # The range of A equals the range of B under the assumptions; the gap records when it does not.
    inner = transport(first, second)
    gap = float(np.linalg.norm(first.matrix - second.matrix @ inner) / np.linalg.norm(first.matrix))
    singular = np.linalg.svd(inner, compute_uv=False)
    square = inner.shape[0] == inner.shape[1] and singular[-1] > 0
    condition = float(singular[0] / singular[-1]) if square else np.inf
    return Isomorphism(second.basis @ inner @ first.basis.T, gap, condition)


def missed_displacements(matrix: np.ndarray, features: np.ndarray, canonical_features: np.ndarray) -> np.ndarray:
    """|| M (phi(g) - phi(x)) - (phi*(g) - phi*(x)) ||^2 for all pairs, (n, n)."""
    mapped = features @ matrix.T - canonical_features
    return ((mapped[:, None] - mapped[None]) ** 2).sum(axis=2)


def intertwining_residual(isomorphism: Isomorphism, first: Representation, canonical: Representation) -> float:
    """max over x, g and actions of || M (phi(g) - K_a phi(x)) - (phi*(g) - K*_a phi*(x)) ||."""
    goal_part = first.features @ isomorphism.matrix.T - canonical.features
    step_part = first.moved @ isomorphism.matrix.T - canonical.moved
    return float(np.linalg.norm(goal_part[None, None] - step_part[:, :, None], axis=3).max())


def pullback(isomorphism: Isomorphism, canonical_omegas: np.ndarray) -> np.ndarray:
    """Corollary 2.4: the unique omega_bar_g = M^T P_D* omega*_g in D that reads the same values off phi, (n, d)."""
    return canonical_omegas @ isomorphism.matrix


def beside_times(
    process: ControlledProcess, policy: np.ndarray, first: Representation
) -> tuple[Representation, Isomorphism]:
    """The hitting times themselves as a representation, and the isomorphism from an exact one to them."""
    canonical, omegas = hitting_time_representation(process, policy)
    own = readouts(process, first, policy)
    return canonical, displacement_isomorphism(first.features, own, canonical.features, omegas)


def random_exact(generator: np.random.Generator) -> tuple[ControlledProcess, np.ndarray, Representation]:
    """A random process and policy with one-hot features in random coordinates."""
    process = random_process(int(generator.integers(3, 8)), 2, generator)
    policy = random_policy(process, generator)
    return process, policy, transform(one_hot_representation(process), coordinates(generator, process.states))


def displacement_rank(times: np.ndarray) -> int:
    """The rank of V(x0, h) - V(g, h)."""
    return int(np.linalg.matrix_rank(times[0] - times, tol=1e-9 * times.max()))


@statement("Theorem 2.3", "two exact representations differ by one linear isomorphism of displacements", "holds")
def identifiable(generator: np.random.Generator) -> Iterator[Evidence]:
    moved, stepped, rank_gap = 0.0, 0.0, 0
    for _ in range(INSTANCES):
        process, policy, first = random_exact(generator)
        canonical, found = beside_times(process, policy, first)
        scale = np.abs(canonical.features).max()
        missed = missed_displacements(found.matrix, first.features, canonical.features)
        moved = max(moved, np.sqrt(missed.max()) / scale)
        stepped = max(stepped, intertwining_residual(found, first, canonical) / scale)
        rank = displacement_rank(hitting_time_matrix(policy_chain(process, policy)))
        rank_gap = max(rank_gap, abs(rank - process.states + 1))
    numbers = {"displacements": moved, "one step of every action": stepped}
    text = f"{INSTANCES} random processes, two exact representations each"
    yield Evidence(text, numbers, max(moved, stepped) < ROUNDING)
    text = "the same: V(x0, h) - V(g, h) of one fixed policy has rank n - 1, so (ii) is free"
    yield Evidence(text, {"largest departure from n - 1": rank_gap}, rank_gap == 0)
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T
    flips = corners[None] * (1.0 - 2.0 * np.eye(5))[:, None]
    cube = ControlledProcess.of((flips[:, :, None] == corners).all(axis=3) * 1.0)
    best = np.stack([optimal_hitting_times(cube, g).values for g in range(32)], axis=1)
    error = np.abs(predictions(corners, corners / 2.0) - best).max()
    rank = displacement_rank(hitting_time_matrix(policy_chain(cube, uniform_policy(cube))))
    text = "optimal times of the 5-cube (32 states), phi = corner, omega_g = g / 2: exact for all goals"
    numbers = {"error": error, "dimension": 5, "rank of one policy's times": rank}
    yield Evidence(text, numbers, error < ROUNDING and rank == 31)
    conditions = {}
    for n, slip in itertools.product((8, 32), (0.0, 0.5)):
        ring = directed_ring(n, slip)
        found = beside_times(ring, uniform_policy(ring), one_hot_representation(ring))[1]
        conditions[f"n = {n}, slip {slip}"] = found.condition
    same = abs(conditions["n = 32, slip 0.0"] - conditions["n = 32, slip 0.5"]) < 1e-6
    growing = conditions["n = 32, slip 0.0"] > 3 * conditions["n = 8, slip 0.0"]
    yield Evidence("condition of M on directed rings: grows with n, not with slowness", conditions, same and growing)


@statement("Corollary 2.4", "canonical readouts of any policy pull back to the learned features", "holds")
def pulled_back(generator: np.random.Generator) -> Iterator[Evidence]:
    values, actions = 0.0, 0.0
    for _ in range(INSTANCES):
        process, policy, first = random_exact(generator)
        canonical, found = beside_times(process, policy, first)
        other = random_policy(process, generator)
        pulled = pullback(found, readouts(process, canonical, other))
        times = hitting_time_matrix(policy_chain(process, other))
        values = max(values, np.abs(predictions(first.features, pulled) - times).max() / times.max())
        # <phi(g) - K_a phi(x), omega_g> is the mean time that is left after action a.
        left = np.einsum("gd,gd->g", first.features, pulled)[None, None] - first.moved @ pulled.T
        actions = max(actions, np.abs(left - process.expected(times)).max() / times.max())
    numbers = {"values of another policy": values, "time left after each action": actions}
    yield Evidence(f"{INSTANCES} random processes", numbers, max(values, actions) < ROUNDING)
