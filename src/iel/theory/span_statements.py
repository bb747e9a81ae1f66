"""Checks of the appendix "Problem span" and of the planner's distance; see `statements.py`."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from iel.distances import directed
from iel.theory.builders import affine_process, lumpable
from iel.theory.chains import ControlledProcess, policy_chain
from iel.theory.diagnostics import when_it_works
from iel.theory.representation import Representation, fit_representation, merged_features, policy_operator, transform
from iel.theory.span import (
    action_value_operators,
    action_values,
    bellman_closure,
    bilinear_values,
    discounted_values,
    evaluation_operator,
    fit_reward,
    nearest_bilinear,
    optimal_span,
    optimal_values,
    policy_reward_operator,
    policy_rewards,
    region_embedding,
    reward_table,
)
from iel.theory.statements import INSTANCES, ROUNDING, Evidence, coordinates, statement

DISCOUNT = 0.9
POINTS = np.array([-1.5, -0.5, 0.5, 1.5])


def lumped(
    generator: np.random.Generator, states: int, actions: int
) -> tuple[ControlledProcess, Representation, np.ndarray]:
    """A sufficient representation with three dimensions for more states: groups that move as one."""
    groups = np.concatenate([np.arange(3), generator.integers(0, 3, states - 3)])
    process = lumpable(groups, actions, generator)
    merged = fit_representation(process, merged_features(states, groups))
    return process, transform(merged, coordinates(generator, 3)), groups


@statement(
    "Definition, latent bilinear rewards",
    "r(x, a, g) = <phi(x), R_a phi(g)>; regions and mixtures by means",
    "definition",
)
def _rewards(generator: np.random.Generator) -> list[Evidence]:
    features, operators = generator.normal(size=(6, 3)), generator.normal(size=(2, 3, 3))
    inside = fit_reward(features, reward_table(features, operators)).residual
    outside = fit_reward(features, np.eye(6)[None]).residual
    weights = generator.dirichlet(np.ones(6))
    region = reward_table(features, operators, region_embedding(features, weights))[:, :, 0]
    gap = np.abs(region - reward_table(features, operators) @ weights).max()
    numbers = {"residual in the span": inside, "of 1{x = g}": outside, "region against its mean": gap}
    return [Evidence("three features of six states", numbers, bool(max(inside, gap) < ROUNDING < 0.1 < outside))]


@statement("Proposition, fixed-policy evaluation span", "V_pi = <phi, (I - gamma K*)^-1 R phi(g)>", "sharper")
def _evaluation(generator: np.random.Generator) -> list[Evidence]:
    values, actions, radius = 0.0, 0.0, 0.0
    for _ in range(INSTANCES):
        process, representation, groups = lumped(generator, int(generator.integers(3, 7)), 2)
        policy, rewards = generator.dirichlet(np.ones(2), size=3)[groups], generator.normal(size=(2, 3, 3))
        operator = policy_operator(process, representation, policy)
        radius = max(radius, np.abs(np.linalg.eigvals(operator)).max())
        solved = evaluation_operator(
            operator, policy_reward_operator(representation.features, rewards, policy), DISCOUNT
        )
        table = reward_table(representation.features, rewards)
        exact = discounted_values(policy_chain(process, policy), policy_rewards(process, policy, table), DISCOUNT)
        values = max(values, np.abs(bilinear_values(representation.features, solved) - exact).max())
        each = reward_table(representation.features, action_value_operators(representation, rewards, solved, DISCOUNT))
        actions = max(actions, np.abs(each - action_values(process, table, exact, DISCOUNT)).max())
    return [
        Evidence(
            f"{INSTANCES} lumped processes",
            {"largest error of V": values, "of Q": actions},
            max(values, actions) < 1e-7,
        ),
        Evidence(
            "the same: I - gamma K* is always invertible on the span", {"radius of K": radius}, radius <= 1 + ROUNDING
        ),
    ]


@statement("Proposition, action-value span", "Q_pi = <phi, (R_a + gamma K_a* S_pi) phi(g)>", "holds")
def _action_values(generator: np.random.Generator) -> list[Evidence]:
    process, representation, _ = lumped(generator, 6, 2)
    rewards, solved = generator.normal(size=(2, 3, 3)), generator.normal(size=(3, 3))
    exact = action_values(
        process,
        reward_table(representation.features, rewards),
        bilinear_values(representation.features, solved),
        DISCOUNT,
    )
    right = reward_table(representation.features, action_value_operators(representation, rewards, solved, DISCOUNT))
    wrong = Representation(representation.features, representation.operators + 0.1 * generator.normal(size=(2, 3, 3)))
    broken = reward_table(wrong.features, action_value_operators(wrong, rewards, solved, DISCOUNT))
    numbers = {"error": np.abs(right - exact).max(), "with wrong K_a": np.abs(broken - exact).max()}
    return [
        Evidence(
            "a lumped process and a random S",
            numbers,
            bool(numbers["error"] < ROUNDING < 0.01 < numbers["with wrong K_a"]),
        )
    ]


@statement("Definition, optimal Bellman closure", "B* maps the latent value class into itself", "definition")
def _closure(generator: np.random.Generator) -> list[Evidence]:
    process, representation, _ = lumped(generator, 5, 2)
    rewards = generator.normal(size=(2, 3, 3))
    closed = bellman_closure(process, representation, rewards, DISCOUNT, generator)
    process = affine_process(POINTS, generator.uniform(0.2, 0.7, 2), generator.uniform(-0.3, 0.3, 2))
    features = fit_representation(process, np.column_stack([np.ones(4), POINTS]))
    left = bellman_closure(process, features, generator.normal(size=(2, 2, 2)), DISCOUNT, generator)
    numbers = {"distance of groups that move as one": closed.distance, "of (1, f) on a line": left.distance}
    return [Evidence("64 random members of each class", numbers, closed.closed is True and left.closed is False)]


@statement("Proposition, optimal-control span", "under closure V* and Q* are bilinear", "sharper")
def _control(generator: np.random.Generator) -> list[Evidence]:
    residual, outside = 0.0, 0.0
    for _ in range(INSTANCES):
        process, representation, _ = lumped(generator, int(generator.integers(3, 6)), 2)
        best = optimal_values(process, reward_table(representation.features, generator.normal(size=(2, 3, 3))), 0.7)
        residual = max(residual, nearest_bilinear(representation.features, best)[1])
    for _ in range(10):
        process = affine_process(POINTS, generator.uniform(0.2, 0.7, 2), generator.uniform(-0.3, 0.3, 2))
        features = fit_representation(process, np.column_stack([np.ones(4), POINTS]))
        found = optimal_span(process, features, generator.normal(size=(2, 2, 2)), DISCOUNT, generator)
        outside = max(outside, found.residual)
    dominating = np.zeros((2, 2, 2))
    dominating[0, 0, 0] = 1.0  # action 0 always pays one more than action 1, the constant features' product
    found = optimal_span(process, features, dominating, DISCOUNT, generator)
    return [
        Evidence(f"{INSTANCES} closed processes", {"largest distance of V* from the span": residual}, residual < 1e-7),
        Evidence("10 processes without closure", {"largest distance": outside}, outside > 0.05),
        Evidence(
            "a dominating action: not closed, yet V* in the span, so closure is sufficient and not necessary",
            {"distance": found.residual, "distance of the class": found.closure.distance},
            found.in_span and found.closure.closed is False,
        ),
    ]


@statement("When should it work, (i) to (v)", "closure, goals, rewards, horizon, optimal control", "definition")
def _conditions(generator: np.random.Generator) -> list[Evidence]:
    lines = []
    for name, slopes in (("actions that move alike", (0.5, 0.5)), ("actions that pull apart", (0.8, -0.8))):
        starts, taken = generator.choice(POINTS, 4000), generator.integers(2, size=4000)
        ends = np.array(slopes)[taken] * starts + 0.1 * generator.normal(size=4000)
        phi = np.stack([starts, ends], axis=1).reshape(-1, 1)
        actions = np.repeat(np.eye(2)[taken], 2, axis=0)
        found = when_it_works(
            phi,
            actions,
            np.arange(4001) * 2,
            generator,
            attributes=phi,
            rewards=phi[:, 0] ** 2,
        )
        numbers = {
            f"({n})": v for n, v in zip(("i", "ii", "iii", "iv", "v"), astuple(found), strict=True) if v is not None
        }
        wanted = numbers["(i)"] < 0.1 and numbers["(ii)"] < 1e-6 < 0.5 < numbers["(iii)"]
        closed = found.maximum < 1e-3 if slopes[0] == slopes[1] else found.maximum > 0.3
        text = f"8000 states on a line, phi = x, reward x^2, {name}: share lost"
        lines.append(Evidence(text, numbers, bool(wanted and closed)))
    return lines


# When the planner's directed distance (`iel.distances.directed`) is a norm of the displacement, for one fixed goal.
#
#     n(D) = ||D|| exp(beta (1 - cos(D, w))),   D = phi(t) - phi(s),   w = omega_g of length one.
#
# n is positively homogeneous, and in the plane of D and w it is the gauge with polar radius
# N(theta) = exp(beta (1 - cos theta)). Such a gauge is convex iff N + N'' >= 0, here 1 + beta cos + beta^2 sin^2 >= 0
# for every angle, whose minimum 1 - beta is at theta = pi. So in two or more dimensions and for a fixed goal
#
#     n is an asymmetric norm (triangle inequality)  iff  0 <= beta <= 1,
#     ||D|| <= n(D) <= e^{2 beta} ||D||,     n(-D) / n(D) = exp(2 beta cos) <= e^{2 beta},     <D, w> <= ||D|| <= n(D).
#
# With the goal's own direction on every leg, d(x, y; y) + d(y, g; g) may be smaller than d(x, g; g): the triangle
# inequality belongs to one goal at a time.


def triangle_gap(first: np.ndarray, second: np.ndarray, direction: np.ndarray, beta: float) -> np.ndarray:
    """n(D1) + n(D2) - n(D1 + D2): negative where the triangle inequality fails."""
    start = np.zeros_like(first)
    through = directed(start, first, direction, beta) + directed(start, second, direction, beta)
    return through - directed(start, first + second, direction, beta)


def convexity_margin(beta: float) -> float:
    """min over angles of (N + N'') / N = 1 + beta cos + beta^2 sin^2: negative iff n is no norm."""
    # Concave in the cosine, so the minimum sits at cos = -1 or cos = +1.
    return min(1.0 - beta, 1.0 + beta)


@statement("Planner's distance", "d(s, t; g) obeys the triangle inequality for a fixed goal", "holds")
def _triangle(generator: np.random.Generator) -> list[Evidence]:
    first, second = generator.normal(size=(2, 20_000, 3))
    direction = generator.normal(size=(20_000, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    gaps = {f"beta = {beta}": float(triangle_gap(first, second, direction, beta).min()) for beta in (0.1, 1.0)}
    axis = np.array([1.0, 0.0])
    beyond = float(triangle_gap(np.array([-1.0, 0.3]), np.array([-1.0, -0.3]), axis, 1.2))
    own = float(triangle_gap(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0]), 1.0))
    mixed = own - (np.e - 1.0)  # the first leg read along its own goal's direction costs 1, not e
    return [
        Evidence("20,000 random pairs, smallest d1 + d2 - d", gaps, min(gaps.values()) > -1e-9),
        Evidence(
            "beta = 1.2 in the plane: around is cheaper than straight against the direction",
            {"d1 + d2 - d": beyond, "convexity margin": convexity_margin(1.2)},
            beyond < -0.01 and convexity_margin(1.2) < 0 <= convexity_margin(1.0),
        ),
        Evidence("beta = 1, every leg with its own goal's direction", {"d1 + d2 - d": mixed}, mixed < -1.0),
    ]
