"""safetensors: eight bytes with the length of a JSON header, the header, and the arrays one after another.

    [ header length, u64 ][ {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...} ][ bytes ... ]

Read here rather than by a library so that every claim of the header is checked before an array exists, and so that no
more memory is used than the file has bytes. The format has no checksum: whoever needs one keeps it beside the file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from iel.errors import RunError
from iel.loader.files import ErrorType, check_budget, open_regular
from iel.loader.text import parse_json

HEADER_BYTES = 8 << 20
DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


def read_safetensors(path: Path | str, budget: int | None = None, error: ErrorType = RunError) -> dict[str, np.ndarray]:
    """The named arrays of a safetensors file."""
    with open_regular(path, error) as (file, size):
        check_budget(path, size, budget, error)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_BYTES):
            raise error(f"{path} is not a whole safetensors file (its header does not fit); get it again.")
        header = parse_json(file.read(length), f"the header of {path}", error)
        header.pop("__metadata__", None)
        places = _places(header, size - 8 - length, path, error)
        content = bytearray(size - 8 - length)
        if file.readinto(content) != len(content):  # type: ignore[attr-defined]
            raise error(f"{path} changed while it was read; try again.")
    arrays = {}
    for name, (dtype, shape, start) in places.items():
        array = np.frombuffer(content, dtype, math.prod(shape), start).reshape(shape)
        arrays[name] = array if array.flags.aligned else array.copy()
    return arrays


def _places(
    header: dict[str, Any], available: int, path: Path | str, error: ErrorType
) -> dict[str, tuple[np.dtype, tuple[int, ...], int]]:
    """(type, shape, start) of every array; together they must cover the bytes exactly, without overlap."""
    places: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
    spans = []
    for name, entry in header.items():
        what = f"{path}: array '{name[:80]}'"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise error(f"{what} has no dtype, shape and data_offsets; the file is damaged.")
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
            raise error(f"{what} has the type {str(entry['dtype'])[:20]}, which is not read; convert it to F32.")
        dtype, shape, offsets = np.dtype(DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or len(shape) > 32:
            raise error(f"{what} has an impossible shape or place; the file is damaged.")
        start, end = offsets
        if not start <= end <= available:
            raise error(f"{what} lies outside of the file; it is cut off or damaged.")
        if math.prod(shape) * dtype.itemsize != end - start:
            raise error(f"{what} has {end - start:,} bytes, which do not fit its shape {shape}; the file is damaged.")
        places[name] = dtype, tuple(shape), start
        spans.append((start, end))
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise error(f"{path}: arrays overlap or leave a gap at byte {min(start, position):,}; the file is damaged.")
        position = end
    if position != available:
        raise error(f"{path} has {available - position:,} bytes that belong to no array; the file is damaged.")
    return places


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)
