"""Do actions act when they were logged? The delay k that explains the logged steps best.

    x_{t+1} - x_t = W_k f(x_t, a_{t-k}) + rest,     f(x, a) = (1, x, a, x (x) a)
    R_k           = 1 - |rest|^2 / |rest without a|^2,     on rows that the fit did not see
    delay         = argmax_k R_k

R_k is averaged over columns. Products of state and action make it exact for a robot that drives where it is heading
(x moves by v cos yaw). Both regressions are ridge regressions on standardised columns. A lag of the robot itself
(motors, inertia) that its observation does not show looks the same, and it costs the same: what the policy does now
acts later.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.positions import Table
from iel.data.trajectories import Rows
from iel.errors import DataError

LONGEST = 8
"""k that are tried: 0 to this."""
FEWEST, ROWS = 300, 6000
"""Fewest rows for an estimate, and most rows that it uses."""
COLUMNS = 24
"""Observation columns that are used: those that move most between rows, for their size."""
RIDGE = 1e-3
GAIN, CLEAR = 0.05, 5.0
"""A delay counts if its R exceeds that of no delay by `GAIN`, and by `CLEAR` standard errors."""
Numbers = NDArray[np.float64]


class Delay(NamedTuple):
    """An estimated delay."""

    steps: int
    """The delay k."""
    explained: tuple[float, ...]
    """R_0, R_1, ...: shares of held-out variance that the action explains."""
    errors: float
    """R_k - R_0 in its standard errors, over the rows that were held out."""

    @property
    def clear(self) -> bool:
        """Whether no delay is clearly worse."""
        return self.explained[self.steps] > self.explained[0] + GAIN and self.errors > CLEAR


def estimate_delay(data: Table, longest: int = LONGEST, seed: int = 0) -> Delay | None:
    """The delay of the actions; None where no episode is long enough, nothing moves, or no action changes."""
    lengths = np.diff(data.offsets)
    first = np.repeat(data.offsets[:-1], lengths)
    rows = np.arange(len(first))
    rows = rows[(rows - first >= longest) & (rows + 1 < first + np.repeat(lengths, lengths))]
    if len(rows) < FEWEST:
        return None
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(rows, min(ROWS, len(rows)), replace=False))
    steps = np.asarray(data.observations[rows + 1], np.float64) - data.observations[rows]
    sizes = np.asarray(data.observations[rows], np.float64).std(axis=0)
    moving = np.flatnonzero((steps.std(axis=0) > 1e-9) & (sizes > 1e-9))
    moving = moving[np.argsort(-steps.std(axis=0)[moving] / sizes[moving], kind="stable")[:COLUMNS]]
    states = _standard(np.asarray(data.observations[rows], np.float64)[:, moving])
    targets = _standard(steps[:, moving])
    held = generator.random(len(rows)) < 0.3
    lagged = [_standard(np.asarray(data.actions[rows - k], np.float64)) for k in range(longest + 1)]
    if not len(moving) or not any(actions.any() for actions in lagged):
        return None
    alone = np.concatenate([np.ones((len(rows), 1)), states], axis=1)
    base = np.maximum(_left(alone, targets, held).mean(axis=0), 1e-12)
    left = []
    for actions in lagged:
        products = (states[:, :, None] * actions[:, None, :]).reshape(len(rows), -1)
        left.append((_left(np.concatenate([alone, actions, products], axis=1), targets, held) / base).mean(axis=1))
    explained = tuple(1.0 - float(rest.mean()) for rest in left)
    best = int(np.argmax(explained))
    gain = left[0] - left[best]
    return Delay(best, explained, float(gain.mean() / max(gain.std() / np.sqrt(len(gain)), 1e-12)))


def shift_actions(rows: Rows, steps: int) -> Rows:
    """Rows with actions shifted by k = `steps`: row t gets the action of row t - k, and the first k rows of every
    episode, whose actions were not logged, are left out."""
    if steps == 0:
        return rows
    lengths = np.diff(rows.offsets)
    if steps < 0 or steps >= lengths.max():
        raise DataError(
            f"{rows.name}: actions cannot be delayed by {steps} steps; the longest episode has {lengths.max() - 1}."
        )
    keep = np.concatenate([np.arange(a + steps, b) for a, b in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)])
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths - steps, 0))])
    offsets = np.unique(offsets)  # episodes that have nothing left
    return rows._replace(
        observations=rows.observations[keep], actions=rows.actions[keep - steps], offsets=offsets
    ).without_short()


def _standard(table: Numbers) -> Numbers:
    deviation = table.std(axis=0)
    return (table - table.mean(axis=0)) / np.where(deviation > 1e-9, deviation, 1.0)


def _left(features: Numbers, targets: Numbers, held: NDArray[np.bool_]) -> Numbers:
    """(held rows, targets) squares of what a ridge regression leaves on the rows that are held out."""
    fit = features[~held]
    square = fit.T @ fit + RIDGE * len(fit) * np.eye(features.shape[1])
    weights = np.linalg.solve(square, fit.T @ targets[~held])
    found: Numbers = (targets[held] - features[held] @ weights) ** 2
    return found
