"""A store on the disk: trajectories that are larger than memory.

    STORE/
      observations.f32   (states, columns) little-endian float32, row after row, no header
      actions.f32        (states, columns) likewise; rows at episode ends are zero
      offsets.i64        (episodes + 1,) little-endian int64
      manifest.json      shapes, mean and standard deviation of every column, fingerprint; sha256 and size of the files

These are the arrays of `Trajectories` byte for byte, so a row is one read at a known offset, and any program can map
the files. Compressed and chunked formats (Parquet, Zarr) unpack a block of thousands of rows for each row of a random
batch.

`write_store` takes any data set a window of whole episodes at a time, and checks each window as `iel data check` checks
a file; repeats between windows are not looked for. `open_store` reads the manifest, the offsets and the sizes of the
files, and no rows; `verify_store` compares all files with their sha256.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from iel.data.catalogue import windows
from iel.data.tables import Given
from iel.data.trajectories import FloatArray, Rows, Trajectories, check_offsets, fingerprint_of, usable_scale
from iel.errors import DataError
from iel.files import new_directory, require_space, seal, verify_seal
from iel.loader import memory_budget, open_regular, os_errors, read_limited, refuse_partial
from iel.signals import UNNAMED, Signals
from iel.typed import Count, as_struct

FORMAT = 1
KIND = "iel store of trajectories"
REMEDY = "write the store again"
WINDOW = 1 << 20
"""Rows that are looked at together while a store is written."""
FILES = {"observations": "observations.f32", "actions": "actions.f32", "offsets": "offsets.i64"}
LARGEST, SMALLEST = 3e38, 1e-9
"""Bounds of means and standard deviations: they fit into float32, and the latter are not zero."""


class StoreFacts(Struct, frozen=True):
    """Fields of a store's manifest."""

    kind: str
    states: Count
    episodes: Count
    observation_size: Count
    action_size: Count
    fingerprint: str
    mean: list[Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]]
    scale: list[Annotated[float, Meta(ge=SMALLEST, le=LARGEST)]]
    constant: list[bool]
    signals: Signals = UNNAMED


# ------------------------------------------------------------------------------------------------------------ writing


def convert(
    source: Path,
    out: Path,
    name: str | None = None,
    trust: bool = False,
    window: int = WINDOW,
    columns: Given | None = None,
) -> Trajectories:
    """Write a store from any file that `iel.load` reads, in memory for some windows of rows; opens it."""
    with os_errors(DataError, source):
        rows = windows(source, name, window, columns)
    return write_store(rows, out, name or source.stem, trust)


def write_store(windows: Iterable[Rows], out: Path, name: str, trust: bool = False) -> Trajectories:
    """Write rows that come in windows of whole episodes as a store, whole or not at all; opens it."""
    if os.path.lexists(out):
        raise DataError(f"{out} is there already; choose another --out, or remove it.")
    with os_errors(DataError, out, writing=True), new_directory(out) as partial:
        offsets, widths, signals = _append(windows, partial, name, trust)
        with ExitStack() as stack:
            files = zip(FILES.values(), widths, strict=False)
            tables = [stack.enter_context(closing(RowReader(partial / file, width))) for file, width in files]
            mean, deviation, constant = _moments(tables[0])
            facts = StoreFacts(
                kind=KIND,
                states=int(offsets[-1]),
                episodes=len(offsets) - 1,
                observation_size=widths[0],
                action_size=widths[1],
                fingerprint=fingerprint_of(*tables, offsets),
                mean=mean.tolist(),
                scale=usable_scale(deviation).astype(np.float64).tolist(),
                constant=constant.tolist(),
                signals=signals,
            )
        seal(partial, FORMAT, {}, **msgspec.to_builtins(facts))
    return open_store(out, name)


def _append(
    windows: Iterable[Rows], partial: Path, name: str, trust: bool
) -> tuple[NDArray[np.int64], tuple[int, int], Signals]:
    """Write the rows of all windows; returns offsets, widths and what is known of the columns."""
    offsets, episodes, widths, signals = [np.zeros(1, np.int64)], 0, (0, 0), UNNAMED
    with ExitStack() as stack:
        files = {kind: stack.enter_context((partial / file).open("xb")) for kind, file in FILES.items()}
        for rows in windows:
            label = f"{name} (counted from episode {episodes})" if episodes else name
            data = rows._replace(name=label).trajectories(trust)
            found = data.observation_size, data.action_size
            if episodes and found != widths:
                raise DataError(
                    f"{label}: {found} observation and action columns, but {widths} before; they must agree."
                )
            widths, episodes, signals = found, episodes + len(data), data.signals
            require_space(partial, data.observations.nbytes + data.actions.nbytes, "the rows of this store")
            for kind, table in (("observations", data.observations), ("actions", data.actions)):
                files[kind].write(np.ascontiguousarray(table, "<f4").data)
            offsets.append(offsets[-1][-1] + data.offsets[1:])
        if episodes == 0:
            raise DataError(f"{name} has no episodes; give at least one with two or more steps.")
        joined = np.concatenate(offsets)
        files["offsets"].write(joined.astype("<i8", copy=False).data)
    return joined, widths, signals


def _moments(table: RowReader) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Mean and standard deviation of every column, row after row (the bits of numpy's own over axis 0), and whether it
    is constant.
    """
    mean = _sum(block.astype(np.float64) for block in _blocks(table)) / len(table)
    squares, first = _sum(np.square(block - mean) for block in _blocks(table)), table[:1]
    constant = np.all([(block == first).all(0) for block in _blocks(table)], axis=0)
    return mean, np.sqrt(squares / len(table)), constant


def _sum(blocks: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
    total = np.add.reduce(next(blocks), axis=0)
    for block in blocks:
        total = np.add.reduce(np.concatenate([total[None], block]), axis=0)
    return total


def _blocks(table: RowReader) -> Iterator[NDArray]:
    return (table[start : start + WINDOW] for start in range(0, len(table), WINDOW))


# ------------------------------------------------------------------------------------------------------------ reading


def is_store(path: Path) -> bool:
    """Whether a directory is a store, whole or not, by the files it has."""
    return path.is_dir() and any((path / file).exists() for file in FILES.values())


def open_store(path: Path, name: str | None = None) -> Trajectories:
    """The trajectories of a store; rows are read when they are used."""
    refuse_partial(path, DataError)
    manifest = verify_seal(path, FORMAT, [FILES["offsets"]], remedy=REMEDY, error=DataError)
    facts = as_struct(manifest, StoreFacts, str(path / "manifest.json"), DataError)
    widths = facts.observation_size, facts.action_size
    if facts.kind != KIND or {len(facts.mean), len(facts.scale), len(facts.constant)} != {facts.observation_size}:
        raise DataError(f"{path} is sealed, but not as a store of trajectories; give a data set.")
    offsets = np.frombuffer(read_limited(path / FILES["offsets"], 8 * facts.episodes + 8, DataError), "<i8")
    check_offsets(offsets, facts.states, str(path))
    tables = [_map(path / FILES[kind], (facts.states, width)) for kind, width in zip(FILES, widths, strict=False)]
    data = Trajectories(tables[0], tables[1], offsets, name or path.stem, checked=True, stored=path.absolute())
    return data._set(
        fingerprint=facts.fingerprint,
        mean=np.array(facts.mean, np.float64),
        scale=np.array(facts.scale, np.float32),
        constant=np.array(facts.constant, bool),
        signals=facts.signals.require(*widths, str(path), DataError),
    )


def verify_store(path: Path) -> None:
    """Read all of a store and compare it with its manifest."""
    verify_seal(path, FORMAT, remedy=REMEDY, error=DataError)


def _map(path: Path, shape: tuple[int, int]) -> FloatArray:
    """A read-only map of a file that has exactly these rows."""
    with open_regular(path, DataError) as (file, size):
        if size != 4 * shape[0] * shape[1]:
            raise DataError(
                f"{path} has {size:,} bytes, but its manifest says {4 * shape[0] * shape[1]:,}; copy it again."
            )
        return np.memmap(file, "<f4", "r", shape=shape).view(np.ndarray)


class RowReader:
    """Rows of a store by number, read instead of mapped: pages of a map would stay in this process's memory.

    Rows are read in the order of the file, neighbours together. Where the store is larger than the memory budget, all
    of them are announced to the system first, so that the disk works on many at a time.
    """

    def __init__(self, path: Path, columns: int):
        self.path, self.columns, self._stack = path, columns, ExitStack()
        self._file, size = self._stack.enter_context(open_regular(path, DataError))
        self.shape, self.dtype = (size // (4 * columns), columns), np.dtype("<f4")
        self._ahead = size > memory_budget() and hasattr(os, "posix_fadvise")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> FloatArray:
        """Rows one after another."""
        first, last, _ = rows.indices(len(self))
        width = 4 * self.columns
        return self._table(os.pread(self._file.fileno(), width * (last - first), width * first), last - first)

    def _table(self, content: bytes, rows: int) -> FloatArray:
        if len(content) != 4 * self.columns * rows:
            raise DataError(f"{self.path} became shorter while it was read; copy the store again.")
        return np.frombuffer(content, self.dtype).reshape(-1, self.columns)

    def __call__(self, rows: NDArray[np.integer]) -> FloatArray:
        """(..., columns) the rows with these numbers."""
        wanted, slot = np.unique(rows, return_inverse=True)
        first = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
        lengths = (4 * self.columns * np.diff(first, append=len(wanted))).tolist()
        starts = (4 * self.columns * wanted[first].astype(np.int64)).tolist()
        descriptor = self._file.fileno()
        if self._ahead:
            for length, start in zip(lengths, starts, strict=True):
                os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
        read = os.pread
        content = b"".join([read(descriptor, length, start) for length, start in zip(lengths, starts, strict=True)])
        return self._table(content, len(wanted))[slot.reshape(np.shape(rows))]

    def close(self) -> None:
        self._stack.close()
