"""HDF5 files: which arrays they hold, and their numbers, whole or some rows at a time.

An HDF5 file can refer to other files (external and soft links, external and virtual storage), claim terabytes in two
kilobytes, name filters that are loaded as programs, or hold a block that swells while it is unpacked. So the library
only reads what the file says about its arrays: hard links inside of the file are followed, each array once, and its
size is compared with what is stored and with the memory budget. Every block is unpacked here into exactly the room it
may take: the library's own filters return uninitialised memory for a stream that is too short (h5py 3.16). Filters that
are read are gzip, with or without shuffle.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iel.data.trajectories import Piece, equally_many
from iel.errors import DataError
from iel.loader import Field, check_budget, check_size, first_line, numeric, open_regular

if TYPE_CHECKING:
    from h5py.h5d import DatasetID, StoreInfo
    from h5py.h5g import GroupID

CHUNKS = 200_000
"""Most blocks of one array: listing smaller blocks takes longer than reading their numbers."""
CHUNK_BYTES = 32 << 20
"""Largest unpacked block of an array that is itself smaller than that."""
DEFLATE, SHUFFLE = 1, 2
PIPELINES = {(), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE)}
"""The orders of filters that are read."""
LACKING = "lacks blocks of data; the file was cut off while it was written, get it again."


@contextmanager
def opened_hdf5(path: Path | str) -> Iterator[Hdf5File]:
    """An open file. The library reads through our own open file and never opens one by itself."""
    import h5py

    with open_regular(path, DataError) as (file, size):
        try:
            with h5py.File(file, "r") as root:
                yield Hdf5File(root.id, file, size, path)
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError) as problem:
            raise DataError(
                f"{path} is not a whole HDF5 file ({first_line(problem)}); remove it and copy it again."
            ) from None


class Hdf5File:
    """An open HDF5 file, whose arrays are found by name along hard links."""

    def __init__(self, root: GroupID, file: BufferedReader, size: int, path: Path | str):
        self.root, self.file, self.size, self.path = root, file, size, path
        self._read: set[int] = set()
        """Addresses of the arrays that were read: an array with many names is read once."""

    def names(self) -> list[str]:
        """The names at the top of the file."""
        names: list[bytes] = []
        self.root.links.iterate(names.append)
        return [name.decode("utf-8", "replace") for name in names]

    def arrays(self, wanted: Sequence[str]) -> dict[str, Hdf5Array]:
        """The arrays of `wanted` that the file holds; no number is read."""
        from h5py import h5d

        found = ((name, self._follow(name)) for name in wanted)
        return {name: Hdf5Array(entry, name, self) for name, entry in found if isinstance(entry, h5d.DatasetID)}

    def _follow(self, name: str) -> object:
        """The object of a name; None if the file has no such name."""
        from h5py import h5g, h5l, h5o

        here: object = self.root
        for part in name.encode().split(b"/"):
            if not isinstance(here, h5g.GroupID) or not here.links.exists(part):
                return None
            if here.links.get_info(part).type != h5l.TYPE_HARD:
                raise DataError(
                    f"{self.path}: '{name[:80]}' is a link to another object or file, which is not followed; "
                    "copy the data into the file."
                )
            here = h5o.open(here, part)
        return here

    def read(self, wanted: Sequence[str]) -> dict[str, NDArray]:
        """Whole arrays by name; memory is allocated after all of them were checked."""
        from h5py import h5o

        arrays = self.arrays(wanted)
        cost = logical = 0
        for array in arrays.values():
            cost += array.field.cost + array.check()
            logical += array.field.nbytes
            address = h5o.get_info(array.dataset).addr
            if address in self._read:
                raise DataError(f"{array.what} is another name of an array that was read; copy the data, or drop it.")
            self._read.add(address)
        check_size(str(self.path), logical, self.size, DataError)
        check_budget(self.path, cost)
        return {name: array.rows(0, array.length) for name, array in arrays.items()}

    def pieces(self, wanted: Sequence[str], size: int | None) -> Iterator[tuple[Piece, bool]]:
        """(the next `size` rows of the arrays of `wanted`, or all rows; whether they are the last ones)."""
        arrays = self.arrays(wanted)
        rows = equally_many({name: array.length for name, array in arrays.items()}, self.path)
        if size is None:
            yield self.read(wanted), True
            return
        for array in arrays.values():
            array.check()
        for first in range(0, max(rows, 1), size):
            last = min(first + size, rows)
            yield {name: array.rows(first, last) for name, array in arrays.items()}, last == rows


class Hdf5Array:
    """One array of a file."""

    def __init__(self, dataset: DatasetID, name: str, file: Hdf5File):
        self.dataset, self.file, self.what = dataset, file, f"{file.path}: '{name[:80]}'"
        self.field = _field(dataset)
        self.length = self.field.shape[0] if self.field.shape else 0
        self.plan = dataset.get_create_plist()
        self.layout = self.plan.get_layout()
        self.filters = tuple(self.plan.get_filter(i)[0] for i in range(self.plan.get_nfilters()))

    def check(self) -> int:
        """Refuse an array that is not what it claims, before memory is allocated; returns what its blocks cost."""
        from h5py import h5d

        field, what = self.field, self.what
        if field.dtype is None:
            raise DataError(f"{what} does not hold plain numbers, so it is not read; save it as numbers.")
        if self.layout == h5d.VIRTUAL or self.plan.get_external_count():
            raise DataError(f"{what} is stored in other files, which are not opened; copy the data into the file.")
        if self.filters not in PIPELINES:
            raise DataError(f"{what} uses a filter that is not read; save it with gzip compression or none.")
        if field.nbytes == 0:
            return 0
        stored = min(self.dataset.get_storage_size(), self.file.size)
        claim = f"{what} claims {field.nbytes:,} bytes"
        if stored == 0:
            raise DataError(f"{claim}, but none were ever written; the file is incomplete, get it again.")
        check_size(what, field.nbytes, stored, DataError)
        if self.layout != h5d.CHUNKED:
            if stored < field.nbytes:
                raise DataError(f"{claim}, which are not in the file; it is cut off, get it again.")
            return 0
        chunk = math.prod(self.plan.get_chunk()) * field.dtype.itemsize
        if chunk > max(CHUNK_BYTES, 2 * field.nbytes):
            raise DataError(f"{what} is stored in blocks larger than the array; save it with smaller blocks.")
        blocks = math.prod(map(len, self.corners))
        if blocks > stored:
            raise DataError(f"{what} {LACKING}")
        if blocks > CHUNKS:
            raise DataError(f"{what} is stored in {blocks:,} blocks, more than {CHUNKS:,}; save it with larger ones.")
        return 500 * blocks + 2 * chunk

    def rows(self, first: int, last: int) -> NDArray:
        """Rows first .. last - 1."""
        from h5py import h5d, h5s

        array = np.empty((last - first, *self.field.shape[1:]), self.field.dtype)
        if array.size == 0:
            return array
        if self.layout == h5d.CHUNKED:
            self._fill(array, first)
        else:  # contiguous: the library compares its extent with the length of the file
            space = self.dataset.get_space()
            space.select_hyperslab((first, *(0 for _ in array.shape[1:])), array.shape)
            self.dataset.read(h5s.create_simple(array.shape), space, array)
        return array.view(np.uint8) != 0 if array.dtype == bool else array

    @cached_property
    def corners(self) -> list[range]:
        """Along every axis, the first indices of blocks."""
        return [range(0, n, width) for n, width in zip(self.field.shape, self.plan.get_chunk(), strict=True)]

    @cached_property
    def blocks(self) -> dict[tuple[int, ...], StoreInfo]:
        """Filters, start and length of all blocks by their corners; each must be there once, inside of the file."""
        found: dict[tuple[int, ...], StoreInfo] = {}
        size, most, twice = self.file.size, math.prod(map(len, self.corners)), False

        def collect(info: StoreInfo) -> bool | None:
            nonlocal twice
            twice = info.chunk_offset in found or len(found) == most
            found[info.chunk_offset] = info
            return twice or None

        self.dataset.chunk_iter(collect)
        if twice or any(corner not in found for corner in itertools.product(*self.corners)):
            raise DataError(f"{self.what} {LACKING}")
        if any(not 0 <= block.byte_offset <= size - block.size <= size for block in found.values()):
            raise DataError(f"{self.what} is cut off; get the file again.")
        return found

    def _fill(self, array: NDArray, first: int) -> None:
        """Fill `array` with rows `first` and on."""
        shape, file = self.plan.get_chunk(), self.file.file
        room = math.prod(shape) * array.dtype.itemsize
        for (top, *others), block in self.blocks.items():
            if not first - shape[0] < top < first + len(array):
                continue
            file.seek(block.byte_offset)
            packed = file.read(block.size)
            try:
                content = unfilter(packed, block.filter_mask, self.filters, array.dtype.itemsize, room)
            except (ValueError, zlib.error):
                raise DataError(f"{self.what} has a damaged block at row {top}; get the file again.") from None
            rows = np.frombuffer(content, array.dtype).reshape(shape)[max(0, first - top) :]
            corner = max(0, top - first), *others
            target = array[tuple(slice(c, c + w) for c, w in zip(corner, rows.shape, strict=True))]
            target[...] = rows[tuple(slice(0, width) for width in target.shape)]


def _field(dataset: DatasetID) -> Field:
    """Shape and type; the type is None unless the bytes in the file are plain numbers of that type."""
    from h5py import h5s, h5t

    simple, kind = dataset.get_space().get_simple_extent_type() == h5s.SIMPLE, dataset.get_type()
    field = Field(tuple(dataset.shape) if simple else (), None)
    if simple and kind.get_class() in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM):
        with suppress(TypeError, ValueError):
            plain = np.dtype(np.dtype(dataset.dtype).str)
            # A bool is an enumeration of bytes; other enumerations are read as numbers.
            stored = kind.get_super() if kind.get_class() == h5t.ENUM else kind
            if numeric(plain) and stored.equal(h5t.py_create(np.dtype(np.int8) if plain.kind == "b" else plain)):
                return Field(field.shape, plain)
    return field


def unfilter(content: bytes, mask: int, filters: tuple[int, ...], itemsize: int, room: int) -> bytes:
    """Undo the filters of a block in reverse order; ValueError or zlib.error unless it has exactly `room` bytes.

    Bit i of `mask` says that filter i was left out of this block, because it did not make the block smaller.
    """
    for position, code in reversed(list(enumerate(filters))):
        if mask >> position & 1:
            continue
        if code == DEFLATE:
            machine = zlib.decompressobj()
            content = machine.decompress(content, room + 1)
            if not machine.eof:
                raise ValueError("a stream without its end, or longer than the room")
        elif itemsize > 1:
            whole = len(content) // itemsize * itemsize
            columns = np.frombuffer(content, np.uint8, whole).reshape(itemsize, -1)
            content = columns.T.tobytes() + content[whole:]
    if len(content) != room or mask >> len(filters):
        raise ValueError("a block of another size")
    return content
