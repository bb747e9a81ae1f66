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

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from iel.distances import discounted_steps
from iel.theory.builders import corridor, directed_ring, grid, random_process
from iel.theory.chains import (
    ControlledProcess,
    Matrix,
    as_chain,
    hitting_time_matrix,
    policy_chain,
    simulate,
    uniform_policy,
)
from iel.theory.concentration import deviation_term
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, statement
from iel.theory.identifiability import analysis_operator, missed_displacements, operator_on, transport
from iel.theory.recovery import Reference
from iel.theory.representation import one_hot_representation, readouts, span_basis

Slot = tuple[int, int, int]
SLOTS = [(0, 1, 3), (0, 2, 4), (1, 2, 2), (0, 2, 0)]


class TupleLaw(NamedTuple):
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


def tuple_law(chain: Matrix, start: np.ndarray, slots: Sequence[Slot]) -> TupleLaw:
    """The exact law of a uniformly chosen slot's tuple when x_0 ~ start."""
    dense = as_chain(chain).toarray()
    weight, gaps = np.zeros((2, *(len(dense),) * 3))
    for slot in slots:
        # P(x_i = s, x_j = u, x_k = g): walk through the three positions in the order of time.
        order = np.argsort(slot, kind="stable")
        first, *later = (np.linalg.matrix_power(dense, n) for n in np.diff(np.sort(slot), prepend=0))
        joint = np.einsum("a,ab,bc->abc", start @ first, *later).transpose(np.argsort(order)) / len(slots)
        weight += joint
        gaps += joint * (slot[1] - slot[0])
    return TupleLaw(weight, np.divide(gaps, weight, out=np.zeros_like(gaps), where=weight > 0))


def sample_tuples(
    chain: Matrix, start: np.ndarray, slots: Sequence[Slot], trajectories: int, generator: np.random.Generator
) -> np.ndarray:
    """Tuples (trajectories, slots, 4) of integers s, u, g, H from simulated trajectories."""
    starts = generator.choice(len(start), p=start, size=trajectories)
    paths = np.stack([simulate(chain, int(first), int(np.max(slots)), generator) for first in starts])
    tuples = paths[:, np.array(slots)]
    gaps = np.array([j - i for i, j, _ in slots])
    return np.concatenate([tuples, np.broadcast_to(gaps[:, None], (*tuples.shape[:2], 1))], axis=2)


def predictor(features: np.ndarray, omegas: np.ndarray) -> np.ndarray:
    """f_phi(s, u, g) as a table (n, n, n)."""
    scores = features @ omegas.T
    return scores[None, :, :] - scores[:, None, :]


def ideal_target(chain: Matrix) -> np.ndarray:
    """G(s, u, g) = V(s, g) - V(u, g) as a table (n, n, n)."""
    times = hitting_time_matrix(chain)
    return times[:, None, :] - times[None, :, :]


def fit_encoder(weight: np.ndarray, target: np.ndarray, omegas: np.ndarray, radius: float = np.inf) -> np.ndarray:
    """The tabular encoder (n, d) with ||phi(x)|| <= radius that minimises sum weight (f_phi - target)^2.

    Population minimiser for weight = mu, empirical one for weight = the tuple frequencies. Without a radius it is the
    least-squares solution of least norm; where that leaves the ball, accelerated projected gradients find the minimum.
    """
    states, dimension = len(weight), omegas.shape[1]
    s, u, g = np.nonzero(weight)
    root = np.sqrt(weight[s, u, g])
    rows = np.einsum("jx,jd->jxd", np.eye(states)[u] - np.eye(states)[s], root[:, None] * omegas[g])
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


def empirical_weight(tuples: np.ndarray, states: int) -> TupleLaw:
    """Frequencies of (s, u, g) and mean labels of sampled tuples."""
    *position, gap = tuples.reshape(-1, 4).T
    counts, gaps = np.zeros((2, states, states, states))
    np.add.at(counts, tuple(position), 1.0)
    np.add.at(gaps, tuple(position), gap.astype(np.float64))
    return TupleLaw(counts / len(gap), np.divide(gaps, counts, out=np.zeros_like(gaps), where=counts > 0))


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


class SampleBound(NamedTuple):
    """Both sides of Theorem 3.5 and what its right side is made of."""

    distance: float
    bound: float  # infinite where some goal is not covered for some pair
    sharp_bound: float  # (|| f - G || + 2 eta)^2 / (c_cov m_B^2): the last step of the proof, with f's own error
    coverage: float
    target_error: float  # || f - G ||^2 in L^2(mu), the middle of the proof


def statistical_term(complexity: float, radius: float, label_bound: float, samples: int, delta: float) -> float:
    """Gamma_N(delta) = 16 (2 C_phi + H_max) Rad + 2 (2 C_phi + H_max)^2 sqrt(log(1/delta) / 2N), C_omega = 1."""
    scale = 2.0 * radius + label_bound
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
) -> SampleBound:
    """Evaluate Theorem 3.5 for a learned encoder; `class_error` = inf over the class of || f - G ||_{L^2(mu)}.

    Everything but `statistical` (Gamma_N, zero for the population minimiser) and `class_error` is computed here.
    """
    ideal, cover = ideal_target(chain), coverage(law, measure)
    mismatch = law.norm(law.mean_gap - ideal)
    second = analysis_operator(reference.features, reference.omegas, measure)
    s, u = np.nonzero(law.pairs)  # A_N on D_N, the span of the learned displacements of pairs that occur
    learned = operator_on(span_basis(encoder[u] - encoder[s]), omegas, measure)
    move = second.basis @ transport(learned, second) @ learned.basis.T
    missed = missed_displacements(move, encoder, reference.features)
    inner = (class_error + mismatch) ** 2 + statistical + mismatch**2 + 2.0 * reference.level**2
    target_error = law.norm(predictor(encoder, omegas) - ideal) ** 2
    bound = sharp = np.inf
    if cover > 0:
        factor = 4.0 / (cover * second.lower**2)
        bound, sharp = factor * inner, (np.sqrt(target_error) + 2.0 * reference.level) ** 2 * factor / 4.0
    return SampleBound(float((law.pairs * missed).sum()), bound, float(sharp), cover, target_error)


def exact_reference(process: ControlledProcess) -> Reference:
    """One-hot features with the readouts of the uniform policy: level zero."""
    one_hot = one_hot_representation(process)
    return Reference(one_hot.features, readouts(process, one_hot, uniform_policy(process)), 0.0)


def random_omegas(generator: np.random.Generator, dimension: int) -> np.ndarray:
    """Readouts of length one for four goals."""
    omegas = generator.normal(size=(4, dimension))
    return omegas / np.linalg.norm(omegas, axis=1, keepdims=True)


@statement("Theorem 3.5", "finite samples recover the displacements up to capacity, labels and sampling", "holds")
def samples(generator: np.random.Generator) -> Iterator[Evidence]:
    ratio, sharp = 0.0, 0.0
    for _ in range(INSTANCES):
        process = random_process(4, 1, generator)
        chain, omegas = process.transitions[0], generator.normal(size=(4, int(generator.integers(1, 5))))
        law = tuple_law(chain, generator.dirichlet(np.full(4, 3.0)), SLOTS)
        ideal = ideal_target(chain)
        best = law.norm(predictor(fit_encoder(law.weight, ideal, omegas), omegas) - ideal)
        encoder = fit_encoder(law.weight, law.mean_gap, omegas)
        result = sample_bound(chain, law, encoder, omegas, exact_reference(process), np.full(4, 0.25), best, 0.0)
        ratio, sharp = max(ratio, result.distance / result.bound), max(sharp, result.distance / result.sharp_bound)
    numbers = {"largest distance / bound": ratio, "/ last step of the proof": sharp}
    yield Evidence(f"{INSTANCES} random chains, infinite data", numbers, ratio <= 1.0 and sharp <= 1.0 + ROUNDING)
    yield tight_two_states()
    yield excess_risk(generator)
    slots, fifth, mismatch = [(0, 1, 2), (0, 1, 3), (0, 2, 4)], np.full(5, 0.2), {}
    walk = policy_chain(grid(1, 5), uniform_policy(grid(1, 5)))
    for name, chain in (("directed ring", directed_ring(5).transitions[0]), ("random walk", walk)):
        law = tuple_law(chain, fifth, slots)
        mismatch[name] = law.norm(law.mean_gap - ideal_target(chain))
    lasting = mismatch["directed ring"] < ROUNDING < 1.0 < mismatch["random walk"]
    yield Evidence("eta_traj, which no amount of data removes: five cells", mismatch, lasting)
    cover = coverage(tuple_law(corridor(5).transitions[0], np.eye(5)[0], [(0, 1, 2), (1, 2, 4)]), fifth)
    text = "coverage (i) with goals of the same trajectory in a one-way corridor"
    yield Evidence(text, {"c_cov": cover}, cover == 0.0)
    rms = {}
    for longest in (10, 30):  # on a long corridor phi(x) = c x is best
        gaps = np.arange(1.0, longest + 1.0)
        labels = discounted_steps(gaps, 0.99)
        rms[f"H_max = {longest}"] = float(np.sqrt(np.mean((labels - gaps * (gaps @ labels) / (gaps @ gaps)) ** 2)))
    text = "discounted labels (gamma 0.99) are not additive: best RMS error over all phi on a long corridor, in steps"
    yield Evidence(text, rms, 0.03 < rms["H_max = 10"] < 0.1 < 0.3 < rms["H_max = 30"] < 0.6)


def tight_two_states() -> Evidence:
    """Two states, the next one drawn afresh: goals are independent of the pair, so the last step is not loose."""
    a = 0.3
    chain, law_of_goals = np.array([[1 - a, a], [1 - a, a]]), np.array([1 - a, a])
    reference = Reference(np.array([[0.0], [1.0]]), np.array([[-1 / (1 - a)], [1 / a]]), 0.0)
    law = tuple_law(chain, law_of_goals, [(0, 1, 3), (0, 1, 4)])
    encoder = fit_encoder(law.weight, law.mean_gap, reference.omegas)
    found = sample_bound(chain, law, encoder, reference.omegas, reference, law_of_goals, 0.0, 0.0)
    numbers = {"distance": found.distance, "last step of the proof": found.sharp_bound, "bound": found.bound}
    tight = found.distance > 0.999 * found.sharp_bound and found.distance > 0.02 * found.bound
    return Evidence("two states, the tightest case we know", numbers, tight and found.distance <= found.bound)


def excess_risk(generator: np.random.Generator, samples: int = 30, radius: float = 2.0, delta: float = 0.1) -> Evidence:
    """The empirical minimiser over ||phi|| <= 2, a class fixed before any data is seen, against Gamma_N(delta)."""
    worst, positive = 0.0, 0
    for _ in range(INSTANCES):
        chain = random_process(4, 1, generator).transitions[0]
        omegas, start = random_omegas(generator, 2), np.full(4, 0.25)
        law, tuples = tuple_law(chain, start, SLOTS), sample_tuples(chain, start, SLOTS, samples, generator)
        learned = fit_encoder(*empirical_weight(tuples, 4), omegas, radius)
        best = fit_encoder(law.weight, law.mean_gap, omegas, radius)
        risk = [law.norm(predictor(phi, omegas) - law.mean_gap) ** 2 for phi in (learned, best)]
        complexity = rademacher_complexity(tuples, omegas, radius, 20, generator)
        worst = max(worst, (risk[0] - risk[1]) / statistical_term(complexity, radius, 2.0, samples, delta))
        positive += risk[0] > risk[1]
    numbers = {"largest excess risk / Gamma": worst, "instances with excess": positive}
    text = f"{INSTANCES} chains, {samples} trajectories, C_phi = {radius:g} fixed in advance, delta = {delta}"
    return Evidence(text, numbers, worst <= 1.0 and positive > INSTANCES // 2)
