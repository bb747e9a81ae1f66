"""Tables with named columns for `fuzz.py`: written as programs write them, and corrupted as readers must notice."""

import csv
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iel.data import Trajectories


def table(store: Trajectories, episodes: bool) -> dict[str, list]:
    """Trajectories as named columns, one row a state; episodes have numbers, or flags on their last rows."""
    sizes = np.diff(store.offsets)
    columns = {f"observation.{n}": store.observations[:, n].tolist() for n in range(3)}
    columns |= {f"action.{n}": store.actions[:, n].tolist() for n in range(2)}
    columns["step"] = np.concatenate([np.arange(size) for size in sizes]).tolist()
    if episodes:
        return {**columns, "episode": np.repeat(np.arange(len(sizes)), sizes).tolist()}
    return {**columns, "terminals": np.isin(np.arange(store.num_states), store.offsets[1:] - 1).astype(int).tolist()}


def as_csv(columns: dict[str, list], rng: np.random.Generator) -> str:
    """A table as one of many programs writes it: separators, quotes, line ends, a mark at the beginning."""
    file = io.StringIO()
    style = {
        "delimiter": str(rng.choice([",", ";", "\t"])),
        "quoting": int(rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        "lineterminator": str(rng.choice(["\n", "\r\n"])),
    }
    writer = csv.writer(file, **style)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return ("\ufeff" if rng.random() < 0.2 else "") + file.getvalue()


def as_parquet(columns: dict[str, Any], rng: np.random.Generator) -> bytes:
    """Pages with checksums, as LeRobot's writer makes them on request."""
    file = io.BytesIO()
    compression = str(rng.choice(["none", "snappy", "gzip", "zstd"]))
    mixed = {name: any(isinstance(value, str) for value in values) for name, values in columns.items()}
    whole = {name: [str(value) for value in values] if mixed[name] else values for name, values in columns.items()}
    pq.write_table(
        pa.table(whole),
        file,
        compression=compression,
        row_group_size=int(rng.integers(20, 200)),
        write_page_checksum=True,
        use_dictionary=bool(rng.random() < 0.5),
        data_page_version=str(rng.choice(["1.0", "2.0"])),
    )
    return file.getvalue()


def vectors(columns: dict[str, list]) -> dict[str, Any]:
    """Observations and actions as one column of vectors each."""
    kinds = {"observation": pa.list_(pa.float32(), 3), "action": pa.list_(pa.float32())}
    joined = {}
    for word, kind in kinds.items():
        own = [values for name, values in columns.items() if name.startswith(word)]
        joined[word] = pa.array([list(row) for row in zip(*own, strict=True)], kind)
    return {**joined, **{name: values for name, values in columns.items() if "." not in name}}


def misplace(columns: dict[str, list], rng: np.random.Generator) -> dict[str, list]:
    """A table with one fault that its reader can notice: rows out of order or without numbers, names twice or gone."""
    changed = {name: list(values) for name, values in columns.items()}
    name = str(rng.choice(list(changed)))
    row = int(rng.integers(1, len(changed[name]) - 1))
    kind = rng.integers(8)
    if kind == 0:  # two rows are swapped
        for values in changed.values():
            values[row], values[row - 1] = values[row - 1], values[row]
    elif kind == 1:  # a row is there twice
        for values in changed.values():
            values.insert(row, values[row])
    elif kind == 2:
        changed[name][row] = None
    elif kind == 3:
        changed[name][row] = float(rng.choice([np.nan, np.inf, -np.inf, 1e300]))
    elif kind == 4:
        changed[name][row] = str(rng.choice(["x", "1,5", "0x1p3", "--1", "", "1_0", "nan nan", "\0", "é" * 5000]))
    elif kind == 5:
        del changed[str(rng.choice([name for name in changed if "." not in name]))]
    elif kind == 6:  # a name is there twice, but for a space
        changed[f" {name}"] = changed[name]
    else:  # episodes whose rows are not together, flags that are neither 0 nor 1
        last = "episode" if "episode" in changed else "terminals"
        changed[last][row] = [0.5, -1, 2][int(rng.integers(3))] if last == "terminals" else 7 if row % 2 else 0
    return changed
