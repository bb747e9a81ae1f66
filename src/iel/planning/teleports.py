"""Teleports: stochastic transitions of the data that end far away (a teleport, a chute, a lift that stops anywhere).

Jumps of the data that begin at the same position are one *teleport* k. It can be entered from the nodes where they
began, at the cost c_ik, and it led to node j in the share p_kj of its jumps. The agent does not choose the exit, so the
cost from a teleport on is an expectation:

    V(i) = min( min_j C_ij + V(j),  min_k c_ik + Q_k ),         V(goal's node) = 0,
    Q_k  = sum_j p_kj V(j).

With D_g(i) and D_k(i) the costs of paths from i to the goal's node and into teleport k, V(i) is the least of D_g(i) and
D_k(i) + Q_k, so only the Q are unknown:

    Q_k = sum_j p_kj min( D_g(j), min_l D_l(j) + Q_l ).

Started from Q = 0 this rises to the least solution, which is the optimum. A teleport has an infinite Q if the goal
cannot be reached from one of its exits, directly or by teleports that have a finite one.

`graph.teleport_search` reads V off the Q. The agent enters a teleport by heading for its `aim`: where the trajectories
that jumped would have been two steps later.
"""

import numpy as np
from scipy.spatial import cKDTree

from iel.data.positions import jump_rows, same_entrance
from iel.data.trajectories import Trajectories
from iel.distances import Booleans, Floats
from iel.model.atlas import ObservedTeleports

FEWEST = 10
"""Jumps from one position that make a teleport: fewer may be a log that was joined wrongly."""
AHEAD = 2.0
"""How many steps beyond the last state before a jump the teleport is entered at."""
ACCURACY, ROUNDS = 1e-9, 100_000
"""When expectations are good enough: no share of them changes by more in a round."""


def find_teleports(data: Trajectories, columns: list[int], scale: Floats, nodes: Floats) -> ObservedTeleports | None:
    """The teleports of data whose position `columns` are divided by their `scale`; None if there are none.

    `nodes` (N, columns) are the positions of the graph's nodes in these units.
    """
    rows = jump_rows(data, columns)
    rows = rows[~np.isin(rows, data.offsets[:-1])]  # the step before tells the direction
    if len(rows) < FEWEST:
        return None
    table = np.asarray(data.observations)
    before, here, after = (table[rows + step][:, columns].astype(np.float64) / scale for step in (-1, 0, 1))
    steps = np.linalg.norm(here - before, axis=1)
    near = 3.0 * float(np.quantile(steps, 0.9))  # what a few steps join is one position
    inside = here + AHEAD * np.where(steps < near, 1.0, 0.0)[:, None] * (here - before)
    labels = same_entrance(here, near)
    retained = np.flatnonzero(np.bincount(labels) >= FEWEST)
    if not len(retained):
        return None
    aims = []
    for teleport in retained:
        members = np.flatnonzero(labels == teleport)
        middle = inside[members].mean(axis=0)
        aim = table[rows[members[np.argmin(np.linalg.norm(here[members] - middle, axis=1))]]].copy()
        aim[columns] = middle * scale
        aims.append(aim)
    number = np.searchsorted(retained, labels)
    chosen = np.isin(labels, retained)
    nearest = cKDTree(nodes)
    entries = np.unique(np.stack([nearest.query(here[chosen])[1], number[chosen]]), axis=1)
    ends = np.stack([number[chosen], nearest.query(after[chosen])[1]])
    exits, seen = np.unique(ends, axis=1, return_counts=True)
    shares = seen / np.bincount(number[chosen])[exits[0]]
    return ObservedTeleports(np.array(aims), entries[0], entries[1], exits[0], exits[1], shares)


def expectations(walks: Floats, teleports: ObservedTeleports) -> Floats:
    """Q of every teleport, from the costs of paths from every exit to the goal's node (row 0) and into teleport k
    (row k + 1)."""
    to_goal, to_teleport = walks[0], walks[1:]
    certain = reaching(np.isfinite(to_goal), np.isfinite(to_teleport), teleports)
    values = np.where(certain, 0.0, np.inf)
    for _ in range(ROUNDS):
        best = np.minimum(to_goal, (to_teleport + values[:, None]).min(axis=0))
        best = np.where(certain[teleports.left], best, 0.0)
        after = np.where(certain, np.bincount(teleports.left, teleports.shares * best, len(teleports)), np.inf)
        if (after[certain] - values[certain] <= ACCURACY * after[certain]).all():
            return after
        values = after
    return values


def reaching(to_goal: Booleans, to_teleport: Booleans, teleports: ObservedTeleports) -> Booleans:
    """Teleports from which the goal is reached with certainty, sooner or later: the largest set all of whose
    exits lead to the goal or into the set, each with some chance of the former at last."""
    retained = np.ones(len(teleports), bool)
    while True:
        safe = to_goal | (to_teleport & retained[:, None]).any(axis=0)
        allowed = retained & (np.bincount(teleports.left, ~safe, len(teleports)) == 0)
        some = np.zeros(len(teleports), bool)
        while True:
            lucky = to_goal | (to_teleport & some[:, None]).any(axis=0)
            more = allowed & (np.bincount(teleports.left, lucky, len(teleports)) > 0)
            if (more == some).all():
                break
            some = more
        if (some == retained).all():
            return retained
        retained = some
