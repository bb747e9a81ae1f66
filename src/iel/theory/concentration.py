"""The probabilistic lemmas behind the sample bound, evaluated exactly on finite trajectory laws.

A trajectory takes one of k values with probabilities p, so every expectation and failure probability below is a finite
sum and no Monte Carlo error hides a wrong constant.

McDiarmid lemma      P( Z > E Z + B sqrt(log(1/delta) / 2N) ) <= delta,   Z = sup_g |E g - mean_j g(tau_j)|
Contraction lemma    E sup_f mean sigma_i (f_i - y_i)^2  <=  2 (B + H) E sup_f mean sigma_i f_i
Regression lemma     excess risk of the empirical minimiser <= Gamma_N(delta) with probability 1 - delta

The paper proves the last one through E sup_f |R - R_N| <= 4 Rad_N, with a Rademacher average *without* absolute
values. That step is false: for a single function the right side is zero and the left is not. The lemma survives,
with a smaller constant, because the empirical minimiser needs one-sided deviations only:

    R(f^) - R(f*) <= sup_f (R - R_N)(f) + (R_N - R)(f*),      E of the right side <= 2 Rad_N(loss class) + 0.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from iel.theory.evidence import INSTANCES, Evidence, statement


def deviation_term(bound: float, samples: int, delta: float) -> float:
    """B sqrt(log(1/delta) / (2 N))."""
    return bound * math.sqrt(math.log(1.0 / delta) / (2.0 * samples))


def multinomial_law(probabilities: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """All outcomes of `samples` drawn trajectories, as counts (outcomes, kinds), and the probability of each."""
    kinds = len(probabilities)
    bars = np.array(list(itertools.combinations(range(samples + kinds - 1), kinds - 1)), dtype=np.int64)
    counts = np.diff(bars, axis=1, prepend=-1, append=samples + kinds - 1) - 1
    logarithm = math.lgamma(samples + 1) - np.vectorize(math.lgamma)(counts + 1.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.where(counts > 0, counts * np.log(probabilities), 0.0).sum(axis=1)
    return counts, np.exp(logarithm + powers)


def failure_probability(
    probabilities: np.ndarray, functions: np.ndarray, samples: int, delta: float, bound: float
) -> float:
    """P(Z > E Z + B sqrt(log(1/delta) / 2N)) exactly: functions (m, k) with values in [0, B] on k trajectory kinds."""
    counts, law = multinomial_law(probabilities, samples)
    deviation = np.abs((functions @ probabilities)[None] - counts @ functions.T / samples).max(axis=1)
    threshold = float(law @ deviation) + deviation_term(bound, samples, delta)
    return float(law[deviation > threshold + 1e-12].sum())


def sign_vectors(count: int) -> np.ndarray:
    """All 2^count sign vectors, (2^count, count)."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=count)))


def rademacher_average(values: np.ndarray) -> float:
    """E_sigma max_f mean_i sigma_i f_i exactly, for values (m, n)."""
    return float((sign_vectors(values.shape[1]) @ values.T / values.shape[1]).max(axis=1).mean())


def contraction_sides(values: np.ndarray, labels: np.ndarray, bound: float, label_bound: float) -> tuple[float, float]:
    """Both sides of the contraction lemma for values (m, n) and labels (n,), by enumeration of all signs."""
    left = rademacher_average((values - labels) ** 2)
    return left, 2.0 * (bound + label_bound) * rademacher_average(values)


class RegressionControl(NamedTuple):
    """The regression lemma on a finite law: what it promises and how often it really fails."""

    failure: float  # how often the excess risk exceeds the paper's Gamma_N(delta), with factor 16
    sharp_failure: float  # how often it exceeds Gamma_N with the factor 4 of the one-sided argument
    mean_deviation: float  # E sup |R - R_N|, the left side of the paper's symmetrisation step
    symmetrised: float  # 4 Rad_N(loss class), the right side of that step


def regression_control(
    probabilities: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    samples: int,
    delta: float,
    bound: float,
    label_bound: float,
) -> RegressionControl:
    """The regression lemma, exactly: values (m, k, slots) of m predictors, labels (k, slots) on k trajectories."""
    loss = ((values - labels[None]) ** 2).mean(axis=2)
    counts, law = multinomial_law(probabilities, samples)
    risk, empirical = loss @ probabilities, counts @ loss.T / samples
    excess = risk[empirical.argmin(axis=1)] - risk.min()
    complexity = float(np.mean([_complexity(probabilities, values[:, :, t], samples) for t in range(values.shape[2])]))
    scale = bound + label_bound
    tail = 2.0 * deviation_term(scale**2, samples, delta)
    gamma, sharp = 16.0 * scale * complexity + tail, 4.0 * scale * complexity + tail
    return RegressionControl(
        failure=float(law[excess > gamma + 1e-12].sum()),
        sharp_failure=float(law[excess > sharp + 1e-12].sum()),
        mean_deviation=float(law @ np.abs(risk[None] - empirical).max(axis=1)),
        symmetrised=4.0 * _complexity(probabilities, loss, samples),
    )


def _complexity(probabilities: np.ndarray, functions: np.ndarray, samples: int) -> float:
    """E over samples and signs of sup_q mean_j sigma_j q(tau_j), exactly, by enumeration of both."""
    draws = np.array(list(itertools.product(range(len(probabilities)), repeat=samples)))
    law = np.prod(probabilities[draws], axis=1)
    signs = sign_vectors(samples)
    means = np.einsum("sj,mrj->srm", signs, functions[:, draws], optimize=True) / samples
    return float(law @ means.max(axis=2).mean(axis=0))


@statement("Lemma, McDiarmid", "uniform deviations of trajectory means concentrate", "holds")
def mcdiarmid(generator: np.random.Generator) -> Iterator[Evidence]:
    tightest = 0.0
    for _ in range(INSTANCES):
        kinds, delta = int(generator.integers(2, 4)), float(generator.uniform(0.02, 0.98))
        functions = generator.random((int(generator.integers(1, 5)), kinds)).round()
        law = generator.dirichlet(np.ones(kinds))
        failure = failure_probability(law, functions, int(generator.integers(1, 9)), delta, 1.0)
        tightest = max(tightest, failure / delta)
    text = f"{INSTANCES} finite laws, every sample enumerated"
    yield Evidence(text, {"largest failure probability / delta": tightest}, tightest <= 1.0)


@statement("Lemma, Talagrand contraction", "squared losses contract with 2 (B + H)", "holds")
def contraction(generator: np.random.Generator) -> Iterator[Evidence]:
    closest = 0.0
    for _ in range(INSTANCES):
        values = generator.uniform(-1, 1, (int(generator.integers(2, 6)), int(generator.integers(1, 8))))
        labels: np.ndarray = generator.uniform(-1, 1, values.shape[1:])
        left, right = contraction_sides(values, labels, 1.0, 1.0)
        closest = max(closest, left / right)
    yield Evidence(f"{INSTANCES} classes, every sign enumerated", {"largest left / right": closest}, closest <= 1.0)


@statement("Lemma, tuple regression", "the empirical minimiser's excess risk is at most Gamma_N(delta)", "sharper")
def regression(generator: np.random.Generator) -> Iterator[Evidence]:
    failure, sharp = 0.0, 0.0
    for _ in range(INSTANCES):
        delta = float(generator.uniform(0.05, 0.95))
        values, labels = generator.uniform(-1, 1, (3, 3, 2)), generator.uniform(0, 1, (3, 2))
        result = regression_control(generator.dirichlet(np.ones(3)), values, labels, 3, delta, 1.0, 1.0)
        failure, sharp = max(failure, result.failure / delta), max(sharp, result.sharp_failure / delta)
    numbers = {"failure / delta with factor 16": failure, "with factor 4": sharp}
    yield Evidence(f"{INSTANCES} finite laws, every sample enumerated", numbers, max(failure, sharp) <= 1.0)
    single = regression_control(np.array([0.5, 0.5]), np.zeros((1, 2, 1)), np.array([[0.0], [1.0]]), 3, 0.5, 0.0, 1.0)
    numbers = {"E sup |R - R_N|": single.mean_deviation, "4 Rad_N": single.symmetrised}
    text = "its symmetrisation step for a single predictor: the left side is not below the right"
    yield Evidence(text, numbers, single.mean_deviation > 0.1 > abs(single.symmetrised))
