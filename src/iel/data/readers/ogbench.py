"""Writes OGBench's npz files: `observations`, `actions`, `terminals`, one row a state."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from iel.data.trajectories import Trajectories


def write_ogbench(path: Path | str, data: Trajectories, recipe: int | None = None) -> None:
    """Write a store in OGBench's layout: under a temporary name first, so the final name is only ever a whole file.

    `recipe` is the version of the recipe it was made by, kept as one more array.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    terminals = np.zeros(data.num_states, bool)
    terminals[data.offsets[1:] - 1] = True
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with partial.open("wb") as file:
            version: dict[str, Any] = {} if recipe is None else {"recipe": np.int64(recipe)}
            np.savez_compressed(
                file, observations=data.observations, actions=data.actions, terminals=terminals, **version
            )
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
