"""Readers: a file of any known layout, told by its content, becomes a store."""

from __future__ import annotations

from pathlib import Path

from iel.data.readers.hdf5 import hdf5_rows, minari_rows
from iel.data.readers.npz import folder_rows, npz_rows
from iel.data.readers.rows import Rows
from iel.data.trajectories import Trajectories
from iel.errors import DataError
from iel.loader import kind_of

MINARI_FILE = "main_data.hdf5"

__all__ = ["Rows", "read", "read_rows"]


def read(path: Path | str, name: str | None = None) -> Trajectories:
    """Trajectories from an npz or HDF5 file, a Minari directory, or a folder of npz episodes."""
    return read_rows(path, name).trajectories()


def read_rows(path: Path | str, name: str | None = None) -> Rows:
    """The rows of a file before they are checked."""
    # A link that its user names is meant; a link inside of a folder is not followed.
    path = Path(path).expanduser()
    path, name = path.resolve() if path.is_symlink() else path, name or path.stem
    kind = kind_of(path)
    if kind == "npz":
        return npz_rows(path, name)
    if kind == "hdf5":
        return hdf5_rows(path, name)
    if kind == "folder":
        for place in (path / "data" / MINARI_FILE, path / MINARI_FILE):
            if place.exists():
                return minari_rows(place, name)
        return folder_rows(path, name)
    raise DataError(
        f"{path} is not a whole npz or HDF5 file by its first bytes; it is cut off or of another kind, give a data set."
    )
