"""HDF5 files: D4RL's and Minari's, read directly, without their packages.

D4RL, one row a step: `observations`, `actions`, `rewards`, `terminals`, `timeouts`, sometimes `next_observations`.

    antmaze, maze2d   (they hold `infos/goal`): `terminals` say that the goal was reached, not that the episode ended.
                      Episodes end at `timeouts`, or where `next_observations` are not the next row's observations.
    kitchen           (60 observation and 9 action columns): the first 30 columns are the state, the others the goal.
                      Episodes end at `terminals`. The action of a terminal row leads nowhere, as that of any last row.
    others            episodes end at `terminals` and `timeouts`.

The end of the file ends an episode. Actions in [-1, 1] are moved inside by 1e-5, as is usual with these data sets.

Minari: groups `episode_0`, `episode_1`, ... with T + 1 observations and T actions. Of a dictionary of observations,
`observation` is the state, with `achieved_goal` before it unless it already begins with those columns.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.data.readers.rows import Rows, rows_from_ends, rows_from_episodes, rows_from_pairs
from iel.errors import DataError
from iel.loader import hdf5_fields, read_hdf5

D4RL = ("observations", "actions", "terminals", "timeouts", "next_observations")
KITCHEN_COLUMNS, KITCHEN_STATE, KITCHEN_ACTIONS = 60, 30, 9
INSIDE = 1.0 - 1e-5
EPISODE = re.compile(r"episode_(\d+)/(observations|actions)(/observation|/achieved_goal)?")


def hdf5_rows(path: Path, name: str) -> Rows:
    """The rows of an HDF5 file, whichever layout it has."""
    flat = hdf5_fields(path, (*D4RL, "infos/goal"))
    if not flat and _is_minari(path):
        return minari_rows(path, name)
    missing = [field for field in ("observations", "actions") if field not in flat]
    if not missing and not flat.keys() & {"terminals", "timeouts", "next_observations"}:
        missing = ["terminals or timeouts"]
    if missing:
        raise DataError(
            f"{path} has no {', '.join(missing)}; a D4RL file holds observations, actions, terminals and timeouts, "
            "a Minari file groups episode_0, episode_1, ..."
        )
    arrays = read_hdf5(path, D4RL)
    observations, actions = arrays["observations"], _inside(arrays["actions"])
    ends = _d4rl_ends(arrays, "infos/goal" in flat, str(path))
    if "next_observations" in arrays:
        rows = rows_from_pairs(observations, actions, arrays["next_observations"], ends, name)
    else:
        rows = rows_from_ends(observations, actions, ends, name)
    if observations.shape[1:] == (KITCHEN_COLUMNS,) and actions.shape[1:] == (KITCHEN_ACTIONS,):
        rows = rows._replace(observations=np.ascontiguousarray(rows.observations[:, :KITCHEN_STATE]))
    return rows.without_short()


def minari_rows(path: Path, name: str) -> Rows:
    """Rows of Minari's `main_data.hdf5`."""
    arrays = read_hdf5(path, lambda field: EPISODE.fullmatch(field) is not None)
    episodes: dict[int, dict[str, NDArray]] = {}
    for field, array in arrays.items():
        parts = EPISODE.fullmatch(field)
        assert parts is not None
        episodes.setdefault(int(parts[1]), {})[parts[2] + (parts[3] or "")] = array
    pairs, labels = [], []
    for number in sorted(episodes):
        parts_here = episodes[number]
        states = parts_here.get("observations", parts_here.get("observations/observation"))
        if states is None or "actions" not in parts_here:
            what = "actions" if states is not None else "observations (an array, or a dictionary with `observation`)"
            raise DataError(
                f"{path}, episode {number}: no {what} of plain numbers; the file is incomplete or of another kind."
            )
        goal = parts_here.get("observations/achieved_goal")
        if goal is not None and goal.ndim == 2 and states.ndim == 2 and len(goal) == len(states):
            inside = states.shape[1] >= goal.shape[1] and np.array_equal(states[:, : goal.shape[1]], goal)
            states = states if inside else np.concatenate([goal, states], axis=1)
        pairs.append((states, _inside(parts_here["actions"])))
        labels.append(f"episode {number}")
    return rows_from_episodes(pairs, labels, name).without_short()


def _is_minari(path: Path) -> bool:
    return bool(hdf5_fields(path, ("episode_0/actions", "episode_0/observations", "episode_0/rewards")))


def _d4rl_ends(arrays: dict[str, NDArray], reaches_goals: bool, source: str) -> NDArray[Any]:
    rows = len(arrays["observations"])
    ends = np.zeros(rows, bool)
    if rows:
        ends[-1] = True
    for field in ("timeouts",) if reaches_goals and "timeouts" in arrays else ("terminals", "timeouts"):
        flags = arrays.get(field)
        if flags is None:
            continue
        if flags.reshape(-1).shape != ends.shape:
            raise DataError(f"{source}: {flags.size} {field} for {rows} rows; the file is damaged, get it again.")
        ends |= flags.reshape(-1) != 0
    return ends


def _inside(actions: NDArray) -> NDArray:
    """Actions in [-1, 1] become at most 1 - 1e-5 in size; larger ones are left for the checks to find."""
    if actions.dtype.kind != "f" or actions.size == 0 or not np.abs(actions).max() <= 1.0:
        return actions
    return np.clip(actions, -INSIDE, INSIDE, out=actions)
