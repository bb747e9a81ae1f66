"""Whole HDF5 files at once, as tests want them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from iel.data.hdf5 import opened_hdf5


def read_hdf5(path: Path | str, wanted: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays by full name (`group/array`): those of `wanted` that are there, or all at the top of the file."""
    with opened_hdf5(path) as file:
        return file.read(file.names() if wanted is None else wanted)
