"""Predicted against exact steps over all ordered pairs of some states of a known maze: d_ij predicted, e_ij exact.

    order     rank correlation of d_ij with e_ij over all i != j
    ratio     median of d_ij / e_ij where e_ij is finite and at least 1; for the shorter and for the longer direction
              as well, over the pairs of states whose two directions differ by more than a tenth (e_ij > 1.1 e_ji)
    one way   the ordered pairs with e_ij > 5 e_ji, and the share of them with d_ij > 2 d_ji

Each has a 95 % interval: states are drawn again, with all their pairs, as pairs of the same state are dependent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from iel.distances import Floats
from iel.envs import make_env
from iel.errors import ConfigError
from iel.model.model import PlanningModel
from iel.planning import Planner
from iel.theory import Maze, Teleports, maze_of, steps_between
from iel.theory.calibration import Interval, bootstrap, spearman

ONE_WAY, SEEN, DIFFERS = 5.0, 2.0, 1.1
"""Exact ratio of the two directions that makes a pair one-way, and differing; predicted ratio that sees it."""


@dataclass(frozen=True)
class KnownMaze:
    """The discretised maze of an environment, half a unit a square: doors, wind and teleports included."""

    maze: Maze
    offset: float
    scale: float
    in_steps: bool
    """Whether its steps are the environment's: a point's are, of a legged robot's only the order is known."""

    @classmethod
    def of(cls, name: str) -> KnownMaze | None:
        """The maze of a known environment; None where it is not a maze."""
        if "maze" not in name:
            return None
        env = make_env(name)
        assert env.map is not None
        teleports, info = None, vars(env.unwrapped).get("_teleport_info")
        if info:  # OGBench's teleports swallow whatever comes within one and a half radii
            teleports = Teleports(info["teleport_in_ijs"], info["teleport_out_ijs"], 1.5 * info["teleport_radius"])
        return cls(maze_of(env.map, teleports), env.map.offset, 4.0 / env.map.cell, name.startswith("pointmaze"))

    def steps(self, starts: Floats, goals: Floats) -> Floats:
        """The fewest steps between observations, a point's."""
        first, last = ((np.asarray(rows)[:, :2] + self.offset) * self.scale - 4.0 for rows in (starts, goals))
        return steps_between(self.maze, first, last, step=0.2)

    def between(self, observations: Floats) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """(i, j) -> the fewest steps from row i to row j."""
        return lambda i, j: self.steps(observations[i], observations[j])


@dataclass(frozen=True)
class Agreement:
    """How predictions for all ordered pairs of states agree with exact steps; the figures of this file's head."""

    pairs: int
    """Ordered pairs."""
    order: Interval
    one_way: int
    """Ordered pairs that are one-way."""
    seen: Interval | None
    """Share of them that the predictions see; None without one-way pairs."""
    ratio: Interval | None = None
    """None, as the two below, where predictions or references are not in steps."""
    shorter: Interval | None = None
    longer: Interval | None = None

    def sentence(self, how: str) -> str:
        """The figures in words."""
        text = f"{how}: rank correlation {self.order:.3f}"
        if self.ratio is not None:
            text += f", median predicted over exact steps {self.ratio:.2f}"
        ends = {"shorter": self.shorter, "longer": self.longer}
        text += "".join(f", of {which} directions {ratio:.2f}" for which, ratio in ends.items() if ratio is not None)
        if self.seen is not None:
            low, high = 100 * self.seen.low, 100 * self.seen.high
            text += f", {100 * self.seen.value:.0f} ({low:.0f} to {high:.0f}) % of {self.one_way} one-way pairs seen"
        return text + "."


def agreement(predicted: Floats, exact: Floats, generator: np.random.Generator, in_steps: bool = True) -> Agreement:
    """Compare two tables (n, n) of steps from state i to state j; their diagonals are ignored."""
    guess, truth = np.asarray(predicted, np.float64), np.asarray(exact, np.float64)
    if guess.shape != truth.shape or guess.ndim != 2 or guess.shape[0] != guess.shape[1] or len(guess) < 3:
        raise ConfigError(
            f"Predictions {guess.shape} and exact steps {truth.shape} must be square tables of 3 or more."
        )
    apart = np.isfinite(truth) & (truth >= 1.0)
    back = np.maximum(truth.T, 1e-9)
    over = np.divide(guess, truth, out=np.full(truth.shape, math.nan), where=apart)
    one_way, shorter, longer = truth > ONE_WAY * back, back > DIFFERS * truth, truth > DIFFERS * back

    def figures(states: np.ndarray) -> list[float]:
        rows, columns = np.nonzero(states[:, None] != states[None, :])
        i, j = states[rows], states[columns]
        found, chosen = guess[i, j], one_way[i, j]
        seen = (found[chosen] > SEEN * guess[j, i][chosen]).mean() if chosen.any() else math.nan
        ratios = [_median(over[i, j][(apart & mask)[i, j]]) for mask in (True, shorter, longer)]
        return [spearman(found, truth[i, j]), seen, *ratios]

    states = np.arange(len(guess))
    order, seen, *ratios = bootstrap(figures, states, generator)
    count = int((one_way & ~np.eye(len(guess), dtype=bool)).sum())
    known = [None if math.isnan(ratio.value) or not in_steps else ratio for ratio in ratios]
    return Agreement(len(guess) * (len(guess) - 1), order, count, seen if count else None, *known)


def _median(values: Floats) -> float:
    """The lower median, so that infinities do not turn into NaN; NaN of nothing."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else math.nan


def agreements(
    model: PlanningModel, planners: Mapping[str, Planner], states: Floats, maze: KnownMaze, seed: int = 0
) -> dict[str, Agreement]:
    """How the steps that planners predict between these states (costs, where they are not steps) agree with the
    maze's; those of `Direct` are the metric's own."""
    count = len(states)
    first, second = np.divmod(np.arange(count * count), count)
    exact = maze.steps(states[first], states[second]).reshape(count, count)
    embedded = np.asarray(model.embed(states), np.float64)[first]
    found = {}
    for name, planner in planners.items():
        plan, in_steps = planner.plan(states[second]), model.metric is not None and model.metric.discount is not None
        predicted = (plan.steps if in_steps else plan.costs)(embedded).reshape(count, count)
        found[name] = agreement(predicted, exact, np.random.default_rng(seed), in_steps and maze.in_steps)
    return found
