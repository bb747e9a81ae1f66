"""Data sets by name or path: `load("pointmaze-large-navigate-v0")` finds the file, makes it, or fetches it.

    load -> resolve (which file?) -> windows (which kind?) -> npz, d4rl, tables or parquet -> Rows -> Trajectories

A name is looked for in the data directory ($IEL_DATA, else the user's cache), then where the benchmarks' own packages
keep theirs. What is not there is collected in the simulator if there is a recipe, else downloaded by the benchmark's
own package (`iel.data.download`).

Files that are collected here hold the version of their recipe. A file of another version is not found by name, and is
renamed (`NAME-recipe1.npz`) when the data set is made again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from numpy.typing import NDArray

from iel.data.bags import is_bag
from iel.data.d4rl import MINARI_FILE, hdf5_windows
from iel.data.npz import npz_episodes, npz_windows, read_npz
from iel.data.parquet import INFO, lerobot_rows, read_parquet
from iel.data.tables import Columns, Given, table_episodes, table_rows
from iel.data.text import read_csv
from iel.data.trajectories import Rows, Trajectories, episodes_in_windows
from iel.errors import ConfigError, DataError
from iel.files import notice
from iel.loader import kind_of, os_errors, refuse_partial

Split = Literal["train", "val"]
SUFFIXES = (".npz", ".hdf5", ".h5", ".csv", ".tsv", ".parquet")


def load(
    name: str | Path,
    *,
    episodes: int | None = None,
    seed: int = 0,
    split: Split = "train",
    make: bool = True,
    progress: bool = True,
    env: str | None = None,
    trust: bool = False,
    columns: Given | None = None,
) -> Trajectories:
    """Trajectories by data set name, or by path: npz, HDF5, CSV or Parquet, a data set of Minari or LeRobot, a folder
    with one file per episode, or a store, whose rows stay on the disk.

    A set that is not on this machine is collected in the simulator or downloaded, and stored (`make=False` refuses
    instead); `episodes` is its size, if not the benchmark's own. `env` is the environment that a file stands for, whose
    name the data then has. What `iel data check` calls an error raises DataError and its warnings are printed, unless
    `trust` is true. `columns` names the columns of CSV and Parquet files where their names do not tell their roles:

        load("log.csv", columns={"observations": ["x", "y"], "actions": ["vx", "vy"], "episode": "run"})
    """
    with os_errors(DataError):
        path = resolve(name, episodes=episodes, seed=seed, split=split)
        path = path or obtain(str(name), episodes, seed, split, make, progress)
    called = env or (None if str(path) == str(_at_home(str(name))) else str(name))
    return read(path, called, trust, columns)


def read(path: Path | str, name: str | None = None, trust: bool = False, columns: Given | None = None) -> Trajectories:
    """Trajectories from a file or folder, or a store."""
    path = _at_home(str(path))
    with os_errors(DataError, path):
        if path.is_dir():
            from iel.data.store import is_store, open_store  # it reads by the readers here

            if is_store(path):
                return open_store(path, name)._set(source=path.absolute())
        data = read_rows(path, name, columns).trajectories(trust)
        # With columns that only the caller knows, the file cannot be read again by its path alone.
        return data if columns else data._set(source=path.absolute())


def read_rows(path: Path | str, name: str | None = None, columns: Given | None = None) -> Rows:
    """The rows of a file, whose format its content tells, before they are checked."""
    with os_errors(DataError, path):
        (rows,) = windows(path, name, None, columns)
    return rows


def windows(source: Path | str, name: str | None, size: int | None, columns: Given | None = None) -> Iterator[Rows]:
    """The rows of a file, all together, or (npz, HDF5, folders) some `size` at a time, as whole episodes."""
    path = _at_home(str(source))
    name = name or path.stem
    chosen = Columns.of(columns) if columns else Columns()
    if path.is_symlink():  # a link that its user names is meant; a link inside of a folder is not followed
        try:
            path = path.resolve(strict=True)
        except RuntimeError:
            raise DataError(f"{path} is a symbolic link that leads back to itself; remove it.") from None
    refuse_partial(path, DataError)
    kind = kind_of(path)
    if chosen.rate is not None and kind in ("npz", "hdf5"):
        raise DataError(f"{path} has no column of time; --time is for CSV and Parquet.")
    if kind == "npz":
        return npz_windows(path, name, size)
    if kind == "hdf5":
        return hdf5_windows(path, name, size)
    if is_bag(path):
        raise DataError(f"{path} is a bag; make rows of it with `iel data convert` (docs/bags.md).")
    if kind == "text":
        return iter([table_rows(path, name, chosen, read_csv)])
    if kind == "parquet":
        return iter([table_rows(path, name, chosen, read_parquet)])
    if kind == "unknown":
        raise DataError(
            f"{path} is not an npz, HDF5, CSV or Parquet file by its first bytes; it is cut off or of another kind, "
            "give a data set."
        )
    for location in (path / "data" / MINARI_FILE, path / MINARI_FILE):
        if location.exists():
            return hdf5_windows(location, name, size)
    if (path / INFO).exists():
        return iter([lerobot_rows(path, name, chosen)])
    return episodes_in_windows(_folder(path, chosen), name, size)


def _folder(path: Path, columns: Columns) -> Iterator[tuple[str, NDArray, NDArray]]:
    """One episode per file, in the order of the numbers in their names."""
    files = sorted((file for file in path.iterdir() if file.suffix in (".npz", ".csv", ".parquet")), key=_natural)
    suffixes = list(dict.fromkeys(file.suffix for file in files))
    if len(suffixes) != 1:
        several = f"both {' and '.join(suffixes)} files" if suffixes else "no npz, csv or parquet files"
        raise DataError(f"{path} holds {several}; give a folder with one file per episode, or a single file.")
    if suffixes == [".npz"]:
        return npz_episodes(files)
    return table_episodes(files, columns, read_csv if suffixes == [".csv"] else read_parquet)


def _natural(path: Path) -> list[tuple[int, str]]:
    """episode_2 comes before episode_10."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]+)", path.stem)]


def data_directory() -> Path:
    """$IEL_DATA if set, else `iel/data` in the user's cache directory."""
    if chosen := os.environ.get("IEL_DATA"):
        return _at_home(chosen)
    return _at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "iel" / "data"


def _at_home(path: str) -> Path:
    """A path with `~` replaced by the home directory, if there is one."""
    if "\0" in path:
        raise DataError(f"{path!r} is not the name of a file; check the path.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path} needs a home directory, and none is known; set HOME, or IEL_DATA.") from None


def file_name(name: str, episodes: int | None = None, seed: int = 0, split: Split = "train") -> str:
    """The benchmark's own size and seed 0 get the plain name; anything else says what it is."""
    size = "" if episodes is None else f"-e{episodes}"
    origin = "" if seed == 0 else f"-s{seed}"
    return f"{name}{size}{origin}{'-val' if split == 'val' else ''}.npz"


def find(name: str, episodes: int | None = None, seed: int = 0, split: Split = "train") -> Path | None:
    """The stored file (or Minari directory) of this data set, or None; files of another recipe do not count."""
    return next((location for location in stored(name, episodes, seed, split) if not _outdated(location)), None)


def stored(name: str, episodes: int | None = None, seed: int = 0, split: Split = "train") -> Iterator[Path]:
    """Every file that this data set has on this machine, those of other recipes last."""
    from iel.data.make.recipes import recipe_names
    from iel.envs.registry import ALIASES  # a name may stand for another: antmaze-large-play for ...-play-v2

    names = dict.fromkeys((name, ALIASES.get(name, name)))
    locations = (location for known in names for location in _locations(known, episodes, seed, split))
    yield from sorted((location for location in locations if location.exists()), key=_outdated)
    for known in names.keys() & set(recipe_names()):
        yield from sorted(data_directory().glob(f"{file_name(known, episodes, seed, split)[:-4]}-recipe*.npz"))


def recipe_version(path: Path) -> int | None:
    """The version of the recipe that a file was collected by; None for files that were not collected here."""
    try:
        version = read_npz(path, ("recipe",)).get("recipe") if path.suffix == ".npz" else None
    except DataError:
        return None  # the error is raised when its rows are read
    return None if version is None or version.ndim or version.dtype.kind not in "iu" else int(version)


def _outdated(path: Path) -> bool:
    from iel.data.make.recipes import VERSION, recipe_names

    return path.name.startswith(tuple(recipe_names())) and recipe_version(path) not in (None, VERSION)


def set_aside(path: Path) -> None:
    """Rename a file of another recipe, because a new one is about to take its name."""
    if path.is_file() and _outdated(path):
        path.rename(path.with_name(f"{path.stem}-recipe{recipe_version(path)}.npz"))


def _locations(name: str, episodes: int | None, seed: int, split: Split) -> Iterator[Path]:
    """Paths that the file of a data set may have: ours, and those of the benchmarks' own packages."""
    wanted, ours = Path(file_name(name, episodes, seed, split)), data_directory()
    if ".." in wanted.parts:
        return
    yield from (ours / wanted, _at_home("~/.ogbench/data") / wanted)
    if episodes is None and seed == 0:
        for directory in (ours, _at_home("~/.d4rl/datasets")):
            yield from (directory / wanted.with_suffix(suffix).name for suffix in (".hdf5", ".h5"))
        if split == "train":
            theirs = _at_home(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets")
            yield from (directory / name / "data" / MINARI_FILE for directory in (ours / "minari", theirs))


def resolve(source: str | Path, *, episodes: int | None = None, seed: int = 0, split: Split = "train") -> Path | None:
    """The path that a name or path means; None for a name that is not on this machine."""
    text = str(source)
    if isinstance(source, Path) or text.endswith(SUFFIXES) or text.startswith((".", "/", "~")):
        return _at_home(text)
    return find(text, episodes, seed, split) or (Path(text) if Path(text).exists() else None)


def obtain(
    name: str,
    episodes: int | None = None,
    seed: int = 0,
    split: Split = "train",
    make: bool = True,
    progress: bool = True,
) -> Path:
    """The path of a data set that was not on this machine, after making or downloading it; refused without `make`."""
    from iel.data.download import download, has_source  # these two reach for simulators and the network
    from iel.data.make import make_dataset, recipe
    from iel.envs.registry import ALIASES

    try:
        recipe(name)  # an unknown name is refused, with the nearest ones, before anything starts
    except ConfigError:
        if not has_source(name):
            if ALIASES.get(name) is None:
                raise
            raise DataError(
                f"Data set '{name}' can be neither made nor downloaded here; "
                f"copy its file to {data_directory()} as {name}.hdf5."
            ) from None
        if not make:
            raise DataError(
                f"Data set '{name}' is not on this machine; load it without make=False to download it, "
                f"or copy its file to {data_directory()}."
            ) from None
        if episodes is not None:
            raise DataError(f"Data set '{name}' has its own size; leave the number of episodes out.") from None
        if (path := download(name).get(split)) is None:
            raise DataError(f"Data set '{name}' has no validation part; give a file of your own.") from None
        return path
    old = next(stored(name, episodes, seed, split), None)
    reason = f"Data set '{name}' is not on this machine"
    if old is not None:
        reason = f"{old} was made by recipe {recipe_version(old)} of '{name}', which has changed since"
    if not make:
        raise DataError(f"{reason}; run `iel data make {name}` first.")
    if old is not None:
        notice(f"{reason}; a new one is made, and the old one is renamed.")
    return make_dataset(name, episodes=episodes, seed=seed, progress=progress)[split]
