"""What stands between the bytes of an HDF5 block and its numbers: gzip, LZF, shuffle and Fletcher's checksum.

The library's own filters grow a buffer for as long as a stream goes on, and of a stream that is too short they return
whatever is in memory (h5py 3.16: 506 of 506 LZF streams that were damaged that way, and gzip likewise). Here every
filter is given the room it may fill, and a block that does not come out at exactly its size is refused.
"""

from __future__ import annotations

import zlib

import numpy as np

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
PIPELINES = {(), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE), (LZF,), (SHUFFLE, LZF)}
"""The orders of filters that are read; a checksum may come after any of them."""
CHECKSUM = 4
"""Bytes of a checksum, which may stand inside of what is compressed."""


def readable(filters: tuple[int, ...]) -> bool:
    """Whether blocks with these filters can be read."""
    return tuple(code for code in filters if code != FLETCHER32) in PIPELINES and filters.count(FLETCHER32) <= 1


def unfilter(content: bytes, mask: int, filters: tuple[int, ...], itemsize: int, room: int) -> bytes | None:
    """Undo the filters of a block in reverse order; None when it is not a whole block of `room` bytes.

    Bit i of `mask` says that filter i was left out of this block, as it did not make it smaller.
    """
    if mask >> len(filters):
        return None
    for position, code in reversed(list(enumerate(filters))):
        if mask >> position & 1:
            continue
        undone = _undo(code, content, itemsize, room + CHECKSUM)
        if undone is None:
            return None
        content = undone
    return content if len(content) == room else None


def _undo(code: int, content: bytes, itemsize: int, room: int) -> bytes | None:
    if code == FLETCHER32:
        return content[:-CHECKSUM] if len(content) >= CHECKSUM and _fletcher_holds(content) else None
    if code == DEFLATE:
        return _inflate(content, room)
    if code == LZF:
        return unlzf(content, room)
    if itemsize == 1:
        return content
    whole = len(content) // itemsize * itemsize
    columns = np.frombuffer(content, np.uint8, whole).reshape(itemsize, -1)
    return columns.T.tobytes() + content[whole:]


def _inflate(content: bytes, room: int) -> bytes | None:
    """At most `room` bytes from a zlib stream that ends with its own checksum."""
    machine = zlib.decompressobj()
    try:
        result = machine.decompress(content, room + 1)
    except zlib.error:
        return None
    return result if machine.eof and len(result) <= room else None


def unlzf(content: bytes, room: int) -> bytes | None:
    """At most `room` bytes from an LZF stream, or None when the stream is broken.

    A byte c < 32 stands for c + 1 literal bytes that follow. Otherwise its upper three bits are the length - 2 of a
    stretch to be copied (7: add the next byte) and its lower five, with the byte after, the distance - 1 to it.
    """
    result, position, end = bytearray(), 0, len(content)
    while position < end:
        control = content[position]
        position += 1
        if control < 32:
            result += content[position : position + control + 1]
            position += control + 1
            if position > end or len(result) > room:
                return None
            continue
        length = control >> 5
        if length == 7:
            if position >= end:
                return None
            length += content[position]
            position += 1
        if position >= end:
            return None
        distance = ((control & 31) << 8) + content[position] + 1
        position += 1
        length += 2
        if distance > len(result) or len(result) + length > room:
            return None
        stretch = result[-distance:][:length]  # one that is longer than the distance to it repeats
        result += stretch if length <= distance else (stretch * (length // distance + 1))[:length]
    return bytes(result)


def _fletcher_holds(content: bytes) -> bool:
    """Fletcher's checksum over big-endian 16-bit words, s1 = sum w_i and s2 = sum (n - i) w_i modulo 65535."""
    body, kept = content[:-CHECKSUM], int.from_bytes(content[-CHECKSUM:], "little")
    words = np.frombuffer(body + b"\0" * (len(body) % 2), ">u2").astype(np.uint64)
    first, second = 0, 0
    for start in range(0, len(words), 1 << 16):
        part = words[start : start + (1 << 16)]
        second += first * len(part) + int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        first += int(part.sum())
    return kept % 65536 % 65535 == first % 65535 and (kept >> 16) % 65535 == second % 65535
