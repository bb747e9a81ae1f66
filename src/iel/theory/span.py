"""Which other tasks the same representation solves (appendix "Problem span").

    reward        r(x, a, g) = <phi(x), R_a phi(g)>                                  latent bilinear reward span
    evaluation    V_pi(x, g) = <phi(x), S_pi phi(g)>,  S_pi = (I - gamma K_pi^*)^{-1} R_pi
    action value  Q_pi(x, a, g) = <phi(x), (R_a + gamma K_a^* S_pi) phi(g)>
    control       V*(x, g) = <phi(x), S* phi(g)>  if the optimal Bellman operator maps {<phi, S phi>} into itself

Values here are discounted rewards to be maximised, (n, m) tables over states and goals. Goals enter through embeddings
(m, d): phi(g) for single states, mean embeddings for regions, linear mixtures for compositions.
"""

from collections.abc import Iterator

import numpy as np

from iel.theory.builders import affine_process, lumpable
from iel.theory.chains import ControlledProcess, Matrix, as_chain, policy_chain
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, coordinates, statement
from iel.theory.representation import (
    TOLERANCE,
    Representation,
    fit_representation,
    linear_map,
    policy_operator,
    sufficiency_residual,
    transform,
)

DISCOUNT = 0.9
POINTS = np.array([-1.5, -0.5, 0.5, 1.5])


def reward_table(features: np.ndarray, operators: np.ndarray, goals: np.ndarray | None = None) -> np.ndarray:
    """r(x, a, g) = <phi(x), R_a mu_g> as a table (|A|, n, m); goals default to all states' embeddings."""
    return np.einsum("xd,ade,ge->axg", features, operators, features if goals is None else goals)


def fit_reward(features: np.ndarray, rewards: np.ndarray) -> tuple[np.ndarray, float]:
    """The operators R_a whose reward table (|A|, n, n) is nearest in least squares, and the largest difference."""
    onto = np.linalg.pinv(features)
    operators = onto @ rewards @ onto.T
    return operators, float(np.abs(reward_table(features, operators) - rewards).max())


def distance_from_span(features: np.ndarray, values: np.ndarray) -> float:
    """How far the nearest table <phi(x), S phi(g)> (in least squares) is from values (n, n), at most."""
    return fit_reward(features, values[None])[1]


def policy_reward_operator(features: np.ndarray, operators: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """R_pi with <phi(x), R_pi mu> = sum_a pi(a | x) <phi(x), R_a mu>; an error when no operator does this."""
    wanted = np.einsum("xa,xd,ade->xe", policy, features, operators)
    return linear_map(features, wanted, "The policy's reward is not latent-linear", "enlarge the features")


def discounted_values(chain: Matrix, rewards: np.ndarray) -> np.ndarray:
    """Exact policy evaluation: (I - gamma P)^{-1} r for rewards (n, m)."""
    dense = as_chain(chain).toarray()
    return np.linalg.solve(np.eye(len(dense)) - DISCOUNT * dense, rewards)


def evaluation_operator(operator: np.ndarray, reward_operator: np.ndarray) -> np.ndarray:
    """S_pi = (I - gamma K_pi^*)^{-1} R_pi (fixed-policy evaluation span)."""
    return np.linalg.solve(np.eye(len(operator)) - DISCOUNT * operator.T, reward_operator)


def bilinear_values(features: np.ndarray, operator: np.ndarray) -> np.ndarray:
    """<phi(x), S phi(g)> as a table (n, n)."""
    return features @ operator @ features.T


def action_value_operators(representation: Representation, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
    """R_a + gamma K_a^* S for every action: the action-value span, for S = S_pi or S = S*."""
    return rewards + DISCOUNT * np.swapaxes(representation.operators, 1, 2) @ values


def action_values(process: ControlledProcess, rewards: np.ndarray, values: np.ndarray, discount: float) -> np.ndarray:
    """Q(x, a, g) = r(x, a, g) + gamma E[V(x', g)] as a table (|A|, n, m)."""
    return rewards + discount * process.expected(values)


def optimal_values(process: ControlledProcess, rewards: np.ndarray, discount: float) -> np.ndarray:
    """V* by value iteration, (B* V)(x, g) = max_a Q(x, a, g), to 1e-12, goals side by side."""
    values = np.zeros(rewards.shape[1:])
    scale = max(1.0, float(np.abs(rewards).max()) / (1.0 - discount))
    while True:
        updated = action_values(process, rewards, values, discount).max(axis=0)
        if np.abs(updated - values).max() * discount <= 1e-13 * scale * (1.0 - discount) + 1e-15:
            return updated
        values = updated


def is_lattice(features: np.ndarray) -> bool:
    """Whether span of the feature columns is closed under pointwise maxima.

    True iff the non-zero rows of phi lie on exactly rank-many rays: functions are then free on each group of
    states and proportional inside it, and a maximum of two such functions is another one.
    """
    lengths = np.linalg.norm(features, axis=1)
    rows = features[lengths > 0] / lengths[lengths > 0][:, None]
    rays = len(np.unique(np.round(rows, 9) + 0.0, axis=0))
    return rays == int(np.linalg.matrix_rank(features))


def bellman_closure(
    process: ControlledProcess,
    representation: Representation,
    reward_operators: np.ndarray,
    generator: np.random.Generator,
) -> tuple[bool | None, float]:
    """Check B* V_phi inside V_phi: True if proved, False if a sampled S leaves the class, else None; and the largest
    sup-distance of B* V_S from the class over the sampled S, relative to B* V_S.

    Maximising over actions is the only step that can leave the class. With one action the Bellman operator is affine
    and stays in the span; in a lattice a maximum of latent functions is latent.
    """
    features = representation.features
    rewards = reward_table(features, reward_operators)
    distance = 0.0
    for _ in range(64):
        weight = generator.normal(size=(features.shape[1],) * 2) * 10.0 ** generator.uniform(-2, 2)
        image = action_values(process, rewards, bilinear_values(features, weight), DISCOUNT).max(axis=0)
        distance = max(distance, distance_from_span(features, image) / max(1e-12, float(np.abs(image).max())))
    linear = sufficiency_residual(process, representation).max() <= TOLERANCE * max(1.0, np.abs(features).max())
    if linear and (process.actions == 1 or is_lattice(features)):
        return True, distance
    return False if distance > TOLERANCE else None, distance


def lumped(
    generator: np.random.Generator, states: int, actions: int
) -> tuple[ControlledProcess, Representation, np.ndarray]:
    """A sufficient representation with three dimensions for more states: groups that move as one."""
    groups = np.concatenate([np.arange(3), generator.integers(0, 3, states - 3)])
    process = lumpable(groups, actions, generator)
    merged = fit_representation(process, np.eye(3)[groups])
    return process, transform(merged, coordinates(generator, 3)), groups


def line(generator: np.random.Generator) -> tuple[ControlledProcess, Representation]:
    """Two actions that move four points of a line to affine means: (1, f) is sufficient, and no lattice."""
    process = affine_process(POINTS, generator.uniform(0.2, 0.7, 2), generator.uniform(-0.3, 0.3, 2))
    return process, fit_representation(process, np.column_stack([np.ones(4), POINTS]))


@statement(
    "Definition, latent bilinear rewards",
    "r(x, a, g) = <phi(x), R_a phi(g)>; regions and mixtures by means",
    "definition",
)
def rewards_in_span(generator: np.random.Generator) -> Iterator[Evidence]:
    features, operators = generator.normal(size=(6, 3)), generator.normal(size=(2, 3, 3))
    inside = fit_reward(features, reward_table(features, operators))[1]
    outside = fit_reward(features, np.eye(6)[None])[1]
    weights = generator.dirichlet(np.ones(6))
    region = reward_table(features, operators, weights[None] @ features)[:, :, 0]  # mu_g = E_{y ~ rho_g} phi(y)
    gap = np.abs(region - reward_table(features, operators) @ weights).max()
    numbers = {"residual in the span": inside, "of 1{x = g}": outside, "region against its mean": gap}
    yield Evidence("three features of six states", numbers, max(inside, gap) < ROUNDING < 0.1 < outside)


@statement("Proposition, fixed-policy evaluation span", "V_pi = <phi, (I - gamma K*)^-1 R phi(g)>", "sharper")
def evaluation(generator: np.random.Generator) -> Iterator[Evidence]:
    values, actions, radius = 0.0, 0.0, 0.0
    for _ in range(INSTANCES):
        process, representation, groups = lumped(generator, int(generator.integers(3, 7)), 2)
        features = representation.features
        policy, rewards = generator.dirichlet(np.ones(2), size=3)[groups], generator.normal(size=(2, 3, 3))
        operator = policy_operator(process, representation, policy)
        radius = max(radius, np.abs(np.linalg.eigvals(operator)).max())
        solved = evaluation_operator(operator, policy_reward_operator(features, rewards, policy))
        table = reward_table(features, rewards)
        exact = discounted_values(policy_chain(process, policy), np.einsum("xa,axg->xg", policy, table))
        values = max(values, np.abs(bilinear_values(features, solved) - exact).max())
        each = reward_table(features, action_value_operators(representation, rewards, solved))
        actions = max(actions, np.abs(each - action_values(process, table, exact, DISCOUNT)).max())
    numbers = {"largest error of V": values, "of Q": actions}
    yield Evidence(f"{INSTANCES} lumped processes", numbers, max(values, actions) < 1e-7)
    text = "the same: I - gamma K* is always invertible on the span"
    yield Evidence(text, {"radius of K": radius}, radius <= 1 + ROUNDING)


@statement("Proposition, action-value span", "Q_pi = <phi, (R_a + gamma K_a* S_pi) phi(g)>", "holds")
def values_of_actions(generator: np.random.Generator) -> Iterator[Evidence]:
    process, representation, _ = lumped(generator, 6, 2)
    features, rewards, solved = representation.features, generator.normal(size=(2, 3, 3)), generator.normal(size=(3, 3))
    exact = action_values(process, reward_table(features, rewards), bilinear_values(features, solved), DISCOUNT)
    wrong = Representation(features, representation.operators + 0.1 * generator.normal(size=(2, 3, 3)))
    error, broken = (
        np.abs(reward_table(features, action_value_operators(own, rewards, solved)) - exact).max()
        for own in (representation, wrong)
    )
    numbers = {"error": error, "with wrong K_a": broken}
    yield Evidence("a lumped process and a random S", numbers, error < ROUNDING < 0.01 < broken)


@statement("Definition, optimal Bellman closure", "B* maps the latent value class into itself", "definition")
def closure(generator: np.random.Generator) -> Iterator[Evidence]:
    process, representation, _ = lumped(generator, 5, 2)
    closed, inside = bellman_closure(process, representation, generator.normal(size=(2, 3, 3)), generator)
    left, outside = bellman_closure(*line(generator), generator.normal(size=(2, 2, 2)), generator)
    numbers = {"distance of groups that move as one": inside, "of (1, f) on a line": outside}
    yield Evidence("64 random members of each class", numbers, closed is True and left is False)


@statement("Proposition, optimal-control span", "under closure V* and Q* are bilinear", "sharper")
def control(generator: np.random.Generator) -> Iterator[Evidence]:
    def best(process: ControlledProcess, features: np.ndarray, rewards: np.ndarray, discount: float) -> float:
        """The distance of V* from the span."""
        return distance_from_span(features, optimal_values(process, reward_table(features, rewards), discount))

    residual, outside, refuted = 0.0, 0.0, 0
    for _ in range(INSTANCES):
        process, representation, _ = lumped(generator, int(generator.integers(3, 6)), 2)
        residual = max(residual, best(process, representation.features, generator.normal(size=(2, 3, 3)), 0.7))
    yield Evidence(f"{INSTANCES} closed processes", {"largest distance of V* from the span": residual}, residual < 1e-7)
    for _ in range(10):
        process, representation = line(generator)
        rewards = generator.normal(size=(2, 2, 2))
        outside = max(outside, best(process, representation.features, rewards, DISCOUNT))
        refuted += bellman_closure(process, representation, rewards, generator)[0] is False
    yield Evidence("10 processes without closure", {"largest distance": outside}, outside > 0.05 and refuted == 10)
    dominating = np.zeros((2, 2, 2))
    dominating[0, 0, 0] = 1.0  # action 0 always pays one more than action 1, the constant features' product
    distance = best(process, representation.features, dominating, DISCOUNT)
    closed, left = bellman_closure(process, representation, dominating, generator)
    text = "a dominating action: not closed, yet V* in the span, so closure is sufficient and not necessary"
    numbers = {"distance": distance, "distance of the class": left}
    yield Evidence(text, numbers, distance <= 10 * TOLERANCE and closed is False)
