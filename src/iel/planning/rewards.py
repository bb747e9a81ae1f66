"""Rewards as prompts: read off the embedding, or collected along the graph.

**The readout.** By telescoping, the rewards <phi(x') - phi(x), z> that a policy of directions was trained for and the
state reward <phi(x), z> have the same optimal policy. So a reward is prompted by regression, r(x) ~ c <phi(x), z> + b
with |z| = 1 and c > 0, and the share of held-out variance that this explains, R^2, says whether it lies in the span.

**The graph.** A planner with a graph is not limited to linear rewards. Node i gets the mean reward of the states of the
data that are nearest to it; an edge of k predicted steps collects the reward of its first node for k / 2 steps and of
its second for the rest; and an agent at a node may stay:

    V(i) = max( r_i / (1 - gamma),  max_j  r_i S(k/2) + gamma^(k/2) r_j S(k/2) + gamma^k V(j) ),
    S(k) = 1 + gamma + ... + gamma^(k-1) = (1 - gamma^k) / (1 - gamma)

It is solved exactly by policy iteration. Staying at the best node of a cycle is at least as good as going around, so
all paths end somewhere. Differences between states of one node are lost: the held-out R^2 of the nodes' means says how
much that is.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from iel.distances import Floats, Integers, LatentGoal, Metric
from iel.errors import ConfigError, GeometryError
from iel.planning.goals import Reward, Rewards, Weighted, observation_table
from iel.planning.graph import NO_HOP, Edges, Field, along
from iel.readout import affine_readout, unexplained

if TYPE_CHECKING:
    from iel.planning.planner import PlanningModel

READOUT_POOL = 20_000
"""States that a reward is read off by a planner without a graph."""
RIDGE = 1e-4
"""Of the readout, relative to the mean square of phi's coordinates."""
BLOCKS = 20
"""Number of stretches that the data is cut into; every other one is held out, as neighbours in time are alike."""
IN_SPAN = 0.8
"""Held-out R^2 of the readout below which a reward is called out of the span."""
RESOLVED = 0.5
"""Held-out R^2 of the nodes' means below which a graph planner warns."""


@dataclass(frozen=True)
class Readout:
    """r(x) ~ slope <phi(x), direction> + intercept, and the share R^2 of held-out variance that it explains."""

    direction: Floats
    slope: float
    intercept: float
    share: float

    @property
    def sentence(self) -> str:
        """Whether the reward lies in the span, in one sentence."""
        found = f"a linear readout of phi explains {_percent(self.share)} of the reward on held-out states"
        if self.share >= IN_SPAN:
            return f"The reward lies in the span: {found}."
        return f"The reward is out of the span: {found} (at least {_percent(IN_SPAN)} are needed)."


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"


@dataclass(frozen=True)
class Reading:
    """How well a planner can represent a reward."""

    readout: Readout
    values: Floats
    """The reward of every state of the data in question."""
    rewards: Floats | None = None
    """The mean reward of every node's states, where there is a graph."""
    resolved: float = 1.0
    """The share of held-out variance that these means explain."""

    @property
    def sentence(self) -> str:
        """Both shares in one sentence."""
        if self.rewards is None:
            return self.readout.sentence
        return f"{self.readout.sentence[:-1]}; the graph, which needs no span, explains {_percent(self.resolved)}."


def held_out(count: int) -> np.ndarray:
    """A mask of every other stretch of the rows."""
    return (np.arange(count) * BLOCKS // max(count, 1)) % 2 == 1


def fit_readout(points: Floats, rewards: Floats) -> Readout:
    """By ridge regression of rewards (n,) on embeddings (n, d), tested on the stretches it was not fitted on."""
    test = held_out(len(points))
    if len(points) < 2 * BLOCKS:
        raise GeometryError(f"A reward is read off at least {2 * BLOCKS} states of data, and here are {len(points)}.")
    if np.ptp(rewards) == 0.0:
        raise GeometryError("The reward is the same everywhere, so there is nothing to head for.")
    weights, shift = affine_readout(points[~test], rewards[~test, None], RIDGE, one_space=True)
    share = 1.0 - unexplained(rewards[test, None] - points[test] @ weights - shift, rewards[test, None])
    weights, shift = affine_readout(points, rewards[:, None], RIDGE, one_space=True)
    slope = float(np.linalg.norm(weights))
    if slope <= 0.0:
        raise GeometryError("The embedding explains nothing of the reward; use a graph planner, or another reward.")
    return Readout(weights[:, 0] / slope, slope, float(shift[0]), share)


def reward_values(values: Rewards, observations: Floats, rows: Integers) -> Floats:
    """The rewards of these rows of the data, from a function of observations or a column with one number per state."""
    given = rows if callable(values) else np.arange(len(observations))
    found = np.asarray(values(observations[rows]) if callable(values) else values, np.float64)
    if found.shape != given.shape:
        raise GeometryError(f"The rewards have shape {found.shape}; give one number per state, {given.shape}.")
    found = found if callable(values) else found[rows]
    if not np.isfinite(found).all():
        raise GeometryError("The rewards hold a number that is not finite; give finite ones.")
    return found


def composed_direction(points: Floats, goals: Floats, weights: ArrayLike, operator: ArrayLike | None) -> Floats:
    """R mu with mu = sum_j w_j (phi(g_j) - mean phi), scaled to length one; R is the identity if None."""
    shares = np.asarray(weights, np.float64)
    if shares.shape != (len(goals),) or not np.isfinite(shares).all():
        raise GeometryError(f"{len(goals)} weighted goals need {len(goals)} finite weights, negative ones to repel.")
    mu = shares @ (goals - points.mean(axis=0))
    table = np.eye(len(mu)) if operator is None else np.asarray(operator, np.float64)
    if table.shape != (len(mu), len(mu)) or not np.isfinite(table).all():
        raise GeometryError(f"The operator has shape {table.shape}; give finite numbers, ({len(mu)}, {len(mu)}).")
    combined = table @ mu
    length = float(np.linalg.norm(combined))
    if length <= 1e-12:
        raise GeometryError("The weighted goals cancel each other, so there is nothing to head for.")
    return combined / length


def node_means(cells: Integers, rewards: Floats, count: int) -> tuple[Floats, float]:
    """The mean reward of each node's states, and the share of held-out variance that such means explain.

    `cells` (n,) is the node nearest to each state. Held-out states whose node has no other states are guessed by the
    mean of all.
    """

    def means(rows: np.ndarray) -> Floats:
        size = np.bincount(cells[rows], minlength=count)
        total = np.bincount(cells[rows], rewards[rows], minlength=count)
        return np.where(size > 0, total / np.maximum(size, 1), rewards[rows].mean())

    test = held_out(len(cells))
    share = 1.0 - unexplained(rewards[test] - means(~test)[cells[test]], rewards[test]) if test.any() else 1.0
    return means(np.ones(len(cells), bool)), share


@dataclass(frozen=True)
class RewardModel:
    """States of the data that rewards are read off, and the graph's nodes, if there is one, that stand for them."""

    model: PlanningModel
    observations: Floats
    """All of the data."""
    rows: Integers
    """The states in question, as rows of it."""
    points: Floats
    """Their embeddings."""
    nodes: Floats | None = None
    """Embeddings of the nodes."""
    cells: Integers | None = None
    """The node nearest to each state."""

    def read(self, prompt: Reward | Weighted) -> Reading:
        """How well a reward can be read off the embedding and off the nodes. That of weighted goals lies in the span by
        its definition, and is given in standard deviations."""
        if isinstance(prompt, Reward):
            values = reward_values(prompt.values, self.observations, self.rows)
            readout = fit_readout(self.points, values)
        else:
            table = observation_table(prompt.states, self.observations.shape[1], "table of weighted goals")
            goals = np.asarray(self.model.embed(table), np.float64)
            direction = composed_direction(self.points, goals, prompt.weights, prompt.operator)
            height = self.points @ direction
            deviation = max(float(height.std()), 1e-12)
            values = (height - height.mean()) / deviation
            readout = Readout(direction, 1.0 / deviation, -float(height.mean()) / deviation, 1.0)
        if self.nodes is None or self.cells is None:
            return Reading(readout, values)
        return Reading(readout, values, *node_means(self.cells, values, len(self.nodes)))

    def attracted(self, prompt: Reward | Weighted) -> LatentGoal:
        """The latent goal of a reward: z and, where there is a graph, the mean reward of every node's states.

        Warns where z (without a graph) or the nodes do not explain most of the reward.
        """
        if not 0.0 < prompt.discount < 1.0:
            raise ConfigError(f"The discount of a reward is {prompt.discount}; choose a number between 0 and 1.")
        reading = self.read(prompt)
        readout, rewards = reading.readout, reading.rewards
        if self.nodes is None or rewards is None:
            if readout.share < IN_SPAN:
                warnings.warn(f"{readout.sentence} A graph planner needs no span.", stacklevel=2)
            best = self.points[int(np.argmax(self.points @ readout.direction))]
            return LatentGoal(best, readout.direction, None, np.empty(0), prompt.discount)
        if reading.resolved < RESOLVED:
            warnings.warn(
                f"The graph's nodes explain only {_percent(reading.resolved)} of the reward on held-out states: it is "
                "noisy or varies between states of one node; give the planner more nodes, or a smoother reward.",
                stacklevel=2,
            )
        best = self.nodes[int(np.argmax(rewards))]
        return LatentGoal(best, readout.direction, None, rewards, prompt.discount)


# ---------------------------------------------------------------- the graph


def reward_field(points: Floats, edges: Edges, metric: Metric, goal: LatentGoal, off: np.ndarray | None) -> Field:
    """Next hops that maximise the discounted reward of a latent goal; at a node without one the agent stays.

    `distance` is the cost along the hops to where they end.
    """
    rewards, gamma = goal.rewards, goal.discount
    assert rewards is not None
    if metric.discount is None:
        raise GeometryError("The costs of this metric are not in steps, so rewards per step cannot be added up.")
    order = np.argsort(edges.source, kind="stable")
    source, target, cost = edges.source[order], edges.target[order], edges.cost[order]
    steps = np.maximum(metric.steps(cost), 1.0)
    half = gamma ** (steps / 2)
    gained = (1 - half) / (1 - gamma) * (rewards[source] + half * rewards[target])
    values, choice = _best_routes(rewards / (1 - gamma), source, target, gained, half**2)
    next_hop = np.where(choice < 0, NO_HOP, target[choice])
    distance = along(np.where(choice < 0, 0.0, cost[choice]), next_hop)
    if off is not None:
        distance[off], next_hop[off] = np.inf, NO_HOP
        values = np.where(off, -np.inf, values)
    best = goal._replace(point=points[int(np.argmax(values))])
    return Field(best, -1, 0.0, distance, next_hop, values)


def _best_routes(
    stay: Floats, source: Integers, target: Integers, gained: Floats, factor: Floats
) -> tuple[Floats, Integers]:
    """(V, the edge each node takes or -1) of V(i) = max(stay_i, max_e gained_e + factor_e V(target_e)).

    Policy iteration from staying everywhere. `source` ascends. Changes below rounding are none, so it ends.
    """
    values, choice = stay.copy(), np.full(len(stay), -1)
    if len(source) == 0:
        return values, choice
    starts = np.flatnonzero(np.r_[True, np.diff(source) > 0])
    nodes = source[starts]
    tiny = 1e-10 * max(float(np.abs(stay).max()), 1e-300)
    while True:
        worth = gained + factor * values[target]
        best = np.maximum.reduceat(worth, starts)
        first = np.full(len(stay), len(source))
        level = np.flatnonzero(worth == np.repeat(best, np.diff(np.r_[starts, len(source)])))
        np.minimum.at(first, source[level], level)
        better = nodes[best > values[nodes] + tiny]
        if len(better) == 0:
            return values, choice
        choice[better] = first[better]
        values = _evaluated(stay, choice, target, gained, factor)


def _evaluated(stay: Floats, choice: Integers, target: Integers, gained: Floats, factor: Floats) -> Floats:
    """V(i) = gained + factor V(next), by composing each node's affine map with its successor's until nothing is left.

    Exact for paths that end; on a circular path the product of factors vanishes.
    """
    goes = choice >= 0
    following = np.where(goes, target[choice], np.arange(len(stay)))
    add, times = np.where(goes, gained[choice], stay), np.where(goes, factor[choice], 0.0)
    while times.max(initial=0.0) > 1e-300:
        add, times, following = add + times * add[following], times * times[following], following[following]
    return add
