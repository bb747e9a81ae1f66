"""Time: values that came at times of their own, as rows at a fixed rate; gaps in time end episodes. Pure numpy.

    align      the value of a signal at every time of a grid, and whether the signal was there
    runs       consecutive rows that are all there: episodes
    resampled  both, for rows with one column of time

    grid     t_i = t_0 + i / rate
    hold         x(t) = x_j            t_j <= t < t_{j+1}: what a robot knows at t
    nearest      x(t) = x_j            j minimises |t_j - t|
    interpolate  x(t) = x_j + (t - t_j) (x_{j+1} - x_j) / (t_{j+1} - t_j)
    mean         x(t) = rate * integral of hold from t to t + 1 / rate: commands that were sent within the step

A signal is there at t if it was silent around t for at most `gap` seconds.
"""

import itertools
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import MINIMUM_STEPS, Rows
from iel.errors import DataError
from iel.loader import check_budget

Align = Literal["hold", "nearest", "interpolate", "mean"]
Numbers = NDArray[np.float64]
TICK = 1e-6
"""Seconds by which a time of the grid may come before a message of the same time, by rounding."""
SILENCE = 5
"""A gap, unless one is given, in usual intervals of the rows or of the grid, whichever is longer."""


def align(times: Numbers, values: Numbers, grid: Numbers, how: Align, gap: float) -> tuple[Numbers, NDArray[np.bool_]]:
    """(values (grid, columns), whether the signal is there) at the times of a grid; `times` rise strictly."""
    before = np.searchsorted(times, grid + TICK, side="right") - 1
    last, held = len(times) - 1, np.clip(before, 0, None)
    after = np.minimum(held + 1, last)
    there = (before >= 0) & (grid - times[held] <= gap + TICK)
    if how == "hold":
        return values[held], there
    if how == "mean":
        return _means(times, values, grid), there
    if how == "nearest":
        near = np.where(np.abs(times[after] - grid) < np.abs(grid - times[held]), after, held)
        return values[near], np.abs(times[near] - grid) <= gap + TICK
    width = times[after] - times[held]
    share = np.clip((grid - times[held]) / np.where(width > 0, width, 1.0), 0.0, 1.0)[:, None]
    exact = np.abs(grid - times[held]) <= TICK
    there = (before >= 0) & (exact | ((before < last) & (width <= gap + TICK)))
    return values[held] + share * (values[after] - values[held]), there


def _means(times: Numbers, values: Numbers, grid: Numbers) -> Numbers:
    """Means of the held signal over the steps of a grid, by its integral, which is linear between messages."""
    step = grid[1] - grid[0] if len(grid) > 1 else 1.0
    areas = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values[:-1] * np.diff(times)[:, None], axis=0)])

    def integral(at: Numbers) -> Numbers:
        held = np.clip(np.searchsorted(times, at, side="right") - 1, 0, None)
        return areas[held] + values[held] * (at - times[held])[:, None]

    return (integral(grid + step) - integral(grid)) / step


def in_order(times: Numbers, values: Numbers) -> tuple[Numbers, Numbers, int]:
    """(times that rise strictly, their values, how many were left out): of equal times the last message counts."""
    order = np.argsort(times, kind="stable")
    keep = np.append(np.diff(times[order]) > 0, True)[: len(times)]
    return times[order][keep], values[order][keep], int(len(times) - keep.sum())


def time_grid(start: float, end: float, rate: float, columns: int, source: str) -> Numbers:
    """Times from `start` to `end`, `rate` of them a second."""
    if not end > start:
        raise DataError(f"{source}: its signals have no time in common; check clocks and offsets.")
    rows = int(np.floor((end - start) * rate + TICK * rate)) + 1
    check_budget(f"{source}, {end - start:,.0f} s at {rate:g} rows per second,", 16 * rows * (columns + 2))
    return start + np.arange(rows) / rate


def runs(there: NDArray[np.bool_], begins: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(episodes, 2) first row and one past the last of every stretch that is there; a new one starts at `begins`."""
    rows = np.flatnonzero(there)
    if len(rows) == 0:
        return np.zeros((0, 2), np.int64)
    first = np.append(True, (np.diff(rows) > 1) | begins[rows[1:]])
    starts = np.flatnonzero(first)
    return np.stack([rows[starts], rows[np.append(starts[1:], len(rows)) - 1] + 1], axis=1)


class Dropped(NamedTuple):
    """Counts of what resampling left out."""

    late: int
    """Rows out of order (which are sorted) that have the time of another one."""
    rows: int
    """Rows of the grid in gaps."""
    short: int
    """Pieces of fewer than two steps."""

    def __str__(self) -> str:
        return f"dropped: {self.late} rows of equal times, {self.rows} in gaps, {self.short} pieces of under two steps"


def resampled(
    rows: Rows, times: Numbers, rate: float, gap: float | None = None, how: Align = "interpolate"
) -> tuple[Rows, Dropped]:
    """Trajectories resampled to `rate` rows per second: states by `how`, actions as means; gaps end episodes.

    Rows may be out of order; of rows with equal times the last counts. The action of an episode's last row is not read.
    """
    episodes = [_in_time(rows, times, slice(a, b)) for a, b in itertools.pairwise(rows.offsets.tolist())]
    between = np.concatenate([np.diff(own) for own, _, _ in episodes])
    usual = float(np.median(between)) if len(between) else 0.0
    longest = gap if gap is not None else SILENCE * max(usual, 1.0 / rate)
    retained: list[tuple[Numbers, Numbers]] = []
    in_gaps = short = 0
    for own, states, actions in episodes:
        if len(own) < 2:
            short += 1
            continue
        grid = time_grid(own[0], own[-1], rate, states.shape[1], rows.name)
        seen, there = align(own, states, grid, how, longest)
        sent, _ = align(own[:-1], actions[:-1], grid, "mean", np.inf)
        in_gaps += int(len(grid) - there.sum())
        pieces = runs(there, np.zeros(len(grid), bool))
        long = pieces[pieces[:, 1] - pieces[:, 0] > MINIMUM_STEPS]
        short += len(pieces) - len(long)
        retained += [(seen[start:stop], sent[start:stop]) for start, stop in long]
    if not retained:
        raise DataError(f"{rows.name}: at {rate:g} rows per second no piece has two steps; raise the rate or the gap.")
    observations, commands = (np.concatenate(parts) for parts in zip(*retained, strict=True))
    offsets = np.cumsum([0, *(len(states) for states, _ in retained)])
    late = len(times) - sum(len(own) for own, _, _ in episodes)
    found = rows._replace(observations=observations, actions=commands, offsets=offsets)
    return found, Dropped(late, in_gaps, short)


def _in_time(rows: Rows, times: Numbers, part: slice) -> tuple[Numbers, Numbers, Numbers]:
    """(times, states, actions) of an episode, in order."""
    states, actions = (np.asarray(table[part], np.float64) for table in (rows.observations, rows.actions))
    if not np.isfinite(times[part]).all():
        raise DataError(f"{rows.name}: a time is empty or not finite, in the rows from {part.start} on; correct it.")
    own, both, _ = in_order(times[part], np.concatenate([states, actions], axis=1))
    return own, both[:, : states.shape[1]], both[:, states.shape[1] :]


# --------------------------------------------------------------------------------------------------- angles


def sin_cos(angles: Numbers) -> Numbers:
    """(n, k) angles -> (n, 2 k) sine and cosine of each: interpolation and networks need no jump at 360 degrees."""
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(angles), -1)


def yaw_sin_cos(quaternions: Numbers) -> Numbers:
    """(n, 4) quaternions x, y, z, w -> (n, 2) sine and cosine of the heading; of any length but zero.

        s = 2 (w z + x y),   c = w^2 + x^2 - y^2 - z^2,   (s, c) / |(s, c)|

    NaN where the heading is undefined: the zero quaternion, or straight up.
    """
    x, y, z, w = quaternions.T
    found = np.stack([2.0 * (w * z + x * y), w * w + x * x - y * y - z * z], axis=1)
    length = np.linalg.norm(found, axis=1, keepdims=True)
    size = (quaternions**2).sum(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(length > 1e-9 * size, found / length, np.nan)
