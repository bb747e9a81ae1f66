"""Data sets by name: `load("pointmaze-large-navigate-v0")` finds the file, or collects it when we know how.

A name is looked for in the data directory ($IEL_DATA, else the user's cache), then in OGBench's own directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from iel.data.readers.ogbench import read_ogbench
from iel.data.trajectories import Trajectories
from iel.errors import DataError

Split = Literal["train", "val"]


def data_directory() -> Path:
    """$IEL_DATA if set, else `iel/data` in the user's cache directory."""
    if chosen := os.environ.get("IEL_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "iel" / "data"


def file_name(name: str, episodes: int | None = None, seed: int = 0, split: Split = "train") -> str:
    """The benchmark's own size and seed 0 get the plain name; anything else says what it is."""
    size = "" if episodes is None else f"-e{episodes}"
    origin = "" if seed == 0 else f"-s{seed}"
    return f"{name}{size}{origin}{'-val' if split == 'val' else ''}.npz"


def find(name: str, episodes: int | None = None, seed: int = 0, split: Split = "train") -> Path | None:
    """The stored file of this data set, or None."""
    wanted = file_name(name, episodes, seed, split)
    for directory in (data_directory(), Path("~/.ogbench/data").expanduser()):
        if (directory / wanted).is_file():
            return directory / wanted
    return None


def load(
    name: str | Path,
    *,
    episodes: int | None = None,
    seed: int = 0,
    split: Split = "train",
    make: bool = True,
    progress: bool = True,
) -> Trajectories:
    """Trajectories by data set name or by path of an npz file.

    A PointMaze set that is not on this machine is collected in the simulator and kept (`make=False` refuses
    instead). `episodes` asks for a smaller or larger set than the benchmark's own.
    """
    if str(name).endswith(".npz"):
        return read_ogbench(name)
    name = str(name)
    path = find(name, episodes, seed, split)
    if path is None:
        from iel.data.make import make_dataset, recipe  # the simulator is needed only here

        recipe(name)  # an unknown name is refused, with the nearest ones, before anything starts
        if not make:
            raise DataError(f"Data set '{name}' is not on this machine; run `iel data make {name}` first.")
        made = make_dataset(name, episodes=episodes, seed=seed, progress=progress)
        path = made[split]
    return read_ogbench(path, name)
