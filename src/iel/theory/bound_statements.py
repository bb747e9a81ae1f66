"""Checks of the approximation bound, Theorem 3.3: as stated, as read, and as corrected; see `statements.py`."""

from __future__ import annotations

import numpy as np

from iel.theory.bounds import approximation_bound, fit_readout, invariant_operator, relative_error_bound
from iel.theory.builders import absorbing, corridor, drift_walk, random_process
from iel.theory.chains import hitting_time_matrix, hitting_times, killed_operator, policy_chain, uniform_policy
from iel.theory.mazes import maze_from_map
from iel.theory.statements import INSTANCES, ROUNDING, Evidence, off_diagonal, statement

MEDIUM_MAZE = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 0, 0, 1, 1, 0, 0, 1],
        [1, 0, 0, 1, 0, 0, 0, 1],
        [1, 1, 0, 0, 0, 1, 1, 1],
        [1, 0, 0, 1, 0, 0, 0, 1],
        [1, 0, 1, 0, 0, 1, 0, 1],
        [1, 0, 0, 0, 1, 0, 0, 1],
        [1, 1, 1, 1, 1, 1, 1, 1],
    ]
)


def admissible_features(states: int, goal: int, dimension: int, generator: np.random.Generator) -> np.ndarray:
    """One-hot features compressed to a random subspace with e_g and the unit cost 1 - e_g, then skewed a little."""
    outside = 1.0 - np.eye(states)[goal]
    columns = np.column_stack([np.eye(states)[goal], outside, generator.normal(size=(states, dimension - 2))])
    skew = np.eye(dimension) + 0.2 * generator.normal(size=(dimension, dimension))
    return np.linalg.qr(columns)[0] @ skew


def slow_subspace(chain: np.ndarray, goal: int, dimension: int) -> np.ndarray:
    """An orthonormal basis (n, d) of span{e_g, 1 - e_g, slowest d - 2 modes of the symmetrised killed walk}."""
    states = len(chain)
    transient = np.delete(np.arange(states), goal)
    killed = chain[np.ix_(transient, transient)]
    values, vectors = np.linalg.eigh((killed + killed.T) / 2.0)
    slow = np.zeros((states, states - 1))
    slow[transient] = vectors[:, np.argsort(-values)]
    outside = np.ones(states)
    outside[goal] = 0.0
    basis = np.column_stack([np.eye(states)[goal], outside, slow[:, : dimension - 2]])
    orthonormal, triangular = np.linalg.qr(basis)
    return orthonormal[:, np.abs(np.diag(triangular)) > 1e-9]


def maze_walk() -> tuple[np.ndarray, int]:
    """A random walk in OGBench's medium maze, one state per half cell, absorbed in the far corner: chain and goal."""
    maze = maze_from_map(MEDIUM_MAZE, subcells=2)
    goal = int(maze.nearest_state(maze.cell_centre((6, 6))))
    ended = absorbing(maze.process(), goal)
    return policy_chain(ended, uniform_policy(ended)).toarray(), goal


@statement("Theorem 3.3", "sup |V - V^| <= C_H ||omega|| epsilon / (1 - rho(T_Q))", "holds")
def _approximation(generator: np.random.Generator) -> list[Evidence]:
    ratio, applicable, norm = 0.0, 0, 0.0
    for _ in range(INSTANCES):
        states, goal = int(generator.integers(4, 9)), 0
        chain = absorbing(random_process(states, 1, generator), goal).transitions[0]
        features = admissible_features(states, goal, int(generator.integers(2, states + 1)), generator)
        result = approximation_bound(chain, goal, features, invariant_operator(chain, features, goal))
        if result.applies and result.bound > 1e-6:
            applicable, ratio = applicable + 1, max(ratio, result.true_error / result.bound)
        resolvent = np.abs(np.linalg.inv(np.eye(states - 1) - killed_operator(chain, goal).toarray())).sum(axis=1).max()
        norm = max(norm, abs(resolvent / hitting_times(chain, goal).max() - 1.0))
    return [
        Evidence(
            f"{applicable} random compressions that satisfy the assumptions",
            {"largest error / bound": ratio},
            ratio <= 1.0 and applicable > INSTANCES // 4,
        ),
        Evidence("the same: ||(I - P_Q)^-1|| is max V", {"largest relative difference": norm}, norm < ROUNDING),
        _compressed_maze(),
    ]


def _compressed_maze() -> Evidence:
    """The bound beside the error at d = 16: the one point of the figure in docs/theory.md that people should know."""
    chain, goal = maze_walk()
    features = slow_subspace(chain, goal, 16)
    theorem = approximation_bound(chain, goal, features, invariant_operator(chain, features, goal))
    corrected = relative_error_bound(chain, goal, features, fit_readout(chain, goal, features))
    numbers = {
        "longest time": theorem.resolvent,
        "error": theorem.true_error,
        "bound": theorem.bound,
        "same proof, sharper": theorem.sharp_bound,
        "corrected": float(corrected.bound.max()),
    }
    order = [numbers["error"], numbers["corrected"], numbers["same proof, sharper"], numbers["bound"]]
    return Evidence("a walk in OGBench's medium maze, 104 states, 16 slow modes", numbers, order == sorted(order))


@statement("Theorem 3.3, its reading", "errors are amplified by 1 / (1 - rho(T_Q)) alone", "fails")
def _reading(generator: np.random.Generator) -> list[Evidence]:
    lossy = corridor(24).transitions[0].toarray().T
    lossy[np.arange(1, 23), np.arange(22)] = 0.95  # the latent model loses five per cent of its mass in each step
    found = approximation_bound(corridor(24).transitions[0], 23, np.eye(24), lossy)
    alone = float(np.linalg.norm(found.omega) * found.epsilon / (1.0 - found.spectral_radius))
    lines = [
        Evidence(
            "a corridor of 24 states with rho(T_Q) = 0: the length of the way is hidden in C_H",
            {"error": found.true_error, "||omega|| epsilon / (1 - rho)": alone, "C_H": found.constant},
            bool(found.applies and found.true_error > alone and abs(found.constant - 23) < ROUNDING),
        )
    ]
    chain = np.array([[0.9, 0, 0, 0.1], [0, 0.95, 0, 0.05], [0, 1.0, 0, 0], [0, 0, 0, 1.0]])
    features = np.linalg.qr(np.column_stack([[0, 0, 0, 1.0], [1, 1, 1, 0], [4.0, -3, -1, 0]]))[0]
    found = approximation_bound(chain, 3, features, invariant_operator(chain, features, 3))
    numbers = {"rho(T_Q)": found.spectral_radius, "predicted": found.predicted[1], "true": found.exact[1]}
    lines.append(
        Evidence(
            "compressing a contracting walk can push rho above 1",
            numbers,
            bool(found.spectral_radius > 1 > numbers["predicted"]),
        )
    )
    chain = absorbing(random_process(4, 1, np.random.default_rng(10)), 3).transitions[0]
    overlap = np.array([100.0, 50.0, 80.0])
    features = np.eye(4)
    features[:3, 3] = overlap
    operator = np.linalg.solve(features, chain @ features).T
    operator = operator + 0.01 * np.outer([1.0, -1.0, 0.5, 0.0], np.append(-overlap, 1.0))
    found = approximation_bound(chain, 3, features, operator)
    numbers = {"error": found.true_error, "bound": found.bound}
    lines.append(
        Evidence("exact off the goal, off by 0.01 at it: invariance is needed", numbers, found.true_error > found.bound)
    )
    grid = np.linspace(0, 1, 201)
    smooth = np.column_stack([np.ones(201)] + [np.cos(k * np.pi * grid) for k in range(1, 12)])
    chain = absorbing(random_process(201, 1, generator), 100).transitions[0]
    residual = approximation_bound(chain, 100, smooth, np.eye(12)).unit_cost_residual
    lines.append(
        Evidence("w_1 must jump at the goal: 12 smooth features", {"unit-cost residual": residual}, residual > 0.3)
    )
    jumps = {
        f"{n} states on [0, 1]": off_diagonal(hitting_time_matrix(drift_walk(n, 0.5))).min() * (n - 1)
        for n in (11, 101)
    }
    text = "V >= 1 off g: the slope any exact phi needs at the goal grows without end, so none is continuous there"
    return [*lines, Evidence(text, jumps, jumps["101 states on [0, 1]"] > 9 * jumps["11 states on [0, 1]"])]


@statement(
    "Theorem 3.3, corrected", "|V^ - V|(x) <= V(x, g) max |progress - 1|, for any features and omega", "as corrected"
)
def _corrected(generator: np.random.Generator) -> list[Evidence]:
    ratio, identity = 0.0, 0.0
    for _ in range(INSTANCES):
        states = int(generator.integers(3, 9))
        chain = random_process(states, 1, generator, concentration=0.5).transitions[0]
        features = generator.normal(size=(states, int(generator.integers(1, states))))
        omega = fit_readout(chain, 0, features)
        result = relative_error_bound(chain, 0, features, omega)
        ratio = max(ratio, (result.error / (result.bound + 1e-9 * result.exact.max())).max())
        miss = ((chain @ features - features) @ omega - 1.0)[1:]
        occupancy = np.linalg.inv(np.eye(states - 1) - killed_operator(chain, 0).toarray())
        gap = np.abs(occupancy @ miss - (result.predicted - result.exact)[1:]).max() / result.exact.max()
        identity = max(identity, gap)
    attained = relative_error_bound(corridor(7).transitions[0], 6, 0.8 * np.arange(7.0)[:, None], np.ones(1))
    lines = [
        Evidence(
            f"{INSTANCES} random chains, features and readouts", {"largest error / bound": ratio}, ratio <= 1 + ROUNDING
        ),
        Evidence(
            "the same: error = residual weighted by occupancy", {"largest difference": identity}, identity < ROUNDING
        ),
        Evidence(
            "a corridor with 0.8 units of progress per step: attained",
            {"error / bound": float((attained.error[:-1] / attained.bound[:-1]).min())},
            bool(np.allclose(attained.error, attained.bound)),
        ),
    ]
    # Half-line, left with 0.7: V = 2.5 x, and (7/3)^x is harmonic, so omega = (-2.5, -1) has progress one everywhere.
    x = np.arange(1.0, 40.0)
    phi = [lambda y: y, lambda y: (7.0 / 3.0) ** y]
    progress = sum(w * (0.3 * f(x + 1) + 0.7 * f(x - 1) - f(x)) for w, f in zip((-2.5, -1.0), phi, strict=True))
    residual = np.abs(progress - 1.0)[:10].max()
    predicted = sum(w * (f(0.0) - f(5.0)) for w, f in zip((-2.5, -1.0), phi, strict=True))
    numbers = {"residual": residual, "predicted V(5, 0)": predicted, "true": 12.5}
    text = "unbounded phi = (x, (7/3)^x) on the half-line: finite X or bounded phi is needed"
    return [*lines, Evidence(text, numbers, bool(residual < 1e-6 and abs(predicted - 80.7) < 0.05))]
