"""Compression to d dimensions and what it costs (Sufficient Capacity, Lemma 3.2, Theorem 3.3).

Alias table:  basis = orthonormal columns of H inside the ambient space;  features = phi = P_d phi~ in coordinates of H;
operator = T^pi;  goal_projection = P_Q, onto the complement of phi(g);  spectral_radius = rho(T_Q).

Theorem 3.3       sup_{x != g} |V(x, g) - V^(x)|  <=  C_H ||omega_g|| epsilon / (1 - rho(T_Q)),
                  V^(x) = <phi(g) - phi(x), omega_g>,  (T_Q - I)^* omega_g = w_1,
                  with any C_H >= 1 such that ||(I - P_Q)^{-1}||_inf <= C_H / (1 - rho(T_Q)).

Read closely. (I - P_Q)^{-1} has non-negative entries and row sums V(x, g), so its norm is max_x V(x, g) and the
smallest C_H makes the right-hand side max(max_x V, 1 / (1 - rho)) ||omega|| epsilon: the horizon that amplifies errors
is the true hitting time; rho(T_Q) only renames it. C_H is no constant: a corridor of n steps has rho = 0 and C_H = n.
And w_1 orthogonal to phi(g) asks <phi(x), w_1> to jump from 1 to 0 at the goal, which no continuous phi can do. The
same argument without that assumption, without the invariance of span phi(g) and pointwise in x, is

`relative_error_bound`     |V^(x) - V(x, g)|  <=  V(x, g) max_{x != g} |<E[phi(x')] - phi(x), omega> - 1|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.theory.chains import Matrix, as_chain, hitting_times
from iel.theory.representation import TOLERANCE, compression, goal_projection, spectral_radius, transient_basis


@dataclass(frozen=True)
class Capacity:
    """A compressed representation with its Sufficient Capacity epsilon and the leakage out of the subspace."""

    features: np.ndarray
    operator: np.ndarray
    epsilon: float
    """max_x || P_d T~ phi~(x) - T phi(x) ||."""
    consistency: float
    """max_x || E[phi(x')] - T phi(x) ||, which Lemma 3.2 bounds by epsilon (they are equal)."""
    leakage: np.ndarray
    """eta(x) = || (I - P_d) E[phi~(x')] ||."""
    ambient_error: np.ndarray
    """|| E[phi~(x')] - T phi(x) || in the ambient space; at most sqrt(epsilon^2 + eta^2) <= epsilon + eta."""


def compress(chain: Matrix, ambient: np.ndarray, basis: np.ndarray, operator: np.ndarray | None = None) -> Capacity:
    """Compress ambient features (n, D) to span(basis); T is the compression of the ambient operator unless given.

    The ambient features must carry a transition operator T~ with T~ phi~(x) = E[phi~(x')]: an error otherwise.
    """
    table = np.asarray(ambient, dtype=np.float64)
    matrix = as_chain(chain)
    expected = matrix @ table
    transition = np.linalg.lstsq(table, expected, rcond=None)[0].T
    if np.abs(table @ transition.T - expected).max() > TOLERANCE * max(1.0, np.abs(expected).max()):
        raise ChainError(
            "The ambient features do not close linearly under this chain: enlarge them (one-hot always does)."
        )
    small = compression(transition, basis) if operator is None else np.asarray(operator, dtype=np.float64)
    features = table @ basis
    projected = (table @ transition.T) @ basis
    epsilon = np.linalg.norm(projected - features @ small.T, axis=1).max()
    consistency = np.linalg.norm(matrix @ features - features @ small.T, axis=1).max()
    leakage = np.linalg.norm(expected - (expected @ basis) @ basis.T, axis=1)
    ambient_error = np.linalg.norm(expected - features @ small.T @ basis.T, axis=1)
    return Capacity(features, small, float(epsilon), float(consistency), leakage, ambient_error)


def invariant_operator(chain: Matrix, features: np.ndarray, goal: int) -> np.ndarray:
    """The least-squares T with T(span phi(g)) inside span phi(g), as Theorem 3.3 demands.

    In the splitting H = H_g + H_Q the goal keeps itself (T phi(g) = phi(g), right for an absorbing goal) and only
    T on H_Q is fitted, to E[phi(x')] - P_g phi(x) over x != g.
    """
    matrix = as_chain(chain)
    keep = goal_projection(features, goal)
    onto_goal = np.eye(len(keep)) - keep
    transient = np.delete(np.arange(len(features)), goal)
    inputs = features[transient] @ keep
    targets = (matrix @ features)[transient] - features[transient] @ onto_goal
    fitted = np.linalg.lstsq(inputs, targets, rcond=None)[0].T
    return fitted @ keep + onto_goal


@dataclass(frozen=True)
class ApproximationBound:
    """Both sides of Theorem 3.3 and each of its assumptions."""

    exact: np.ndarray
    predicted: np.ndarray
    omega: np.ndarray
    epsilon: float
    spectral_radius: float
    resolvent: float
    """||(I - P_Q)^{-1}||_inf = max_x V(x, g)."""
    constant: float
    """The smallest admissible C_H >= 1."""
    bound: float
    sharp_bound: float
    """resolvent * max |<P_Q xi(x), omega>|: the same proof without its two generous steps."""
    true_error: float
    unit_cost_residual: float
    invariance_residual: float
    adjoint_residual: float

    @property
    def assumptions(self) -> dict[str, bool]:
        """Which assumptions hold; the bound is promised only when all do."""
        return {
            "goal reached almost surely": bool(np.isfinite(self.resolvent)),
            "unit cost represented orthogonally to the goal": self.unit_cost_residual <= TOLERANCE,
            "goal subspace invariant": self.invariance_residual <= TOLERANCE,
            "transient spectral radius below one": self.spectral_radius < 1.0,
            "adjoint equation solvable": self.adjoint_residual <= TOLERANCE,
        }

    @property
    def applies(self) -> bool:
        return all(self.assumptions.values())


def approximation_bound(chain: Matrix, goal: int, features: np.ndarray, operator: np.ndarray) -> ApproximationBound:
    """Evaluate Theorem 3.3 for a compressed representation (features, operator) of a chain."""
    matrix = as_chain(chain)
    if len(features) < 2:
        raise ChainError("A chain with one state has nothing to approximate: the goal is all there is.")
    transient = np.delete(np.arange(len(features)), goal)
    keep = goal_projection(features, goal)
    splitting = transient_basis(features, goal)
    projected = features[transient] @ splitting
    transient_operator = splitting.T @ operator @ splitting
    cost, *_ = np.linalg.lstsq(projected, np.ones(len(transient)), rcond=None)
    unit_cost_residual = float(np.abs(projected @ cost - 1.0).max())
    invariance = float(np.linalg.norm(keep @ operator @ features[goal]))
    adjoint = transient_operator.T - np.eye(len(transient_operator))
    inner, *_ = np.linalg.lstsq(adjoint, cost, rcond=None)
    adjoint_residual = float(np.abs(adjoint @ inner - cost).max(initial=0.0))
    omega = splitting @ inner
    exact = hitting_times(matrix, goal)
    residual = (matrix @ features - features @ operator.T)[transient]
    epsilon = float(np.linalg.norm(matrix @ features - features @ operator.T, axis=1).max())
    predicted = (features[goal] - features) @ omega
    radius = spectral_radius(transient_operator)
    resolvent = float(exact.max())
    constant = max(1.0, resolvent * (1.0 - radius)) if radius < 1.0 else np.nan
    size = float(np.linalg.norm(omega))
    return ApproximationBound(
        exact=exact,
        predicted=predicted,
        omega=omega,
        epsilon=epsilon,
        spectral_radius=radius,
        resolvent=resolvent,
        constant=constant,
        bound=constant * size * epsilon / (1.0 - radius) if radius < 1.0 else np.nan,
        sharp_bound=resolvent * float(np.abs(residual @ keep @ omega).max()),
        true_error=float(np.abs(exact - predicted)[transient].max()),
        unit_cost_residual=unit_cost_residual,
        invariance_residual=invariance,
        adjoint_residual=adjoint_residual,
    )


@dataclass(frozen=True)
class RelativeBound:
    """The corrected bound: prediction error relative to the true hitting time."""

    exact: np.ndarray
    predicted: np.ndarray
    residual: float
    """max over x != g of |<E[phi(x')] - phi(x), omega> - 1|: by how much latent progress per step misses one."""

    @property
    def bound(self) -> np.ndarray:
        """V(x, g) times the residual, pointwise."""
        return self.exact * self.residual

    @property
    def error(self) -> np.ndarray:
        return np.abs(self.predicted - self.exact)


def relative_error_bound(chain: Matrix, goal: int, features: np.ndarray, omega: np.ndarray) -> RelativeBound:
    """|V^(x) - V(x, g)| <= V(x, g) * residual for *any* features and any omega, with no further assumption.

    Proof: e = V^ - V vanishes at g and (I - P_Q) e = r with r(x) = <E[phi(x')] - phi(x), omega> - 1, so
    e = (I - P_Q)^{-1} r, and the rows of that non-negative inverse sum to V(x, g).
    """
    matrix = as_chain(chain)
    drift = (matrix @ features - features) @ omega - 1.0
    residual = float(np.abs(np.delete(drift, goal)).max(initial=0.0))
    return RelativeBound(hitting_times(matrix, goal), (features[goal] - features) @ omega, residual)


def fit_readout(chain: Matrix, goal: int, features: np.ndarray) -> np.ndarray:
    """The omega whose one-step progress <E[phi(x')] - phi(x), omega> is closest to one in least squares over x != g."""
    matrix = as_chain(chain)
    drift = np.delete(matrix @ features - features, goal, axis=0)
    return np.linalg.lstsq(drift, np.ones(len(drift)), rcond=None)[0]
