"""OGBench's npz files: `observations`, `actions`, `terminals`, one row a state, terminals true on the last row.

Nothing is unpickled, and a file that is cut off, misaligned or not an npz at all is refused with its name.
"""

from __future__ import annotations

import os
import secrets
import zipfile
from pathlib import Path

import numpy as np

from iel.data.trajectories import Trajectories
from iel.errors import DataError

FIELDS = ("observations", "actions", "terminals")


def read_ogbench(path: Path | str, name: str | None = None) -> Trajectories:
    """Read an OGBench npz file into a store."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [field for field in FIELDS if field not in archive.files]
            if missing:
                raise DataError(f"{path} has no {', '.join(missing)}; an OGBench file holds {', '.join(FIELDS)}.")
            observations, actions, terminals = (archive[field] for field in FIELDS)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path.") from None
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is not a whole npz file ({error}); remove it and make or copy it again.") from None
    return Trajectories.from_flat(observations, actions, terminals, name or path.stem)


def write_ogbench(path: Path | str, data: Trajectories) -> None:
    """Write a store in OGBench's layout: under a temporary name first, so the final name is only ever a whole file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    terminals = np.zeros(data.num_states, bool)
    terminals[data.offsets[1:] - 1] = True
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, observations=data.observations, actions=data.actions, terminals=terminals)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
