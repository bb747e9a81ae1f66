"""Oracle displacement recovery (Theorem 3.4): a good predictor of V finds the displacements, up to a linear map.

    eta*       the smallest error level guaranteed over the admissible references r (here: a given finite list)
    eta_cls    by how much the best predictor of the class exceeds eta* in L^2(nu x nu)
    m_B        lower constant of the reference's analysis operator
    M_delta    = B_r^{-1} Pi_{range B_r} A

    ( E_{x,g ~ nu} || M_delta (phi(g) - phi(x)) - (phi_r(g) - phi_r(x)) ||^2 )^{1/2}
        <=  (2 / m_B)(2 eta* + eta_cls + delta)

The proof uses three facts only: sup |V_r - V| <= eta* + delta, ||V^ - V||_{L^2} <= eta* + eta_cls, and m_B > 0. Since
x and g are independent draws, E|Delta(x) - Delta(g)|^2 <= 2 E|Delta|^2, so the factor 2 can be sqrt(2).

The reference class has to be read with care. Asking Theorem 3.3's unit-cost representers for *all* goals at once means
<phi(x), w_{1,g}> = 1{x != g}, the n x n matrix of ones minus the identity, which has rank n: with fewer than |X|
dimensions no reference exists and eta* is infinite. `reference_level` therefore uses the corrected bound of
`bounds`, for which compressed references do exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.theory.bounds import fit_readout
from iel.theory.chains import Matrix, as_chain, hitting_time_matrix
from iel.theory.identifiability import AnalysisOperator, analysis_operator, require_bounded_below
from iel.theory.representation import TOLERANCE


@dataclass(frozen=True)
class Reference:
    """An admissible reference geometry: features, readouts, and the sup-norm error it is guaranteed to have."""

    features: np.ndarray
    omegas: np.ndarray
    level: float


def predictions(features: np.ndarray, omegas: np.ndarray) -> np.ndarray:
    """V^(x, g) = <phi(g) - phi(x), omega_g> for all pairs, (n, n)."""
    return np.einsum("gd,gd->g", features, omegas)[None] - features @ omegas.T


def reference_level(chain: Matrix, features: np.ndarray) -> Reference:
    """A reference with fitted readouts and the level max_{x,g} V(x, g) * residual_g promised by the corrected bound."""
    matrix = as_chain(chain)
    omegas = np.stack([fit_readout(matrix, goal, features) for goal in range(len(features))])
    # relative_error_bound for all goals at once: |drift - 1| with the goal's own row left out, times max_x V(x, g).
    miss = np.abs((matrix @ features - features) @ omegas.T - 1.0)
    np.fill_diagonal(miss, 0.0)
    return Reference(features, omegas, float((hitting_time_matrix(matrix).max(axis=0) * miss.max(axis=0)).max()))


def unit_cost_obstruction(features: np.ndarray) -> int:
    """How many dimensions are missing for unit-cost representers of all goals at once: max(0, |X| - rank)."""
    states = len(features)
    wanted = np.ones((states, states)) - np.eye(states)
    achieved = features @ np.linalg.lstsq(features, wanted, rcond=None)[0]
    missing = int(np.linalg.matrix_rank(wanted)) - int(np.linalg.matrix_rank(features))
    if missing <= 0 and np.abs(achieved - wanted).max() > TOLERANCE:
        raise ChainError("The features have rank |X| but cannot be inverted accurately: rescale their columns.")
    return max(0, missing)


def fit_predictor(times: np.ndarray, features: np.ndarray, measure: np.ndarray) -> np.ndarray:
    """The population minimiser over readouts: omega_g = argmin E_{x ~ nu} (V^(x, g) - V(x, g))^2 for fixed features."""
    weight = np.sqrt(measure)[:, None]
    rows = []
    for goal in range(len(features)):
        displacement = weight * (features[goal] - features)
        rows.append(np.linalg.lstsq(displacement, weight[:, 0] * times[:, goal], rcond=None)[0])
    return np.stack(rows)


def transport(learned: AnalysisOperator, reference: AnalysisOperator) -> np.ndarray:
    """M = B^{-1} Pi_{range B} A as a matrix (d_r, d): the best linear map from learned to reference displacements."""
    require_bounded_below(reference, "reference")
    inner = np.linalg.lstsq(reference.matrix, learned.matrix, rcond=None)[0]
    return reference.basis @ inner @ learned.basis.T


@dataclass(frozen=True)
class Recovery:
    """Both sides of Theorem 3.4."""

    distance: float
    bound: float
    sharp_bound: float
    """The same with sqrt(2) in place of 2."""
    class_excess: float


def oracle_recovery(
    chain: Matrix,
    features: np.ndarray,
    references: Sequence[Reference],
    chosen: int = 0,
    measure: np.ndarray | None = None,
    omegas: np.ndarray | None = None,
) -> Recovery:
    """Learned features with their population-optimal readouts, compared with `references[chosen]`.

    The class is {<phi(g) - phi(x), omega_g>} over all readouts for these features. Other `omegas` than its optimum can
    be given to see that the theorem is about the minimiser.
    """
    times = hitting_time_matrix(chain)
    if not np.all(np.isfinite(times)):
        raise ChainError("Recovery needs finite hitting times for all pairs: use an irreducible chain.")
    weights = np.full(len(times), 1.0 / len(times)) if measure is None else measure
    minimiser = fit_predictor(times, features, weights)
    product = np.outer(weights, weights)
    achieved = float(np.sqrt((product * (predictions(features, minimiser) - times) ** 2).sum()))
    best = min(reference.level for reference in references)
    reference = references[chosen]
    excess, slack = max(0.0, achieved - best), reference.level - best
    second = analysis_operator(reference.features, reference.omegas, weights)
    learned = analysis_operator(features, minimiser if omegas is None else omegas, weights)
    move = transport(learned, second)
    difference = features @ move.T - reference.features
    squared = ((difference[:, None] - difference[None]) ** 2).sum(axis=2)
    total = (2.0 * best + excess + slack) / second.lower
    distance = float(np.sqrt((product * squared).sum()))
    return Recovery(distance, 2.0 * total, float(np.sqrt(2.0)) * total, excess)
