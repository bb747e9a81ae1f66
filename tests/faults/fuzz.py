"""The attack that stays: `python fuzz.py FIRST COUNT DIR` damages files and directories and says what became of each.

Case i is drawn from its own generator, so it can be repeated alone. Every outcome is one of

    same        read, and it means what it meant
    refused     an error of ours, in one sentence
    foreign     any other exception: a fault
    different   read without a word, and it means something else: a fault

Only damage that a file can notice must be noticed: plain numbers in HDF5 and safetensors have no checksum, so
there the targets are compressed blocks with checksums, and directories with a manifest. A file that was rewritten to
say something else in good order (another number, another name) must only not end in a foreign exception.
"""

import io
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from safetensors.numpy import save
from tables import as_csv, as_parquet, misplace, table, vectors

from iel.compare.grid import check_grid
from iel.data import Trajectories, examine
from iel.data.catalogue import read
from iel.data.store import write_store
from iel.data.trajectories import Rows
from iel.errors import DataError, IELError
from iel.files import MANIFEST, seal, verify_seal
from iel.loader import read_safetensors, read_toml
from iel.training import open_run
from iel.training.checkpoint import find_checkpoint

STRANGE = [None, True, False, 0, -1, 1.5, 1e300, 2**31, 2**63, 10**30, "", "text", "1", "\0", "é" * 5000, [], [1], [[]],
           {}, {"a": 1}, ["a"] * 3]  # fmt: skip
Bytes = bytes | bytearray


# -------------------------------------------------------------------------------------------------------------- damage


def scratch(content: bytes, rng: np.random.Generator) -> bytes:
    """What disks, cables and interrupted copies do to bytes."""
    changed = bytearray(content)
    kind = rng.integers(8)
    location = int(rng.integers(len(changed)))
    length = int(rng.integers(1, 1 + min(64, len(changed) - location)))
    if kind == 0:
        changed[location] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        for spot in rng.integers(len(changed), size=int(rng.integers(1, 20))):
            changed[spot] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        changed[location : location + length] = bytes([int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))]) * length
    elif kind == 3:
        changed[location : location + length] = rng.bytes(length)
    elif kind == 4:
        del changed[location:]
    elif kind == 5:
        del changed[location : location + length]
    elif kind == 6:
        changed[location:location] = changed[location : location + length]
    else:
        other = int(rng.integers(len(changed)))
        stretch = bytes(changed[other : other + length])
        changed[location : location + len(stretch)] = stretch
    return bytes(changed)


def disturb(table: dict, rng: np.random.Generator) -> dict:
    """A table with one of its values, at any depth, replaced, left out or moved."""
    changed = json.loads(json.dumps(table))
    where, key = changed, None
    while True:
        inner = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not inner:
            return changed
        key = inner[int(rng.integers(len(inner)))]
        if not isinstance(where[key], dict | list) or not where[key] or rng.random() < 0.3:
            break
        where = where[key]
    kind = rng.integers(5)
    if kind == 0:
        del where[key]
    elif kind == 1 and isinstance(where, dict):
        where[str(key)[:-1] + "x"] = where.pop(key)
    elif kind == 2:
        where[key] = [where[key]]
    else:
        where[key] = STRANGE[int(rng.integers(len(STRANGE)))]
    return changed


def numbers(name: str, rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """An array of another type, shape or content."""
    kind = rng.integers(9)
    if kind == 0:
        return array.astype(rng.choice(["i1", "u8", "f2", ">f8", "f4", "?", "i8"]))
    if kind == 1:
        return array.reshape(-1)
    if kind == 2:
        return array[: int(rng.integers(len(array) + 1))]
    if kind == 3:
        return array[0] if array.ndim else array
    if kind == 4:
        return array[..., None]
    if kind == 5:
        return np.asarray(rng.choice([np.nan, np.inf, -1e30, 0.5, 7.0]))
    if kind == 6:
        return np.where(rng.random(array.shape) < 0.01, rng.choice([np.nan, np.inf, 1e30, 0.5, -1.0]), array)
    if kind == 7:
        return array.astype("S8") if rng.random() < 0.5 else array.astype(complex)
    return np.zeros((0, *array.shape[1:]), array.dtype)


# ------------------------------------------------------------------------------------------------------------- targets


def data() -> Trajectories:
    rng = np.random.default_rng(11)
    episodes = [(np.cumsum(rng.normal(size=(n + 1, 3)), 0), rng.uniform(-0.9, 0.9, (n, 2))) for n in (20, 31, 45)]
    return Trajectories.from_episodes(episodes)


def fields() -> dict[str, np.ndarray]:
    store = data()
    ends = np.zeros(store.num_states, bool)
    ends[store.offsets[1:] - 1] = True
    return {"observations": store.observations, "actions": store.actions, "terminals": ends}


def as_npz(arrays: dict[str, np.ndarray], compress: bool = True) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **arrays)
    return file.getvalue()


def as_hdf5(arrays: dict[str, np.ndarray], latest: bool = False) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest" if latest else "earliest") as root:
        for name, array in arrays.items():
            plain = array.ndim == 0 or array.size == 0 or array.dtype.kind in "SO"
            options = {} if plain else {"compression": "gzip", "chunks": True}
            root.create_dataset(name, data=array, **options)
    return file.getvalue()


def as_minari(latest: bool) -> bytes:
    arrays = {}
    for number, episode in enumerate(data()):
        arrays[f"episode_{number}/observations"] = np.asarray(episode.observations)
        arrays[f"episode_{number}/actions"] = np.asarray(episode.actions)
        arrays[f"episode_{number}/rewards"] = np.zeros(len(episode.actions))
    return as_hdf5(arrays, latest=latest)


class Lab:
    """Originals, and a directory for their damaged copies."""

    def __init__(self, root: Path):
        sys.path.insert(0, str(Path(__file__).parent))
        from test_damage import make_run

        self.root, self.whole = root, data()
        flat = fields()
        maze = {"infos/goal": flat["observations"][:, :2], "timeouts": flat["terminals"]}
        ends = {"terminals": np.arange(len(flat["terminals"])) % 7 == 3}
        self.files = {
            "a.npz": as_npz(flat),
            "plain.npz": as_npz(flat, compress=False),
            "gzip.hdf5": as_hdf5(flat),
            "latest.hdf5": as_hdf5({**flat, **ends, **maze}, latest=True),
            "minari.hdf5": as_minari(latest=True),
        }
        self.run = make_run(root / "run")
        self.states = {step: {name: read_safetensors(self._state(step))[name] for name in ("kernel", "count")}
                       for step in (20, 40)}  # fmt: skip
        self.sealed = root / "sealed"
        self.sealed.mkdir()
        weights = {"a": np.ones((4, 3), np.float32), "b": np.arange(5)}
        (self.sealed / "model.safetensors").write_bytes(save(weights))
        (self.sealed / "config.json").write_text(json.dumps({"format": 1, "algo": "iel"}))
        seal(self.sealed, 1, {"iel": "0.1.0"})
        self.store = root / "store"
        write_store([Rows(self.whole.observations, self.whole.actions, self.whole.offsets, "a")], self.store, "a")

    def _state(self, step: int) -> Path:
        return self.run / "checkpoints" / f"step_{step:09d}" / "state.safetensors"

    def location(self, name: str) -> Path:
        path = self.root / "damaged" / name
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        return path

    # Each attack returns whether what was read means what it meant; None where the file itself says something else.

    def means_the_same(self, store: Trajectories) -> bool:
        same = np.array_equal(store.offsets, self.whole.offsets) and store.actions.shape == self.whole.actions.shape
        return same and np.allclose(store.actions, self.whole.actions, atol=2e-5) and np.array_equal(
            store.observations, self.whole.observations
        )  # fmt: skip

    def bytes_of_data(self, rng: np.random.Generator) -> bool:
        name = str(rng.choice(list(self.files)))
        path = self.location(name)
        path.write_bytes(scratch(self.files[name], rng))
        examine(path)
        return self.means_the_same(read(path))

    def csv_file(self, rng: np.random.Generator) -> bool | None:
        """Text has no checksum: scratched, it must only end in a sentence; a table out of order must be noticed."""
        path = self.location("a.csv")
        columns = table(self.whole, episodes=bool(rng.random() < 0.5))
        if scratched := rng.random() < 0.5:
            path.write_bytes(scratch(as_csv(columns, rng).encode(), rng))
        else:
            path.write_text(as_csv(misplace(columns, rng), rng), newline="")
        examine(path)
        store = read(path)
        assert np.isfinite(store.observations).all() and np.isfinite(store.actions).all()
        return None if scratched else self.means_the_same(store)

    def parquet_file(self, rng: np.random.Generator) -> bool | None:
        """Pages have checksums, the footer behind them has none: scratched there, it must only end in a sentence."""
        path = self.location("a.parquet")
        columns: dict[str, Any] = table(self.whole, episodes=bool(rng.random() < 0.5))
        declared = rng.random() < 0.7
        if rng.random() < 0.3:
            path.write_bytes(as_parquet(misplace(columns, rng), rng))
        else:
            content = as_parquet(vectors(columns) if rng.random() < 0.5 else columns, rng)
            footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            pages, rest = content[:footer], content[footer:]
            path.write_bytes(scratch(pages, rng) + rest if declared else pages + scratch(rest, rng))
        examine(path)
        store = read(path)
        return self.means_the_same(store) if declared else None

    def store_directory(self, rng: np.random.Generator) -> bool | None:
        """`iel data check` reads all of a store; opening it reads the manifest and the offsets."""
        path = self.location("store")
        shutil.copytree(self.store, path)
        if sealed := rng.random() < 0.3:  # in good order, but it says something else
            facts = disturb(json.loads((path / MANIFEST).read_text()), rng)
            (path / MANIFEST).unlink()
            names = ("format", "versions", "files", "sha256")
            seal(path, 1, {}, **{name: value for name, value in facts.items() if name not in names})
        else:
            self.hurt(path, rng)
        faults = [finding.sentence for finding in examine(path) if finding.severity == "error"]
        store = read(path)
        assert store.stored is not None and np.isfinite(store.scale).all() and store.scale.all()
        if not sealed and not (same := np.array_equal(store.offsets, self.whole.offsets)):
            return same
        if faults:
            raise DataError(faults[0])
        return None if sealed else self.means_the_same(store)

    def arrays_of_data(self, rng: np.random.Generator) -> None:
        flat = fields()
        extra = {
            "next_observations": np.roll(flat["observations"], -1, 0), "timeouts": flat["terminals"],
            "valids": ~flat["terminals"], "offsets": self.whole.offsets, "episode_ids": np.cumsum(flat["terminals"]),
            "infos/goal": flat["observations"][:, :2], "episode_0/observations": flat["observations"],
            "episode_0/actions": flat["actions"][:-1], "episode_00/actions": flat["actions"],
        }  # fmt: skip
        for name in rng.choice(list(extra), int(rng.integers(3)), replace=False):
            flat[str(name)] = extra[str(name)]
        for name in rng.choice(list(flat), int(rng.integers(1, 3)), replace=False):
            if rng.random() < 0.3:
                flat[str(name)[: int(rng.integers(1, 20))] + "s"] = flat.pop(str(name))
            else:
                flat[str(name)] = numbers(str(name), rng, np.asarray(flat[str(name)]))
        path = self.location("a.npz" if rng.random() < 0.5 else "a.hdf5")
        if path.suffix == ".npz":
            path.write_bytes(as_npz({name: array for name, array in flat.items() if "/" not in name}))
        else:
            try:
                path.write_bytes(as_hdf5(flat))
            except (ValueError, TypeError):  # two of a name, or a type that HDF5 does not have
                return
        examine(path)
        store = read(path, trust=bool(rng.random() < 0.5))
        assert np.isfinite(store.observations).all() and np.isfinite(store.actions).all()

    def members_of_npz(self, rng: np.random.Generator) -> None:
        """A zip archive in good order, whose arrays lie about themselves."""
        path = self.location("a.npz")
        with zipfile.ZipFile(io.BytesIO(self.files["plain.npz"])) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                end = content.index(b"\n")
                if rng.random() < 0.5:
                    content = scratch(content[:end], rng) + content[end:]
                new.writestr(name if rng.random() < 0.9 else name[:-5], content)
                if rng.random() < 0.05:
                    new.writestr(name.upper() if rng.random() < 0.5 else f"../{name}", content)
        read(path, trust=True)

    def sealed_directory(self, rng: np.random.Generator) -> bool:
        path = self.location("sealed")
        shutil.copytree(self.sealed, path)
        self.hurt(path, rng)
        verify_seal(path, 1)
        arrays = read_safetensors(path / "model.safetensors")
        return all(np.array_equal(arrays[name], array) for name, array in self._weights().items())

    def _weights(self) -> dict[str, np.ndarray]:
        return read_safetensors(self.sealed / "model.safetensors")

    def weights(self, rng: np.random.Generator) -> None:
        """A safetensors file without a manifest: its header is damaged, its length is not."""
        content = (self.sealed / "model.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        path = self.location("a.safetensors")
        if rng.random() < 0.5:
            header = json.dumps(disturb(json.loads(content[8 : 8 + length]), rng)).encode()
            path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
        else:
            path.write_bytes(scratch(content[: 8 + length], rng) + content[8 + length :])
        read_safetensors(path)

    def run_directory(self, rng: np.random.Generator) -> bool:
        """A run whose files were damaged: it continues from a true state, or is refused."""
        path = self.location("run")
        shutil.copytree(self.run, path)
        for _ in range(int(rng.integers(1, 4))):
            self.hurt(path, rng)
        like = {"kernel": np.zeros((40, 50), np.float32), "count": np.array(0, np.int32)}
        found = find_checkpoint({0: open_run(path)}, like)
        if found is None:
            return not any(path.glob("checkpoints/step_*"))
        true = self.states[found.step]
        return all(np.array_equal(found.states[0][name], true[name]) for name in true)

    def run_config(self, rng: np.random.Generator) -> None:
        """A config.json in good order that says something else."""
        path = self.location("run")
        shutil.copytree(self.run, path)
        table = json.loads((path / "config.json").read_text())
        for _ in range(int(rng.integers(1, 3))):
            table = disturb(table, rng)
        text = json.dumps(table)
        if rng.random() < 0.2:
            text = re.sub(r"\d+", str(rng.choice(["1e999", "NaN", "-Infinity", "9" * 400, "-0"])), text, count=1)
        (path / "config.json").write_text(text)
        run = open_run(path)
        _ = run.env, run.seed, run.status, run.algo
        find_checkpoint({0: run}, {"kernel": np.zeros((40, 50), np.float32), "count": np.array(0, np.int32)})

    def grid(self, rng: np.random.Generator) -> None:
        table = {
            "title": "a", "environments": ["pointmaze-medium-navigate-v0"], "seeds": [0, 1], "preset": "smoke",
            "protocol": {"episodes": 2, "seed": 1, "tasks": [1], "max_steps": 9}, "settings": {"batch_size": 16},
            "data": {"episodes": 3, "seed": 0}, "planners": {"wide": {"planner": "asym-graph", "nodes": 100}},
            "methods": [{"algo": "iel", "planners": ["wide"], "settings": {"beta": 0.3}, "where": {"*": {"beta": 1}}}],
            "scales": {"small": {"seeds": [0]}},
        }  # fmt: skip
        for _ in range(int(rng.integers(1, 3))):
            table = disturb(table, rng)
        check_grid(table, "grid", "small" if rng.random() < 0.5 else None)

    def toml(self, rng: np.random.Generator) -> None:
        text = b'environments = ["pointmaze-medium-navigate-v0"]\nseeds = [0]\n[[methods]]\nalgo = "iel"\n'
        path = self.location("a.toml")
        path.write_bytes(scratch(text, rng))
        check_grid(read_toml(path), "grid")

    def hurt(self, directory: Path, rng: np.random.Generator) -> None:
        """One file of a directory deleted, emptied, damaged, swapped, linked or turned into a directory."""
        paths = sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
        if not paths:
            return
        path = paths[int(rng.integers(len(paths)))]
        kind = rng.integers(9)
        content = path.read_bytes()
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(b"")
        elif kind == 2:
            path.unlink()
            path.symlink_to(paths[0] if rng.random() < 0.5 else path)
        elif kind == 3:
            path.unlink()
            path.mkdir()
        elif kind == 4:
            path.write_bytes(paths[int(rng.integers(len(paths)))].read_bytes())
        elif kind == 5 and path.suffix == ".json" and content.startswith(b"{") and path.parent != directory:
            try:
                path.write_text(json.dumps(disturb(json.loads(content), rng)))
            except ValueError:
                path.write_bytes(b"{}")
        elif kind == 6 and path.parent != directory:
            target = path.parent.with_name(f"step_{int(rng.integers(50)):09d}")
            if not target.exists():
                path.parent.rename(target)
        elif content and not (path.name == "config.json" and path.parent == directory and directory.name == "run"):
            path.write_bytes(scratch(content, rng))


ATTACKS = {
    "bytes_of_data": 8, "arrays_of_data": 5, "members_of_npz": 2, "sealed_directory": 2, "weights": 2,
    "run_directory": 4, "run_config": 3, "grid": 2, "toml": 1, "csv_file": 4, "parquet_file": 4, "store_directory": 3,
}  # fmt: skip
"""Attack -> how often it is drawn."""


def outcome(attack: Callable, rng: np.random.Generator) -> tuple[str, str]:
    try:
        return ("different", "") if attack(rng) is False else ("same", "")
    except IELError as error:
        return ("foreign", f"two lines: {error}") if "\n" in str(error) else ("refused", str(error))
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        location = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
        return "foreign", f"{type(error).__name__} at {location}: {error}"


def main(first: int, count: int, directory: Path) -> None:
    """One JSON line per case that is a fault or slow, and one with the counts at the end."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lab = Lab(directory)
    names = [name for name, weight in ATTACKS.items() for _ in range(weight)]
    counts: dict[str, dict[str, int]] = {}
    slowest = 0.0
    for case in range(first, first + count):
        rng = np.random.default_rng([19, case])
        name = names[int(rng.integers(len(names)))]
        print(f"case {case} {name}", file=sys.stderr, flush=True)
        began = time.process_time()
        kind, said = outcome(getattr(lab, name), rng)
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        counts.setdefault(name, {}).setdefault(kind, 0)
        counts[name][kind] += 1
        if kind in ("foreign", "different") or seconds > 5.0:
            print(json.dumps({"case": case, "attack": name, "outcome": kind, "said": said, "seconds": seconds}))
    status = Path("/proc/self/status")
    peak = int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024 if status.exists() else 0  # type: ignore[index]
    print(json.dumps({"counts": counts, "slowest": slowest, "peak_megabytes": peak}))


if __name__ == "__main__":
    os.environ.setdefault("IEL_MEMORY_BUDGET", "500MB")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
