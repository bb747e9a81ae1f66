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

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.theory.chains import ControlledProcess, as_policy, hitting_time_matrix, hitting_times, policy_chain

TOLERANCE = 1e-8
"""Relative residual below which a linear condition counts as satisfied."""


@dataclass(frozen=True)
class Representation:
    """Features (n, d) that span R^d, with one operator (d, d) per action."""

    features: np.ndarray
    operators: np.ndarray

    @property
    def dimension(self) -> int:
        return int(self.features.shape[1])


def feature_rank(features: np.ndarray) -> int:
    """Numerical rank of the feature table."""
    return int(np.linalg.matrix_rank(features))


def check_features(features: np.ndarray, states: int | None = None) -> np.ndarray:
    """Validate a feature table: finite, one row per state, of full column rank (it spans its space)."""
    table = np.asarray(features, dtype=np.float64)
    if table.ndim != 2 or (states is not None and len(table) != states):
        raise ChainError(f"The features have shape {table.shape}: pass one row per state, {states or 'n'} rows in all.")
    if not np.all(np.isfinite(table)):
        raise ChainError("The features hold values that are not finite: remove NaN and infinity.")
    rank = feature_rank(table)
    if rank < table.shape[1]:
        raise ChainError(
            f"The features have {table.shape[1]} columns but rank {rank}, so operators on them are not unique: "
            "drop dependent columns."
        )
    return table


def fit_representation(process: ControlledProcess, features: np.ndarray) -> Representation:
    """The operators K_a that predict mean next features best in least squares; exact when the process is sufficient."""
    table = check_features(features, process.states)
    targets = process.expected(table)
    operators = np.stack([np.linalg.lstsq(table, target, rcond=None)[0].T for target in targets])
    return Representation(table, operators)


def sufficiency_residual(process: ControlledProcess, representation: Representation) -> np.ndarray:
    """|| E[phi(x') | x, a] - K_a phi(x) || for every pair, (n, |A|); its maximum is the epsilon of Definition 2.1."""
    predicted = np.einsum("xd,aed->axe", representation.features, representation.operators)
    return np.linalg.norm(process.expected(representation.features) - predicted, axis=2).T


def policy_operator(process: ControlledProcess, representation: Representation, policy: np.ndarray) -> np.ndarray:
    """K_pi with K_pi phi(x) = sum_a pi(a | x) K_a phi(x) for all x; an error when no linear operator does this."""
    table = as_policy(process, policy)
    predicted = np.einsum("xa,aed,xd->xe", table, representation.operators, representation.features)
    transposed = np.linalg.lstsq(representation.features, predicted, rcond=None)[0]
    residual = np.abs(representation.features @ transposed - predicted).max()
    if residual > TOLERANCE * max(1.0, np.abs(predicted).max()):
        raise ChainError(
            f"The policy's latent dynamics do not close linearly (residual {residual:.2g}): "
            "states with dependent features act differently, so enlarge the features or change the policy."
        )
    return transposed.T


@dataclass(frozen=True)
class RangeCondition:
    """Whether w_1 lies in range (K_pi - I)^* on the goal's transient feature span, and a solution of least norm."""

    omega: np.ndarray
    residual: float
    """max over x != g of |<(K_pi - I) phi(x), omega> - 1|."""
    tolerance: float = TOLERANCE
    """What rounding may contribute to the residual."""

    @property
    def holds(self) -> bool:
        return self.residual <= self.tolerance


def range_condition(features: np.ndarray, operator: np.ndarray, goal: int, everywhere: bool = False) -> RangeCondition:
    """Solve <(K_pi - I) phi(x), omega> = 1 for x != goal (for all x with `everywhere`, which the theorem does not ask).

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
    return RangeCondition(omega, residual, TOLERANCE + 1e-12 * scale * float(np.linalg.norm(omega)))


@dataclass(frozen=True)
class Existence:
    """Both sides of Theorem 2.2, decided independently of each other."""

    epsilon: float
    """Sufficiency residual of the representation; the theorem needs 0."""
    range_condition: RangeCondition
    representable_residual: float
    """max_x |V(x) - <phi(g) - phi(x), omega>| for the best omega whatever its origin; infinite if some V(x) is."""
    exact: np.ndarray
    predicted: np.ndarray
    """<phi(g) - phi(x), omega> with the omega of the range condition."""

    @property
    def representable(self) -> bool:
        scale = np.abs(self.exact[np.isfinite(self.exact)]).max(initial=1.0)
        return self.representable_residual <= TOLERANCE * scale

    @property
    def error(self) -> float:
        """The largest |V - predicted|: zero when the theorem's assumptions and the range condition hold."""
        return float(np.abs(self.exact - self.predicted).max())


def existence(process: ControlledProcess, representation: Representation, policy: np.ndarray, goal: int) -> Existence:
    """Check Theorem 2.2 for one goal: the range condition on one side, the hitting times themselves on the other."""
    features = representation.features
    operator = policy_operator(process, representation, policy)
    condition = range_condition(features, operator, goal)
    exact = hitting_times(policy_chain(process, policy), goal)
    if np.all(np.isfinite(exact)):
        displacement = features[goal] - features
        best = np.linalg.lstsq(displacement, exact, rcond=None)[0]
        residual = float(np.abs(displacement @ best - exact).max())
    else:
        residual = np.inf
    epsilon = float(sufficiency_residual(process, representation).max())
    predicted = (features[goal] - features) @ condition.omega
    return Existence(epsilon, condition, residual, exact, predicted)


def readouts(process: ControlledProcess, representation: Representation, policy: np.ndarray) -> np.ndarray:
    """omega_g for every goal, one row each (n, d); an error names the first goal whose range condition fails."""
    operator = policy_operator(process, representation, policy)
    rows = []
    for goal in range(process.states):
        condition = range_condition(representation.features, operator, goal)
        if not condition.holds:
            raise ChainError(
                f"The range condition fails for goal {goal} (residual {condition.residual:.2g}): "
                "the goal is not reached almost surely from everywhere, or the features are too small."
            )
        rows.append(condition.omega)
    return np.stack(rows)


def one_hot_representation(process: ControlledProcess) -> Representation:
    """The canonical representation of a finite process: phi(x) = e_x and K_a = P_a^T."""
    return Representation(np.eye(process.states), np.swapaxes(process.dense(), 1, 2))


def hitting_time_representation(process: ControlledProcess, policy: np.ndarray) -> tuple[Representation, np.ndarray]:
    """phi(x) = -V(x, .) with omega_g = e_g: the representation whose coordinates *are* the hitting times."""
    times = hitting_time_matrix(policy_chain(process, policy))
    if process.states < 2:
        raise ChainError("A process with one state has no times to represent: the goal is all there is.")
    if not np.all(np.isfinite(times)):
        raise ChainError("Some goal is not reached almost surely from some state: restrict the process to one class.")
    return fit_representation(process, -times), np.eye(process.states)


def transform(representation: Representation, matrix: np.ndarray) -> Representation:
    """The representation in other coordinates: phi' = L phi, K' = L K L^{-1} for an invertible L."""
    if np.linalg.matrix_rank(matrix) < len(matrix):
        raise ChainError("The change of coordinates is singular: use an invertible matrix.")
    inverse = np.linalg.inv(matrix)
    return Representation(representation.features @ matrix.T, matrix @ representation.operators @ inverse)


def unit_readouts(features: np.ndarray, omegas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same predictions with readouts of length one, at the price of one more dimension.

    The algorithm normalises omega while Theorem 2.2 lets its length carry the unit of time. Nothing is lost if the
    features may be rescaled and given one idle coordinate: with c = max_g ||omega_g||,

        phi'(x) = (c phi(x), 0),    omega'_g = (omega_g / c, sqrt(1 - ||omega_g||^2 / c^2)).
    """
    lengths = np.linalg.norm(omegas, axis=1)
    scale = float(lengths.max())
    if scale == 0:
        raise ChainError("Every readout is zero: there is no time to represent.")
    idle = np.sqrt(np.clip(1.0 - (lengths / scale) ** 2, 0.0, None))
    return np.hstack([scale * features, np.zeros((len(features), 1))]), np.hstack([omegas / scale, idle[:, None]])


def merged_features(states: int, groups: np.ndarray) -> np.ndarray:
    """One-hot features of a partition: states of the same group become indistinguishable."""
    labels = np.asarray(groups)
    if labels.shape != (states,):
        raise ChainError(f"The grouping has shape {labels.shape}: give one group number per state, {states} in all.")
    return np.eye(int(labels.max()) + 1)[labels]


# ---------------------------------------------------------------- linear analysis: spans, complements, compressions


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
