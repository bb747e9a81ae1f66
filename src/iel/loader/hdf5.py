"""HDF5: the library reads what the file says about its arrays, we check it, and then read the numbers ourselves.

An HDF5 file can lead to other files (external and soft links, external and virtual storage), claim terabytes in two
kilobytes, name filters that have to be loaded as programs, or hold a compressed block that swells while it is unpacked.
So only hard links inside of the file are followed, only arrays of plain numbers are read, their claimed size is
compared with what is stored and with the memory budget, and every compressed block is unpacked here into exactly the
room it may take.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from iel.errors import DataError
from iel.loader.files import ErrorType, Field, check_budget, check_size, numeric, open_regular

DEPTH = 8
LINKS = 1_000_000
"""Most names in one group."""
CHUNK_BYTES = 32 << 20
"""Largest compressed block of an array that is itself smaller than that."""
DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
PIPELINES = {(), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE), (LZF,), (SHUFFLE, LZF)}
Wanted = Sequence[str] | Callable[[str], bool] | None


class Chunk(NamedTuple):
    """One stored block: where in the array, which filters were left out, where in the file, and its length."""

    corner: tuple[int, ...]
    mask: int
    start: int
    length: int


def hdf5_fields(path: Path | str, wanted: Wanted = None, error: ErrorType = DataError) -> dict[str, Field]:
    """Full name (`group/array`), shape and type of the arrays in a file, without reading them."""
    with _opened(path, error) as (root, _, _):
        return {name: _field(dataset) for name, dataset in _datasets(root, wanted, path, error)}


def read_hdf5(
    path: Path | str, wanted: Wanted = None, budget: int | None = None, error: ErrorType = DataError
) -> dict[str, np.ndarray]:
    """Arrays by full name: all, those in `wanted` that are there, or those whose name `wanted(name)` accepts."""
    with _opened(path, error) as (root, file, size):
        total, names = 0, []
        for name, dataset in _datasets(root, wanted, path, error):
            field = _field(dataset)
            _check(dataset, field, size, f"{path}: '{name}'", error)
            total += _bytes(field)
            names.append(name)
        check_budget(path, total, budget, error)
        arrays = {}
        for name in names:
            for _, dataset in _datasets(root, [name], path, error):
                arrays[name] = _read(dataset, file, size, f"{path}: '{name}'", error)
        return arrays


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
        yield from _walk(root, "", wanted or (lambda name: True), set(), path, error)
        return
    h5py = _h5py(error)
    for name in wanted:
        here = root
        for part in name.split("/"):
            if not isinstance(here, h5py.h5g.GroupID) or not here.links.exists(part.encode()):
                here = None
                break
            here = _follow(here, part.encode(), f"{path}: '{name}'", error)
        if isinstance(here, h5py.h5d.DatasetID):
            yield name, here


def _walk(
    group: Any, prefix: str, accept: Callable[[str], bool], seen: set[int], path: Path | str, error: ErrorType
) -> Iterator[tuple[str, Any]]:
    h5py = _h5py(error)
    address = h5py.h5o.get_info(group).addr
    if address in seen or prefix.count("/") > DEPTH:
        raise error(f"{path}: the group '{prefix[:80]}' contains itself or is nested too deeply; the file is damaged.")
    seen.add(address)
    names: list[bytes] = []

    def collect(name: bytes) -> bool | None:
        names.append(name)
        return True if len(names) > LINKS else None

    group.links.iterate(collect)
    if len(names) > LINKS:
        raise error(f"{path}: the group '{prefix[:80]}' has more than {LINKS:,} entries; split the file.")
    for name in names:
        full = prefix + name.decode("utf-8", "replace")
        if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            if accept(full):
                _refuse_link(f"{path}: '{full[:80]}'", error)
            continue
        entry = h5py.h5o.open(group, name)
        if isinstance(entry, h5py.h5g.GroupID):
            yield from _walk(entry, full + "/", accept, seen, path, error)
        elif isinstance(entry, h5py.h5d.DatasetID) and accept(full):
            yield full, entry


def _follow(group: Any, name: bytes, what: str, error: ErrorType) -> Any:
    h5py = _h5py(error)
    if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
        _refuse_link(what, error)
    return h5py.h5o.open(group, name)


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


def _bytes(field: Field) -> int:
    return math.prod(field.shape) * (field.dtype.itemsize if field.dtype else 0)


def _check(dataset: Any, field: Field, size: int, what: str, error: ErrorType) -> None:
    """Refuse an array that is not what it claims, before room is made for it."""
    h5d = _h5py(error).h5d
    if field.dtype is None:
        raise error(f"{what} does not hold plain numbers, so it is not read; save it as numbers.")
    plan, logical = dataset.get_create_plist(), _bytes(field)
    if plan.get_layout() == h5d.VIRTUAL or plan.get_external_count():
        raise error(f"{what} is kept in other files, which are not opened; copy the data into the file.")
    filters = tuple(plan.get_filter(i)[0] for i in range(plan.get_nfilters()))
    if tuple(code for code in filters if code != FLETCHER32) not in PIPELINES or filters.count(FLETCHER32) > 1:
        raise error(f"{what} uses a filter that is not read; save it with gzip compression or none.")
    if logical == 0:
        return
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
        setting = plan.get_filter(filters.index(LZF))[2] if LZF in filters else (0, 0, 0)
        if len(setting) < 3 or setting[2] > math.prod(chunk) * field.dtype.itemsize:
            raise error(f"{what} has an impossible filter setting; the file is damaged, get it again.")


def _read(dataset: Any, file: BinaryIO, size: int, what: str, error: ErrorType) -> np.ndarray:
    h5py = _h5py(error)
    shape, dtype = _field(dataset)
    array = np.empty(shape, dtype)
    if array.size == 0:
        return array
    plan = dataset.get_create_plist()
    filters = tuple(plan.get_filter(i)[0] for i in range(plan.get_nfilters()))
    if plan.get_layout() == h5py.h5d.CONTIGUOUS:
        file.seek(dataset.get_offset())
        if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
            raise error(f"{what} is cut off; get the file again.")
    elif plan.get_layout() == h5py.h5d.CHUNKED and LZF not in filters:
        _read_chunks(dataset, array, plan.get_chunk(), filters, file, size, what, error)
    else:  # compact arrays (under 64 kB), and the one compression that only the library knows
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array.view(np.uint8) != 0 if array.dtype == bool else array


def _read_chunks(
    dataset: Any,
    array: np.ndarray,
    shape: tuple[int, ...],
    filters: tuple[int, ...],
    file: BinaryIO,
    size: int,
    what: str,
    error: ErrorType,
) -> None:
    """Fill `array` from its blocks, each of which must be there once and have exactly its size."""
    room = math.prod(shape) * array.dtype.itemsize
    corners = set(
        itertools.product(*(range(0, length, width) for length, width in zip(array.shape, shape, strict=True)))
    )
    chunks: list[Chunk] = []

    def collect(info: Any) -> bool | None:
        chunks.append(Chunk(tuple(info.chunk_offset), info.filter_mask, info.byte_offset, info.size))
        return True if len(chunks) > len(corners) else None

    dataset.chunk_iter(collect)
    if len(chunks) != len(corners) or {chunk.corner for chunk in chunks} != corners:
        raise error(f"{what} lacks blocks of data; the file was cut off while it was written, get it again.")
    for chunk in chunks:
        if chunk.start + chunk.length > size:
            raise error(f"{what} is cut off; get the file again.")
        file.seek(chunk.start)
        content = _unfilter(file.read(chunk.length), chunk.mask, filters, array.dtype.itemsize, room)
        if content is None:
            raise error(f"{what} has a damaged block at row {chunk.corner[0]}; get the file again.")
        block = np.frombuffer(content, array.dtype).reshape(shape)
        place = tuple(slice(c, c + w) for c, w in zip(chunk.corner, shape, strict=True))
        target = array[place]
        target[...] = block[tuple(slice(0, length) for length in target.shape)]


def _unfilter(content: bytes, mask: int, filters: tuple[int, ...], itemsize: int, room: int) -> bytes | None:
    """Undo the filters of a block in reverse order; None when it is not a block of `room` bytes."""
    for position, code in reversed(list(enumerate(filters))):
        if mask >> position & 1:
            continue
        if code == FLETCHER32:
            if len(content) < 4 or not _fletcher_holds(content):
                return None
            content = content[:-4]
        elif code == DEFLATE:
            machine = zlib.decompressobj()
            try:
                content = machine.decompress(content, room + 5)  # 4 more for a checksum inside, 1 to see an excess
            except zlib.error:
                return None
        elif code == SHUFFLE and itemsize > 1:
            whole = len(content) // itemsize * itemsize
            columns = np.frombuffer(content, np.uint8, whole).reshape(itemsize, -1)
            content = columns.T.tobytes() + content[whole:]
    return content if len(content) == room else None


def _fletcher_holds(content: bytes) -> bool:
    """Fletcher's checksum over big-endian 16-bit words, s1 = sum w_i and s2 = sum (n - i) w_i modulo 65535."""
    body, kept = content[:-4], int.from_bytes(content[-4:], "little")
    words = np.frombuffer(body + b"\0" * (len(body) % 2), ">u2").astype(np.uint64)
    first, second = 0, 0
    for start in range(0, len(words), 1 << 16):
        part = words[start : start + (1 << 16)]
        second += first * len(part) + int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        first += int(part.sum())
    return kept % 65536 % 65535 == first % 65535 and (kept >> 16) % 65535 == second % 65535
