"""Optimal hitting times: the stochastic shortest path problem min_pi V^pi(x, g), solved by policy iteration.

    V*(x) = 1 + min_{a allowed in x} sum_x' P(x' | x, a) V*(x'),      V* = 0 on the goal.

`allowed` is the support of the behaviour policy: restricting to it gives the paper's in-distribution optimum over
Pi_D = {pi : pi(.|x) << pi_B(.|x)}. States from which no policy reaches the goal almost surely are +infinity.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from iel.errors import ChainError
from iel.theory.builders import drift_walk, random_process
from iel.theory.chains import (
    ControlledProcess,
    Goal,
    can_reach,
    goal_indices,
    hitting_time_matrix,
    hitting_times,
    leads_into,
    poisson_residual,
    policy_chain,
    solve_killed,
)
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, off_diagonal, statement


class OptimalTimes(NamedTuple):
    """V* (n,) and one optimal action per state (n,)."""

    values: np.ndarray
    policy: np.ndarray


def optimal_hitting_times(process: ControlledProcess, goal: Goal, allowed: np.ndarray | None = None) -> OptimalTimes:
    """Exact V* and an optimal deterministic policy (arbitrary where V* is 0 or infinite)."""
    target = goal_indices(goal, process.states)
    permitted = np.ones((process.states, process.actions), dtype=bool) if allowed is None else np.asarray(allowed, bool)
    if permitted.shape != (process.states, process.actions):
        wanted = (process.states, process.actions)
        raise ChainError(f"The mask of allowed actions has shape {permitted.shape}, not {wanted}: one row per state.")
    winning, safe = winning_states(process.transitions, target, permitted)
    values = np.full(process.states, np.inf)
    values[target] = 0.0
    inside = np.flatnonzero(winning & ~np.isin(np.arange(process.states), target))
    if inside.size == 0:
        return OptimalTimes(values, np.zeros(process.states, dtype=np.int64))
    policy = _proper_policy(process, target, winning, safe)
    # Policy iteration: a proper policy's greedy successor is proper and no slower (V >= T V stays true).
    unsafe = np.where(safe[inside].T, 0.0, np.inf)
    while True:
        chain = policy_chain(process, policy)[inside]
        values[inside] = solve_killed(chain[:, inside], chain[:, target].sum(axis=1))
        moved = np.where(np.isfinite(values), values, 0.0)  # safe actions never lead to an infinite value
        costs = 1.0 + unsafe + np.stack([(action @ moved)[inside] for action in process.transitions])
        # Change only on a real improvement: equal actions must not make the iteration go round in circles.
        better = costs.min(axis=0) < values[inside] - 1e-10 * np.maximum(1.0, values[inside])
        if not better.any():
            return OptimalTimes(values, policy)
        policy[inside] = np.where(better, costs.argmin(axis=0), policy[inside])


def _proper_policy(process: ControlledProcess, target: np.ndarray, winning: np.ndarray, safe: np.ndarray) -> np.ndarray:
    """A first policy that reaches the goal almost surely: follow the path with the fewest expected tries.

    An edge taken with probability p costs 1 / p, the mean number of tries until it succeeds. Following these shortest
    paths leads every winning state to the goal with positive probability by safe actions, hence almost surely.
    """
    usable = [sp.diags_array((safe[:, a] & winning) * 1.0) @ chain for a, chain in enumerate(process.transitions)]
    for chain in usable:
        chain.eliminate_zeros()
    tries = reduce(lambda first, second: first.maximum(second), usable).T
    tries.data = 1.0 / tries.data
    distance = dijkstra(tries, indices=target, min_only=True)
    costs = np.full((process.actions, process.states), np.inf)
    for own, chain in zip(costs, usable, strict=True):
        edges = sp.coo_array(chain)
        np.minimum.at(own, edges.row, 1.0 / edges.data + distance[edges.col])
    return costs.argmin(axis=0)


def winning_states(
    transitions: Sequence[sp.csr_array], goal: Goal, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States from which some policy reaches the goal almost surely, and the actions (n, |A|) that never leave them.

    The greatest set W such that every state of W can reach the goal using only actions that stay in W: states that
    cannot are left out, then the actions that may lead to them, until nothing changes.
    """
    winning, at_goal = np.ones(len(allowed), dtype=bool), goal_indices(goal, len(allowed))
    while True:
        leaves = np.stack([chain @ (~winning).astype(np.float64) for chain in transitions], axis=1) > 0
        safe = allowed & ~leaves
        usable = [sp.diags_array((safe[:, a] & winning) * 1.0) @ chain for a, chain in enumerate(transitions)]
        edges = sp.csr_array(sum(usable, start=0))
        edges.eliminate_zeros()
        reached = leads_into(edges, at_goal)
        if np.array_equal(reached, winning):
            return winning, safe
        winning = reached


@statement("Problem statement", "a reachable goal has an admissible policy with a finite expected time", "assumption")
def reachable(generator: np.random.Generator) -> Iterator[Evidence]:
    trap = ControlledProcess.of([np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])])
    numbers = {
        "reachable": can_reach(trap.transitions[0], 1)[0],
        "optimal time": optimal_hitting_times(trap, 1).values[0],
    }
    text = "goal or trap with equal probability: reachable, but no policy has a finite time"
    yield Evidence(text, numbers, np.isinf(numbers["optimal time"]))
    # Action a of the open interval (0, 1) reaches the goal with probability 1 - a: every one is beaten by another.
    times = {f"V at a = {a:g}": hitting_times(np.array([[a, 1.0 - a], [0.0, 1.0]]), 1)[0] for a in (0.1, 0.01, 0.001)}
    text = "actions a in (0, 1) with success probability 1 - a: the infimum 1 over Pi_D is attained by none"
    yield Evidence(
        text, times, sorted(times.values(), reverse=True) == list(times.values()) and min(times.values()) > 1
    )


@statement("Lemma, Poisson equation", "(I - P) V = 1 off the goal and V = 0 on it", "holds")
def poisson(generator: np.random.Generator) -> Iterator[Evidence]:
    worst = 0.0
    for _ in range(INSTANCES):
        chain = random_process(int(generator.integers(2, 9)), 1, generator, concentration=0.5).transitions[0]
        times = hitting_times(chain, 0)
        worst = max(worst, float(np.abs(poisson_residual(chain, 0, times)).max() / times.max()))
    yield Evidence(f"{INSTANCES} random chains", {"largest relative residual": worst}, worst < ROUNDING)
    for states in (20, 24, 40):
        times = hitting_time_matrix(drift_walk(states, 0.9))
        # From x to x - 1 the walk needs h_x = (1 + 0.9 h_{x+1}) / 0.1, and 10 at the far end: all sums, no difference.
        rung, total = 10.0, 10.0
        for _ in range(states - 2):
            rung = (1.0 + 0.9 * rung) / 0.1
            total += rung
        error, least = abs(times[-1, 0] / total - 1.0), off_diagonal(times).min()
        numbers = {"V(n - 1, 0)": times[-1, 0], "relative error": error, "smallest V off the goal": least}
        text = f"walk on {states} states that drifts away with probability 0.9"
        yield Evidence(text, numbers, error < ROUNDING and least >= 1.0)
