"""Parquet files and LeRobot's data sets. Needs the extra `parquet` (pyarrow).

A Parquet file is a table like a CSV file (`iel.data.tables`); a column may also hold a vector per row. LeRobot keeps
a data set in a folder:

    meta/info.json            codebase_version (v2.0, v2.1, v3.0), total_episodes, total_frames, features
    data/chunk-*/*.parquet    observation.state, action, episode_index, frame_index...: one row per frame
    videos/                   not read

Of v2 every episode has a file, of v3 a file has many; the rows are the same. What a file says about its size is held
against the memory budget and the bytes that are there before anything is unpacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from iel.data.tables import Columns, Layout
from iel.data.trajectories import Rows, parse_signals, signals_beside
from iel.errors import DataError, install
from iel.files import notice
from iel.loader import check_budget, check_size, first_line, open_regular, read_json

if TYPE_CHECKING:
    from pyarrow import Array
    from pyarrow.parquet import ParquetFile

METADATA_BYTES = 16 << 20
BATCH = 1 << 16
"""Rows that are read before their memory is held against the budget again."""
INFO = Path("meta") / "info.json"
SIGNALS_KEY = b"iel.signals"
"""Parquet's metadata that holds names, units and ranges of the columns, in files that `iel.data.writers` made."""
STATES = ("observation.state", "observation.environment_state")
"""LeRobot's features of an observation: the numbers of the robot and of its environment."""


def lerobot_rows(path: Path, name: str, columns: Columns) -> Rows:
    """A LeRobot data set, version 2 or 3."""
    if columns.rate is not None:
        raise DataError(
            f"{path}: LeRobot's rows are at a fixed rate, so they have no column of time; leave --time out."
        )
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
    cost = 0
    for file in files:
        layout, table = read_parquet(file, wanted, False, quiet=True)
        if table["episode_index"].dtype.kind not in "iu":
            raise DataError(
                f"{file}: column 'episode_index' does not hold whole numbers; number the episodes from 0 on."
            )
        cost += sum(array.nbytes + 4 * array.size for array in table.values())
        check_budget(path, cost)
        for column, values in table.items():
            parts.setdefault(column, []).append(values)
    whole = {column: np.concatenate(values) for column, values in parts.items()}
    # Files of version 2 come in the order of their names; where folders were mixed, episodes still belong together.
    order = np.lexsort((whole["frame_index"], whole["episode_index"]))
    whole = {column: values[order] for column, values in whole.items()}
    frames = whole["episode_index"], whole["frame_index"]
    rate, chosen = info.get("fps"), (*wanted.observations, *wanted.actions)
    layout = structs.replace(
        layout,
        inner={column: _inner_names(features[column]) for column in chosen},
        ticks=float(rate) if isinstance(rate, int | float) and rate > 0 else None,
        where=lambda row: f"episode {frames[0][row]}, frame {frames[1][row]}",
    )
    rows = layout.rows(whole, name, str(path))
    for what, promised, found in (
        ("frames", info.get("total_frames"), len(order)),
        ("episodes", info.get("total_episodes"), len(np.unique(frames[0]))),
    ):
        if promised is not None and promised != found:
            raise DataError(f"{path} should have {promised} {what} but holds {found}; it is cut off, copy it again.")
    if not (columns.observations or columns.actions) and (signals := signals_beside(path / INFO.parent)) is not None:
        rows = rows._replace(signals=signals)
    return rows.without_short()


def _lerobot_columns(columns: Columns, features: dict[str, object], path: Path) -> Columns:
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
    return Columns(observations, actions, "episode_index", "frame_index", gaps=columns.gaps)


def _inner_names(feature: object) -> tuple[str, ...]:
    """Names of the numbers of a vector in meta/info.json: a list, or a list below some word ("motors", "axes")."""
    names = feature.get("names") if isinstance(feature, dict) else None
    if isinstance(names, dict) and len(names) == 1:
        (names,) = names.values()
    whole = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    return tuple(names) if whole and isinstance(names, list) and len(set(names)) == len(names) else ()


def read_parquet(
    path: Path, columns: Columns, one_episode: bool, quiet: bool = False
) -> tuple[Layout, dict[str, NDArray]]:
    """The columns of a Parquet file that are read; `quiet` leaves out the notice about others."""
    with _open(path) as (file, size):
        names = file.schema_arrow.names
        if quiet:  # other columns are LeRobot's own bookkeeping
            names = [name for name in names if name in columns.read]
        layout = Layout.find(columns, names, str(path), one_episode)
        stored = (file.schema_arrow.metadata or {}).get(SIGNALS_KEY)
        if stored and not (columns.observations or columns.actions):
            layout = structs.replace(layout, signals=parse_signals(stored, f"{path}, {SIGNALS_KEY.decode()}"))
        facts = file.metadata
        # Not of single columns: for one that contradicts the schema, the library ends the whole process.
        unpacked = sum(facts.row_group(group).total_byte_size for group in range(facts.num_row_groups))
        # Runs and dictionaries make many rows of few bytes: the rows themselves count, too.
        least = 8 * facts.num_rows * len(layout.read)
        check_size(str(path), max(unpacked, least), size, DataError)
        check_budget(path, least)
        batches, cost = [], 0
        for batch in file.iter_batches(BATCH, columns=list(layout.read), use_threads=False):
            cost += 3 * batch.nbytes  # as it is read, side by side, and as float32
            check_budget(path, cost)
            batches.append(batch)
        rows = sum(batch.num_rows for batch in batches)
        if rows != facts.num_rows or not batches:
            raise DataError(f"{path} holds {rows} rows and says {facts.num_rows}; record some, or copy it again.")
        parts = {name: [batch.column(name) for batch in batches] for name in layout.read}
        table = {name: _numbers(own, name, path, layout, text=not quiet) for name, own in parts.items()}
        return structs.replace(layout, ticks=_ticks(parts.get(layout.step or "", ()))), table


def _ticks(parts: Sequence[Array]) -> float | None:
    """A second in units of a column of timestamps; None for other columns."""
    unit = str(parts[0].type).partition("[")[2][:2].rstrip(",]") if parts else ""
    return {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}.get(unit)


def _numbers(parts: list[Array], name: str, path: Path, layout: Layout, text: bool) -> NDArray:
    """A column of numbers (n,), or of vectors of one length (n, k). With `text`, episodes may have names, which become
    numbers of this file.
    """
    import pyarrow as pa

    plain = [part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in parts]
    array = pa.concat_arrays(plain)
    width = None
    if name in (layout.episode, layout.step) and array.null_count:  # numbers beside a gap would lose digits
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"{path}, row {row}, column '{name}': the cell is empty; fill it in, or drop the row.")
    if text and name == layout.episode and (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        array = array.dictionary_encode().indices
    if name == layout.step and pa.types.is_timestamp(array.type):  # UTC, whether it says so or not
        array = array.cast(pa.int64())
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


@contextmanager
def _open(path: Path) -> Iterator[tuple[ParquetFile, int]]:
    """A Parquet file and its size; whatever the library finds wrong becomes a sentence."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path} is Parquet, which needs a package; {install('parquet')}.") from None
    with open_regular(path, DataError) as (raw, size):
        try:
            file = ParquetFile(
                pa.PythonFile(raw, mode="r"),
                thrift_string_size_limit=METADATA_BYTES,
                thrift_container_size_limit=METADATA_BYTES,
                page_checksum_verification=True,
                arrow_extensions_enabled=False,
            )
            yield file, size
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as problem:
            raise DataError(
                f"{path} is not a whole Parquet file ({first_line(problem)}); make or copy it again."
            ) from None
