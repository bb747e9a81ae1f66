"""How files are opened: regular files only, within the memory budget; JSON, TOML, safetensors and zip archives.

Before a file is read, its kind is checked (a regular file, never a pipe or a link), and the size that its arrays claim
is compared with the bytes that are there and with the memory budget. No format that can hold code is read, no data set
is unpacked to the disk, and no file can make another be read. `iel.data.npz`, `hdf5`, `text` and `parquet` open their
files here; `tests/test_loader.py` checks that no other module of the package opens one.

    read_json, read_toml      text, small, read whole and strictly
    read_safetensors          weights
    open_zip                  archives whose directory has been checked
    open_regular, kind_of     any regular file, and its format by its first bytes
"""

import errno
import json
import math
import os
import re
import stat
import struct
import tomllib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from iel.errors import ConfigError, DataError, IELError, RunError

ErrorType = type[IELError]
Kind = Literal["npz", "hdf5", "parquet", "text", "folder", "unknown"]

SMALL = 64 << 20
"""Bytes below which any compression is accepted: a million `False` flags shrink a thousandfold."""
EXPANSION = 200
"""Above `SMALL`, arrays may be at most this many times larger than the bytes that hold them."""
JSON_BYTES = 16 << 20
JSON_VALUES = 500_000
"""Values a JSON file may hold: each becomes a Python object, many times the size of its text."""
TOML_BYTES = 256 << 10
PARTIAL = ".tmp-"
"""How the names of unfinished files and directories begin."""


# ------------------------------------------------------------------------------------------------------ opening files


@contextmanager
def open_regular(path: Path | str, error: ErrorType) -> Iterator[tuple[BufferedReader, int]]:
    """(file, size) of a regular file. A pipe would block for ever, a device never ends, a link leads elsewhere."""
    path = Path(path)
    with os_errors(error, path):
        facts = path.lstat()
        if stat.S_ISLNK(facts.st_mode):
            raise error(f"{path} is a symbolic link; give the file it leads to.")
        if stat.S_ISDIR(facts.st_mode):
            raise error(f"{path} is a directory; give a file.")
        if not stat.S_ISREG(facts.st_mode):
            raise error(f"{path} is not a regular file (a pipe, a socket or a device); copy its content to a file.")
        # The name may have been replaced since it was checked, so the opened file is checked again.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb") as file:
            opened = os.fstat(descriptor)
            if not stat.S_ISREG(opened.st_mode):
                raise error(f"{path} is not a regular file; copy its content to a file.")
            yield file, opened.st_size


def refuse_partial(path: Path, error: ErrorType = RunError) -> None:
    """Refuse a file or directory that a killed process left unfinished."""
    if path.name.startswith(PARTIAL):
        raise error(f"{path} was never finished (its name begins with {PARTIAL}); remove it and start again.")


@contextmanager
def os_errors(error: ErrorType, path: Path | str | None = None, writing: bool | None = False) -> Iterator[None]:
    """Raise `error` with the path and a remedy for any OSError inside of the block."""
    try:
        yield
    except OSError as problem:
        raise error(os_sentence(problem, path, writing)) from problem


SENTENCES = {
    errno.ENOENT: "does not exist; check the path, or whether the directory is complete.",
    errno.ENOTDIR: "does not exist, as a part of the path is a file; check the path.",
    errno.EROFS: "is on a disk that cannot be written; choose another directory.",
    errno.ELOOP: "is a symbolic link that is not followed; give the file it leads to, or remove the link.",
    errno.ENAMETOOLONG: "is too long for the name of a file; use a shorter one.",
}


def os_sentence(problem: OSError, path: Path | str | None = None, writing: bool | None = None) -> str:
    """One sentence for an OSError about a file; `writing` is None where it is not known."""
    done = {True: "written", False: "read", None: "used"}[writing]
    location = path if path is not None else problem.filename
    named = "A file" if location is None else str(location) if len(str(location)) < 300 else f"{str(location)[:80]}..."
    reason, code = problem.strerror or str(problem) or type(problem).__name__, problem.errno
    if code in SENTENCES:
        return f"{named} {SENTENCES[code]}"
    if code in (errno.EACCES, errno.EPERM):
        remedy = "change its permissions" + ("" if writing is False else ", or choose another directory")
        return f"{named} may not be {done} by this user; {remedy}."
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{named} could not be written ({reason}); free some space, or choose another disk."
    return f"{named} cannot be {done} ({reason}); check the path and the disk."


def first_line(problem: Exception) -> str:
    """The first line of a library's exception, at most 120 characters."""
    return (str(problem).splitlines() or [""])[0][:120]


def read_limited(path: Path | str, limit: int, error: ErrorType) -> bytes:
    """The bytes of a file that may be at most `limit` long."""
    with open_regular(path, error) as (file, size):
        if size > limit:
            raise error(f"{path} is {size:,} bytes long, but at most {limit:,} are read; it is not what it should be.")
        return file.read(limit + 1)[:limit]


def kind_of(path: Path | str, error: ErrorType = DataError) -> Kind:
    """The format of a path by its content, whatever its suffix."""
    if Path(path).is_dir():
        return "folder"
    with open_regular(path, error) as (file, _):
        head = file.read(8)
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            return "npz"
        if head == b"\x89HDF\r\n\x1a\n":
            return "hdf5"
        if head.startswith(b"PAR1"):
            return "parquet"
        return "text" if _is_table_of_text(head + file.read(4096)) else "unknown"


def _is_table_of_text(start: bytes) -> bool:
    """Whether a file begins with a line of text that has cells."""
    try:
        line = start.rpartition(b"\n")[0].decode("utf-8").partition("\n")[0]
    except UnicodeDecodeError:
        return False
    return b"\0" not in start and any(separator in line for separator in ",;\t")


# ------------------------------------------------------------------------------------------------------------- memory


class Field(NamedTuple):
    """Shape and type that a file claims for one of its arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype | None
    """None if it is not an array of numbers."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (self.dtype.itemsize if self.dtype else 0)

    @property
    def cost(self) -> int:
        """Bytes of memory that reading takes: the numbers as stored, and as float32."""
        return self.nbytes + 4 * math.prod(self.shape)


def numeric(dtype: np.dtype) -> bool:
    """Whether an array of this type holds plain numbers."""
    return dtype.kind in "fiub" and dtype.fields is None and dtype.subdtype is None and dtype.itemsize <= 16


def memory_budget() -> int:
    """Bytes one file may take up: $IEL_MEMORY_BUDGET (such as `8GB`), else half of what this process may have."""
    if chosen := os.environ.get("IEL_MEMORY_BUDGET"):
        parts = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kMGT]?)i?B?", chosen.strip())
        if parts is None:
            raise ConfigError(f"IEL_MEMORY_BUDGET is '{chosen}'; give a size such as 8GB or 500MB.")
        return int(float(parts[1]) * 1000 ** " kMGT".index(parts[2] or " "))
    return _machine_memory() // 2


def _machine_memory() -> int:
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        physical = 8 << 30  # not known: IEL_MEMORY_BUDGET says otherwise
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical


def check_size(what: str, logical: int, stored: int, error: ErrorType) -> None:
    """Refuse arrays of `logical` bytes in `stored` bytes that no honest compression explains."""
    if logical > SMALL and logical > EXPANSION * stored:
        raise error(
            f"{what} claims {logical:,} bytes but {stored:,} are stored; the file is damaged or a decompression bomb, "
            "do not use it."
        )


def check_budget(path: Path | str, total: int, error: ErrorType = DataError) -> None:
    """Refuse to read more than the memory budget."""
    allowed = memory_budget()
    if total > allowed:
        raise error(
            f"{path} needs {total / 1e9:,.2f} GB of memory, but the budget is {allowed / 1e9:,.2f} GB; "
            "use a smaller file, or raise IEL_MEMORY_BUDGET."
        )


# --------------------------------------------------------------------------------------------------------------- zip

ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, struct.error, NotImplementedError,
              KeyError, RuntimeError, IndexError, OverflowError)  # fmt: skip


@contextmanager
def open_zip(path: Path | str, error: ErrorType) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """(archive, {name: entry}) after its directory has been checked; damage that is found later raises `error` too.

    Refused are members that overlap, share a name or are packed unusually; the library itself refuses encrypted members
    and those that are not where the directory says they are.
    """
    with open_regular(path, error) as (file, _):
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive, _entries(archive)
        except ZIP_ERRORS as problem:
            reason = first_line(problem)
            raise error(f"{path} is not a whole zip archive ({reason}); remove it and make or copy it again.") from None


def _entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    if sum(entry.compress_size for entry in archive.infolist()) > archive.start_dir:
        raise ValueError("its members overlap")
    for entry in archive.infolist():
        if entry.filename in entries:
            raise ValueError(f"'{entry.filename[:80]}' occurs twice")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"'{entry.filename[:80]}' is compressed unusually; store or deflate it")
        entries[entry.filename] = entry
    return entries


# ----------------------------------------------------------------------------------------------------- JSON and TOML


def read_json(path: Path | str, error: ErrorType = RunError) -> dict[str, Any]:
    """A JSON object. Refused: other values, a key given twice, NaN, infinities, deep nesting, files over 16 MB."""
    return parse_json(read_limited(path, JSON_BYTES, error), str(path), error)


def parse_json(text: bytes, source: str, error: ErrorType) -> dict[str, Any]:
    """A JSON object from bytes, checked as `read_json` says."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > JSON_VALUES:
        raise error(f"{source} holds more than {JSON_VALUES:,} JSON values; it is not what it should be.")
    try:
        value = json.loads(
            text.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_duplicates
        )
    except RecursionError:
        raise error(f"{source} is not JSON this package writes (it is nested too deeply); it is damaged.") from None
    except ValueError as problem:  # includes JSONDecodeError and UnicodeDecodeError
        raise error(f"{source} is not JSON ({first_line(problem)}); it is damaged.") from None
    if not isinstance(value, dict):
        raise error(f"{source} does not hold a JSON object; it is damaged.")
    return value


def read_toml(path: Path | str, error: ErrorType = ConfigError) -> dict[str, Any]:
    """A TOML table."""
    text = read_limited(path, TOML_BYTES, error)
    try:
        return tomllib.loads(text.decode("utf-8"))
    except RecursionError:
        raise error(f"{path} is nested too deeply; write it flatter.") from None
    except ValueError as problem:  # includes TOMLDecodeError
        raise error(f"{path} is not TOML ({first_line(problem)}); correct that line.") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key '{twice[:40]}' is given twice")
    return table


# -------------------------------------------------------------------------------------------------------- safetensors


def read_safetensors(path: Path | str, error: ErrorType = RunError) -> dict[str, np.ndarray]:
    """The named arrays of a safetensors file.

    The library compares every claim of the header with the bytes that are there, but of two arrays with one name it
    takes the last. The format has no checksum: manifests (`iel.files`) hold one.
    """
    with open_regular(path, error) as (file, size):
        check_budget(path, 2 * size, error)  # the bytes, and the arrays made of them
        content = file.read()
    try:
        arrays = load(content)
    except (SafetensorError, ValueError) as problem:
        reason = first_line(problem).removeprefix("Error while deserializing: ")
        raise error(f"{path} is not a whole safetensors file ({reason}); get it again.") from None
    except KeyError as problem:
        raise error(f"{path} holds an array of type {problem}, which is not read; convert it to F32.") from None
    parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")], f"the header of {path}", error)
    return arrays
