"""npz files: OGBench's two layouts, and plain arrays of people with logs of their own.

    observations, actions, terminals                         OGBench: one row a state, true on the last row
    observations, actions, terminals, valids                 the same after OGBench's compact loading
    observations, actions, next_observations (, terminals)   one row a transition
    observations, actions, timeouts | offsets | episode_ids  one row a state

Other arrays (qpos, qvel, button_states, rewards...) are not read. A folder of npz files is one episode a file.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iel.data.readers.rows import Rows, rows_from_ends, rows_from_episodes, rows_from_pairs
from iel.errors import DataError
from iel.loader import npz_fields, read_npz

BOUNDARIES = ("terminals", "timeouts", "offsets", "episode_ids")
FIELDS = ("observations", "actions", "next_observations", "valids", *BOUNDARIES)


def npz_rows(path: Path, name: str) -> Rows:
    """The rows of an npz file, whatever its layout."""
    present = npz_fields(path).keys()
    missing = [field for field in ("observations", "actions") if field not in present]
    if "next_observations" not in present and not present & set(BOUNDARIES):
        missing.append("terminals")
    if missing:
        raise DataError(
            f"{path} has no {', '.join(missing)}; a data set holds observations, actions and one of "
            f"next_observations, {', '.join(BOUNDARIES)}."
        )
    arrays = read_npz(path, FIELDS)
    observations, actions = arrays["observations"], arrays["actions"]
    if "next_observations" in arrays:
        ends = _ends(arrays, len(observations), str(path)) if arrays.keys() & set(BOUNDARIES) else None
        return rows_from_pairs(observations, actions, arrays["next_observations"], ends, name)
    if "valids" in arrays:
        # Compact: terminals are true on the last two rows of an episode, valids false on the last.
        return rows_from_ends(observations, actions, 1 - np.asarray(arrays["valids"]), name)
    return rows_from_ends(observations, actions, _ends(arrays, len(observations), str(path)), name)


def folder_rows(path: Path, name: str) -> Rows:
    """One episode a file, in the order of the numbers in their names."""
    files = sorted((entry for entry in path.iterdir() if entry.suffix == ".npz"), key=_natural)
    if not files:
        raise DataError(f"{path} holds no npz files; give a folder with one npz file an episode, or a single file.")
    episodes = []
    for file in files:
        arrays = read_npz(file, ("observations", "actions"))
        if len(arrays) < 2:
            lacking = {"observations", "actions"} - arrays.keys()
            raise DataError(
                f"{file} has no {', '.join(sorted(lacking))}; an episode file holds observations and actions."
            )
        episodes.append((arrays["observations"], arrays["actions"]))
    return rows_from_episodes(episodes, [file.name for file in files], name)


def _ends(arrays: dict[str, NDArray], rows: int, source: str) -> NDArray:
    """Flags on last rows from whichever description of the boundaries the file has."""
    if "offsets" in arrays:
        return _ends_from_offsets(arrays["offsets"], rows, source)
    if "episode_ids" in arrays:
        ids = arrays["episode_ids"].reshape(-1)
        if len(ids) != rows:
            raise DataError(f"{source}: {len(ids)} episode_ids for {rows} rows; give one a row.")
        changes = np.append(ids[1:] != ids[:-1], True) if rows else np.zeros(0, bool)
        if len(np.unique(ids)) != np.count_nonzero(changes):
            raise DataError(
                f"{source}: the rows of an episode are not together; sort them by episode_ids, then by time."
            )
        return changes
    flags = [arrays[field] for field in ("terminals", "timeouts") if field in arrays]
    if len(flags) == 1:
        return flags[0]
    if flags[0].shape != flags[1].shape:
        raise DataError(f"{source}: {len(flags[0])} terminals and {len(flags[1])} timeouts; give one of each a row.")
    return (flags[0] != 0) | (flags[1] != 0)


def _ends_from_offsets(offsets: NDArray, rows: int, source: str) -> NDArray:
    """`offsets` are the first rows of the episodes, with or without the number of rows at the end."""
    if offsets.ndim != 1 or len(offsets) == 0 or offsets.dtype.kind not in "iu" or offsets[0] != 0:
        raise DataError(f"{source}: offsets must be whole numbers from 0 on, the first row of every episode.")
    full = offsets.astype(np.int64) if offsets[-1] == rows else np.append(offsets.astype(np.int64), rows)
    wrong = np.flatnonzero(np.diff(full) <= 0)
    if len(wrong):
        raise DataError(
            f"{source}, episode {wrong[0]}: offsets {full[wrong[0]]} and {full[wrong[0] + 1]} do not rise "
            f"(there are {rows} rows), so episodes overlap or are empty; mend the offsets."
        )
    ends = np.zeros(rows, bool)
    ends[full[1:] - 1] = True
    return ends


def _natural(path: Path) -> list[tuple[int, int | str]]:
    """episode_2 comes before episode_10."""
    parts = re.split(r"(\d+)", path.stem)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]
