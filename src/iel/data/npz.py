"""npz files: OGBench's two layouts, and plain arrays of people with logs of their own.

    observations, actions, terminals                         OGBench: one row per state, true on the last row
    observations, actions, terminals, valids                 the same after OGBench's compact loading
    observations, actions, next_observations (, terminals)   one row per transition
    observations, actions, timeouts | offsets | episode_ids  one row per state

Other arrays (qpos, qvel, button_states, rewards...) are not read. A folder of npz files is one episode per file.

An npz file is a zip archive of npy arrays. What it says about itself can be a lie in many ways (a kilobyte that unpacks
to terabytes, members that overlap or have one name, a header that asks for an object to be built). Each is looked at in
the directory of the archive and in the first bytes of a member; only then is room made, as much as the array needs.
"""

from __future__ import annotations

import ast
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from iel.errors import DataError
from iel.loader import ErrorType, Field, check_budget, check_size, memory_budget, numeric, open_regular

BOUNDARIES = ("terminals", "timeouts", "offsets", "episode_ids")
FIELDS = ("observations", "actions", "next_observations", "valids", *BOUNDARIES)
DIRECTORY_BYTES = 4 << 20
"""Longest directory of an archive that is parsed: some 40,000 members."""
HEADER_BYTES = 4096
DEFLATE_LIMIT = 1032
"""No deflate stream expands by more than this."""
BLOCK = 1 << 20
DAMAGED = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, struct.error, NotImplementedError, KeyError,
           RuntimeError, IndexError, OverflowError)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ data sets


def npz_rows(path: Path, name: str) -> Rows:
    """The rows of an npz file, whatever its layout."""
    with opened(path) as archive:
        _check_names(archive)
        arrays = archive.read(FIELDS)
    return rows_of_arrays(arrays, str(path), name)


def npz_windows(path: Path, name: str, size: int) -> Iterator[Rows]:
    """The same rows, some `size` of the file at a time: whole episodes, each in one window."""
    with opened(path) as archive:
        _check_names(archive)
        ends = lambda arrays: _ends_of_arrays(arrays, str(path))  # noqa: E731
        parts = whole_episodes(_npz_pieces(archive, size), ends, peek="next_observations" in archive.members)
        yield from (rows_of_arrays(part, str(path), name) for part in parts)


def _check_names(archive: Archive) -> None:
    """Refuse an archive whose arrays are not those of a data set."""
    names = archive.members
    misspelt(names, FIELDS, str(archive.path))
    missing = [name for name in ("observations", "actions") if name not in names]
    if "next_observations" not in names and not names.keys() & set(BOUNDARIES):
        missing.append("terminals")
    if missing:
        raise DataError(
            f"{archive.path} has no {', '.join(missing)}; a data set holds observations, actions and one of "
            f"next_observations, {', '.join(BOUNDARIES)}."
        )


def rows_of_arrays(arrays: dict[str, NDArray], source: str, name: str) -> Rows:
    """The rows that the arrays of an npz file stand for."""
    observations, actions = arrays["observations"], arrays["actions"]
    rows = observations.shape[0] if observations.ndim else 0
    if "next_observations" in arrays:
        ends = _ends(arrays, rows, source) if arrays.keys() & set(BOUNDARIES) else None
        return rows_from_pairs(observations, actions, arrays["next_observations"], ends, name)
    return rows_from_ends(observations, actions, _ends_of_arrays(arrays, source), name)


def _ends_of_arrays(arrays: dict[str, NDArray], source: str) -> NDArray:
    """Flags on last rows; of transitions, also where the next row does not continue."""
    rows = arrays["observations"].shape[0] if arrays["observations"].ndim else 0
    if "next_observations" in arrays:
        pairs = arrays["observations"], arrays["next_observations"]
        ends = _ends(arrays, rows, source) if arrays.keys() & set(BOUNDARIES) else np.zeros(rows)
        return check_flags(np.asarray(ends).reshape(-1), source) | breaks(*pairs)
    if "valids" in arrays:
        # Compact: terminals are true on the last two rows of an episode, valids false on the last.
        return 1 - np.asarray(arrays["valids"])
    return _ends(arrays, rows, source)


def folder_rows(path: Path, name: str) -> Rows:
    """One episode per file, in the order of the numbers in their names."""
    return _joined(folder_files(path), name, memory_budget())


def folder_windows(path: Path, name: str, size: int) -> Iterator[Rows]:
    """The same rows, so many files at a time as have some `size` rows together."""
    group: list[Path] = []
    rows = 0
    for file in folder_files(path):
        shape = npz_fields(file).get("observations", Field((), None)).shape
        group, rows = [*group, file], rows + (shape[0] if shape else 0)
        if rows >= size:
            yield _joined(group, name, memory_budget())
            group, rows = [], 0
    if group:
        yield _joined(group, name, memory_budget())


def folder_files(path: Path) -> list[Path]:
    """The npz files of a folder, in the order of the numbers in their names."""
    files = sorted((entry for entry in path.iterdir() if entry.suffix == ".npz"), key=natural)
    if not files:
        raise DataError(f"{path} holds no npz files; give a folder with one npz file per episode, or a single file.")
    return files


def _joined(files: Sequence[Path], name: str, budget: int) -> Rows:
    """The rows of files with one episode each."""
    episodes = []
    for file in files:
        arrays = read_npz(file, ("observations", "actions"), budget)
        budget -= sum(array.nbytes + 4 * array.size for array in arrays.values())
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
            raise DataError(f"{source}: {len(ids)} episode_ids for {rows} rows; give one per row.")
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
        raise DataError(f"{source}: {flags[0].size} terminals and {flags[1].size} timeouts; give one of each per row.")
    return check_flags(flags[0], source) | check_flags(flags[1], source)


def _ends_from_offsets(offsets: NDArray, rows: int, source: str) -> NDArray:
    """`offsets` are the first rows of the episodes, with or without the number of rows at the end."""
    if offsets.ndim != 1 or len(offsets) == 0 or offsets.dtype.kind not in "iu" or offsets[0] != 0:
        raise DataError(f"{source}: offsets must be whole numbers from 0 on, the first row of every episode.")
    full = offsets.astype(np.int64) if offsets[-1] == rows else np.append(offsets.astype(np.int64), rows)
    wrong = np.flatnonzero(np.diff(full) <= 0)
    if len(wrong):
        raise DataError(
            f"{source}, episode {wrong[0]}: offsets {full[wrong[0]]} and {full[wrong[0] + 1]} do not rise "
            f"(there are {rows} rows), so episodes overlap or are empty; correct the offsets."
        )
    ends = np.zeros(rows, bool)
    ends[full[1:] - 1] = True
    return ends


def natural(path: Path) -> list[tuple[int, str, str]]:
    """episode_2 comes before episode_10."""
    parts = re.split(r"([0-9]+)", path.stem)
    numbers = (part.lstrip("0") if number % 2 else "" for number, part in enumerate(parts))
    return [(len(number), number, part) for number, part in zip(numbers, parts, strict=True)]


# ------------------------------------------------------------------------------------------------------- archives


class Header(NamedTuple):
    """What the first bytes of an npy array say."""

    field: Field
    fortran: bool
    start: int
    """Bytes before the data."""


def npz_fields(path: Path | str, error: ErrorType = DataError) -> dict[str, Field]:
    """Name, shape and type of every array, without reading them."""
    with opened(path, error) as archive:
        return {name: archive.header(name).field for name in archive.members}


def read_npz(
    path: Path | str,
    wanted: Sequence[str] | None = None,
    budget: int | None = None,
    error: ErrorType = DataError,
) -> dict[str, np.ndarray]:
    """The arrays of an npz file: all of them, or those of `wanted` that are there; others are not even looked at."""
    with opened(path, error) as archive:
        return archive.read(archive.members if wanted is None else wanted, budget)


def _npz_pieces(archive: Archive, size: int) -> Iterator[tuple[dict[str, NDArray], bool]]:
    """(the next `size` rows of every array, whether they are the last).

    `offsets` and `episode_ids` say something about all rows together: they are read whole and become flags.
    """
    path = archive.path
    about = archive.read(("offsets", "episode_ids"))
    with ExitStack() as stack:
        streams: dict[str, tuple[IO[bytes], Field]] = {}
        for name in (name for name in FIELDS if name in archive.members and name not in about):
            header = archive.header(name)
            if header.field.dtype is None or not header.field.shape or (header.fortran and len(header.field.shape) > 1):
                raise DataError(
                    f"{path}: '{name}' is not kept row by row as plain numbers; save it with numpy.savez, in C order."
                )
            stream = stack.enter_context(archive.stream(name))
            stream.read(header.start)
            streams[name] = stream, header.field
        lengths = {name: field.shape[0] for name, (_, field) in streams.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: its arrays have {lengths} rows; they must have equally many.")
        rows = lengths["observations"]
        ends = _ends(about, rows, str(path)) if about else None
        for first in range(0, max(rows, 1), size):
            last = min(first + size, rows)
            piece = {name: _take(stream, field, last - first, path) for name, (stream, field) in streams.items()}
            yield (piece if ends is None else {**piece, "terminals": ends[first:last]}), last == rows


def _take(stream: IO[bytes], field: Field, count: int, path: Path | str) -> NDArray:
    """The next rows of an array that is being unpacked."""
    assert field.dtype is not None
    length = math.prod(field.shape[1:]) * field.dtype.itemsize * count
    content = stream.read(length)
    if len(content) != length:
        raise DataError(f"{path} is cut off; copy the file again.")
    array = np.frombuffer(content, np.uint8 if field.dtype == bool else field.dtype)
    return (array != 0 if field.dtype == bool else array).reshape(count, *field.shape[1:])


@contextmanager
def opened(path: Path | str, error: ErrorType = DataError) -> Iterator[Archive]:
    """An archive whose directory has been checked; whatever is wrong with it later becomes a sentence as well."""
    with open_regular(path, error) as (file, size):
        try:
            _check_directory_size(file, size)
            with zipfile.ZipFile(file) as archive:
                yield Archive(archive, path, error)
        except error:
            raise
        except DAMAGED as problem:
            reason = (str(problem).splitlines() or [""])[0][:120]
            raise error(f"{path} is not a whole npz file ({reason}); remove it and make or copy it again.") from None


def _check_directory_size(file: BinaryIO, size: int) -> None:
    """Python parses the whole directory at once, so a directory of millions of members is refused before that."""
    file.seek(max(0, size - 22 - 65535))
    tail = file.read()
    file.seek(0)
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < 22:
        raise ValueError("it has no directory; it is cut off or no zip file")
    length = int.from_bytes(tail[place + 12 : place + 16], "little")
    if length == 0xFFFFFFFF:
        record = tail.rfind(b"PK\x06\x06")
        length = int.from_bytes(tail[record + 40 : record + 48], "little") if record >= 0 else length
    if length > DIRECTORY_BYTES:
        raise ValueError("its directory is too large")


class Archive:
    """A zip archive of arrays, each looked at when it is asked for."""

    def __init__(self, archive: zipfile.ZipFile, path: Path | str, error: ErrorType):
        self.archive, self.path, self.error = archive, path, error
        self.members = self._checked()
        """Entries of its directory by the names of their arrays."""

    def stream(self, name: str) -> IO[bytes]:
        """The unpacked bytes of an array, its header included."""
        return self.archive.open(self.members[name])

    def read(self, wanted: Iterable[str], budget: int | None = None) -> dict[str, np.ndarray]:
        """Those arrays of `wanted` that are there; room is made when all of them fit."""
        headers = {name: self.header(name) for name in wanted if name in self.members}
        for name, header in headers.items():
            if header.field.dtype is None:
                raise self.error(
                    f"{self.path}: '{name}' does not hold plain numbers, so it is not read; save it as numbers."
                )
        total = sum(header.field.cost for header in headers.values())
        check_size(str(self.path), total, sum(self.members[name].compress_size for name in headers), self.error)
        check_budget(self.path, total, budget, self.error)
        return {name: self._array(name, header) for name, header in headers.items()}

    def _checked(self) -> dict[str, zipfile.ZipInfo]:
        archive, path, error = self.archive, self.path, self.error
        members: dict[str, zipfile.ZipInfo] = {}
        position = 0
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
            name = info.filename.removesuffix(".npy")
            if name in members:
                raise error(f"{path}: '{name[:80]}' is there twice; the file is damaged, make or copy it again.")
            if info.header_offset < position:
                raise error(f"{path}: its members overlap; the file is damaged or a decompression bomb, do not use it.")
            position = info.header_offset + 30 + len(info.orig_filename.encode()) + info.compress_size
            if position > archive.start_dir:
                raise error(f"{path} is not a whole npz file ('{name[:80]}' ends outside of it); copy it again.")
            if info.flag_bits & 1:
                raise error(f"{path}: '{name[:80]}' is encrypted; save it without a password.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise error(f"{path}: '{name[:80]}' is compressed unusually; save it with numpy.savez_compressed.")
            stored = info.compress_type == zipfile.ZIP_STORED
            largest = info.compress_size if stored else DEFLATE_LIMIT * info.compress_size + 64
            if info.file_size > largest:
                raise error(
                    f"{path}: '{name[:80]}' claims {info.file_size:,} bytes but {info.compress_size:,} are stored; "
                    "the file is damaged or a decompression bomb, do not use it."
                )
            members[name] = info
        return members

    def header(self, name: str) -> Header:
        """The header of one array. numpy's own reader would first load a header of any length, so it is read here."""
        what, error, info = f"{self.path}: '{name[:80]}'", self.error, self.members[name]
        with self.stream(name) as member:
            start = member.read(8)
            if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
                return Header(Field((), None), False, 0)  # not an array: only those who want it need to know
            width = 2 if start[6] == 1 else 4
            length = int.from_bytes(member.read(width), "little")
            if length > HEADER_BYTES:
                raise error(f"{what} has an array header of {length:,} bytes; the file is damaged.")
            text = member.read(length).decode("latin-1")
        # Only what a description of an array needs: no signs and no dots, hence nothing to compute and no deep nesting.
        if not re.fullmatch(r"[\w\s'\"{}():,<>|=\[\]]*", text):
            return Header(Field((), None), False, 0)
        try:
            facts = ast.literal_eval(text.strip())
            descr, fortran, shape = facts["descr"], facts["fortran_order"], facts["shape"]
            dtype = np.dtype(descr) if isinstance(descr, str) else None
        except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
            raise error(f"{what} has an array header that cannot be understood; the file is damaged.") from None
        if type(fortran) is not bool or not isinstance(shape, tuple) or len(shape) > 32:
            raise error(f"{what} has an impossible array header; the file is damaged.")
        if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
            raise error(f"{what} has the impossible shape {str(shape)[:60]}; the file is damaged.")
        if dtype is None or not numeric(dtype):
            return Header(Field(shape, None), fortran, 0)
        before = 8 + width + length
        if math.prod(shape) * dtype.itemsize + before != info.file_size:
            raise error(
                f"{what} has the shape {shape} of type {dtype}, which does not fit its {info.file_size:,} bytes; "
                "the file is cut off or damaged."
            )
        return Header(Field(shape, dtype), fortran, before)

    def _array(self, name: str, header: Header) -> np.ndarray:
        """One array, read straight into its place; the zip's checksum is compared at the end."""
        shape, dtype = header.field
        array = np.empty(shape[::-1] if header.fortran else shape, dtype)
        target = array.reshape(-1).view(np.uint8).data
        with self.stream(name) as member:
            member.read(header.start)
            position = 0
            while position < len(target):
                block = member.read(min(BLOCK, len(target) - position))
                if not block:
                    raise self.error(f"{self.path}: '{name}' is cut off; copy the file again.")
                target[position : position + len(block)] = block
                position += len(block)
            member.read(1)  # reaching the end is what makes the checksum be compared
        array = array.view(np.uint8) != 0 if array.dtype == bool else array
        return array.T if header.fortran else array
