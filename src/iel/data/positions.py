"""Position columns, found from how columns move; jumps, rests and slow directions.

**Slow columns.** A pose oscillates, a position drifts. For a column c of the observations let

    r(c) = E (c_{t + 40} - c_t)^2 / E (c_{t + 1} - c_t)^2

over pairs within an episode. Independent noise has r = 1, a random walk r = 40, constant speed r = 1600; units cancel.
In an ant's 29 columns x and y have 200 to 1000, everything else has less than 15, except for its heading: 130 to 330,
more than x and y where it spends its time turning on the spot. So columns that lie on a unit sphere together
(quaternions, cosine and sine of an angle) are never position columns. Neither is a column that only rises or only falls
within episodes, such as a clock or a battery. A column's own jumps (`STEP_LIMIT` times its 99th percentile: teleports,
glitches) are left out of both means, or one teleport in a thousand steps would outweigh all walking.

**Jumps** are transitions that no motion explains: teleports, resets in mid-episode, glued episodes. With u_t the
position columns, each divided by its standard deviation, the step from t to t + 1 is a jump if

    |u_{t + 1} - u_t| > 3 q,      q = the 99th percentile of |u_{t + 1} - u_t| over the steps that move at all.

So legs that kick, an ant that falls and a sensor that trembles do not jump, and where nothing separates position from
pose (arms, kitchens with objects that snap) nothing does.

**Rests** are stretches without progress, such as an ant that waits at its goal until the episode ends. With
m_t = |u_{t + w} - u_t|,

    a row rests if   m_t < q / 4,     q = the 99th percentile of m,

and a rest is a run of such rows. Where nothing goes anywhere, hindsight names directions at random, and what is drawn
from there is missing elsewhere. Two kinds count:

    LONG    w = 40, at least 80 rows, without the first and last 40 of them
    SHORT   w = 20, at least 20 rows, all of them; where fewer than w steps are left, q is that share of itself

In D4RL's recipe an ant in the ultra maze rests for nine tenths of its time; there long rests are left out. In short
episodes that end at their goal (`antmaze-large-stitch`) long ones are 28 % and short ones 59 %; there short ones are
left out, and goals reached rise from 11 to 14 % to 72 to 76 (docs/results.md). Rests of less than half of the data
stay: an ant that gets out of a corner shows how to do that. With them (a sixth of `antmaze-large-navigate`) a policy
reached 40 of 40 goals, without them 37.

**Slow directions** of an embedding phi are the generalised eigenvectors of

    Cov(phi_{t + 40} - phi_t) v = lambda [mean over k = 1..5 of Cov(phi_{t + k} - phi_t)] v

with the largest lambda: they change most over long times compared with short ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.trajectories import Rows, Trajectories
from iel.errors import DataError

Table = Rows | Trajectories
LAG = 40
GAP = 3.0
"""Position columns are those within this factor of the slowest, if the next one is this factor below all of them."""
PERSISTENT = 0.25
"""A column goes somewhere, instead of trembling around a value, if r is at least this share of the lag."""
STEP_LIMIT = 3.0
SPHERE, TURNS = 0.02, 0.1
"""Columns are an orientation if the sum of their squares is this near to 1 in nine of ten rows, and at least two of
them have a standard deviation of this much.
"""
BUSY, HARDLY = 20, 0.02
"""Traffic that shows whether a passage leads one way only, and the share of it that may have come back."""
MOVES = 1e-6
"""Steps smaller than this share of the largest one are standing still; they say nothing about usual steps."""
FEWEST = 1000
"""Fewest steps for jumps: of fewer, the 99th percentile may itself be a jump."""
SHARE, MOST = 0.25, 0.5
"""q / 4, and the share of the data from which on rests are left out."""


def slowness(data: Table, lag: int = LAG) -> NDArray[np.float64]:
    """(columns,) r of every column, 0 for one that never moves."""
    data.require_memory("tell its slow columns")
    near, far = pairs(data.offsets, 1), pairs(data.offsets, lag)
    if len(far) == 0:
        raise DataError(
            f"{data.name}: no episode is longer than {lag} steps, so slow columns cannot be found; give a smaller lag."
        )
    return np.array([_ratio(values.astype(np.float64), near, far, lag) for values in data.observations.T])


def _ratio(values: NDArray, near: NDArray[np.int64], far: NDArray[np.int64], lag: int) -> float:
    steps = np.abs(values[near + 1] - values[near])
    unusual = steps > step_limit(steps)
    short = np.mean(steps[~unusual] ** 2)
    if unusual.any():
        before = np.zeros(len(values) + 1, np.int64)
        before[near[unusual] + 1] = 1
        before = np.cumsum(before)  # jumps before a row
        far = far[before[far + lag] == before[far]]
    if short == 0.0 or len(far) == 0:
        return 0.0
    return float(np.mean((values[far + lag] - values[far]) ** 2) / short)


def step_limit(sizes: NDArray) -> float:
    """The largest usual step: three times the 99th percentile of the steps that move at all."""
    moving = sizes[sizes > MOVES * sizes.max(initial=0.0)]
    return STEP_LIMIT * float(np.quantile(moving, 0.99)) if len(moving) else 0.0


def orientation_columns(observations: NDArray) -> list[int]:
    """Columns that are part of a unit vector of two, three or four neighbouring columns."""
    rows = observations[np.linspace(0, len(observations) - 1, min(len(observations), 10_000)).astype(int)]
    squares, turns = rows.astype(np.float64) ** 2, rows.std(axis=0, dtype=np.float64) > TURNS
    found: set[int] = set()
    for size in (2, 3, 4):
        for first in range(rows.shape[1] - size + 1):
            window = slice(first, first + size)
            on_sphere = np.abs(squares[:, window].sum(1) - 1.0) < SPHERE
            if turns[window].sum() >= 2 and on_sphere.mean() >= 0.9:
                found |= set(range(first, first + size))
    return sorted(found)


def monotone_columns(data: Table) -> dict[int, bool]:
    """Columns that only rise (True) or only fall (False) within episodes, of two or more that move."""
    steps = pairs(data.offsets, 1)
    found = {}
    for column, values in enumerate(data.observations.T):
        moves = values[steps + 1] - values[steps]
        falls, rises = bool((moves < 0).any()), bool((moves > 0).any())
        moving = np.unique(np.searchsorted(data.offsets, steps[moves != 0], side="right"))
        if falls != rises and len(moving) > 1:
            found[column] = rises
    return found


def find_position_columns(data: Table, lag: int = LAG) -> list[int]:
    """The position columns: a group of equally slow ones, clearly slower than all others; DataError if none is."""
    r = slowness(data, lag)
    r[[*orientation_columns(data.observations), *monotone_columns(data)]] = 0.0
    group = r >= max(r.max() / GAP, PERSISTENT * lag)
    if not group.any():
        reason = f"no column goes anywhere in {lag} steps (largest ratio {r.max():.3g})"
    else:
        least, rest = r[group].min(), r[~group].max(initial=0.0)
        if rest <= least / GAP:
            return [int(column) for column in np.flatnonzero(group)]
        reason = f"columns of ratio {r.max():.3g} to {least:.3g} are followed by one of {rest:.3g}"
    raise DataError(
        f"{data.name}: nothing separates position from pose ({reason}); name the position columns, or use all."
    )


def usual_lag(data: Table) -> int:
    """`LAG`, or half of the longest episode where that is less."""
    return min(LAG, int(np.diff(data.offsets).max()) // 2)


def position_columns(data: Table) -> tuple[int, ...]:
    """The position columns, with a lag of half the longest episode if all are short; () if there are none."""
    data.require_memory("tell its slow columns")
    try:
        return tuple(find_position_columns(data, usual_lag(data)))
    except DataError:
        return ()


def typical_reach(data: Table, columns: list[int], steps: int, deviation: ArrayLike = 1.0) -> float:
    """E ||p(x_{t+k}) - p(x_t)||, k uniform on 1..`steps` but not beyond the episode, p the columns over `deviation`.

    Over up to 10,000 evenly chosen states (no last ones: nothing is learned there), and up to 20 values of k.
    """
    total = int(data.offsets[-1])
    rows = np.linspace(0, total - 1, min(total, 10_000)).astype(np.int64)
    final = np.asarray(data.offsets)[1:][np.searchsorted(data.offsets, rows, side="right") - 1] - 1
    rows, final = rows[rows < final], final[rows < final]
    position = lambda chosen: data.observations[chosen][:, columns] / np.asarray(deviation, np.float64)  # noqa: E731
    here = position(rows)
    later = np.unique(np.linspace(1, steps, 20).round().astype(int))
    ahead = [np.linalg.norm(position(np.minimum(rows + k, final)) - here, axis=1) for k in later]
    return float(np.mean(ahead))


def one_way_passages(data: Trajectories, columns: Sequence[int]) -> int:
    """How many passages between regions of these columns were made `BUSY` times or more, and hardly ever back.

    Regions are squares as wide as 1 to 20 steps lead on average. A door that opens one way shows here, and so does the
    lane of dense traffic around a corner; that a robot must turn before it can go back does not.
    """
    chosen = list(columns)
    positions = np.asarray(data.observations[:, chosen], np.float64) / np.asarray(data.scale)[chosen]
    cells = np.floor(positions / max(typical_reach(data, chosen, 20, data.scale[chosen]), 1e-12)).astype(np.int64)
    crossed = (cells[1:] != cells[:-1]).any(1)
    crossed[np.asarray(data.offsets)[1:-1] - 1] = False
    moves, counts = np.unique(np.hstack([cells[:-1], cells[1:]])[crossed], axis=0, return_counts=True)
    made = {tuple(move): count for move, count in zip(moves.tolist(), counts.tolist(), strict=True)}
    width = len(chosen)
    busy = (move for move, count in made.items() if count >= BUSY)
    return sum(made.get(move[width:] + move[:width], 0) <= HARDLY * made[move] for move in busy)


def pairs(offsets: NDArray, lag: int) -> NDArray[np.int64]:
    """Rows t whose row t + lag is of the same episode."""
    lengths = np.diff(offsets)
    last = np.repeat(np.asarray(offsets)[1:] - lag, lengths)
    rows = np.arange(len(last))
    return rows[rows < last]


# ---------------------------------------------------------------------------------------------------------------- jumps


class Cut(NamedTuple):
    """Data without the transitions that jump."""

    data: Trajectories
    jumps: int
    dropped: int
    """Pieces of fewer than two steps, which were left out."""


def jump_rows(data: Table, columns: list[int] | None = None) -> NDArray[np.int64]:
    """Rows t whose transition to t + 1 is a jump of these columns (default: the position columns)."""
    data.require_memory("look for jumps")
    steps = pairs(data.offsets, 1)
    if len(steps) < FEWEST:
        return steps[:0]
    columns = list(position_columns(data)) if columns is None else columns
    squares = np.zeros(len(steps))
    for column in columns:
        values = data.observations[:, column].astype(np.float64)
        squares += ((values[steps + 1] - values[steps]) / (values.std() or 1.0)) ** 2
    sizes = np.sqrt(squares)
    return steps[sizes > step_limit(sizes)]


def same_entrance(positions: NDArray, radius: float) -> NDArray[np.int64]:
    """(m,) labels of positions (m, columns): equal where a chain of positions, each within the radius, joins them."""
    from scipy.sparse import coo_array  # a robot that only acts needs no scipy
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    near = cKDTree(positions).query_pairs(radius, output_type="ndarray")
    graph = coo_array((np.ones(len(near)), (near[:, 0], near[:, 1])), shape=(len(positions),) * 2)
    return connected_components(graph, directed=False)[1]


def cut_at_jumps(data: Trajectories) -> Cut:
    """The data in pieces that end before a jump and begin after it, so no transition leads across."""
    pieces = data.cut(data.jumps)
    return Cut(pieces, len(data.jumps), len(data) + len(data.jumps) - len(pieces))


# ---------------------------------------------------------------------------------------------------------------- rests


class Rest(NamedTuple):
    """The definition of a rest."""

    window: int
    """w"""
    shortest: int
    """Rows it has at least."""
    edge: int
    """Rows at both of its ends that do not count."""


LONG, SHORT = Rest(40, 80, 40), Rest(20, 20, 0)


def rest_rows(data: Table, columns: list[int] | None = None, kind: Rest = LONG) -> NDArray[np.int64]:
    """Rows inside rests of these columns (default: the position columns, of which there may be none)."""
    data.require_memory("look for rests")
    columns = list(position_columns(data)) if columns is None else columns
    if not columns:
        return np.zeros(0, np.int64)
    position = data.observations[:, columns].astype(np.float64)
    position /= np.where(position.std(0) > 0.0, position.std(0), 1.0)
    offsets = np.asarray(data.offsets)
    rows, last = np.arange(len(position)), np.repeat(offsets[1:] - 1, np.diff(offsets))
    ahead = np.minimum(kind.window, last - rows)
    moved = np.linalg.norm(position[rows + ahead] - position, axis=1)
    whole = moved[ahead == kind.window]
    if len(whole) == 0:
        return rows[:0]
    left = np.maximum(ahead, 1) / kind.window if kind.edge == 0 else 1.0  # the edges of long ones do not count
    resting = moved < SHARE * np.quantile(whole, 0.99) * left
    # Runs of equal rows within one episode, as first rows and ends.
    changes = np.flatnonzero(np.diff(resting)) + 1
    bounds = np.union1d(offsets, changes)
    first, end = bounds[:-1], bounds[1:]
    rests = resting[first] & (end - first >= kind.shortest)
    inside = [np.arange(a + kind.edge, b - kind.edge) for a, b in zip(first[rests], end[rests], strict=True)]
    return np.concatenate(inside) if inside else rows[:0]


def cut_rests(data: Trajectories, columns: list[int] | None = None) -> Trajectories:
    """The data in pieces without the kind of rests that are most of it, long ones first; else the data itself."""
    columns = list(data.position_columns) if columns is None else columns
    for kind in (LONG, SHORT):
        rows = rest_rows(data, columns, kind)
        if len(rows) > MOST * data.num_states:
            return data.cut(rows)
    return data


# ------------------------------------------------------------------------------------------------------ slow directions


class SlowDirections(NamedTuple):
    """Generalised eigenvectors, slowest first."""

    ratios: NDArray[np.float64]
    """(size,) lambda: how much further a direction moves over the long lag than over the short ones, squared."""
    directions: NDArray[np.float64]
    """(size, size) one direction a column, of unit variance over the short lags; phi @ directions[:, :k] keeps k."""


def slow_directions(embeddings: ArrayLike, offsets: ArrayLike, lag: int = LAG, short: int = 5) -> SlowDirections:
    """The directions of an embedding ordered by slowness; `offsets` are the first rows of episodes and their end."""
    phi, bounds = np.asarray(embeddings, np.float64), np.asarray(offsets, np.int64)
    far = pairs(bounds, lag)
    if len(far) < 2:
        raise DataError(f"No two states are {lag} steps apart in one episode; give longer episodes or a smaller lag.")
    slow = _covariance(phi, far, lag)
    fast = np.mean([_covariance(phi, pairs(bounds, k), k) for k in range(1, short + 1)], axis=0)
    # With fast = L L^T and w = L^T v it is the ordinary problem L^-1 slow L^-T w = lambda w. A direction that never
    # moves is worth nothing, not infinitely much: hence the small ridge.
    lower = np.linalg.cholesky(fast + 1e-8 * np.trace(fast) / len(fast) * np.eye(len(fast)))
    half = np.linalg.solve(lower, slow)
    ratios, vectors = np.linalg.eigh(np.linalg.solve(lower, half.T))
    return SlowDirections(ratios[::-1], np.linalg.solve(lower.T, vectors)[:, ::-1])


def _covariance(phi: NDArray, rows: NDArray[np.int64], lag: int) -> NDArray[np.float64]:
    return np.atleast_2d(np.cov(phi[rows + lag] - phi[rows], rowvar=False, bias=True))
