"""The finite-sample recovery bound (Theorem 3.5) with all its parts, on tuples cut from trajectories of a finite chain.

A trajectory x_0 .. x_T yields one tuple per slot (i, j, k): s = x_i, u = x_j, g = x_k and the label H = j - i.

    f_phi(s, u, g) = <phi(u) - phi(s), omega_bar(g)>          predictor with a frozen task encoder
    G(s, u, g)     = V(s, g) - V(u, g)                        ideal displacement target
    m_traj         = E[H | s, u, g]                           what regression on the labels really estimates

    E_{(s,u) ~ lambda} || T (phi^(u) - phi^(s)) - (phi_r(u) - phi_r(s)) ||^2
        <= 4 / (c_cov m_B^2) [ (2 eta* + eta_cls + eta_traj)^2 + Gamma_N + eta_traj^2 + 2 (eta* + delta_or)^2 ]

The law of the tuples is a product of matrix powers, so every term except the Rademacher average is computed exactly.
eta_traj does not shrink with more data: V(s, g) - V(u, g) <= V(s, u) always, and the label of a detour is positive even
when the step was away from the goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.theory.chains import Matrix, as_chain, hitting_time_matrix, simulate
from iel.theory.concentration import deviation_term
from iel.theory.identifiability import AnalysisOperator, analysis_operator, operator_on
from iel.theory.recovery import Reference, transport
from iel.theory.representation import span_basis

Slot = tuple[int, int, int]


@dataclass(frozen=True)
class TupleLaw:
    """mu as a table: weight[s, u, g] and the conditional mean label E[H | s, u, g] (0 where the weight is 0)."""

    weight: np.ndarray
    mean_gap: np.ndarray

    @property
    def pairs(self) -> np.ndarray:
        """lambda, the (s, u) marginal."""
        return self.weight.sum(axis=2)

    def norm(self, table: np.ndarray) -> float:
        """The L^2(mu) norm of a function of (s, u, g)."""
        return float(np.sqrt((self.weight * table**2).sum()))


def check_slots(slots: Sequence[Slot]) -> None:
    """Slots must name positions i <= j and a goal position k >= 0."""
    if not slots or any(not (0 <= i <= j and k >= 0) for i, j, k in slots):
        raise ChainError(
            "Every extraction slot needs 0 <= i <= j and k >= 0: give (start, intermediate, goal) positions."
        )


def tuple_law(chain: Matrix, start: np.ndarray, slots: Sequence[Slot]) -> TupleLaw:
    """The exact law of a uniformly chosen slot's tuple when x_0 ~ start."""
    check_slots(slots)
    dense = as_chain(chain).toarray()
    states = len(dense)
    weight, gaps = np.zeros((states,) * 3), np.zeros((states,) * 3)
    for i, j, k in slots:
        joint = _joint(dense, start, (i, j, k)) / len(slots)
        weight += joint
        gaps += joint * (j - i)
    mean = np.divide(gaps, weight, out=np.zeros_like(gaps), where=weight > 0)
    return TupleLaw(weight, mean)


def _joint(dense: np.ndarray, start: np.ndarray, slot: Slot) -> np.ndarray:
    """P(x_i = s, x_j = u, x_k = g): walk through the three positions in the order of time."""
    power = np.linalg.matrix_power
    order = np.argsort(slot, kind="stable")
    first, second, third = (slot[axis] for axis in order)
    table = np.einsum(
        "a,ab,bc->abc", start @ power(dense, first), power(dense, second - first), power(dense, third - second)
    )
    return np.transpose(table, np.argsort(order))


def sample_tuples(
    chain: Matrix, start: np.ndarray, slots: Sequence[Slot], trajectories: int, generator: np.random.Generator
) -> np.ndarray:
    """Tuples (trajectories, slots, 4) of integers s, u, g, H from simulated trajectories."""
    check_slots(slots)
    length = max(max(slot) for slot in slots)
    starts = generator.choice(len(start), p=start, size=trajectories)
    paths = np.stack([simulate(chain, int(first), length, generator) for first in starts])
    columns = [
        np.stack([paths[:, i], paths[:, j], paths[:, k], np.full(trajectories, j - i)], axis=1) for i, j, k in slots
    ]
    return np.stack(columns, axis=1)


def predictor(features: np.ndarray, omegas: np.ndarray) -> np.ndarray:
    """f_phi(s, u, g) as a table (n, n, n)."""
    scores = features @ omegas.T
    return scores[None, :, :] - scores[:, None, :]


def ideal_target(chain: Matrix) -> np.ndarray:
    """G(s, u, g) = V(s, g) - V(u, g) as a table (n, n, n)."""
    times = hitting_time_matrix(chain)
    if not np.all(np.isfinite(times)):
        raise ChainError("The sample bound needs finite hitting times for all pairs: use an irreducible chain.")
    return times[:, None, :] - times[None, :, :]


def fit_encoder(weight: np.ndarray, target: np.ndarray, omegas: np.ndarray, radius: float = np.inf) -> np.ndarray:
    """The tabular encoder (n, d) with ||phi(x)|| <= radius that minimises sum weight (f_phi - target)^2.

    Population minimiser for weight = mu, empirical one for weight = the tuple frequencies. Without a radius it is the
    least-squares solution of least norm; where that leaves the ball, accelerated projected gradients find the minimum.
    """
    states, dimension = len(weight), omegas.shape[1]
    s, u, g = np.nonzero(weight)
    root = np.sqrt(weight[s, u, g])
    rows = np.zeros((len(s), states, dimension))
    np.add.at(rows, (np.arange(len(s)), u), root[:, None] * omegas[g])
    np.add.at(rows, (np.arange(len(s)), s), -root[:, None] * omegas[g])
    table, right = rows.reshape(len(s), -1), root * target[s, u, g]
    encoder = np.linalg.lstsq(table, right, rcond=None)[0].reshape(states, dimension)
    if np.linalg.norm(encoder, axis=1).max() <= radius:
        return encoder
    gram, linear = table.T @ table, table.T @ right
    pace = 1.0 / np.linalg.norm(gram, 2)
    encoder, ahead, momentum = np.zeros((states, dimension)), np.zeros((states, dimension)), 1.0
    for _ in range(20_000):
        moved = ahead - pace * (gram @ ahead.ravel() - linear).reshape(states, dimension)
        moved = moved * np.minimum(1.0, radius / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-300))
        if np.abs(moved - ahead).max() <= 1e-10 * radius:
            return moved
        grown = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead, encoder, momentum = moved + (momentum - 1.0) / grown * (moved - encoder), moved, grown
    return encoder


def empirical_weight(tuples: np.ndarray, states: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies of (s, u, g) and mean labels, (n, n, n) each, from sampled tuples."""
    flat = tuples.reshape(-1, 4)
    weight, gaps = np.zeros((states,) * 3), np.zeros((states,) * 3)
    np.add.at(weight, tuple(flat[:, :3].T), 1.0)
    np.add.at(gaps, tuple(flat[:, :3].T), flat[:, 3].astype(np.float64))
    mean = np.divide(gaps, weight, out=np.zeros_like(gaps), where=weight > 0)
    return weight / len(flat), mean


def rademacher_complexity(
    tuples: np.ndarray, omegas: np.ndarray, radius: float, draws: int, generator: np.random.Generator
) -> float:
    """Slot-averaged complexity of all encoders with ||phi(x)|| <= radius, by Monte Carlo over signs.

    The supremum is explicit: sum_j sigma_j <phi(u_j) - phi(s_j), omega_j> is linear in the table phi, so its maximum is
    radius * sum_x || sum_j sigma_j (1{u_j = x} - 1{s_j = x}) omega_j ||.
    """
    trajectories, slots, _ = tuples.shape
    states = int(tuples[:, :, :2].max()) + 1
    total = 0.0
    for slot in range(slots):
        s, u, g = tuples[:, slot, 0], tuples[:, slot, 1], tuples[:, slot, 2]
        incidence = np.eye(states)[u] - np.eye(states)[s]
        signs = generator.choice((-1.0, 1.0), size=(draws, trajectories))
        sums = np.einsum("rj,jx,jd->rxd", signs, incidence, omegas[g], optimize=True)
        total += radius * float(np.linalg.norm(sums, axis=2).sum(axis=1).mean()) / trajectories
    return total / slots


def coverage(law: TupleLaw, measure: np.ndarray) -> float:
    """c_cov: the largest c with P(g | s, u) >= c nu(g) for every pair (s, u) that occurs."""
    pairs = law.pairs
    conditional = law.weight[pairs > 0] / pairs[pairs > 0][:, None]
    return float((conditional[:, measure > 0] / measure[measure > 0]).min())


@dataclass(frozen=True)
class SampleBound:
    """Both sides of Theorem 3.5, the parts of the right side, and its assumptions."""

    distance: float
    bound: float
    sharp_bound: float
    """(|| f - G || + 2 eta)^2 / (c_cov m_B^2): the last step of the proof, with the error f really has."""
    class_error: float
    label_mismatch: float
    statistical: float
    coverage: float
    reference_level: float
    lower: float
    target_error: float
    """|| f - G ||^2 in L^2(mu), the middle of the proof."""

    @property
    def assumptions(self) -> dict[str, bool]:
        return {
            "goals covered for every pair": self.coverage > 0,
            "reference analysis operator bounded below": self.lower > 0,
        }


def statistical_term(
    complexity: float, radius: float, omega_bound: float, label_bound: float, samples: int, delta: float
) -> float:
    """Gamma_N(delta) = 16 (2 C_phi C_omega + H_max) Rad + 2 (2 C_phi C_omega + H_max)^2 sqrt(log(1/delta) / 2N)."""
    scale = 2.0 * radius * omega_bound + label_bound
    return 16.0 * scale * complexity + 2.0 * deviation_term(scale**2, samples, delta)


def sample_bound(
    chain: Matrix,
    law: TupleLaw,
    encoder: np.ndarray,
    omegas: np.ndarray,
    reference: Reference,
    measure: np.ndarray,
    class_error: float,
    statistical: float,
    label_mismatch: float | None = None,
) -> SampleBound:
    """Evaluate Theorem 3.5 for a learned encoder; `class_error` = inf over the class of || f - G ||_{L^2(mu)}.

    Everything but `statistical` (Gamma_N, zero for the population minimiser) and `class_error` is computed here;
    `label_mismatch` can be overridden to see what happens when it is understated.
    """
    ideal = ideal_target(chain)
    mismatch = law.norm(law.mean_gap - ideal) if label_mismatch is None else label_mismatch
    cover = coverage(law, measure)
    second = analysis_operator(reference.features, reference.omegas, measure)
    learned = _learned_operator(encoder, omegas, measure, law)
    move = transport(learned, second)
    difference = encoder @ move.T - reference.features
    squared = ((difference[None] - difference[:, None]) ** 2).sum(axis=2)
    inner = (class_error + mismatch) ** 2 + statistical + mismatch**2 + 2.0 * reference.level**2
    factor = 4.0 / (cover * second.lower**2) if cover > 0 else np.inf
    target_error = law.norm(predictor(encoder, omegas) - ideal) ** 2
    sharp = (np.sqrt(target_error) + 2.0 * reference.level) ** 2 * factor / 4.0 if cover > 0 else np.inf
    return SampleBound(
        distance=float((law.pairs * squared).sum()),
        bound=factor * inner if cover > 0 else np.inf,
        sharp_bound=float(sharp),
        class_error=class_error,
        label_mismatch=mismatch,
        statistical=statistical,
        coverage=cover,
        reference_level=reference.level,
        lower=second.lower,
        target_error=target_error,
    )


def _learned_operator(encoder: np.ndarray, omegas: np.ndarray, measure: np.ndarray, law: TupleLaw) -> AnalysisOperator:
    """A_N on D_N, the span of the learned displacements of pairs that occur."""
    s, u = np.nonzero(law.pairs)
    return operator_on(span_basis(encoder[u] - encoder[s]), omegas, measure)
