"""Opening regular files, and how much memory a file may ask for."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from iel.errors import ConfigError, DataError, IELError

ErrorType = type[IELError]
Kind = Literal["npz", "hdf5", "folder", "unknown"]

SMALL = 64 << 20
"""Bytes below which a highly compressible array is nobody's bomb: a million `False` flags shrink a thousandfold."""
EXPANSION = 200
"""Above `SMALL`, an array may be at most this many times larger than the bytes that hold it."""


class Field(NamedTuple):
    """What a file says about one of its arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype | None
    """None when it is not an array of numbers, which only matters to those who want it."""


def memory_budget() -> int:
    """Bytes one file may take up: $IEL_MEMORY_BUDGET (such as `8GB`), else half of what this process may have."""
    if chosen := os.environ.get("IEL_MEMORY_BUDGET"):
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", chosen.strip())
        if parts is None:
            raise ConfigError(f"IEL_MEMORY_BUDGET is '{chosen}'; give a size such as 8GB or 500MB.")
        return int(float(parts[1]) * 1000 ** " kMGT".index(parts[2] or " "))
    return _machine_memory() // 2


def _machine_memory() -> int:
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        physical = 8 << 30  # a system that does not tell; the variable above says otherwise
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical


@contextmanager
def open_regular(path: Path | str, error: ErrorType) -> Iterator[tuple[BinaryIO, int]]:
    """(file, size) of a regular file. A pipe would block for ever, a device never ends, a link leads elsewhere."""
    path = Path(path)
    try:
        facts = path.lstat()
        if stat.S_ISLNK(facts.st_mode):
            raise error(f"{path} is a symbolic link; give the file it leads to.")
        if stat.S_ISDIR(facts.st_mode):
            raise error(f"{path} is a directory; give a file.")
        if not stat.S_ISREG(facts.st_mode):
            raise error(f"{path} is not a regular file (a pipe, a socket or a device); copy its content to a file.")
        # Between the look and the opening the name may have changed hands, so the opened file is looked at again.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb") as file:
            opened = os.fstat(descriptor)
            if not stat.S_ISREG(opened.st_mode):
                raise error(f"{path} is not a regular file; copy its content to a file.")
            yield file, opened.st_size
    except FileNotFoundError:
        raise error(f"{path} does not exist; check the path, or whether the directory is complete.") from None
    except NotADirectoryError:
        raise error(f"{path} does not exist, as a part of the path is a file; check the path.") from None
    except PermissionError:
        raise error(f"{path} may not be read by this user; change its permissions.") from None
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror or problem}); check the path and the disk.") from None


def read_limited(path: Path | str, limit: int, error: ErrorType) -> bytes:
    """The bytes of a file that may be at most `limit` long."""
    with open_regular(path, error) as (file, size):
        if size > limit:
            raise error(f"{path} is {size:,} bytes long, but at most {limit:,} are read; it is not what it should be.")
        return file.read(limit + 1)[:limit]


def kind_of(path: Path | str, error: ErrorType = DataError) -> Kind:
    """What a path holds, by its content: the suffix is only a name."""
    if Path(path).is_dir():
        return "folder"
    with open_regular(path, error) as (file, _):
        head = file.read(8)
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            return "npz"
        return "hdf5" if head == b"\x89HDF\r\n\x1a\n" else "unknown"


def check_size(what: str, logical: int, stored: int, error: ErrorType) -> None:
    """Refuse an array of `logical` bytes kept in `stored` bytes when no honest compression explains the difference."""
    if logical > SMALL and logical > EXPANSION * stored:
        raise error(
            f"{what} claims {logical:,} bytes but {stored:,} are stored; the file is damaged or a decompression bomb, "
            "do not use it."
        )


def check_budget(path: Path | str, total: int, budget: int | None, error: ErrorType) -> None:
    """Refuse to read more than the memory budget."""
    allowed = memory_budget() if budget is None else budget
    if total > allowed:
        raise error(
            f"{path} needs {total / 1e9:,.2f} GB of memory, but the budget is {allowed / 1e9:,.2f} GB; "
            "use a smaller file, or raise IEL_MEMORY_BUDGET."
        )


def numeric(dtype: np.dtype) -> bool:
    """Whether an array of this type holds plain numbers."""
    return dtype.kind in "fiub" and dtype.fields is None and dtype.subdtype is None and dtype.itemsize <= 16
