"""Latent representations of a finite process and when they carry its hitting times (Definition 2.1, Theorem 2.2).

Alias table:  features[x] = phi(x) in R^d (rows);  operators[a] = K_a;  operator = K_pi;  omega = omega_g^pi;
unit_cost = w_1;  epsilon = the sufficiency residual.

Definition 2.1    || E[phi(x') | x, a] - K_a phi(x) || <= epsilon            for all x, a
Theorem 2.2       V(x, g) = <phi(g) - phi(x), omega_g>  for some omega_g
                      iff  w_1 lies in range (K_pi - I)^*  on span{phi(x) : x != g},
                      that is, iff some omega has  <(K_pi - I) phi(x), omega> = 1  for every x != g.

The restriction to x != g is not a technicality: over all of H the condition fails for every finite chain with
w_1 = the constant one, since a stationary distribution mu satisfies sum_x mu(x) (K_pi - I) phi(x) = 0.

Nothing here is inverted silently. Least squares is used to *decide* solvability: the residual is part of every answer,
and where a rank is needed the rank is checked first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from iel.errors import ChainError
from iel.theory.builders import drift_walk, lumpable, random_policy, random_process
from iel.theory.chains import (
    ControlledProcess,
    as_policy,
    hitting_time_matrix,
    hitting_times,
    policy_chain,
    uniform_policy,
)
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, coordinates, statement

TOLERANCE = 1e-8
"""Relative residual below which a linear condition counts as satisfied."""


@dataclass(frozen=True)
class Representation:
    """Features (n, d) that span R^d, with one operator (d, d) per action."""

    features: np.ndarray
    operators: np.ndarray

    @property
    def moved(self) -> np.ndarray:
        """K_a phi(x) for every pair, (actions, n, d)."""
        return np.einsum("xd,aed->axe", self.features, self.operators)


def predictions(features: np.ndarray, omegas: np.ndarray) -> np.ndarray:
    """V^(x, g) = <phi(g) - phi(x), omega_g> for all pairs, (n, n)."""
    return np.einsum("gd,gd->g", features, omegas)[None] - features @ omegas.T


def linear_map(features: np.ndarray, targets: np.ndarray, subject: str, advice: str) -> np.ndarray:
    """The M with features @ M = targets; an error when there is none: "`subject` not linear: `advice`"."""
    solution = np.linalg.lstsq(features, targets, rcond=None)[0]
    residual = np.abs(features @ solution - targets).max()
    if residual > TOLERANCE * max(1.0, np.abs(targets).max()):
        raise ChainError(f"{subject} (residual {residual:.2g}): {advice}.")
    return solution


def fit_representation(process: ControlledProcess, features: np.ndarray) -> Representation:
    """The operators K_a that predict mean next features best in least squares; exact when the process is sufficient."""
    targets = process.expected(features)
    operators = np.stack([np.linalg.lstsq(features, target, rcond=None)[0].T for target in targets])
    return Representation(features, operators)


def sufficiency_residual(process: ControlledProcess, representation: Representation) -> np.ndarray:
    """|| E[phi(x') | x, a] - K_a phi(x) || for every pair, (n, |A|); its maximum is the epsilon of Definition 2.1."""
    return np.linalg.norm(process.expected(representation.features) - representation.moved, axis=2).T


def policy_operator(process: ControlledProcess, representation: Representation, policy: np.ndarray) -> np.ndarray:
    """K_pi with K_pi phi(x) = sum_a pi(a | x) K_a phi(x) for all x; an error when no linear operator does this."""
    table = as_policy(process, policy)
    predicted = np.einsum("xa,aed,xd->xe", table, representation.operators, representation.features)
    subject = "The policy's latent dynamics do not close linearly"
    advice = "states with dependent features act differently, so enlarge the features or change the policy"
    return linear_map(representation.features, predicted, subject, advice).T


class RangeCondition(NamedTuple):
    """Whether w_1 lies in range (K_pi - I)^* on the goal's transient feature span, and a solution of least norm."""

    omega: np.ndarray
    residual: float  # max over x != g of |<(K_pi - I) phi(x), omega> - 1|
    holds: bool  # the residual is what rounding may contribute


def range_condition(features: np.ndarray, operator: np.ndarray, goal: int, everywhere: bool = False) -> RangeCondition:
    """Solve <(K_pi - I) phi(x), omega> = 1 for x != goal (for all x with `everywhere`: not needed).

    Several omega may solve it; they predict the same hitting times, so the one of least norm is as good as any.
    """
    drift = features @ (operator - np.eye(len(operator))).T
    rows = drift if everywhere else np.delete(drift, goal, axis=0)
    scale = float(np.abs(features).max()) * (1.0 + float(np.abs(operator).max()))
    largest = float(np.linalg.norm(rows, 2)) if rows.size else 0.0
    # A drift that is zero up to rounding is zero: measured against the features, not against itself.
    cut = min(1.0, 1e-12 * scale / largest) if largest > 1e-12 * scale else 1.0
    omega = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=cut)[0] if cut < 1.0 else np.zeros(features.shape[1])
    residual = float(np.abs(rows @ omega - 1.0).max(initial=0.0))
    tolerance = TOLERANCE + 1e-12 * scale * float(np.linalg.norm(omega))
    return RangeCondition(omega, residual, residual <= tolerance)


class Existence(NamedTuple):
    """Both sides of Theorem 2.2, decided independently of each other."""

    epsilon: float  # sufficiency residual; the theorem needs 0
    range_condition: RangeCondition
    representable: bool  # some omega gives V = <phi(g) - phi(x), omega>: never if some V(x) is infinite
    exact: np.ndarray
    error: float  # the largest |V - predicted| with the omega of the range condition


def existence(process: ControlledProcess, representation: Representation, policy: np.ndarray, goal: int) -> Existence:
    """Check Theorem 2.2 for one goal: the range condition on one side, the hitting times themselves on the other."""
    features = representation.features
    condition = range_condition(features, policy_operator(process, representation, policy), goal)
    exact, displacement = hitting_times(policy_chain(process, policy), goal), features[goal] - features
    representable = False
    if np.all(np.isfinite(exact)):
        best = np.linalg.lstsq(displacement, exact, rcond=None)[0]
        representable = bool(np.abs(displacement @ best - exact).max() <= TOLERANCE * exact.max(initial=1.0))
    epsilon = float(sufficiency_residual(process, representation).max())
    error = float(np.abs(exact - displacement @ condition.omega).max())
    return Existence(epsilon, condition, representable, exact, error)


def readouts(process: ControlledProcess, representation: Representation, policy: np.ndarray) -> np.ndarray:
    """omega_g for every goal, one row each (n, d); an error names the first goal whose range condition fails."""
    operator = policy_operator(process, representation, policy)
    found = [range_condition(representation.features, operator, goal) for goal in range(process.states)]
    if not all(condition.holds for condition in found):
        goal = [condition.holds for condition in found].index(False)
        raise ChainError(f"The range condition fails for goal {goal}: no readout gives its hitting times.")
    return np.stack([condition.omega for condition in found])


def one_hot_representation(process: ControlledProcess) -> Representation:
    """The canonical representation of a finite process: phi(x) = e_x and K_a = P_a^T."""
    return Representation(np.eye(process.states), np.swapaxes(process.dense(), 1, 2))


def hitting_time_representation(process: ControlledProcess, policy: np.ndarray) -> tuple[Representation, np.ndarray]:
    """phi(x) = -V(x, .) with omega_g = e_g: the representation whose coordinates *are* the hitting times."""
    return fit_representation(process, -hitting_time_matrix(policy_chain(process, policy))), np.eye(process.states)


def transform(representation: Representation, matrix: np.ndarray) -> Representation:
    """The representation in other coordinates: phi' = L phi, K' = L K L^{-1} for an invertible L."""
    operators = matrix @ representation.operators @ np.linalg.inv(matrix)
    return Representation(representation.features @ matrix.T, operators)


def unit_readouts(features: np.ndarray, omegas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same predictions with readouts of length one, at the price of one more dimension.

    The algorithm normalises omega while Theorem 2.2 lets its length carry the unit of time. Nothing is lost if the
    features may be rescaled and given one idle coordinate: with c = max_g ||omega_g||,

        phi'(x) = (c phi(x), 0),    omega'_g = (omega_g / c, sqrt(1 - ||omega_g||^2 / c^2)).
    """
    lengths = np.linalg.norm(omegas, axis=1)
    scale = float(lengths.max())
    idle = np.sqrt(np.clip(1.0 - (lengths / scale) ** 2, 0.0, None))
    return np.hstack([scale * features, np.zeros((len(features), 1))]), np.hstack([omegas / scale, idle[:, None]])


def span_basis(vectors: np.ndarray) -> np.ndarray:
    """An orthonormal basis (d, k) of the span of the rows of `vectors` (m, d)."""
    _, singular, right = np.linalg.svd(np.atleast_2d(vectors), full_matrices=False)
    return right[singular > singular.max(initial=0.0) * 1e-11].T


@statement("Definition 2.1", "epsilon-sufficient: || E[phi(x')] - K_a phi(x) || <= epsilon", "definition")
def sufficient(generator: np.random.Generator) -> Iterator[Evidence]:
    process = random_process(6, 2, generator)
    whole = sufficiency_residual(process, transform(one_hot_representation(process), coordinates(generator, 6))).max()
    part = sufficiency_residual(process, fit_representation(process, generator.normal(size=(6, 3)))).max()
    numbers = {"epsilon of rotated one-hot": whole, "of three random features": part}
    yield Evidence("a random process with 6 states and 2 actions", numbers, whole < 1e-10 < 1e-3 < part)


@statement(
    "Theorem 2.2", "V = <phi(g) - phi(x), omega_g> iff w_1 is in the range of (K_pi - I)^* off the goal", "holds"
)
def representable_times(generator: np.random.Generator) -> Iterator[Evidence]:
    error, agree, representable = 0.0, 0, 0
    for _ in range(INSTANCES):
        process = random_process(int(generator.integers(3, 8)), 2, generator)
        representation = transform(one_hot_representation(process), coordinates(generator, process.states))
        result = existence(process, representation, random_policy(process, generator), 0)
        error = max(error, result.error / result.exact.max())
        groups = np.concatenate([np.arange(4), generator.integers(0, 4, size=int(generator.integers(0, 3)))])
        lumped = lumpable(groups, 2, generator)
        policy = generator.dirichlet(np.ones(2), size=4)[groups]
        both = existence(
            lumped, fit_representation(lumped, np.eye(4)[groups]), policy, int(generator.integers(len(groups)))
        )
        agree += both.range_condition.holds == both.representable
        representable += both.representable
    yield Evidence(
        f"{INSTANCES} random processes, rotated one-hot", {"largest relative error": error}, error < ROUNDING
    )
    numbers: dict[str, float] = {"sides agree": agree, "of these representable": representable}
    sides = agree == INSTANCES and 0 < representable < INSTANCES
    yield Evidence(f"{INSTANCES} lumped processes, both sides decided on their own", numbers, sides)
    one_hot = one_hot_representation(random_process(5, 1, generator))
    everywhere = range_condition(one_hot.features, one_hot.operators[0], 1, everywhere=True).residual
    off_goal = range_condition(one_hot.features, one_hot.operators[0], 1).residual
    text = "the range condition of a random chain, off the goal as the theorem says, and on the whole space"
    numbers = {"residual off the goal": off_goal, "everywhere": everywhere}
    yield Evidence(text, numbers, off_goal < ROUNDING < 1e-3 < everywhere)
    features, drift = np.column_stack([np.ones(400), np.arange(400.0)]), np.array([[1.0, 0.0], [0.4, 1.0]])
    condition = range_condition(features, drift, 0)
    escaping = drift_walk(400, 0.7)
    escaping[-1] = np.eye(400)[-1]  # cut far out, the far end swallows the walk
    predicted, exact = (features[0] - features[1]) @ condition.omega, hitting_times(escaping, 0)[1]
    numbers = {"range residual": condition.residual, "predicted V(1, 0)": predicted, "true": exact}
    broken = condition.holds and np.isinf(exact) and abs(predicted + 2.5) < ROUNDING
    yield Evidence("unbounded phi = (1, x), half-line drifting away: the boundedness is needed", numbers, broken)


@statement("Algorithm, unit omega", "readouts may be given length one", "sharper")
def unit(generator: np.random.Generator) -> Iterator[Evidence]:
    process = random_process(6, 1, generator)
    one_hot = one_hot_representation(process)
    omegas = readouts(process, one_hot, uniform_policy(process))
    times = hitting_time_matrix(process.transitions[0])
    general = np.abs(predictions(*unit_readouts(one_hot.features, omegas)) - times).max()
    # One-hot displacements are orthogonal to the constant vector, which can carry the missing length.
    flat = omegas - omegas.mean(axis=1, keepdims=True)
    longer, units = unit_readouts(one_hot.features, flat)
    inside = units[:, :-1] + units[:, -1:] / np.sqrt(6.0)
    same = np.abs(predictions(longer[:, :-1], inside) - times).max()
    numbers = {"error with one more dimension": general, "error of one-hot with none": same}
    unit_length = abs(np.linalg.norm(inside, axis=1) - 1.0).max() < 1e-12
    yield Evidence("a random chain with 6 states", numbers, max(general, same) < ROUNDING and unit_length)
