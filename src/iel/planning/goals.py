"""Goal specifications, and what they become in the latent space: *stages* of *alternatives*.

    a state g              one stage, one alternative                (phi(g), omega_g)
    Region(states)         one stage, any alternative will do        the one that is cheapest from here is pursued
    Where({0: 8.5})        a region: states of the data that match in these columns, set to the wanted values
    Mixture(states, w)     one stage, one alternative                (sum_j w_j phi(g_j), unit(sum_j w_j omega_{g_j}))
    Sequence(goals)        the stages of its goals, one after another
    Avoid(goal, regions)   those of its goal, without the graph's nodes in these regions
    Reward(values)         one alternative: no state, but a reward to collect (`rewards`)
    Weighted(states, w)    the same for the reward <phi(x), R sum_j w_j phi(g_j)>, the paper's composition of goals

A mixture is the paper's mean embedding of a fuzzy goal. A region is *not* averaged: the mean of two doors is a wall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from iel.distances import Booleans, Floats, Integers, LatentGoal, Metric, plain_numbers, unit
from iel.errors import ConfigError, GeometryError
from iel.files import notice
from iel.planning.coreset import farthest_point
from iel.signals import UNNAMED, Signals

if TYPE_CHECKING:
    from iel.planning.planner import Planner, PlanningModel

REACHED_WITHIN = 5.0
"""Predicted steps to a stage's goal at which a sequence moves on to its next one."""
MATCHES = 8
"""Alternatives that stand for all states which match in some columns."""
NEARBY = 0.5
"""Standard deviations within which the nearest state of the data stands for a goal that none matches."""
Columns = Mapping[int, ArrayLike] | Mapping[str, ArrayLike] | Mapping[int | str, ArrayLike]
"""What some columns should be, by name or number: a number or (low, high) each."""
Regions: TypeAlias = "Where | Columns | Callable[[Floats], ArrayLike] | Many[Regions]"
"""Regions to avoid."""
Rewards = Callable[[Floats], ArrayLike] | ArrayLike
"""A function of observations, or one number per state of the data."""


@dataclass(frozen=True)
class Region:
    """Any of these states will do: (m, obs_dim)."""

    states: ArrayLike


@dataclass(frozen=True)
class Mixture:
    """A fuzzy goal: states (m, obs_dim) with non-negative weights (m,), scaled to sum to one."""

    states: ArrayLike
    weights: ArrayLike | None = None


@dataclass(frozen=True)
class Sequence:
    """Goals to visit in order; each but the last counts as visited within `within` predicted steps. Rewards can only
    come last."""

    goals: Many[Goal]
    within: float = REACHED_WITHIN


@dataclass(frozen=True)
class Where:
    """Any state of the data that matches in these columns: `{column: value}` or `{column: (low, high)}`.

    A value matches within `tolerance` times the column's standard deviation in the data. As goals the matching states
    get exactly the wanted values; the other columns are theirs. Where none matches, the nearest within half a
    standard deviation stands for it, and a notice says so. A plain dictionary means the same.
    """

    columns: Columns
    tolerance: float = 0.1


@dataclass(frozen=True)
class Avoid:
    """A goal, and regions to keep out of: a `Where`, a dictionary, a function from observations (n, obs_dim) to
    booleans (n,), or a list of these. Graph planners only: their nodes in these regions are not used."""

    goal: Goal
    regions: Regions


@dataclass(frozen=True)
class Reward:
    """Collect a reward: a function from observations (n, obs_dim) to numbers (n,), or one number per state of the data.

    maximise sum_t discount^t r(x_t), for ever
    """

    values: Rewards
    discount: float = 0.995


@dataclass(frozen=True)
class Weighted:
    """Goals that attract and repel, as the paper means it: the reward <phi(x), R mu>, mu = sum_j w_j phi(g_j).

    phi is taken from its mean over the data, since the zero of an embedding of displacements means nothing. R (d, d) is
    the identity unless given; with the inverse covariance of phi the answer would be the same for every embedding that
    is a linear image of this one (all that Theorem 2.3 determines). Scores are linear in phi, so the best state may lie
    beyond a goal; to *reach* a blend of states use a `Mixture`. The discount is near one because what counts is
    where it ends.
    """

    states: ArrayLike
    weights: ArrayLike
    operator: ArrayLike | None = None
    discount: float = 0.999


Goal: TypeAlias = "Region | Mixture | Sequence | Where | Avoid | Reward | Weighted | Columns | ArrayLike"
"""An observation (obs_dim,), a dictionary of columns, or one of the classes above."""


Stages = list[list[LatentGoal]]
"""The stages of a goal, each a list of alternatives."""


def staged_goals(goals: Many[Goal] | Floats, planner: Planner) -> list[tuple[Stages, float]]:
    """The stages of each goal, and the predicted steps at which one of its stages is done; every network is called once
    for all goals."""
    if len(goals) == 0:
        raise GeometryError("The list of goals is empty; give at least one.")
    rewards: dict[int, LatentGoal] = {}
    distant: list[str] = []
    shapes = [_collect(goal, planner, rewards, distant) for goal in goals]
    if distant and planner.model.outside != "ignore":
        notice(distant[0] + (f" ({len(distant) - 1} more of {len(goals)} goals.)" if len(distant) > 1 else ""))
    states = np.concatenate([stage.states for stages, _ in shapes for stage in stages])
    phi, omega = _embedded(planner.model, states) if len(states) else (states, states)
    staged, start = [], 0
    for stages, within in shapes:
        built = []
        for stage in stages:
            part = slice(start, start + len(stage.states))
            start = part.stop
            found = [stage.ready] if stage.ready else _alternatives(phi[part], omega[part], states[part], stage.weights)
            built.append([goal._replace(off=stage.off) for goal in found])
        _refuse_what_the_metric_lacks(built, planner.metric)
        staged.append((built, within))
    return staged


def _embedded(model: PlanningModel, states: Floats) -> tuple[Floats, Floats]:
    points, directions = model.goals(states)
    phi = _finite(np.asarray(points, dtype=np.float64), "embedding")
    return phi, unit(_finite(np.asarray(directions, dtype=np.float64), "direction"))


def _refuse_what_the_metric_lacks(stages: Stages, metric: Metric | None) -> None:
    if metric is None and (len(stages) > 1 or len(stages[0]) > 1):
        raise GeometryError("This model has no distances to choose or to pass by; give it single states as goals.")
    if metric is not None and metric.discount is None and len(stages) > 1:
        raise GeometryError("The costs of this metric are not in steps, so a sequence cannot tell when to move on.")
    mixed = any(goal.observation is None and goal.rewards is None for stage in stages for goal in stage)
    if mixed and (metric is None or not metric.spatial):
        raise GeometryError(
            "A mixture is a mean of embeddings, and this model has none to average; give it states or a Region."
        )
    if any(stage[0].rewards is not None for stage in stages[:-1]):
        raise GeometryError("A reward is never finished, so in a sequence it can only be the last goal.")


class _Stage(NamedTuple):
    """States to embed, with weights if they are mixed; or none, and a latent goal that is ready."""

    states: Floats
    weights: Floats | None = None
    ready: LatentGoal | None = None
    off: Booleans | None = None


def _collect(
    goal: Goal, planner: Planner, rewards: dict[int, LatentGoal], distant: list[str]
) -> tuple[list[_Stage], float]:
    """The stages of one goal, and when they are done. A reward that many episodes share is read once; `distant` gets a
    sentence about columns that no state of the data matches."""
    if isinstance(goal, Sequence):
        if not (math.isfinite(goal.within) and goal.within > 0.0):
            raise ConfigError(f"A sequence's 'within' is {goal.within}; give a positive number of predicted steps.")
        if len(goal.goals) == 0:
            raise GeometryError("The sequence of goals is empty; give at least one goal.")
        return [stage for part in goal.goals for stage in _collect(part, planner, rewards, distant)[0]], goal.within
    if isinstance(goal, Avoid):
        off = planner.avoided(goal.regions)
        stages, within = _collect(goal.goal, planner, rewards, distant)
        return [stage._replace(off=off if stage.off is None else off | stage.off) for stage in stages], within
    if isinstance(goal, Reward | Weighted):
        if id(goal) not in rewards:
            rewards[id(goal)] = planner.attracted(goal)
        return [_Stage(np.zeros((0, planner.width), np.float32), ready=rewards[id(goal)])], 0.0
    if isinstance(goal, Where | Mapping):
        most = 1 if planner.metric is None else MATCHES
        where = as_where(goal, planner.model.signals, planner.width)
        states, sentence = matching_states(planner.observations, planner.column_std, where, most, planner.model.signals)
        if sentence:
            distant.append(sentence)
        return [_Stage(states)], 0.0
    if isinstance(goal, Region | Mixture):
        what = type(goal).__name__.lower()
        if np.size(goal.states) == 0:
            raise GeometryError(f"The {what} of goals is empty; give at least one state.")
        states = observation_table(goal.states, planner.width, what)
        return [_Stage(states, _weights(goal.weights, len(states)) if isinstance(goal, Mixture) else None)], 0.0
    table = observation_table(goal, planner.width, "goal")
    if len(table) != 1:
        raise GeometryError(
            f"A goal is one observation but has shape {np.shape(goal)}; use Region, Mixture or Sequence."
        )
    return [_Stage(table)], 0.0


def _weights(weights: ArrayLike | None, size: int) -> Floats:
    values = np.ones(size) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.shape != (size,) or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise GeometryError(
            f"The weights of a mixture of {size} states must be {size} finite, non-negative numbers, not all zero; "
            "use Weighted for goals that repel."
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


def observation_table(rows: ArrayLike, width: int, what: str) -> Floats:
    """Finite observations (n, width) in float32, or a sentence that says what is wrong."""
    table = plain_numbers(rows, f"The {what}", GeometryError).astype(np.float32, copy=False)
    if table.ndim == 1:
        table = table[None, :]
    if table.ndim != 2 or table.shape[1] != width:
        some = ", or some columns as {0: 8.5, 1: 2.0} (--goal 0=8.5 1=2.0)" if what == "goal" else ""
        raise GeometryError(
            f"The {what} has shape {np.shape(rows)}; the data's observations have {width} numbers, so give all{some}."
        )
    if not np.isfinite(table).all():
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise GeometryError(f"The {what} has a non-finite number in row {row}; planning needs finite observations.")
    return table


# ---------------------------------------------------------------- states that match in some columns


def as_where(goal: Where | Columns, signals: Signals, width: int) -> Where:
    """A goal on columns as a `Where` by their numbers."""
    where = goal if isinstance(goal, Where) else Where(goal)
    return replace(where, columns=signals.columns(where.columns, width))


def _by_number(where: Where) -> dict[int, ArrayLike]:
    """What is wanted of the columns, whose names were replaced by numbers."""
    return {int(column): wanted for column, wanted in where.columns.items()}


def mismatch(observations: Floats, where: Where, std: Floats) -> Floats:
    """How far each row (n,) is from matching, in multiples of the tolerance: a row matches if this is at most 1.

    max_c max(low_c - x_c, x_c - high_c, 0) / (tolerance * spread_c); a value is the range from itself to itself, and
    the ends of a range that was given as one are sharp.
    """
    if not where.columns:
        raise GeometryError("A goal on some columns names none; give at least one, as in {0: 8.5}.")
    worst = np.zeros(len(observations))
    for column, wanted in _by_number(where).items():
        low, high, sharp = _range(column, wanted)
        values = np.asarray(observations[:, column], np.float64)
        off = np.maximum(np.maximum(low - values, values - high), 0.0)
        scale = float(std[column]) * where.tolerance
        worst = np.maximum(worst, np.where(off > 0, np.inf, 0.0) if sharp else off / max(scale, 1e-6))
    return worst


def _range(column: int, wanted: ArrayLike) -> tuple[float, float, bool]:
    try:
        ends = np.asarray(wanted, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        ends = np.empty(0)
    if len(ends) not in (1, 2) or np.isnan(ends).any() or ends[0] > ends[-1] or (len(ends) == 1 and np.isinf(ends[0])):
        raise GeometryError(f"Column {column} cannot be {wanted!r}; give a number, or (low, high) with low <= high.")
    return float(ends[0]), float(ends[-1]), len(ends) == 2


def matching_states(
    observations: Floats, std: Floats, where: Where, most: int, signals: Signals = UNNAMED
) -> tuple[Floats, str]:
    """States of the data that match, as goals: at most `most`, far apart within ranges, else among the closest.

    Where none does, the nearest one within `NEARBY` standard deviations, and a sentence about it; else it is refused.
    """
    off, columns = mismatch(observations, where, std), _by_number(where)
    rows, sentence = np.flatnonzero(off <= 1.0), ""
    ranges = [column for column, wanted in columns.items() if np.size(wanted) == 2]
    if not len(rows):
        nearest, far = int(np.argmin(off)), float(off.min()) * where.tolerance
        sought = ", ".join(f"{signals.label(column)} at {_shown(value)}" for column, value in columns.items())
        found = ", ".join(f"{signals.label(column)} at {observations[nearest, column]:g}" for column in columns)
        if not far <= NEARBY:
            reason = f"; the nearest has {found}" if np.isfinite(far) else ""
            raise GeometryError(f"No state of the data has {sought}{reason}; choose values that the data shows.")
        rows, sentence = np.array([nearest]), f"No state of the data has {sought}; the nearest, {found}, stands for it."
    rows = rows[_some(off[rows], observations[rows][:, ranges], most)]
    states = np.array(observations[rows], np.float32)
    for column in columns.keys() - set(ranges):
        states[:, column] = columns[column]
    return states, sentence


def _shown(wanted: ArrayLike) -> str:
    return " to ".join(f"{end:g}" for end in np.asarray(wanted, np.float64).ravel())


def _some(off: Floats, table: Floats, most: int) -> Integers:
    """Which matches to take: the best one and those farthest from all taken in `table`; every other column alike, from
    the closest four times as many, or all that are equally close, at even distances."""
    if len(off) <= most:
        return np.arange(len(off))
    if table.shape[1]:
        picks = farthest_point(table / np.maximum(np.std(table, axis=0), 1e-9), most, [int(np.argmin(off))])
        if len(picks) == most:
            return picks
    order = np.argsort(off, kind="stable")
    last = off[order[min(4 * most, len(off)) - 1]]
    close = order[: int(np.searchsorted(off[order], last, side="right"))]
    return close[np.linspace(0, len(close) - 1, most).astype(int)]


def inside(regions: Regions, observations: Floats, std: Floats | None = None, signals: Signals = UNNAMED) -> Booleans:
    """Which observations lie in regions, as `Avoid` takes them.

    `std` is that of the data's columns; without it a value (not a range) is met by itself only.
    """
    if isinstance(regions, list | tuple):
        masks = [inside(region, observations, std, signals) for region in regions]
        return np.logical_or.reduce(masks) if masks else np.zeros(len(observations), bool)
    if isinstance(regions, Where | Mapping):
        where = as_where(regions, signals, observations.shape[1])
        return mismatch(observations, where, np.zeros(observations.shape[1]) if std is None else std) <= 1
    if not callable(regions):
        raise GeometryError(
            f"{regions!r} is not a region; give columns as in {{0: (4, 8)}}, or a function of observations."
        )
    mask = np.asarray(regions(observations))
    if mask.shape != (len(observations),) or mask.dtype != bool:
        raise GeometryError("The function of a region must return True or False for every row of observations.")
    return mask
