"""Compression to d dimensions and what it costs (Sufficient Capacity, Lemma 3.2, Theorem 3.3).

Alias table:  basis = orthonormal columns of H inside the ambient space;  features = phi = P_d phi~ in coordinates of H;
operator = T^pi;  goal_projection = P_Q, onto the complement of phi(g);  spectral_radius = rho(T_Q).

Theorem 3.3       sup_{x != g} |V(x, g) - V^(x)|  <=  C_H ||omega_g|| epsilon / (1 - rho(T_Q)),
                  V^(x) = <phi(g) - phi(x), omega_g>,  (T_Q - I)^* omega_g = w_1,
                  with any C_H >= 1 such that ||(I - P_Q)^{-1}||_inf <= C_H / (1 - rho(T_Q)).

(I - P_Q)^{-1} has non-negative entries and row sums V(x, g), so its norm is max_x V(x, g): the horizon that amplifies
errors is the true hitting time, and rho(T_Q) only renames it (docs/theory.md, point 6). The same argument pointwise,
with neither w_1 orthogonal to phi(g) nor the invariance of span phi(g), is

`relative_error_bound`     |V^(x) - V(x, g)|  <=  V(x, g) max_{x != g} |<E[phi(x')] - phi(x), omega> - 1|.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from iel.theory.builders import absorbing, corridor, drift_walk, random_process
from iel.theory.chains import (
    Matrix,
    hitting_time_matrix,
    hitting_times,
    killed_operator,
    policy_chain,
    uniform_policy,
)
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, off_diagonal, statement
from iel.theory.mazes import maze_from_map
from iel.theory.representation import TOLERANCE, linear_map

WALLS = ("11111111", "10011001", "10010001", "11000111", "10010001", "10100101", "10001001", "11111111")
MEDIUM_MAZE = np.array([list(row) for row in WALLS]).astype(int)
"""OGBench's, 1 = wall."""


def spectral_radius(matrix: np.ndarray) -> float:
    """The largest modulus of an eigenvalue; zero for an operator on the zero space."""
    return float(np.abs(np.linalg.eigvals(matrix)).max(initial=0.0))


def compression(operator: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """P A restricted to the span of orthonormal columns, in their coordinates: B^T A B."""
    return basis.T @ operator @ basis


def transient_basis(features: np.ndarray, goal: int) -> np.ndarray:
    """An orthonormal basis of H_Q, the complement of phi(g): (d, d - 1), or the identity when phi(g) = 0."""
    direction = features[goal]
    if not np.any(direction):
        return np.eye(len(direction))
    complete, _ = np.linalg.qr(np.column_stack([direction / np.linalg.norm(direction), np.eye(len(direction))]))
    return complete[:, 1 : len(direction)]


def goal_projection(features: np.ndarray, goal: int) -> np.ndarray:
    """P_Q: the orthogonal projection onto the complement of phi(g); the identity when phi(g) = 0."""
    keep = transient_basis(features, goal)
    return keep @ keep.T


class Capacity(NamedTuple):
    """How well a compressed representation follows the chain, by its Sufficient Capacity epsilon and its leakage."""

    epsilon: float  # max_x || P_d T~ phi~(x) - T phi(x) ||
    consistency: float  # max_x || E[phi(x')] - T phi(x) ||, which Lemma 3.2 bounds by epsilon (they are equal)
    leakage: np.ndarray  # eta(x) = || (I - P_d) E[phi~(x')] ||
    ambient_error: np.ndarray  # || E[phi~(x')] - T phi(x) ||, at most sqrt(epsilon^2 + eta^2) <= epsilon + eta


def compress(chain: Matrix, ambient: np.ndarray, basis: np.ndarray) -> Capacity:
    """Compress ambient features (n, D) and their transition operator to span(basis).

    The ambient features must carry a transition operator T~ with T~ phi~(x) = E[phi~(x')]: an error otherwise.
    """
    expected, features = chain @ ambient, ambient @ basis
    advice = "enlarge them (one-hot always does)"
    transition = linear_map(ambient, expected, "The ambient features do not close linearly under this chain", advice).T
    latent = features @ compression(transition, basis).T
    epsilon = np.linalg.norm((ambient @ transition.T) @ basis - latent, axis=1).max()
    consistency = np.linalg.norm(chain @ features - latent, axis=1).max()
    leakage = np.linalg.norm(expected - (expected @ basis) @ basis.T, axis=1)
    return Capacity(float(epsilon), float(consistency), leakage, np.linalg.norm(expected - latent @ basis.T, axis=1))


def invariant_operator(chain: Matrix, features: np.ndarray, goal: int) -> np.ndarray:
    """The least-squares T with T(span phi(g)) inside span phi(g), as Theorem 3.3 demands.

    In the splitting H = H_g + H_Q the goal keeps itself (T phi(g) = phi(g), right for an absorbing goal) and only
    T on H_Q is fitted, to E[phi(x')] - P_g phi(x) over x != g.
    """
    keep = goal_projection(features, goal)
    onto_goal = np.eye(len(keep)) - keep
    transient = np.delete(np.arange(len(features)), goal)
    inputs = features[transient] @ keep
    targets = (chain @ features)[transient] - features[transient] @ onto_goal
    fitted = np.linalg.lstsq(inputs, targets, rcond=None)[0].T
    return fitted @ keep + onto_goal


class ApproximationBound(NamedTuple):
    """Both sides of Theorem 3.3 and each of its assumptions."""

    exact: np.ndarray
    predicted: np.ndarray
    omega: np.ndarray
    epsilon: float
    spectral_radius: float
    resolvent: float  # ||(I - P_Q)^{-1}||_inf = max_x V(x, g)
    constant: float  # the smallest admissible C_H >= 1
    bound: float
    sharp_bound: float  # resolvent * max |<P_Q xi(x), omega>|: the same proof without its two generous steps
    true_error: float
    unit_cost_residual: float
    assumptions: dict[str, bool]  # the bound is promised only when all hold

    @property
    def applies(self) -> bool:
        return all(self.assumptions.values())


def approximation_bound(chain: Matrix, goal: int, features: np.ndarray, operator: np.ndarray) -> ApproximationBound:
    """Evaluate Theorem 3.3 for a compressed representation (features, operator) of a chain."""
    transient = np.delete(np.arange(len(features)), goal)
    keep, splitting = goal_projection(features, goal), transient_basis(features, goal)
    projected, transient_operator = features[transient] @ splitting, splitting.T @ operator @ splitting
    cost = np.linalg.lstsq(projected, np.ones(len(transient)), rcond=None)[0]
    unit_cost_residual = float(np.abs(projected @ cost - 1.0).max())
    adjoint = transient_operator.T - np.eye(len(transient_operator))
    inner = np.linalg.lstsq(adjoint, cost, rcond=None)[0]
    omega = splitting @ inner
    exact, predicted = hitting_times(chain, goal), (features[goal] - features) @ omega
    residual = chain @ features - features @ operator.T
    epsilon = float(np.linalg.norm(residual, axis=1).max())
    radius, resolvent = spectral_radius(transient_operator), float(exact.max())
    constant = max(1.0, resolvent * (1.0 - radius)) if radius < 1.0 else np.nan
    return ApproximationBound(
        exact=exact,
        predicted=predicted,
        omega=omega,
        epsilon=epsilon,
        spectral_radius=radius,
        resolvent=resolvent,
        constant=constant,
        bound=constant * float(np.linalg.norm(omega)) * epsilon / (1.0 - radius) if radius < 1.0 else np.nan,
        sharp_bound=resolvent * float(np.abs(residual[transient] @ keep @ omega).max()),
        true_error=float(np.abs(exact - predicted)[transient].max()),
        unit_cost_residual=unit_cost_residual,
        assumptions={
            "goal reached almost surely": bool(np.isfinite(resolvent)),
            "unit cost represented orthogonally to the goal": unit_cost_residual <= TOLERANCE,
            "goal subspace invariant": bool(np.linalg.norm(keep @ operator @ features[goal]) <= TOLERANCE),
            "transient spectral radius below one": radius < 1.0,
            "adjoint equation solvable": bool(np.abs(adjoint @ inner - cost).max(initial=0.0) <= TOLERANCE),
        },
    )


class RelativeBound(NamedTuple):
    """The corrected bound: prediction error relative to the true hitting time."""

    exact: np.ndarray
    predicted: np.ndarray
    error: np.ndarray
    bound: np.ndarray  # V(x, g) times the largest |<E[phi(x')] - phi(x), omega> - 1|


def relative_error_bound(chain: Matrix, goal: int, features: np.ndarray, omega: np.ndarray) -> RelativeBound:
    """|V^(x) - V(x, g)| <= V(x, g) * residual for *any* features and any omega, with no further assumption.

    Proof: e = V^ - V vanishes at g and (I - P_Q) e = r with r(x) = <E[phi(x')] - phi(x), omega> - 1, so
    e = (I - P_Q)^{-1} r, and the rows of that non-negative inverse sum to V(x, g).
    """
    drift = (chain @ features - features) @ omega - 1.0
    residual = float(np.abs(np.delete(drift, goal)).max(initial=0.0))
    exact, predicted = hitting_times(chain, goal), (features[goal] - features) @ omega
    return RelativeBound(exact, predicted, np.abs(predicted - exact), exact * residual)


def fit_readout(chain: Matrix, goal: int, features: np.ndarray) -> np.ndarray:
    """The omega whose one-step progress <E[phi(x')] - phi(x), omega> is closest to one in least squares over x != g."""
    drift = np.delete(chain @ features - features, goal, axis=0)
    return np.linalg.lstsq(drift, np.ones(len(drift)), rcond=None)[0]


def slow_subspace(chain: np.ndarray, goal: int, dimension: int) -> np.ndarray:
    """An orthonormal basis (n, d) of span{e_g, 1 - e_g, slowest d - 2 modes of the symmetrised killed walk}."""
    killed, at_goal = killed_operator(chain, goal).toarray(), np.eye(len(chain))[goal]
    values, vectors = np.linalg.eigh((killed + killed.T) / 2.0)
    slow = np.insert(vectors[:, np.argsort(-values)[: dimension - 2]], goal, 0.0, axis=0)
    orthonormal, triangular = np.linalg.qr(np.column_stack([at_goal, 1.0 - at_goal, slow]))
    return orthonormal[:, np.abs(np.diag(triangular)) > 1e-9]


def maze_walk() -> tuple[np.ndarray, int]:
    """A random walk in OGBench's medium maze, one state per half cell, absorbed in the far corner: chain and goal."""
    maze = maze_from_map(MEDIUM_MAZE, subcells=2)
    goal = int(maze.nearest_state(maze.cell_centre((6, 6))))
    ended = absorbing(maze.process(), goal)
    return policy_chain(ended, uniform_policy(ended)).toarray(), goal


@statement(
    "Definitions, linear analysis", "adjoint, norm, projection, restriction, compression, spectrum", "definition"
)
def definitions(generator: np.random.Generator) -> Iterator[Evidence]:
    operator, basis = generator.normal(size=(5, 5)), np.linalg.qr(generator.normal(size=(5, 3)))[0]
    onto = basis @ basis.T
    gap = np.abs(basis @ compression(operator, basis) @ basis.T - onto @ operator @ onto).max()
    nilpotent = spectral_radius(np.diag(np.ones(3), 1))
    numbers = {"compression against P A P": gap, "radius of a shift of norm 1": nilpotent}
    yield Evidence("a random matrix and subspace; a nilpotent shift", numbers, gap < 1e-12 and nilpotent < 1e-3)


@statement("Lemma, orthogonality of P_Q", "P_Q is the orthogonal projection off phi(g)", "holds")
def projection(generator: np.random.Generator) -> Iterator[Evidence]:
    worst = 0.0
    for _ in range(INSTANCES):
        features = generator.normal(size=(4, int(generator.integers(1, 6))))
        keep = goal_projection(features, 2)
        gaps = (keep @ keep - keep, keep - keep.T, keep @ features[2])
        worst = max(worst, *(float(np.abs(gap).max()) for gap in gaps))
    yield Evidence(f"{INSTANCES} random features", {"P^2 = P = P^T, P phi(g) = 0 up to": worst}, worst < 1e-10)


@statement(
    "Lemma 3.2", "sufficient capacity is consistent; leaving the subspace costs at most epsilon + eta", "sharper"
)
def capacity(generator: np.random.Generator) -> Iterator[Evidence]:
    plain, squares, gap = 0.0, 0.0, 0.0
    for _ in range(INSTANCES):
        states = int(generator.integers(3, 8))
        chain = random_process(states, 1, generator).transitions[0]
        basis = np.linalg.qr(generator.normal(size=(states, int(generator.integers(1, states)))))[0]
        found = compress(chain, generator.normal(size=(states, states)), basis)
        gap = max(gap, (found.consistency - found.epsilon) / found.epsilon)
        plain = max(plain, (found.ambient_error / (found.epsilon + found.leakage)).max())
        squares = max(squares, (found.ambient_error / np.hypot(found.epsilon, found.leakage)).max())
    sides = {"error / (epsilon + eta)": plain, "error / sqrt of squares": squares}
    holds = gap < ROUNDING and plain <= squares <= 1 + ROUNDING
    yield Evidence(f"{INSTANCES} random compressions", {"consistency above epsilon by": gap, **sides}, holds)


@statement("Theorem 3.3", "sup |V - V^| <= C_H ||omega|| epsilon / (1 - rho(T_Q))", "holds")
def approximation(generator: np.random.Generator) -> Iterator[Evidence]:
    ratio, applicable, norm = 0.0, 0, 0.0
    for _ in range(INSTANCES):
        states, goal = int(generator.integers(4, 9)), 0
        chain = absorbing(random_process(states, 1, generator), goal).transitions[0]
        # One-hot features compressed to a random subspace with e_g and the unit cost 1 - e_g, then skewed a little.
        dimension, at_goal = int(generator.integers(2, states + 1)), np.eye(states)[goal]
        columns = np.column_stack([at_goal, 1.0 - at_goal, generator.normal(size=(states, dimension - 2))])
        features = np.linalg.qr(columns)[0] @ (np.eye(dimension) + 0.2 * generator.normal(size=(dimension, dimension)))
        result = approximation_bound(chain, goal, features, invariant_operator(chain, features, goal))
        if result.applies and result.bound > 1e-6:
            applicable, ratio = applicable + 1, max(ratio, result.true_error / result.bound)
        resolvent = np.abs(np.linalg.inv(np.eye(states - 1) - killed_operator(chain, goal).toarray())).sum(axis=1).max()
        norm = max(norm, abs(resolvent / hitting_times(chain, goal).max() - 1.0))
    text, sound = "random compressions that satisfy the assumptions", ratio <= 1.0 and applicable > INSTANCES // 4
    yield Evidence(f"{applicable} {text}", {"largest error / bound": ratio}, sound)
    yield Evidence("the same: ||(I - P_Q)^-1|| is max V", {"largest relative difference": norm}, norm < ROUNDING)
    # The bound beside the error at d = 16: the one point of the figure in docs/theory.md that people should know.
    chain, goal = maze_walk()
    features = slow_subspace(chain, goal, 16)
    theorem = approximation_bound(chain, goal, features, invariant_operator(chain, features, goal))
    corrected = relative_error_bound(chain, goal, features, fit_readout(chain, goal, features)).bound.max()
    theirs = {"error": theorem.true_error, "bound": theorem.bound, "same proof, sharper": theorem.sharp_bound}
    numbers = {"longest time": theorem.resolvent, **theirs, "corrected": float(corrected)}
    text = "a walk in OGBench's medium maze, 104 states, 16 slow modes"
    yield Evidence(text, numbers, theorem.true_error <= corrected <= theorem.sharp_bound <= theorem.bound)


@statement("Theorem 3.3, its reading", "errors are amplified by 1 / (1 - rho(T_Q)) alone", "fails")
def reading(generator: np.random.Generator) -> Iterator[Evidence]:
    lossy = corridor(24).transitions[0].toarray().T
    lossy[np.arange(1, 23), np.arange(22)] = 0.95  # the latent model loses five per cent of its mass in each step
    found = approximation_bound(corridor(24).transitions[0], 23, np.eye(24), lossy)
    alone = float(np.linalg.norm(found.omega) * found.epsilon / (1.0 - found.spectral_radius))
    numbers = {"error": found.true_error, "||omega|| epsilon / (1 - rho)": alone, "C_H": found.constant}
    hidden = found.applies and found.true_error > alone and abs(found.constant - 23) < ROUNDING
    yield Evidence(
        "a corridor of 24 states with rho(T_Q) = 0: the length of the path is hidden in C_H", numbers, hidden
    )
    walk = np.array([[0.9, 0, 0, 0.1], [0, 0.95, 0, 0.05], [0, 1.0, 0, 0], [0, 0, 0, 1.0]])
    features = np.linalg.qr(np.column_stack([[0, 0, 0, 1.0], [1, 1, 1, 0], [4.0, -3, -1, 0]]))[0]
    found = approximation_bound(walk, 3, features, invariant_operator(walk, features, 3))
    numbers = {"rho(T_Q)": found.spectral_radius, "predicted": found.predicted[1], "true": found.exact[1]}
    beyond = found.spectral_radius > 1 > found.predicted[1]
    yield Evidence("compressing a contracting walk can push rho above 1", numbers, beyond)
    chain = absorbing(random_process(4, 1, np.random.default_rng(10)), 3).transitions[0]
    overlap = np.array([100.0, 50.0, 80.0])
    features = np.eye(4)
    features[:3, 3] = overlap
    operator = np.linalg.solve(features, chain @ features).T
    operator = operator + 0.01 * np.outer([1.0, -1.0, 0.5, 0.0], np.append(-overlap, 1.0))
    found = approximation_bound(chain, 3, features, operator)
    numbers = {"error": found.true_error, "bound": found.bound}
    text = "exact off the goal, off by 0.01 at it: invariance is needed"
    yield Evidence(text, numbers, found.true_error > found.bound)
    smooth = np.cos(np.arange(12) * np.pi * np.linspace(0, 1, 201)[:, None])
    chain = absorbing(random_process(201, 1, generator), 100).transitions[0]
    residual = approximation_bound(chain, 100, smooth, np.eye(12)).unit_cost_residual
    text = "w_1 must jump at the goal: 12 smooth features"
    yield Evidence(text, {"unit-cost residual": residual}, residual > 0.3)
    few, many = (off_diagonal(hitting_time_matrix(drift_walk(n, 0.5))).min() * (n - 1) for n in (11, 101))
    text = "V >= 1 off g: the slope any exact phi needs at the goal grows without end, so none is continuous there"
    yield Evidence(text, {"11 states on [0, 1]": few, "101 states on [0, 1]": many}, many > 9 * few)


@statement(
    "Theorem 3.3, corrected", "|V^ - V|(x) <= V(x, g) max |progress - 1|, for any features and omega", "as corrected"
)
def corrected(generator: np.random.Generator) -> Iterator[Evidence]:
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
    text = f"{INSTANCES} random chains, features and readouts"
    yield Evidence(text, {"largest error / bound": ratio}, ratio <= 1 + ROUNDING)
    text = "the same: error = residual weighted by occupancy"
    yield Evidence(text, {"largest difference": identity}, identity < ROUNDING)
    slow = relative_error_bound(corridor(7).transitions[0], 6, 0.8 * np.arange(7.0)[:, None], np.ones(1))
    numbers = {"error / bound": float((slow.error[:-1] / slow.bound[:-1]).min())}
    attained = np.allclose(slow.error, slow.bound)
    yield Evidence("a corridor with 0.8 units of progress per step: attained", numbers, attained)
    # Half-line, left with 0.7: V = 2.5 x, and (7/3)^x is harmonic, so omega = (-2.5, -1) has progress one everywhere.
    x = np.arange(1.0, 40.0)
    phi = [lambda y: y, lambda y: (7.0 / 3.0) ** y]
    progress = sum(w * (0.3 * f(x + 1) + 0.7 * f(x - 1) - f(x)) for w, f in zip((-2.5, -1.0), phi, strict=True))
    residual = np.abs(progress - 1.0)[:10].max()
    predicted = sum(w * (f(0.0) - f(5.0)) for w, f in zip((-2.5, -1.0), phi, strict=True))
    numbers = {"residual": residual, "predicted V(5, 0)": predicted, "true": 12.5}
    text = "unbounded phi = (x, (7/3)^x) on the half-line: finite X or bounded phi is needed"
    yield Evidence(text, numbers, residual < 1e-6 and abs(predicted - 80.7) < 0.05)
