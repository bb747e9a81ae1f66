"""Every statement of the paper as a check that runs: what was checked, on what, and the numbers (`iel theory`).

A check draws its instances from a generator and returns evidence: numbers, and whether they are what the verdict says.
Verdicts: `holds` (an identity to rounding, or a bound never violated), `assumption`, `definition`, `sharper` (more is
true than is said), `as corrected` (holds after the change docs/theory.md describes), `fails` (the counterexample is the
evidence). tests/theory runs them with another seed, and breaks one assumption at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from iel.theory.bounds import compress
from iel.theory.builders import directed_ring, drift_walk, lumpable, random_policy, random_process
from iel.theory.chains import (
    ControlledProcess,
    hitting_time_matrix,
    hitting_times,
    poisson_residual,
    policy_chain,
    uniform_policy,
)
from iel.theory.identifiability import displacement_isomorphism, displacement_residual, intertwining_residual, pullback
from iel.theory.optimal import optimal_hitting_times
from iel.theory.reachability import can_reach
from iel.theory.recovery import predictions
from iel.theory.representation import (
    compression,
    existence,
    fit_representation,
    goal_projection,
    hitting_time_representation,
    merged_features,
    one_hot_representation,
    range_condition,
    readouts,
    spectral_radius,
    sufficiency_residual,
    transform,
    unit_readouts,
)

INSTANCES = 100
ROUNDING = 1e-8


@dataclass(frozen=True)
class Evidence:
    """One line of the report: the world, the numbers found there, and whether they bear the verdict out."""

    on: str
    numbers: Mapping[str, float]
    holds: bool


Check = Callable[[np.random.Generator], list[Evidence]]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper, in words, with our verdict and the check behind it."""

    name: str
    says: str
    verdict: str
    check: Check


STATEMENTS: list[Statement] = []


def statement(name: str, says: str, verdict: str) -> Callable[[Check], Check]:
    """Register a check under the statement it is about."""

    def register(check: Check) -> Check:
        STATEMENTS.append(Statement(name, says, verdict, check))
        return check

    return register


def check_all(seed: int = 0) -> list[dict[str, Any]]:
    """Run every check; one JSON-safe row per statement, in the order of the paper."""
    from iel.theory import bound_statements, sampling_statements, span_statements  # noqa: F401  (registered in order)

    rows = []
    for number, entry in enumerate(STATEMENTS):
        begin = time.perf_counter()
        evidence = entry.check(np.random.default_rng((seed, number)))
        rows.append(
            {
                "statement": entry.name,
                "says": entry.says,
                "verdict": entry.verdict,
                "holds": all(item.holds for item in evidence),
                "evidence": [
                    {
                        "on": item.on,
                        "holds": bool(item.holds),
                        "numbers": {k: float(v) for k, v in item.numbers.items()},
                    }
                    for item in evidence
                ],
                "seconds": time.perf_counter() - begin,
            }
        )
    return rows


def coordinates(generator: np.random.Generator, dimension: int) -> np.ndarray:
    """A well-conditioned random change of coordinates."""
    left, _ = np.linalg.qr(generator.normal(size=(dimension, dimension)))
    right, _ = np.linalg.qr(generator.normal(size=(dimension, dimension)))
    return left @ np.diag(generator.uniform(0.3, 3.0, dimension)) @ right


def exact_pair(generator: np.random.Generator) -> tuple[Any, ...]:
    """A process, a policy, and two exact representations in unrelated coordinates with their readouts."""
    process = random_process(int(generator.integers(3, 8)), 2, generator)
    policy = random_policy(process, generator)
    first = transform(one_hot_representation(process), coordinates(generator, process.states))
    canonical, canonical_omegas = hitting_time_representation(process, policy)
    return process, policy, first, readouts(process, first, policy), canonical, canonical_omegas


@statement("Problem statement", "a reachable goal has an admissible policy with a finite expected time", "assumption")
def _reachable(generator: np.random.Generator) -> list[Evidence]:
    trap = ControlledProcess.of([np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])])
    time_to_goal = optimal_hitting_times(trap, 1).values[0]
    found = Evidence(
        "goal or trap with equal probability: reachable, but no policy has a finite time",
        {"reachable": can_reach(trap.transitions[0], 1)[0], "optimal time": time_to_goal},
        bool(np.isinf(time_to_goal)),
    )
    # Action a of the open interval (0, 1) reaches the goal with probability 1 - a: every one is beaten by another.
    actions = np.array([0.1, 0.01, 0.001])
    times = [hitting_times(np.array([[a, 1.0 - a], [0.0, 1.0]]), 1)[0] for a in actions]
    return [
        found,
        Evidence(
            "actions a in (0, 1) with success probability 1 - a: the infimum 1 over Pi_D is attained by none",
            {f"V at a = {a:g}": t for a, t in zip(actions, times, strict=True)},
            bool(np.all(np.diff(times) < 0) and min(times) > 1.0),
        ),
    ]


@statement("Lemma, Poisson equation", "(I - P) V = 1 off the goal and V = 0 on it", "holds")
def _poisson(generator: np.random.Generator) -> list[Evidence]:
    worst = 0.0
    for _ in range(INSTANCES):
        chain = random_process(int(generator.integers(2, 9)), 1, generator, concentration=0.5).transitions[0]
        times = hitting_times(chain, 0)
        worst = max(worst, float(np.abs(poisson_residual(chain, 0, times)).max() / times.max()))
    lines = [Evidence(f"{INSTANCES} random chains", {"largest relative residual": worst}, worst < ROUNDING)]
    for states in (20, 24, 40):
        times = hitting_time_matrix(drift_walk(states, 0.9))
        # From x to x - 1 the walk needs h_x = (1 + 0.9 h_{x+1}) / 0.1, and 10 at the far end: all sums, no difference.
        rung, total = 10.0, 10.0
        for _ in range(states - 2):
            rung = (1.0 + 0.9 * rung) / 0.1
            total += rung
        error = abs(times[-1, 0] / total - 1.0)
        lines.append(
            Evidence(
                f"walk on {states} states that drifts away with probability 0.9",
                {
                    "V(n - 1, 0)": times[-1, 0],
                    "relative error": error,
                    "smallest V off the goal": off_diagonal(times).min(),
                },
                bool(error < ROUNDING and off_diagonal(times).min() >= 1.0),
            )
        )
    return lines


def off_diagonal(times: np.ndarray) -> np.ndarray:
    """All entries off the diagonal."""
    return times[~np.eye(len(times), dtype=bool)]


@statement("Definition 2.1", "epsilon-sufficient: || E[phi(x')] - K_a phi(x) || <= epsilon", "definition")
def _sufficient(generator: np.random.Generator) -> list[Evidence]:
    process = random_process(6, 2, generator)
    whole = sufficiency_residual(process, transform(one_hot_representation(process), coordinates(generator, 6))).max()
    part = sufficiency_residual(process, fit_representation(process, generator.normal(size=(6, 3)))).max()
    numbers = {"epsilon of rotated one-hot": whole, "of three random features": part}
    return [Evidence("a random process with 6 states and 2 actions", numbers, bool(whole < 1e-10 < 1e-3 < part))]


@statement(
    "Theorem 2.2", "V = <phi(g) - phi(x), omega_g> iff w_1 is in the range of (K_pi - I)^* off the goal", "holds"
)
def _existence(generator: np.random.Generator) -> list[Evidence]:
    error, agree, representable = 0.0, 0, 0
    for _ in range(INSTANCES):
        process = random_process(int(generator.integers(3, 8)), 2, generator)
        representation = transform(one_hot_representation(process), coordinates(generator, process.states))
        result = existence(process, representation, random_policy(process, generator), 0)
        error = max(error, result.error / result.exact.max())
        groups = np.concatenate([np.arange(4), generator.integers(0, 4, size=int(generator.integers(0, 3)))])
        lumped = lumpable(groups, 2, generator)
        merged = fit_representation(lumped, merged_features(len(groups), groups))
        policy = generator.dirichlet(np.ones(2), size=4)[groups]
        both = existence(lumped, merged, policy, int(generator.integers(len(groups))))
        agree += both.range_condition.holds == both.representable
        representable += both.representable
    lines = [
        Evidence(f"{INSTANCES} random processes, rotated one-hot", {"largest relative error": error}, error < ROUNDING),
        Evidence(
            f"{INSTANCES} lumped processes, both sides decided on their own",
            {"sides agree": agree, "of these representable": representable},
            agree == INSTANCES and 0 < representable < INSTANCES,
        ),
    ]
    process = random_process(5, 1, generator)
    one_hot = one_hot_representation(process)
    everywhere = range_condition(one_hot.features, one_hot.operators[0], 1, everywhere=True).residual
    off_goal = range_condition(one_hot.features, one_hot.operators[0], 1).residual
    lines.append(
        Evidence(
            "the range condition of a random chain, off the goal as the theorem says, and on the whole space",
            {"residual off the goal": off_goal, "everywhere": everywhere},
            off_goal < ROUNDING < 1e-3 < everywhere,
        )
    )
    x = np.arange(400.0)
    features, drift = np.column_stack([np.ones(400), x]), np.array([[1.0, 0.0], [0.4, 1.0]])
    condition = range_condition(features, drift, 0)
    escaping = drift_walk(400, 0.7)
    escaping[-1] = np.eye(400)[-1]  # cut far out, the far end swallows the walk
    predicted, exact = (features[0] - features[1]) @ condition.omega, hitting_times(escaping, 0)[1]
    numbers = {"range residual": condition.residual, "predicted V(1, 0)": predicted, "true": exact}
    broken = bool(condition.holds and np.isinf(exact) and abs(predicted + 2.5) < ROUNDING)
    return [
        *lines,
        Evidence("unbounded phi = (1, x), half-line drifting away: the boundedness is needed", numbers, broken),
    ]


@statement("Algorithm, unit omega", "readouts may be given length one", "sharper")
def _unit(generator: np.random.Generator) -> list[Evidence]:
    process = random_process(6, 1, generator)
    one_hot = one_hot_representation(process)
    omegas = readouts(process, one_hot, uniform_policy(process))
    times = hitting_time_matrix(process.transitions[0])
    longer, units = unit_readouts(one_hot.features, omegas)
    general = np.abs(predictions(longer, units) - times).max()
    # One-hot displacements are orthogonal to the constant vector, which can carry the missing length.
    flat = omegas - omegas.mean(axis=1, keepdims=True)
    scale = np.linalg.norm(flat, axis=1).max()
    idle = np.sqrt(np.clip(1.0 - (np.linalg.norm(flat, axis=1) / scale) ** 2, 0.0, None))
    inside = flat / scale + idle[:, None] / np.sqrt(6.0)
    same = np.abs(predictions(scale * one_hot.features, inside) - times).max()
    numbers = {"error with one more dimension": general, "error of one-hot with none": same}
    unit_length = abs(np.linalg.norm(inside, axis=1) - 1.0).max() < 1e-12
    return [Evidence("a random chain with 6 states", numbers, bool(max(general, same) < ROUNDING and unit_length))]


@statement("Theorem 2.3", "two exact representations differ by one linear isomorphism of displacements", "holds")
def _identifiable(generator: np.random.Generator) -> list[Evidence]:
    moved, stepped, rank_gap = 0.0, 0.0, 0
    for _ in range(INSTANCES):
        process, policy, first, omegas, canonical, canonical_omegas = exact_pair(generator)
        found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
        scale = np.abs(canonical.features).max()
        moved = max(moved, displacement_residual(found, first.features, canonical.features) / scale)
        stepped = max(stepped, intertwining_residual(found, process, first, canonical) / scale)
        times = hitting_time_matrix(policy_chain(process, policy))
        rank = np.linalg.matrix_rank(times[0] - times, tol=1e-9 * times.max())
        rank_gap = max(rank_gap, abs(int(rank) - process.states + 1))
    lines = [
        Evidence(
            f"{INSTANCES} random processes, two exact representations each",
            {"displacements": moved, "one step of every action": stepped},
            max(moved, stepped) < ROUNDING,
        ),
        Evidence(
            "the same: V(x0, h) - V(g, h) of one fixed policy has rank n - 1, so (ii) is free",
            {"largest departure from n - 1": rank_gap},
            rank_gap == 0,
        ),
    ]
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T
    flips = [
        np.eye(32)[[int(np.flatnonzero((corners == _flip(x, k)).all(axis=1))[0]) for x in corners]] for k in range(5)
    ]
    cube = ControlledProcess.of(flips)
    best = np.stack([optimal_hitting_times(cube, g).values for g in range(32)], axis=1)
    error = np.abs(predictions(corners, corners / 2.0) - best).max()
    lines.append(
        Evidence(
            "optimal times of the 5-cube (32 states), phi = corner, omega_g = g / 2: exact for all goals",
            {"error": error, "dimension": 5, "rank of one policy's times": _rank(cube)},
            bool(error < ROUNDING and _rank(cube) == 31),
        )
    )
    conditions = {f"n = {n}, slip {slip}": _ring_condition(n, slip) for n in (8, 32) for slip in (0.0, 0.5)}
    same = abs(conditions["n = 32, slip 0.0"] - conditions["n = 32, slip 0.5"]) < 1e-6
    growing = conditions["n = 32, slip 0.0"] > 3 * conditions["n = 8, slip 0.0"]
    return [
        *lines,
        Evidence("condition of M on directed rings: grows with n, not with slowness", conditions, same and growing),
    ]


def _flip(corner: np.ndarray, axis: int) -> np.ndarray:
    return corner * np.where(np.arange(len(corner)) == axis, -1.0, 1.0)


def _rank(process: ControlledProcess) -> int:
    times = hitting_time_matrix(policy_chain(process, uniform_policy(process)))
    return int(np.linalg.matrix_rank(times[0] - times, tol=1e-9 * times.max()))


def _ring_condition(states: int, slip: float) -> float:
    process = directed_ring(states, slip)
    one_hot = one_hot_representation(process)
    canonical, canonical_omegas = hitting_time_representation(process, uniform_policy(process))
    omegas = readouts(process, one_hot, uniform_policy(process))
    return displacement_isomorphism(one_hot.features, omegas, canonical.features, canonical_omegas).condition


@statement("Corollary 2.4", "canonical readouts of any policy pull back to the learned features", "holds")
def _pullback(generator: np.random.Generator) -> list[Evidence]:
    values, actions = 0.0, 0.0
    for _ in range(INSTANCES):
        process, _, first, omegas, canonical, canonical_omegas = exact_pair(generator)
        found = displacement_isomorphism(first.features, omegas, canonical.features, canonical_omegas)
        other = random_policy(process, generator)
        pulled = pullback(found, readouts(process, canonical, other))
        times = hitting_time_matrix(policy_chain(process, other))
        values = max(values, np.abs(predictions(first.features, pulled) - times).max() / times.max())
        # <phi(g) - K_a phi(x), omega_g> is the mean time that is left after action a.
        moved = np.einsum("xd,aed->axe", first.features, first.operators)
        left = np.einsum("gd,gd->g", first.features, pulled)[None, None] - moved @ pulled.T
        actions = max(actions, np.abs(left - process.expected(times)).max() / times.max())
    numbers = {"values of another policy": values, "time left after each action": actions}
    return [Evidence(f"{INSTANCES} random processes", numbers, max(values, actions) < ROUNDING)]


@statement(
    "Definitions, linear analysis", "adjoint, norm, projection, restriction, compression, spectrum", "definition"
)
def _definitions(generator: np.random.Generator) -> list[Evidence]:
    operator, basis = generator.normal(size=(5, 5)), np.linalg.qr(generator.normal(size=(5, 3)))[0]
    onto = basis @ basis.T
    gap = np.abs(basis @ compression(operator, basis) @ basis.T - onto @ operator @ onto).max()
    nilpotent = spectral_radius(np.diag(np.ones(3), 1))
    numbers = {"compression against P A P": gap, "radius of a shift of norm 1": nilpotent}
    return [
        Evidence("a random matrix and subspace; a nilpotent shift", numbers, bool(gap < 1e-12 and nilpotent < 1e-3))
    ]


@statement("Lemma, orthogonality of P_Q", "P_Q is the orthogonal projection off phi(g)", "holds")
def _projection(generator: np.random.Generator) -> list[Evidence]:
    worst = 0.0
    for _ in range(INSTANCES):
        features = generator.normal(size=(4, int(generator.integers(1, 6))))
        keep = goal_projection(features, 2)
        gaps = (keep @ keep - keep, keep - keep.T, keep @ features[2])
        worst = max(worst, *(float(np.abs(gap).max()) for gap in gaps))
    return [Evidence(f"{INSTANCES} random features", {"P^2 = P = P^T, P phi(g) = 0 up to": worst}, worst < 1e-10)]


@statement(
    "Lemma 3.2", "sufficient capacity is consistent; leaving the subspace costs at most epsilon + eta", "sharper"
)
def _capacity(generator: np.random.Generator) -> list[Evidence]:
    plain, squares, gap = 0.0, 0.0, 0.0
    for _ in range(INSTANCES):
        states = int(generator.integers(3, 8))
        chain = random_process(states, 1, generator).transitions[0]
        basis = np.linalg.qr(generator.normal(size=(states, int(generator.integers(1, states)))))[0]
        found = compress(chain, generator.normal(size=(states, states)), basis)
        gap = max(gap, (found.consistency - found.epsilon) / found.epsilon)
        plain = max(plain, (found.ambient_error / (found.epsilon + found.leakage)).max())
        squares = max(squares, (found.ambient_error / np.hypot(found.epsilon, found.leakage)).max())
    numbers = {
        "consistency above epsilon by": gap,
        "error / (epsilon + eta)": plain,
        "error / sqrt of squares": squares,
    }
    return [Evidence(f"{INSTANCES} random compressions", numbers, gap < ROUNDING and plain <= squares <= 1 + ROUNDING)]
