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

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.data.hdf5 import hdf5_fields, hdf5_names, hdf5_pieces, read_hdf5
from iel.data.rows import (
    Rows,
    breaks,
    check_flags,
    misspelt,
    rows_from_ends,
    rows_from_episodes,
    rows_from_pairs,
    whole_episodes,
)
from iel.data.trajectories import short_episodes
from iel.errors import DataError
from iel.files import notice
from iel.loader import Field

D4RL = ("observations", "actions", "terminals", "timeouts", "next_observations")
KITCHEN_COLUMNS, KITCHEN_STATE, KITCHEN_ACTIONS = 60, 30, 9
INSIDE = 1.0 - 1e-5
EPISODE = re.compile(r"episode_([0-9]+)")
DIGITS = 9
"""Most digits of an episode's number."""
PARTS = ("observations", "actions", "observations/observation", "observations/achieved_goal")


def hdf5_rows(path: Path, name: str) -> Rows:
    """The rows of an HDF5 file, whichever layout it has."""
    names, flat = _described(path)
    if flat is None:
        return minari_rows(path, name, names)
    arrays = read_hdf5(path, D4RL)
    return _d4rl_rows({**arrays, "actions": _inside(arrays["actions"])}, "infos/goal" in flat, path, name)


def hdf5_windows(path: Path, name: str, size: int) -> Iterator[Rows]:
    """The same rows, some `size` of the file at a time: whole episodes, each in one window."""
    _, flat = _described(path)
    if flat is None:
        yield from minari_windows(path, name, size)
        return
    reaches = "infos/goal" in flat
    small = all(_in_unit_box(piece["actions"]) for piece, _ in hdf5_pieces(path, ("actions",), size))
    peek = "next_observations" in flat

    def ends(arrays: dict[str, NDArray]) -> NDArray:
        flags = _d4rl_ends(arrays, reaches, str(path), end=False)
        return flags | breaks(arrays["observations"], arrays["next_observations"]) if peek else flags

    for arrays in whole_episodes(hdf5_pieces(path, D4RL, size), ends, peek):
        actions = _inside(np.array(arrays["actions"])) if small else arrays["actions"]
        rows = _d4rl_rows({**arrays, "actions": actions}, reaches, path, name)
        if len(short_episodes(rows.offsets)) < len(rows.offsets) - 1:  # else nothing is left of this window
            yield rows


def _described(path: Path) -> tuple[list[str], dict[str, Field] | None]:
    """(names at the top, arrays of D4RL's layout); None for the latter where it is a Minari file."""
    names = hdf5_names(path)
    flat = hdf5_fields(path, (*D4RL, "infos/goal"))
    if not flat and any(EPISODE.fullmatch(entry) for entry in names):
        return names, None
    misspelt(names, D4RL, str(path))
    missing = [field for field in ("observations", "actions") if field not in flat]
    ends_at = flat.keys() & {"terminals", "timeouts", "next_observations"}
    if not missing and (not ends_at or ("infos/goal" in flat and ends_at == {"terminals"})):
        missing = ["timeouts" if ends_at else "terminals or timeouts"]
    if missing:
        raise DataError(
            f"{path} has no {', '.join(missing)}; a D4RL file holds observations, actions, terminals and timeouts, "
            "a Minari file groups episode_0, episode_1, ..."
        )
    return names, flat


def _d4rl_rows(arrays: dict[str, NDArray], reaches_goals: bool, path: Path, name: str) -> Rows:
    """The rows that the arrays of a D4RL file stand for."""
    observations, actions = arrays["observations"], arrays["actions"]
    ends = _d4rl_ends(arrays, reaches_goals, str(path))
    if "next_observations" in arrays:
        rows = rows_from_pairs(observations, actions, arrays["next_observations"], ends, name)
    else:
        rows = rows_from_ends(observations, actions, ends, name)
    kitchen = observations.shape[1:] == (KITCHEN_COLUMNS,) and actions.shape[1:] == (KITCHEN_ACTIONS,)
    if kitchen and "kitchen" in name.lower():
        notice(f"{name}: the first 30 of 60 columns are kept, the state; the others are the kitchen's goal.", once=True)
        rows = rows._replace(observations=np.ascontiguousarray(rows.observations[:, :KITCHEN_STATE]))
    return rows.without_short()


def minari_rows(path: Path, name: str, names: Sequence[str] | None = None) -> Rows:
    """Rows of Minari's `main_data.hdf5`; `names` are those at its top, if they are known already."""
    return _minari_episodes(path, name, _minari_groups(path, names))


def minari_windows(path: Path, name: str, size: int) -> Iterator[Rows]:
    """The same rows, so many episodes at a time as have some `size` rows together."""
    part: dict[int, str] = {}
    rows = 0
    for number, group in sorted(_minari_groups(path).items()):
        shape = hdf5_fields(path, [f"{group}/actions"]).get(f"{group}/actions", Field((0,), None)).shape
        part[number], rows = group, rows + shape[0]
        if rows >= size:
            yield _minari_episodes(path, name, part)
            part, rows = {}, 0
    if part:
        yield _minari_episodes(path, name, part)


def _minari_groups(path: Path, names: Sequence[str] | None = None) -> dict[int, str]:
    """The groups of a Minari file by the number of their episode."""
    numbers: dict[int, str] = {}
    for group in hdf5_names(path) if names is None else names:
        if parts := EPISODE.fullmatch(group):
            if len(parts[1]) > DIGITS:
                raise DataError(f"{path} numbers an episode with {len(parts[1])} digits; it is damaged, get it again.")
            if (number := int(parts[1])) in numbers:
                raise DataError(
                    f"{path} holds both {numbers[number]} and {group}; give every episode a number of its own."
                )
            numbers[number] = group
    if numbers and len(numbers) <= max(numbers):
        absent = next(number for number in range(max(numbers)) if number not in numbers)
        notice(f"{path}: episode {absent} is not there, though later ones are; the others are read.", once=True)
    return numbers


def _minari_episodes(path: Path, name: str, groups: dict[int, str]) -> Rows:
    """The rows of these episodes."""
    arrays = read_hdf5(path, [f"{group}/{part}" for group in groups.values() for part in PARTS])
    pairs, labels = [], []
    for number, group in sorted(groups.items()):
        states, plain, goal = (arrays.get(f"{group}/{part}") for part in (PARTS[0], *PARTS[2:]))
        states, actions = states if states is not None else plain, arrays.get(f"{group}/actions")
        if states is None or actions is None:
            what = "actions" if states is not None else "observations (an array, or a dictionary with `observation`)"
            raise DataError(
                f"{path}, episode {number}: no {what} of plain numbers; the file is incomplete or of another kind."
            )
        if goal is not None and goal.ndim == 2 and states.ndim == 2 and len(goal) == len(states):
            inside = states.shape[1] >= goal.shape[1] and np.array_equal(states[:, : goal.shape[1]], goal)
            states = states if inside else np.concatenate([goal, states], axis=1)
        pairs.append((states, _inside(actions)))
        labels.append(f"episode {number}")
    return rows_from_episodes(pairs, labels, name).without_short()


def _d4rl_ends(arrays: dict[str, NDArray], reaches_goals: bool, source: str, end: bool = True) -> NDArray[Any]:
    """Flags on last rows; with `end` the last row given is one, as the end of a file ends an episode."""
    rows = arrays["observations"].shape[0] if arrays["observations"].ndim else 0
    ends = np.zeros(rows, bool)
    if rows and end:
        ends[-1] = True
    for field in ("timeouts",) if reaches_goals else ("terminals", "timeouts"):
        flags = arrays.get(field)
        if flags is None:
            continue
        if flags.reshape(-1).shape != ends.shape:
            raise DataError(f"{source}: {flags.size} {field} for {rows} rows; the file is damaged, get it again.")
        ends |= check_flags(flags.reshape(-1), source)
    return ends


def _inside(actions: NDArray) -> NDArray:
    """Actions in [-1, 1] become at most 1 - 1e-5 in size; larger ones are left for the checks to find."""
    if actions.dtype.kind != "f" or actions.size == 0 or not _in_unit_box(actions):
        return actions
    return np.clip(actions, -INSIDE, INSIDE, out=actions)


def _in_unit_box(actions: NDArray) -> bool:
    return actions.size == 0 or bool(max(actions.max(), -actions.min()) <= 1.0)
