"""Which other tasks the same representation solves (appendix "Problem span").

    reward        r(x, a, g) = <phi(x), R_a phi(g)>                                  latent bilinear reward span
    evaluation    V_pi(x, g) = <phi(x), S_pi phi(g)>,  S_pi = (I - gamma K_pi^*)^{-1} R_pi
    action value  Q_pi(x, a, g) = <phi(x), (R_a + gamma K_a^* S_pi) phi(g)>
    control       V*(x, g) = <phi(x), S* phi(g)>  if the optimal Bellman operator maps {<phi, S phi>} into itself

Values here are discounted rewards to be maximised, (n, m) tables over states and goals. Goals enter through embeddings
(m, d): phi(g) for single states, mean embeddings for regions, linear mixtures for compositions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.theory.chains import ControlledProcess, Matrix, as_chain, as_policy
from iel.theory.representation import TOLERANCE, Representation, check_features


def region_embedding(features: np.ndarray, distribution: np.ndarray) -> np.ndarray:
    """mu_g = E_{y ~ rho_g} phi(y) for distributions over states (m, n) -> (m, d)."""
    weights = np.atleast_2d(np.asarray(distribution, dtype=np.float64))
    if weights.min() < 0 or np.abs(weights.sum(axis=1) - 1).max() > 1e-9:
        raise ChainError("A goal region must be a probability distribution over states: normalise its weights to 1.")
    return weights @ features


def reward_table(features: np.ndarray, operators: np.ndarray, goals: np.ndarray | None = None) -> np.ndarray:
    """r(x, a, g) = <phi(x), R_a mu_g> as a table (|A|, n, m); goals default to all states' embeddings."""
    return np.einsum("xd,ade,ge->axg", features, operators, features if goals is None else goals)


@dataclass(frozen=True)
class RewardFit:
    """The nearest bilinear reward and how far the given one is from it."""

    operators: np.ndarray
    residual: float

    @property
    def in_span(self) -> bool:
        return self.residual <= TOLERANCE


def fit_reward(features: np.ndarray, rewards: np.ndarray) -> RewardFit:
    """The operators R_a whose reward table (|A|, n, n) is nearest in least squares; residual = largest difference."""
    table = check_features(features, rewards.shape[1])
    left = np.linalg.lstsq(table, np.moveaxis(rewards, 0, 1).reshape(len(table), -1), rcond=None)[0]
    left = np.moveaxis(left.reshape(table.shape[1], rewards.shape[0], -1), 1, 0)
    operators = np.stack([np.linalg.lstsq(table, part.T, rcond=None)[0].T for part in left])
    return RewardFit(operators, float(np.abs(reward_table(table, operators) - rewards).max()))


def policy_reward_operator(features: np.ndarray, operators: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """R_pi with <phi(x), R_pi mu> = sum_a pi(a | x) <phi(x), R_a mu>; an error when no operator does this."""
    wanted = np.einsum("xa,xd,ade->xe", policy, features, operators)
    solution = np.linalg.lstsq(features, wanted, rcond=None)[0]
    if np.abs(features @ solution - wanted).max() > TOLERANCE * max(1.0, np.abs(wanted).max()):
        raise ChainError(
            "The policy's reward is not latent-linear: its action probabilities vary between states whose features are "
            "dependent, so use a state-independent mixture or larger features."
        )
    return solution


def discounted_values(chain: Matrix, rewards: np.ndarray, discount: float) -> np.ndarray:
    """Exact policy evaluation: (I - gamma P)^{-1} r for rewards (n, m)."""
    _check_discount(discount)
    dense = as_chain(chain).toarray()
    return np.linalg.solve(np.eye(len(dense)) - discount * dense, rewards)


def evaluation_operator(operator: np.ndarray, reward_operator: np.ndarray, discount: float) -> np.ndarray:
    """S_pi = (I - gamma K_pi^*)^{-1} R_pi (fixed-policy evaluation span)."""
    _check_discount(discount)
    system = np.eye(len(operator)) - discount * operator.T
    if np.linalg.cond(system) > 1e12:
        raise ChainError(
            f"I - {discount:g} K_pi^* is singular: K_pi has an eigenvalue 1 / {discount:g}, which features that span "
            "their space exclude, so drop dependent columns."
        )
    return np.linalg.solve(system, reward_operator)


def bilinear_values(features: np.ndarray, operator: np.ndarray, goals: np.ndarray | None = None) -> np.ndarray:
    """<phi(x), S mu_g> as a table (n, m)."""
    return features @ operator @ (features if goals is None else goals).T


def action_value_operators(
    representation: Representation, reward_operators: np.ndarray, value_operator: np.ndarray, discount: float
) -> np.ndarray:
    """R_a + gamma K_a^* S for every action: the action-value span, for S = S_pi or S = S*."""
    return reward_operators + discount * np.swapaxes(representation.operators, 1, 2) @ value_operator


def action_values(process: ControlledProcess, rewards: np.ndarray, values: np.ndarray, discount: float) -> np.ndarray:
    """Q(x, a, g) = r(x, a, g) + gamma E[V(x', g)] as a table (|A|, n, m)."""
    return rewards + discount * process.expected(values)


def optimal_bellman(process: ControlledProcess, rewards: np.ndarray, values: np.ndarray, discount: float) -> np.ndarray:
    """(B* V)(x, g) = max_a Q(x, a, g)."""
    return action_values(process, rewards, values, discount).max(axis=0)


def optimal_values(process: ControlledProcess, rewards: np.ndarray, discount: float) -> np.ndarray:
    """V* by value iteration to 1e-12, goals side by side."""
    _check_discount(discount)
    values = np.zeros(rewards.shape[1:])
    scale = max(1.0, float(np.abs(rewards).max()) / (1.0 - discount))
    while True:
        updated = optimal_bellman(process, rewards, values, discount)
        if np.abs(updated - values).max() * discount <= 1e-13 * scale * (1.0 - discount) + 1e-15:
            return updated
        values = updated


def nearest_bilinear(features: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The S whose table <phi(x), S phi(g)> is nearest to values (n, n) in least squares, and the largest difference."""
    fit = fit_reward(features, values[None])
    return fit.operators[0], fit.residual


def is_lattice(features: np.ndarray) -> bool:
    """Whether span of the feature columns is closed under pointwise maxima.

    True iff the non-zero rows of phi lie on exactly rank-many rays: functions are then free on each group of
    states and proportional inside it, and a maximum of two such functions is another one.
    """
    lengths = np.linalg.norm(features, axis=1)
    rows = features[lengths > 0] / lengths[lengths > 0][:, None]
    rays = len(np.unique(np.round(rows, 9) + 0.0, axis=0))
    return rays == int(np.linalg.matrix_rank(features))


@dataclass(frozen=True)
class Closure:
    """Latent optimal Bellman closure: proved, refuted, or not decided."""

    certificate: str | None
    """Why the class is closed, or None."""
    distance: float
    """Largest sup-distance of B* V_S from the class over the sampled S, relative to the size of B* V_S."""

    @property
    def closed(self) -> bool | None:
        """True: proved. False: a sampled S leaves the class. None: neither."""
        if self.certificate is not None:
            return True
        return False if self.distance > TOLERANCE else None


def bellman_closure(
    process: ControlledProcess,
    representation: Representation,
    reward_operators: np.ndarray,
    discount: float,
    generator: np.random.Generator,
    samples: int = 64,
) -> Closure:
    """Check B* V_phi inside V_phi. Maximising over actions is the only step that can leave the class."""
    features = check_features(representation.features, process.states)
    rewards = reward_table(features, reward_operators)
    distance = 0.0
    for _ in range(samples):
        weight = generator.normal(size=(features.shape[1],) * 2) * 10.0 ** generator.uniform(-2, 2)
        image = optimal_bellman(process, rewards, bilinear_values(features, weight), discount)
        distance = max(distance, nearest_bilinear(features, image)[1] / max(1e-12, float(np.abs(image).max())))
    expected = process.expected(features)
    moved = np.einsum("xd,aed->axe", features, representation.operators)
    linear = np.abs(expected - moved).max() <= TOLERANCE * max(1.0, np.abs(expected).max())
    if linear and process.actions == 1:
        return Closure("one action: the Bellman operator is affine and stays in the span", distance)
    if linear and is_lattice(features):
        return Closure("the features form a lattice: a maximum of latent functions is latent", distance)
    return Closure(None, distance)


@dataclass(frozen=True)
class OptimalSpan:
    """V* against the span: S*, the distance of V* from it, and the closure check."""

    operator: np.ndarray
    residual: float
    closure: Closure
    values: np.ndarray

    @property
    def in_span(self) -> bool:
        return self.residual <= TOLERANCE * max(1.0, float(np.abs(self.values).max()))


def optimal_span(
    process: ControlledProcess,
    representation: Representation,
    reward_operators: np.ndarray,
    discount: float,
    generator: np.random.Generator,
) -> OptimalSpan:
    """Solve the control problem exactly and fit S*; where closure fails `residual` is the distance to the span."""
    values = optimal_values(process, reward_table(representation.features, reward_operators), discount)
    operator, residual = nearest_bilinear(representation.features, values)
    closure = bellman_closure(process, representation, reward_operators, discount, generator)
    return OptimalSpan(operator, residual, closure, values)


def policy_rewards(process: ControlledProcess, policy: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """r_pi(x, g) = sum_a pi(a | x) r(x, a, g)."""
    return np.einsum("xa,axg->xg", as_policy(process, policy), rewards)


def _check_discount(discount: float) -> None:
    if not 0.0 < discount < 1.0:
        raise ChainError(f"The discount is {discount}: choose a number strictly between 0 and 1.")
