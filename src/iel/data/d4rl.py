"""D4RL's and Minari's data sets, read from HDF5 files directly, without their packages.

D4RL, one row per step: `observations`, `actions`, `rewards`, `terminals`, `timeouts`, sometimes `next_observations`.

    antmaze, maze2d   (they hold `infos/goal`): `terminals` say that the goal was reached, not that the episode ended.
                      Episodes end at `timeouts`, or where `next_observations` are not the next row's observations.
    kitchen           (60 observation and 9 action columns, and the name says so): the first 30 columns are the state,
                      the others the goal. Episodes end at `terminals`. The action of a terminal row leads nowhere, as
                      that of any last row.
    others            episodes end at `terminals` and `timeouts`.

The end of the file ends an episode. Actions in [-1, 1] are moved inside by 1e-5, as is usual with these data sets.

Minari: groups `episode_0`, `episode_1`, ... with T + 1 observations and T actions. Of a dictionary of observations,
`observation` is the state, with `achieved_goal` before it unless it already begins with those columns.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iel.data.hdf5 import opened_hdf5
from iel.data.trajectories import (
    Piece,
    Rows,
    episodes_in_windows,
    marked,
    misspelt,
    rows_in_windows,
    short_episodes,
    signals_beside,
)
from iel.errors import DataError
from iel.files import notice

D4RL = ("observations", "actions", "terminals", "timeouts", "next_observations")
KITCHEN_COLUMNS, KITCHEN_STATE, KITCHEN_ACTIONS = 60, 30, 9
INSIDE = 1.0 - 1e-5
EPISODE = re.compile(r"episode_([0-9]+)")
MINARI_FILE = "main_data.hdf5"
DIGITS = 9
"""Most digits of an episode's number."""
PARTS = ("observations", "actions", "observations/observation", "observations/achieved_goal")


def hdf5_windows(path: Path, name: str, size: int | None) -> Iterator[Rows]:
    """The rows of an HDF5 file, whichever layout it has: all together, or some `size` at a time, as whole episodes."""
    with opened_hdf5(path) as file:
        names, fields = file.names(), file.arrays((*D4RL, "infos/goal")).keys()
    if not fields and (path.name == MINARI_FILE or any(map(EPISODE.fullmatch, names))):
        signals = signals_beside(path.parent)  # written by us: the rows are those of another file, to the bit
        episodes = _minari_episodes(path, _minari_groups(names, path), exact=signals is not None)
        for rows in episodes_in_windows(episodes, name, size):
            yield rows._replace(signals=signals or rows.signals).without_short()
        return
    misspelt(names, D4RL, str(path))
    missing = [field for field in ("observations", "actions") if field not in fields]
    ends_at = fields & {"terminals", "timeouts", "next_observations"}
    if not missing and (not ends_at or ("infos/goal" in fields and ends_at == {"terminals"})):
        missing = ["timeouts" if ends_at else "terminals or timeouts"]
    if missing:
        raise DataError(
            f"{path} has no {', '.join(missing)}; a D4RL file holds observations, actions, terminals and timeouts, "
            "a Minari file groups episode_0, episode_1, ..."
        )
    flags = ("timeouts",) if "infos/goal" in fields else ("terminals", "timeouts")
    ends = lambda arrays: marked(arrays, flags, len(arrays["observations"]), str(path))  # noqa: E731
    for rows in rows_in_windows(_d4rl_pieces(path, size), ends, name, closed=True):
        retained = _state_of_kitchen(rows).without_short()
        if size is None or len(short_episodes(retained.offsets)) == 0:  # else nothing is left of this window
            yield retained


def _d4rl_pieces(path: Path, size: int | None) -> Iterator[tuple[Piece, bool]]:
    """The arrays piece by piece; actions are moved inside where all of them, in all pieces, are in [-1, 1]."""
    with opened_hdf5(path) as file:
        small = size is None or all(_in_unit_box(piece["actions"]) for piece, _ in file.pieces(("actions",), size))
        for piece, last in file.pieces(D4RL, size):
            if small:
                piece["actions"] = _inside(piece["actions"])
            yield piece, last


def _state_of_kitchen(rows: Rows) -> Rows:
    """Of D4RL's kitchens, the state alone; other rows as they are."""
    shapes = rows.observations.shape[1], rows.actions.shape[1]
    if shapes != (KITCHEN_COLUMNS, KITCHEN_ACTIONS) or "kitchen" not in rows.name.lower():
        return rows
    notice(
        f"{rows.name}: the first 30 of 60 columns are read, the state; the others are the kitchen's goal.", once=True
    )
    return rows._replace(observations=np.ascontiguousarray(rows.observations[:, :KITCHEN_STATE]))


def _minari_groups(names: list[str], path: Path) -> dict[int, str]:
    """The groups of a Minari file by the number of their episode."""
    numbers: dict[int, str] = {}
    for parts in filter(None, map(EPISODE.fullmatch, names)):
        if len(parts[1]) > DIGITS:
            raise DataError(f"{path} numbers an episode with {len(parts[1])} digits; it is damaged, get it again.")
        if (number := int(parts[1])) in numbers:
            raise DataError(
                f"{path} holds both {numbers[number]} and {parts[0]}; give every episode a number of its own."
            )
        numbers[number] = parts[0]
    if numbers and len(numbers) <= max(numbers):
        absent = next(number for number in range(max(numbers)) if number not in numbers)
        notice(f"{path}: episode {absent} is not there, though later ones are; the others are read.", once=True)
    return dict(sorted(numbers.items()))


def _minari_episodes(path: Path, groups: dict[int, str], exact: bool) -> Iterator[tuple[str, NDArray, NDArray]]:
    """(what it is called, observations, actions) of every episode."""
    with opened_hdf5(path) as file:
        for number, group in groups.items():
            arrays = file.read([f"{group}/{part}" for part in PARTS])
            states, actions, plain, goal = (arrays.get(f"{group}/{part}") for part in PARTS)
            states = plain if states is None else states
            if states is None or actions is None:
                what = "observations (an array, or a dictionary with `observation`)" if states is None else "actions"
                raise DataError(
                    f"{path}, episode {number}: no {what} of plain numbers; the file is incomplete or of another kind."
                )
            if goal is not None and goal.ndim == 2 and states.ndim == 2 and len(goal) == len(states):
                inside = states.shape[1] >= goal.shape[1] and np.array_equal(states[:, : goal.shape[1]], goal)
                states = states if inside else np.concatenate([goal, states], axis=1)
            yield f"episode {number}", states, actions if exact else _inside(actions)


def _inside(actions: NDArray) -> NDArray:
    """Actions in [-1, 1] become at most 1 - 1e-5 in size; larger ones are left for the checks to find."""
    if actions.dtype.kind != "f" or actions.size == 0 or not _in_unit_box(actions):
        return actions
    return np.clip(actions, -INSIDE, INSIDE, out=actions)


def _in_unit_box(actions: NDArray) -> bool:
    return actions.size == 0 or bool(max(actions.max(), -actions.min()) <= 1.0)
