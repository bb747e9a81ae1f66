"""HDF5 files: which arrays they hold, and their numbers, whole or some rows at a time.

An HDF5 file can lead to other files (external and soft links, external and virtual storage), claim terabytes in two
kilobytes, name filters that have to be loaded as programs, list one array under thousands of names, or hold a block
that swells while it is unpacked. So the library only reads what the file says about its arrays. Only hard links inside
of the file are followed, each array once; only plain numbers are read; their size is compared with what is stored and
with the memory budget; and every block is unpacked by `iel.data.filters` into exactly the room it may take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from iel.data.filters import readable, unfilter
from iel.errors import DataError
from iel.loader import ErrorType, Field, check_budget, check_size, numeric, open_regular

DEPTH = 8
LINKS = 100_000
"""Most names in one file."""
CHUNKS = 200_000
"""Most blocks of one array: tables of smaller blocks take longer to look through than their numbers to read."""
CHUNK_BYTES = 32 << 20
"""Largest compressed block of an array that is itself smaller than that."""
Wanted = Sequence[str] | Callable[[str], bool] | None


# -------------------------------------------------------------------------------------------------- what a file says


def hdf5_names(path: Path | str, error: ErrorType = DataError) -> list[str]:
    """The names at the top of a file."""
    with _opened(path, error) as (root, _, _):
        return [name.decode("utf-8", "replace") for name in _names(root, path, error)]


def hdf5_fields(path: Path | str, wanted: Wanted = None, error: ErrorType = DataError) -> dict[str, Field]:
    """Full name (`group/array`), shape and type of the arrays in a file, without reading them."""
    with _opened(path, error) as (root, _, _):
        return {name: _field(dataset) for name, dataset in _datasets(root, wanted, path, error)}


def read_hdf5(
    path: Path | str, wanted: Wanted = None, budget: int | None = None, error: ErrorType = DataError
) -> dict[str, np.ndarray]:
    """Arrays by full name: all, those in `wanted` that are there, or those whose name `wanted(name)` accepts."""
    with _opened(path, error) as (root, file, size):
        cost, logical, stored, names, places = 0, 0, 0, [], set()
        for name, dataset in _datasets(root, wanted, path, error):
            field, what = _field(dataset), f"{path}: '{name[:80]}'"
            cost += field.cost + _check(dataset, field, size, what, error)
            logical += field.nbytes
            stored += min(dataset.get_storage_size(), field.nbytes)
            names.append(name)
            places.add(_h5py(error).h5o.get_info(dataset).addr)
            if len(places) < len(names):
                raise error(f"{what} is another name of an array that is there already; copy the data, or drop it.")
        if stored > size:
            raise error(f"{path}: its arrays claim more bytes than the file has; it is damaged, get it again.")
        check_size(str(path), logical, size, error)
        check_budget(path, cost, budget, error)
        return {
            name: _read(dataset, file, size, f"{path}: '{name[:80]}'", error)
            for name, dataset in _datasets(root, names, path, error)
        }


def hdf5_pieces(path: Path, wanted: Sequence[str], size: int) -> Iterator[tuple[dict[str, NDArray], bool]]:
    """(the next `size` rows of those arrays that are there, whether they are the last)."""
    with _opened(path, DataError) as (root, file, file_size):
        readers: dict[str, Callable[[int, int], np.ndarray]] = {}
        lengths: dict[str, int] = {}
        for name, dataset in _datasets(root, wanted, path, DataError):
            field, what = _field(dataset), f"{path}: '{name[:80]}'"
            _check(dataset, field, file_size, what, DataError)
            readers[name] = _reader(dataset, file, file_size, what, DataError)
            lengths[name] = field.shape[0] if field.shape else 0
        if len(set(lengths.values())) > 1:
            raise DataError(f"{path}: its arrays have {lengths} rows; they must have equally many.")
        rows = max(lengths.values(), default=0)
        for first in range(0, max(rows, 1), size):
            last = min(first + size, rows)
            yield {name: read(first, last) for name, read in readers.items()}, last == rows


def _h5py(error: ErrorType) -> Any:
    try:
        import h5py
    except ImportError:
        raise error("Reading HDF5 files needs h5py; install it with `pip install h5py`.") from None
    return h5py


@contextmanager
def _opened(path: Path | str, error: ErrorType) -> Iterator[tuple[Any, BinaryIO, int]]:
    """(root group, file, size). The library reads through our own open file and never opens one by itself."""
    h5py = _h5py(error)
    with open_regular(path, error) as (file, size):
        try:
            with h5py.File(file, "r") as root:
                yield root.id, file, size
        except error:
            raise
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError) as problem:
            reason = (str(problem).splitlines() or [""])[0][:120]
            raise error(f"{path} is not a whole HDF5 file ({reason}); remove it and copy it again.") from None


def _datasets(root: Any, wanted: Wanted, path: Path | str, error: ErrorType) -> Iterator[tuple[str, Any]]:
    """(name, dataset) of what is wanted, along hard links only."""
    if wanted is None or callable(wanted):
        yield from _walk(root, "", wanted or (lambda name: True), set(), [0], path, error)
        return
    h5py = _h5py(error)
    top: tuple[str, Any] = "", None  # the group of the name before, as names come in order
    for name in wanted:
        first, *rest = name.split("/")
        if top[0] != first:
            top = first, _follow(root, first, f"{path}: '{name[:80]}'", error)
        here = top[1]
        for part in rest:
            here = _follow(here, part, f"{path}: '{name[:80]}'", error)
        if isinstance(here, h5py.h5d.DatasetID):
            yield name, here


def _walk(
    group: Any,
    prefix: str,
    accept: Callable[[str], bool],
    seen: set[int],
    total: list[int],
    path: Path | str,
    error: ErrorType,
) -> Iterator[tuple[str, Any]]:
    """(name, dataset) of all that is accepted below a group; `total` counts the names looked at."""
    h5py = _h5py(error)
    address = h5py.h5o.get_info(group).addr
    if address in seen or prefix.count("/") > DEPTH:
        raise error(f"{path}: the group '{prefix[:80]}' contains itself or is nested too deeply; the file is damaged.")
    seen.add(address)
    names = _names(group, path, error)
    total[0] += len(names)
    if total[0] > LINKS:
        raise error(f"{path} has more than {LINKS:,} entries; split the file.")
    for name in names:
        full = prefix + name.decode("utf-8", "replace")
        if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            if accept(full):
                _refuse_link(f"{path}: '{full[:80]}'", error)
            continue
        entry = h5py.h5o.open(group, name)
        if isinstance(entry, h5py.h5g.GroupID):
            yield from _walk(entry, full + "/", accept, seen, total, path, error)
        elif isinstance(entry, h5py.h5d.DatasetID) and accept(full):
            yield full, entry


def _names(group: Any, path: Path | str, error: ErrorType) -> list[bytes]:
    if group.get_num_objs() > LINKS:
        raise error(f"{path} has more than {LINKS:,} entries; split the file.")
    names: list[bytes] = []
    group.links.iterate(names.append)
    return names


def _follow(group: Any, name: str, what: str, error: ErrorType) -> Any:
    """What a name of a group stands for; None if there is no such name, or this is no group."""
    h5py = _h5py(error)
    if not isinstance(group, h5py.h5g.GroupID) or not group.links.exists(name.encode()):
        return None
    if group.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        _refuse_link(what, error)
    return h5py.h5o.open(group, name.encode())


def _refuse_link(what: str, error: ErrorType) -> None:
    raise error(f"{what} is a link to another place or file, which is not followed; copy the data into the file.")


def _field(dataset: Any) -> Field:
    """Shape and type; the type is None unless the bytes in the file are plain numbers of that type."""
    h5t = _h5py(DataError).h5t
    if dataset.get_space().get_simple_extent_type() != _h5py(DataError).h5s.SIMPLE:
        return Field((), None)
    shape, kind = tuple(dataset.shape), dataset.get_type()
    if kind.get_class() not in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM):
        return Field(shape, None)
    try:
        dtype = np.dtype(dataset.dtype)
    except (TypeError, ValueError):
        return Field(shape, None)
    # A bool is an enumeration of bytes; of other enumerations the numbers are kept.
    stored, plain = (kind.get_super() if kind.get_class() == h5t.ENUM else kind), np.dtype(dtype.str)
    usual = numeric(plain) and stored.equal(h5t.py_create(np.dtype(np.int8) if plain.kind == "b" else plain))
    return Field(shape, plain if usual else None)


def _check(dataset: Any, field: Field, size: int, what: str, error: ErrorType) -> int:
    """Refuse an array that is not what it claims, before room is made for it; returns what its blocks cost to list."""
    h5d = _h5py(error).h5d
    if field.dtype is None:
        raise error(f"{what} does not hold plain numbers, so it is not read; save it as numbers.")
    plan, logical = dataset.get_create_plist(), field.nbytes
    if plan.get_layout() == h5d.VIRTUAL or plan.get_external_count():
        raise error(f"{what} is kept in other files, which are not opened; copy the data into the file.")
    if not readable(_filters(plan)):
        raise error(f"{what} uses a filter that is not read; save it with gzip compression or none.")
    if logical == 0:
        return 0
    stored = min(dataset.get_storage_size(), size)
    if stored == 0:
        raise error(
            f"{what} claims {logical:,} bytes, but none were ever written; the file is incomplete, get it again."
        )
    check_size(what, logical, stored, error)
    if plan.get_layout() == h5d.CONTIGUOUS:
        place = dataset.get_offset()
        if place is None or stored < logical or place + logical > size:
            raise error(f"{what} claims {logical:,} bytes, which are not in the file; it is cut off, get it again.")
    elif plan.get_layout() == h5d.CHUNKED:
        chunk = plan.get_chunk()
        if math.prod(chunk) * field.dtype.itemsize > max(CHUNK_BYTES, 2 * logical):
            raise error(f"{what} is stored in blocks larger than the array; save it with smaller blocks.")
        blocks = math.prod(-(-length // width) for length, width in zip(field.shape, chunk, strict=True))
        if blocks > stored:
            raise error(f"{what} lacks blocks of data; the file was cut off while it was written, get it again.")
        if blocks > CHUNKS:
            raise error(f"{what} is stored in {blocks:,} blocks, more than {CHUNKS:,}; save it with larger ones.")
        return 100 * blocks + 2 * math.prod(chunk) * field.dtype.itemsize
    return 0


def _filters(plan: Any) -> tuple[int, ...]:
    return tuple(plan.get_filter(i)[0] for i in range(plan.get_nfilters()))


# ------------------------------------------------------------------------------------------------------- its numbers


def _read(dataset: Any, file: BinaryIO, size: int, what: str, error: ErrorType) -> np.ndarray:
    """A whole array."""
    if dataset.shape == ():
        return _finished(_plain(dataset, (), error))
    return _reader(dataset, file, size, what, error)(0, dataset.shape[0])


def _plain(dataset: Any, shape: tuple[int, ...], error: ErrorType) -> np.ndarray:
    """An array as the library reads it: compact ones, under 64 kB."""
    array, everything = np.empty(shape, _field(dataset).dtype), _h5py(error).h5s.ALL
    if array.size:
        dataset.read(everything, everything, array)
    return array


def _finished(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8) != 0 if array.dtype == bool else array


def _reader(dataset: Any, file: BinaryIO, size: int, what: str, error: ErrorType) -> Callable[[int, int], np.ndarray]:
    """A function that reads rows first .. last - 1 of an array."""
    h5d = _h5py(error).h5d
    (rows, *rest), dtype = _field(dataset)
    plan, row_bytes = dataset.get_create_plist(), math.prod(rest) * (dtype.itemsize if dtype else 0)
    layout = plan.get_layout()
    blocks = None
    if layout == h5d.CHUNKED and rows * row_bytes:
        blocks = _Blocks(dataset, (rows, *rest), plan.get_chunk(), _filters(plan), file, size, what, error)

    def read(first: int, last: int) -> np.ndarray:
        array = np.empty((last - first, *rest), dtype)
        if array.size == 0:
            return array
        if blocks is not None:
            blocks.fill(array, first)
        elif layout == h5d.CONTIGUOUS:
            file.seek(dataset.get_offset() + first * row_bytes)
            if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
                raise error(f"{what} is cut off; get the file again.")
        else:
            array[...] = _plain(dataset, (rows, *rest), error)[first:last]
        return _finished(array)

    return read


class _Blocks:
    """Where the blocks of an array are in its file; each must be there once and have exactly its size."""

    def __init__(
        self,
        dataset: Any,
        whole: tuple[int, ...],
        shape: tuple[int, ...],
        filters: tuple[int, ...],
        file: BinaryIO,
        size: int,
        what: str,
        error: ErrorType,
    ):
        self.shape, self.filters, self.file, self.what, self.error = shape, filters, file, what, error
        counts = tuple(-(-length // width) for length, width in zip(whole, shape, strict=True))
        table = np.zeros((math.prod(counts), len(whole) + 3), np.int64)  # corner, left-out filters, start, length
        found = 0

        def collect(info: Any) -> bool | None:
            nonlocal found
            if found < len(table):
                table[found] = (*info.chunk_offset, info.filter_mask, info.byte_offset, info.size)
            found += 1
            return True if found > len(table) else None

        dataset.chunk_iter(collect)
        corners = table[:, : len(whole)]
        inside = ((corners >= 0) & (corners < whole) & (corners % shape == 0)).all()
        if found != len(table) or not inside or len(np.unique(corners, axis=0)) != len(table):
            raise error(f"{what} lacks blocks of data; the file was cut off while it was written, get it again.")
        *_, start, length = table.T
        if (start < 0).any() or (length < 0).any() or (length > size).any() or (start > size - length).any():
            raise error(f"{what} is cut off; get the file again.")
        self.table = table

    def fill(self, array: np.ndarray, first: int) -> None:
        """Fill `array` with rows `first` and on."""
        room = math.prod(self.shape) * array.dtype.itemsize
        top = self.table[:, 0]
        for row in self.table[(top + self.shape[0] > first) & (top < first + len(array))]:
            corner, (mask, start, length) = row[: array.ndim].tolist(), row[array.ndim :].tolist()
            self.file.seek(start)
            content = unfilter(self.file.read(length), mask, self.filters, array.dtype.itemsize, room)
            if content is None:
                raise self.error(f"{self.what} has a damaged block at row {corner[0]}; get the file again.")
            block = np.frombuffer(content, array.dtype).reshape(self.shape)
            above = max(0, first - corner[0])
            corner[0] += above - first
            block = block[above:]
            target = array[tuple(slice(c, c + w) for c, w in zip(corner, block.shape, strict=True))]
            target[...] = block[tuple(slice(0, width) for width in target.shape)]
