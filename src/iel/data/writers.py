"""Data sets written for others: Parquet, LeRobot v3 and Minari. Read back, they are the same rows (docs/formats.md).

    OUT.parquet                     episode, step, observation.NAME..., action.NAME...: one row per state
    OUT/meta, OUT/data              LeRobot v3: observation.state, action, one frame per state
    OUT/data/main_data.hdf5         Minari: groups episode_0, ..., T + 1 observations and T actions

The action of an episode's last row is zero, where a format has one. Names, units and ranges of the columns
(`Trajectories.signals`) are in Parquet's own metadata, else in a file `iel.json`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from iel.data.parquet import INFO, SIGNALS_KEY
from iel.data.trajectories import SIGNALS_FILE, Trajectories
from iel.errors import ConfigError, DataError
from iel.files import new_directory, notice, write_json, writing
from iel.loader import os_errors

if TYPE_CHECKING:
    from pyarrow import Array, Table

Format = Literal["npz", "parquet", "lerobot", "minari"]
SUFFIXES: Mapping[str, Format] = {".npz": "npz", ".parquet": "parquet"}
FRAMES = 10
"""Frames per second in LeRobot's metadata where the rate is not known."""
GROUP = 1 << 16
"""Rows of a group of Parquet."""


def write_dataset(data: Trajectories, out: Path, to: Format | None = None) -> Path:
    """Write a data set as `to`, or as the suffix of `out` says; whole or not at all."""
    kind = to or SUFFIXES.get(out.suffix)
    if kind is None:
        raise ConfigError(
            f"{out} does not say what to write; end it in .npz or .parquet, or say --to lerobot or minari."
        )
    if kind == "npz":
        return data.save(out)
    if os.path.lexists(out):
        raise DataError(f"{out} is there already; choose another --out, or remove it.")
    data.require_memory(f"write it as {kind}")
    with os_errors(DataError, out, writing=True):
        if kind == "parquet":
            out.parent.mkdir(parents=True, exist_ok=True)
            _write_table(_flat_table(data), out)
        else:
            with new_directory(out) as partial:
                {"lerobot": _write_lerobot, "minari": _write_minari}[kind](data, partial, out.name)
    return out


# --------------------------------------------------------------------------------------------------------- Parquet


def _flat_table(data: Trajectories) -> Table:
    import pyarrow as pa

    columns = dict(zip(("episode", "step"), _counted(data), strict=True))
    tables = (
        ("observation", data.observations, data.signals.observations),
        ("action", data.actions, data.signals.actions),
    )
    for kind, rows, names in tables:
        columns |= {
            f"{kind}.{names[i] if names else i}": np.ascontiguousarray(rows[:, i]) for i in range(rows.shape[1])
        }
    return pa.table(columns).replace_schema_metadata({SIGNALS_KEY: msgspec.json.encode(data.signals)})


def _counted(data: Trajectories) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(number of the episode, of the step in it) of every row."""
    lengths = np.diff(data.offsets)
    return np.repeat(np.arange(len(lengths)), lengths), np.arange(data.num_states) - np.repeat(
        data.offsets[:-1], lengths
    )


def _write_table(table: Table, path: Path) -> None:
    from pyarrow import parquet

    with writing(path) as file:
        parquet.write_table(table, file, row_group_size=GROUP, write_page_checksum=True)


# --------------------------------------------------------------------------------------------------------- LeRobot


def _write_lerobot(data: Trajectories, root: Path, name: str) -> None:
    """A frame per state. The last frame of an episode has a zero action, which readers of states alone do not use."""
    import pyarrow as pa

    rate = data.signals.rate
    if rate is None:
        notice(f"{data.name}: its rate is not known, so LeRobot gets {FRAMES} frames per second; --rate sets it.")
    rate = rate or float(FRAMES)
    episode, frame = _counted(data)
    tables = {
        "observation.state": (data.observations, data.signals.observations),
        "action": (data.actions, data.signals.actions),
    }
    columns: dict[str, Array] = {key: _vectors(rows) for key, (rows, _) in tables.items()}
    columns["timestamp"] = pa.array((frame / rate).astype(np.float32))
    whole = {"frame_index": frame, "episode_index": episode, "index": np.arange(len(frame)), "task_index": 0 * frame}
    columns |= {key: pa.array(values) for key, values in whole.items()}
    first = Path("chunk-000") / "file-000.parquet"
    for folder in (root / "data" / first.parent, root / "meta" / "episodes" / first.parent):
        folder.mkdir(parents=True)
    _write_table(pa.table(columns), root / "data" / first)
    _write_table(_episodes(data, name), root / "meta" / "episodes" / first)
    _write_table(_tasks(name), root / "meta" / "tasks.parquet")
    features: dict[str, dict[str, object]] = {
        key: {
            "dtype": "float32",
            "shape": [rows.shape[1]],
            "names": list(names) or [f"{i}" for i in range(rows.shape[1])],
        }
        for key, (rows, names) in tables.items()
    }
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    features |= {key: {"dtype": "int64", "shape": [1], "names": None} for key in whole}
    facts = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(data),
        "total_frames": data.num_states,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
        "fps": int(rate) if rate == int(rate) else rate,
        "splits": {"train": f"0:{len(data)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }
    write_json(root / INFO, facts)
    write_json(root / "meta" / "stats.json", {key: _stats(rows) for key, (rows, _) in tables.items()})
    write_json(root / "meta" / SIGNALS_FILE, msgspec.to_builtins(data.signals))


def _vectors(rows: NDArray[np.float32]) -> Array:
    """A column of vectors; LeRobot keeps vectors of one number as numbers."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return flat if rows.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _episodes(data: Trajectories, task: str) -> Table:
    """Where the rows of every episode are."""
    import pyarrow as pa

    none = np.zeros(len(data), np.int64)
    return pa.table(
        {
            "episode_index": np.arange(len(data)),
            "tasks": [[task]] * len(data),
            "length": np.diff(data.offsets),
            "data/chunk_index": none,
            "data/file_index": none,
            "dataset_from_index": data.offsets[:-1],
            "dataset_to_index": data.offsets[1:],
            "meta/episodes/chunk_index": none,
            "meta/episodes/file_index": none,
        }
    )


def _tasks(task: str) -> Table:
    """One task, as the index of a pandas frame, which is how LeRobot reads it."""
    import pyarrow as pa

    described = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    frame = {"index_columns": ["task"], "column_indexes": [], "columns": described, "pandas_version": "2.0.0"}
    return pa.table({"task_index": [0], "task": [task]}).replace_schema_metadata({"pandas": json.dumps(frame)})


def _stats(rows: NDArray[np.float32]) -> dict[str, list[float]]:
    """Of every column."""
    found = {
        "min": rows.min(0),
        "max": rows.max(0),
        "mean": rows.mean(0, np.float64),
        "std": rows.std(0, dtype=np.float64),
    }
    return {**{key: values.astype(float).tolist() for key, values in found.items()}, "count": [len(rows)]}


# ---------------------------------------------------------------------------------------------------------- Minari


def _write_minari(data: Trajectories, root: Path, name: str) -> None:
    """The file and its metadata as Minari's package writes them; rewards are not known and zero."""
    import h5py

    folder = root / "data"
    folder.mkdir()
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, (states, actions) in enumerate(data):
            group, steps = file.create_group(f"episode_{number}"), len(actions)
            group.attrs.update({"id": number, "total_steps": steps})
            ends = np.arange(steps) == steps - 1
            arrays = {"observations": states, "actions": actions, "rewards": np.zeros(steps)}
            for key, values in {**arrays, "terminations": np.zeros(steps, bool), "truncations": ends}.items():
                group.create_dataset(key, data=values)
    metadata = {
        "dataset_id": re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") + ("" if re.search(r"-v\d+$", name) else "-v0"),
        "total_episodes": len(data),
        "total_steps": data.num_transitions,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": _box(data.observation_size, float("inf")),
        "action_space": _box(data.action_size, 1.0),
        "minari_version": "0.5.4",
    }
    write_json(folder / "metadata.json", metadata)
    write_json(folder / SIGNALS_FILE, msgspec.to_builtins(data.signals))


def _box(size: int, end: float) -> str:
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [size], "low": [-end] * size, "high": [end] * size})
