"""Parquet files and LeRobot's data sets. Needs the extra `parquet` (pyarrow).

A Parquet file is a table like a CSV file (`iel.data.columns`); a column may also hold a vector per row. LeRobot keeps
a data set in a folder:

    meta/info.json            codebase_version (v2.0, v2.1, v3.0), total_episodes, total_frames, features
    data/chunk-*/*.parquet    observation.state, action, episode_index, frame_index...: one row per frame
    videos/                   not read

Of v2 every episode has a file, of v3 a file has many; the rows are the same. What a file says about its size is held
against the memory budget and the bytes that are there before anything is unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from iel.data.columns import Columns, Layout
from iel.data.trajectories import Rows
from iel.errors import DataError
from iel.files import notice
from iel.loader import check_budget, check_size, memory_budget, open_regular, read_json

LEAF = re.compile(r"\.list\.(element|item)$")
"""How the numbers of a column of vectors are called inside of the file."""
METADATA_BYTES = 16 << 20
INFO = Path("meta") / "info.json"
STATES = ("observation.state", "observation.environment_state")
"""What LeRobot calls the numbers of an observation: the robot's, and those of the world around it."""


def parquet_rows(path: Path, name: str, columns: Columns) -> Rows:
    """The rows of one Parquet file with an episode column or flags."""
    layout, table = _read(path, columns, memory_budget(), False)
    return layout.rows(table, name, str(path))


def parquet_episodes(files: Sequence[Path], columns: Columns) -> list[tuple[NDArray, NDArray]]:
    """(observations, actions) of every file of a folder, one episode each."""
    episodes, budget = [], memory_budget()
    for file in files:
        layout, table = _read(file, columns, budget, True)
        budget -= sum(array.nbytes + 4 * array.size for array in table.values())
        rows = layout.rows(table, file.name, str(file))
        if len(rows.offsets) != 2:
            raise DataError(f"{file} holds several episodes, but in a folder every file is one; give a single file.")
        episodes.append((rows.observations, rows.actions))
    return episodes


def lerobot_rows(path: Path, name: str, columns: Columns) -> Rows:
    """A LeRobot data set, version 2 or 3."""
    info = read_json(path / INFO, DataError)
    version, features = str(info.get("codebase_version", "")), info.get("features")
    if not version.startswith(("v2", "v3")) or not isinstance(features, dict):
        raise DataError(
            f"{path / INFO} says version '{version[:20]}'; LeRobot's versions 2 and 3 are read, so convert it."
        )
    wanted = _lerobot_columns(columns, features, path)
    files = sorted((path / "data").rglob("*.parquet"))
    if not files:
        raise DataError(f"{path / 'data'} holds no Parquet files; copy the data set again, its data folder included.")
    parts: dict[str, list[NDArray]] = {}
    budget = memory_budget()
    for file in files:
        layout, table = _read(file, wanted, budget, False, quiet=True)
        budget -= sum(array.nbytes + 4 * array.size for array in table.values())
        for column, values in table.items():
            parts.setdefault(column, []).append(values)
    whole = {column: np.concatenate(values) for column, values in parts.items()}
    # Files of version 2 come in the order of their names; where folders were mixed, episodes still belong together.
    order = np.lexsort((whole["frame_index"], whole["episode_index"]))
    whole = {column: values[order] for column, values in whole.items()}
    rows = layout.rows(whole, name, str(path))
    for what, promised, found in (
        ("frames", info.get("total_frames"), len(rows.observations)),
        ("episodes", info.get("total_episodes"), len(rows.offsets) - 1),
    ):
        if promised is not None and promised != found:
            raise DataError(f"{path} should have {promised} {what} but holds {found}; it is cut off, copy it again.")
    return rows.without_short()


def _lerobot_columns(columns: Columns, features: dict[str, Any], path: Path) -> Columns:
    """The columns of a data set, from what meta/info.json says about its features."""
    observations = columns.observations or tuple(name for name in STATES if name in features)
    actions = columns.actions or tuple(name for name in ("action", "actions") if name in features)[:1]
    for kind, names in (("observations", observations), ("actions", actions)):
        if not names or any(name not in features for name in names):
            raise DataError(
                f"{path} has no {' and '.join(names) or kind} among its features ({', '.join(features)}); "
                f"name them with `iel data convert --{kind} NAME`."
            )
    pictures = [n for n, f in features.items() if isinstance(f, dict) and f.get("dtype") in ("image", "video")]
    if pictures:
        notice(f"{path}: pictures are not read: {', '.join(pictures)}.", once=True)
    return Columns(observations, actions, "episode_index", "frame_index")


def _read(
    path: Path, columns: Columns, budget: int, one_episode: bool, quiet: bool = False
) -> tuple[Layout, dict[str, NDArray]]:
    with _open(path) as (file, size, footer):
        names = file.schema_arrow.names
        if quiet:  # other columns are LeRobot's own bookkeeping
            names = [n for n in names if n in (*columns.observations, *columns.actions, columns.episode, columns.step)]
        layout = Layout.find(columns, names, str(path), one_episode)
        facts = file.metadata
        wanted = [n for n in range(facts.num_columns) if LEAF.sub("", facts.schema.column(n).path) in layout.read]
        unpacked = unpacked_bytes(footer, wanted)
        # Runs and dictionaries make many rows of few bytes: the rows themselves count, too.
        check_size(str(path), max(unpacked, 8 * facts.num_rows * len(wanted)), size, DataError)
        check_budget(path, 3 * unpacked + 12 * facts.num_rows * len(wanted), budget, DataError)
        table = file.read(columns=list(layout.read), use_threads=False)
        if table.num_rows != facts.num_rows:
            raise DataError(f"{path} holds {table.num_rows} rows and says {facts.num_rows}; copy it again.")
        return layout, {name: _numbers(table.column(name), name, path) for name in layout.read}


def _numbers(column: Any, name: str, path: Path) -> NDArray:
    """A column of numbers (n,), or of vectors of one length (n, k)."""
    import pyarrow as pa

    array = column.combine_chunks()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    width = None
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if array.null_count:
            raise DataError(f"{path}: column '{name}' has empty rows; fill them in, or drop their episodes.")
        lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False)) if len(array) else np.array([0])
        if len(lengths) != 1 or lengths[0] == 0:
            raise DataError(f"{path}: the vectors of column '{name}' are not equally long; make them so.")
        width, array = int(lengths[0]), array.flatten()
        kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{path}: column '{name}' holds {kind}, not numbers; save numbers, or name other columns.")
    values = array.to_numpy(zero_copy_only=False)
    values = values.astype(np.float64) if values.dtype == object else values  # booleans or integers with gaps
    return values if width is None else values.reshape(-1, width)


def read_footer(file: BinaryIO, size: int) -> bytes:
    """The bytes at the end of a Parquet file that say what is in it."""
    file.seek(max(size - 8, 0))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > min(METADATA_BYTES, size - 12):
        raise ValueError("there is no footer at its end")
    file.seek(size - 8 - length)
    footer = file.read(length)
    file.seek(0)
    return footer


def unpacked_bytes(footer: bytes, columns: Sequence[int]) -> int:
    """Bytes of these columns of all row groups, before compression, as the footer says.

    The library has this number too, but ends the whole process where the footer contradicts itself.
    """
    groups = Compact(footer).struct().get(4, [])
    try:
        return sum(group[1][number][3][6] for group in groups for number in columns)  # by Parquet's numbers of fields
    except (TypeError, KeyError, IndexError):
        raise ValueError("its footer does not say how large its columns are") from None


class Compact:
    """Thrift's compact protocol, in which the footer is written: structures are read as {number of a field: value}."""

    def __init__(self, content: bytes):
        self.content, self.place = content, 0

    def take(self, count: int) -> bytes:
        part = self.content[self.place : self.place + count]
        if len(part) != count:
            raise ValueError("its footer is cut off")
        self.place += count
        return part

    def number(self) -> int:
        """Seven bits a byte, the lowest first."""
        found = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("a number of its footer has no end")

    def signed(self) -> int:
        found = self.number()
        return found >> 1 ^ -(found & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self.value(kind, depth + 1)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if depth > 20:
            raise ValueError("its footer is too deep")
        if kind in (1, 2, 3):
            return self.take(1)[0]
        if kind in (4, 5, 6):
            return self.signed()
        if kind == 7:
            return self.take(8)
        if kind == 8:
            return self.take(self.number())
        if kind in (9, 10):
            head = self.take(1)[0]
            count = self.number() if head >> 4 == 15 else head >> 4
            if count > len(self.content) - self.place:  # every item has a byte at least
                raise ValueError("a list of its footer is longer than the footer")
            return [self.value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth)
        raise ValueError(f"its footer holds a value of the unknown kind {kind}")


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, int, bytes]]:
    """A Parquet file, its size and its footer; whatever the library finds wrong becomes a sentence."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path} is Parquet, which needs a package; run `pip install 'iel[parquet]'`.") from None
    with open_regular(path, DataError) as (raw, size):
        try:
            footer = read_footer(raw, size)
            yield (
                ParquetFile(
                    pa.PythonFile(raw, mode="r"),
                    thrift_string_size_limit=METADATA_BYTES,
                    thrift_container_size_limit=METADATA_BYTES,
                    page_checksum_verification=True,
                    arrow_extensions_enabled=False,
                ),
                size,
                footer,
            )
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as problem:
            reason = (str(problem).splitlines() or [""])[0][:120]
            raise DataError(f"{path} is not a whole Parquet file ({reason}); make or copy it again.") from None
