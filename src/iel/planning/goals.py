"""What a planner can be asked for: a state, any of several states, a blend of states, or goals to visit in order.

In the latent space every wish becomes *stages* of *alternatives*:

    a state g              one stage, one alternative                (phi(g), omega_g)
    Region(states)         one stage, any alternative will do        the one that is cheapest from here is pursued
    Mixture(states, w)     one stage, one alternative                (sum_j w_j phi(g_j), unit(sum_j w_j omega_{g_j}))
    Sequence(goals)        the stages of its goals, one after another

A mixture is the paper's mean embedding of a fuzzy goal. A region is *not* averaged: the mean of two doors is a wall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from iel.errors import ConfigError, GeometryError
from iel.metrics import Floats, LatentGoal, Metric, unit

if TYPE_CHECKING:
    from iel.planning.plan import Target

REACHED_WITHIN = 5.0
"""Predicted steps to a stage's goal at which a sequence moves on to its next one."""


class Agent(Protocol):
    """What a planner asks of a model: embeddings, goals, a metric, and how a target becomes an action."""

    @property
    def metric(self) -> Metric | None:
        """Costs between embeddings; None for a method that has no distances and can only be pursued directly."""

    def embed(self, observations: Floats, /) -> Floats:
        """phi: (n, obs_dim) -> (n, d)."""

    def goals(self, states: Floats, /) -> tuple[Floats, Floats]:
        """(phi(g), omega_g): (n, obs_dim) -> (n, d) and (n, d), unit vectors."""

    def command(self, observations: Floats, target: Target, embeddings: Floats, /) -> Floats:
        """What the policy is told: (n, c)."""

    def act(self, observations: Floats, commands: Floats, /) -> Floats:
        """The policy's action for each observation and command: (n, act_dim)."""


class States(Protocol):
    """A data set, as far as a planner cares."""

    @property
    def observations(self) -> Floats: ...


@dataclass(frozen=True)
class Region:
    """Any of these states will do: (m, obs_dim)."""

    states: Any


@dataclass(frozen=True)
class Mixture:
    """A fuzzy goal: states (m, obs_dim) with non-negative weights (m,), scaled to sum to one."""

    states: Any
    weights: Any = None


@dataclass(frozen=True)
class Sequence:
    """Goals to visit in order: states, regions or mixtures; each counts as visited within so many predicted steps."""

    goals: Many[Any]
    within: float = REACHED_WITHIN


Goal = Any
"""An observation (obs_dim,), a `Region`, a `Mixture` or a `Sequence`."""


@dataclass(frozen=True)
class LatentWish:
    """Stages, each a list of alternatives, and the predicted steps at which a stage is done."""

    stages: list[list[LatentGoal]]
    within: float


def observation_table(rows: Any, width: int, what: str) -> Floats:
    """Finite observations (n, width) in float32, or a sentence that says what is wrong."""
    try:
        table = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise GeometryError(f"The {what} is not a table of numbers; give observations of {width} numbers.") from error
    if table.ndim == 1:
        table = table[None, :]
    if table.ndim != 2 or table.shape[1] != width:
        raise GeometryError(f"The {what} has shape {np.shape(rows)}; the data's observations have {width} numbers.")
    if not np.isfinite(table).all():
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise GeometryError(f"The {what} has a non-finite number in row {row}; planning needs finite observations.")
    return table


def latent_wishes(goals: Many[Goal], model: Agent, width: int) -> list[LatentWish]:
    """Embed all goals together, with one call of each network."""
    if len(goals) == 0:
        raise GeometryError("There are no goals; give at least one.")
    tables: list[Floats] = []
    shapes = [_collect(goal, width, tables) for goal in goals]
    states = np.concatenate(tables)
    points, directions = model.goals(states)
    phi = _finite(np.asarray(points, dtype=np.float64), "embedding")
    omega = unit(_finite(np.asarray(directions, dtype=np.float64), "direction"))
    wishes, start = [], 0
    for stages, within in shapes:
        built = []
        for size, weights in stages:
            part = slice(start, start + size)
            start += size
            built.append(_alternatives(phi[part], omega[part], states[part], weights))
        wishes.append(LatentWish(built, within))
    if model.metric is None and any(len(wish.stages) > 1 or len(wish.stages[0]) > 1 for wish in wishes):
        raise GeometryError("This model has no distances to choose or to pass by; give it single states as goals.")
    if not _spatial(model) and any(goal.observation is None for wish in wishes for s in wish.stages for goal in s):
        raise GeometryError("A mixture is a mean of embeddings, and this model has none; give it states or a Region.")
    return wishes


def _spatial(model: Agent) -> bool:
    return model.metric is not None and model.metric.spatial


Stage = tuple[int, Floats | None]


def _collect(goal: Goal, width: int, tables: list[Floats]) -> tuple[list[Stage], float]:
    """Append the states of one goal to `tables`; return how many each stage took, and with what weights."""
    if isinstance(goal, Sequence):
        if not (math.isfinite(goal.within) and goal.within > 0.0):
            raise ConfigError(f"A sequence's 'within' is {goal.within}; give a positive number of predicted steps.")
        if len(goal.goals) == 0:
            raise GeometryError("The sequence of goals is empty; give at least one goal.")
        stages: list[Stage] = []
        for part in goal.goals:
            stages.extend(_collect(part, width, tables)[0])
        return stages, goal.within
    if isinstance(goal, Region | Mixture):
        what = type(goal).__name__.lower()
        if np.size(goal.states) == 0:
            raise GeometryError(f"The {what} of goals is empty; give at least one state.")
        table = observation_table(goal.states, width, what)
        tables.append(table)
        return [(len(table), _weights(goal.weights, len(table)) if isinstance(goal, Mixture) else None)], 0.0
    table = observation_table(goal, width, "goal")
    if len(table) != 1:
        raise GeometryError(
            f"A goal is one observation but has shape {np.shape(goal)}; use Region, Mixture or Sequence."
        )
    tables.append(table)
    return [(1, None)], 0.0


def _weights(weights: Any, size: int) -> Floats:
    values = np.ones(size) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.shape != (size,) or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise GeometryError(
            f"The weights of a mixture of {size} states must be {size} finite, non-negative numbers, not all zero."
        )
    return values / values.sum()


def _alternatives(phi: Floats, omega: Floats, states: Floats, weights: Floats | None) -> list[LatentGoal]:
    if weights is None:
        return [LatentGoal(*row) for row in zip(phi, omega, states, strict=True)]
    # Directions that cancel leave none; the heaviest state's own direction then stands for all.
    heaviest = omega[[int(np.argmax(weights))]]
    return [LatentGoal(weights @ phi, unit((weights @ omega)[None, :], lambda: heaviest)[0])]


def _finite(table: Floats, what: str) -> Floats:
    if not np.isfinite(table).all():
        raise GeometryError(f"The model gave a non-finite {what} for a goal; check the model before planning with it.")
    return table
