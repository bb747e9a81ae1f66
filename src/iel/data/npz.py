"""npz files: OGBench's two layouts, and plain arrays of people with logs of their own.

    observations, actions, terminals                         OGBench: one row per state, true on the last row
    observations, actions, terminals, valids                 the same after OGBench's compact loading
    observations, actions, next_observations (, terminals)   one row per transition
    observations, actions, timeouts | offsets | episode_ids  one row per state

Other arrays (qpos, qvel, button_states, rewards...) are not read. A folder of npz files is one episode per file.

An npz file is a zip archive of npy arrays. It may lie: a kilobyte can unpack to terabytes, members can overlap or share
a name, a header can name a Python object. The directory of the archive and the first bytes of each member are checked
before memory is allocated.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from iel.data.trajectories import (
    SIGNALS,
    Piece,
    Rows,
    check_flags,
    ends_of_ids,
    equally_many,
    marked,
    misspelt,
    parse_signals,
    rows_in_windows,
)
from iel.errors import DataError
from iel.loader import Field, check_budget, check_size, first_line, numeric, open_zip
from iel.signals import UNNAMED, Signals

BOUNDARIES = ("terminals", "timeouts", "offsets", "episode_ids")
FIELDS = ("observations", "actions", "next_observations", "valids", *BOUNDARIES)
HEADER_BYTES = 4096
BLOCK = 1 << 20


# ------------------------------------------------------------------------------------------------------ data sets


def npz_windows(path: Path, name: str, size: int | None) -> Iterator[Rows]:
    """The rows of an npz file, whatever its layout: all together, or some `size` at a time, as whole episodes."""
    signals = _signals(path)
    for rows in rows_in_windows(_pieces(path, size), lambda arrays: _marked(arrays, str(path)), name):
        yield rows._replace(signals=signals)


def _signals(path: Path) -> Signals:
    """Names, units and ranges of the columns, as `Trajectories.save` wrote them."""
    stored = read_npz(path, (SIGNALS,))
    return parse_signals(stored[SIGNALS].tobytes(), f"{path}, {SIGNALS}") if stored else UNNAMED


def _pieces(path: Path, size: int | None) -> Iterator[tuple[Piece, bool]]:
    """The arrays piece by piece; `offsets` and `episode_ids` describe all rows, so they are read first, as flags."""
    with opened(path) as archive:
        names = archive.members
        misspelt(names, FIELDS, str(path))
        missing = [field for field in ("observations", "actions") if field not in names]
        if "next_observations" not in names and not names.keys() & set(BOUNDARIES):
            missing.append("terminals")
        if missing:
            raise DataError(
                f"{path} has no {', '.join(missing)}; a data set holds observations, actions and one of "
                f"next_observations, {', '.join(BOUNDARIES)}."
            )
        about = archive.read(("offsets", "episode_ids"))
        unread = BOUNDARIES if about else ("offsets", "episode_ids")
        first, shape = 0, archive.header("observations").field.shape
        ends = _ends(about, shape[0] if shape else 0, str(path)) if about else None
        for piece, last in archive.pieces([field for field in FIELDS if field not in unread], size):
            rows = len(piece["observations"])
            yield (piece if ends is None else {**piece, "terminals": ends[first : first + rows]}), last
            first += rows


def _marked(arrays: Piece, source: str) -> NDArray[np.bool_]:
    """(rows,) flags on the last rows of episodes."""
    rows = len(arrays["observations"])
    if "valids" in arrays and "next_observations" not in arrays:
        # Compact: terminals are true on the last two rows of an episode, valids false on the last.
        return ~check_flags(arrays["valids"], rows, source)
    return marked(arrays, ("terminals", "timeouts"), rows, source)


def _ends(about: Piece, rows: int, source: str) -> NDArray[np.bool_]:
    """(rows,) flags on last rows, from `episode_ids`, one per row, or `offsets`, the first row of every episode."""
    if "offsets" not in about:
        ids = about["episode_ids"].reshape(-1)
        if len(ids) != rows:
            raise DataError(f"{source}: {len(ids)} episode_ids for {rows} rows; give one per row.")
        return ends_of_ids(ids, "episode_ids", source)
    offsets = about["offsets"]
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


def npz_episodes(files: Sequence[Path]) -> Iterator[tuple[str, NDArray, NDArray]]:
    """(name, observations, actions) of files with one episode each."""
    for file in files:
        arrays = read_npz(file, ("observations", "actions"))
        if lacking := {"observations", "actions"} - arrays.keys():
            raise DataError(
                f"{file} has no {', '.join(sorted(lacking))}; an episode file holds observations and actions."
            )
        yield file.name, arrays["observations"], arrays["actions"]


# ------------------------------------------------------------------------------------------------------- archives


class Header(NamedTuple):
    """Shape, type, order and length of the header of an npy array."""

    field: Field
    fortran: bool
    start: int
    """Bytes before the data."""


def read_npz(path: Path | str, wanted: Iterable[str] | None = None) -> dict[str, NDArray]:
    """The arrays of an npz file: all of them, or those of `wanted` that it holds; no other array is checked or read."""
    with opened(path) as archive:
        return archive.read(archive.members if wanted is None else wanted)


@contextmanager
def opened(path: Path | str) -> Iterator[Archive]:
    """An archive whose directory has been checked; damage that is found later becomes a DataError too."""
    with open_zip(path, DataError) as (archive, entries):
        yield Archive(archive, entries, path)


class Archive:
    """A zip archive of arrays; an array is checked when it is read."""

    def __init__(self, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], path: Path | str):
        self.archive, self.path = archive, path
        self.members: dict[str, zipfile.ZipInfo] = {}
        """Entries of its directory by the names of their arrays."""
        for name, entry in entries.items():
            array = name.removesuffix(".npy")
            if array in self.members:
                raise DataError(f"{path}: '{array[:80]}' occurs twice; the file is damaged, make or copy it again.")
            self.members[array] = entry

    def read(self, wanted: Iterable[str]) -> dict[str, NDArray]:
        """The arrays of `wanted` that the archive holds; memory is allocated after all of them were checked."""
        headers = {name: self.header(name) for name in wanted if name in self.members}
        total = sum(header.field.cost for header in headers.values())
        check_size(str(self.path), total, sum(self.members[name].compress_size for name in headers), DataError)
        check_budget(self.path, total)
        arrays = {}
        for name, header in headers.items():
            with self.archive.open(self.members[name]) as stream:
                stream.read(header.start)
                shape = header.field.shape
                array = self._take(stream, header, shape[::-1] if header.fortran else shape)
                stream.read(1)  # reaching the end is what makes the checksum be compared
            arrays[name] = array.T if header.fortran else array
        return arrays

    def pieces(self, wanted: Sequence[str], size: int | None) -> Iterator[tuple[Piece, bool]]:
        """(the next `size` rows of the arrays of `wanted`, or all rows; whether they are the last ones)."""
        headers = {name: self.header(name) for name in wanted if name in self.members}
        for name, header in headers.items():
            flat = header.fortran and len(header.field.shape) > 1 and size is not None
            if not header.field.shape or flat:
                raise DataError(
                    f"{self.path}: '{name}' is not stored row by row; save it with numpy.savez, in C order."
                )
        rows = equally_many({name: header.field.shape[0] for name, header in headers.items()}, self.path)
        if size is None:
            yield self.read(wanted), True
            return
        with ExitStack() as stack:
            streams = {name: stack.enter_context(self.archive.open(self.members[name])) for name in headers}
            for name, stream in streams.items():
                stream.read(headers[name].start)
            for first in range(0, max(rows, 1), size):
                last, piece = min(first + size, rows), {}
                for name, stream in streams.items():
                    piece[name] = self._take(stream, headers[name], (last - first, *headers[name].field.shape[1:]))
                yield piece, last == rows

    def _take(self, stream: IO[bytes], header: Header, shape: tuple[int, ...]) -> NDArray:
        """The next numbers of an array, unpacked straight into the result."""
        array = np.empty(shape, header.field.dtype)
        target, position = array.reshape(-1).view(np.uint8).data, 0
        while position < len(target):
            block = stream.read(min(BLOCK, len(target) - position))
            if not block:
                raise DataError(f"{self.path} is cut off; copy the file again.")
            target[position : position + len(block)] = block
            position += len(block)
        return array.view(np.uint8) != 0 if array.dtype == bool else array

    def header(self, name: str) -> Header:
        """The header of one array, which must hold plain numbers; no more than `HEADER_BYTES` of it are read."""
        what, info = f"{self.path}: '{name[:80]}'", self.members[name]
        with self.archive.open(info) as member:
            start = io.BytesIO(member.read(HEADER_BYTES))
        try:
            parse = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}[npy.read_magic(start)[0]]
            shape, fortran, dtype = parse(start, HEADER_BYTES)
            reason = "" if numeric(dtype) else str(dtype)
        except Exception as problem:  # numpy evaluates the header as Python literals
            reason = f"its header is damaged, {first_line(problem)}"
        if reason:
            raise DataError(f"{what} does not hold plain numbers ({reason}), so it is not read; save it as numbers.")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise DataError(f"{what} has the impossible shape {str(shape)[:60]}; the file is damaged.")
        field = Field(shape, dtype)
        if field.nbytes + start.tell() != info.file_size:
            raise DataError(
                f"{what} has the shape {shape} of type {dtype}, which does not fit its {info.file_size:,} bytes; "
                "the file is cut off or damaged."
            )
        return Header(field, fortran, start.tell())
