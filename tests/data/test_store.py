"""Data on the disk: written from every format in windows, the same store as in memory, and refused if damaged."""

import json

import h5py
import numpy as np
import pytest

from iel.cli import run
from iel.data import Trajectories, load
from iel.data.catalogue import read
from iel.data.store import RowReader, convert, open_store, verify_store, write_store
from iel.data.trajectories import Rows
from iel.errors import DataError
from iel.files import seal


def walks(count: int = 9, size: int = 5, actions: int = 2, seed: int = 0) -> list:
    """Episodes of different lengths: (T + 1 observations, T actions in (-1, 1))."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 30, count)
    return [
        (
            np.cumsum(rng.normal(size=(n + 1, size)), axis=0).astype(np.float32),
            rng.uniform(-0.99, 0.99, (n, actions)).astype(np.float32),
        )
        for n in lengths
    ]


def flat(episodes: list) -> dict[str, np.ndarray]:
    """One row per state; the last row's action is noise that must not be read."""
    ends = np.zeros(sum(len(s) for s, _ in episodes), bool)
    ends[np.cumsum([len(s) for s, _ in episodes]) - 1] = True
    return {
        "observations": np.concatenate([s for s, _ in episodes]),
        "actions": np.concatenate([np.concatenate([a, np.full((1, a.shape[1]), 0.5, "f4")]) for _, a in episodes]),
        "terminals": ends,
    }


def paired(episodes: list) -> dict[str, np.ndarray]:
    return {
        "observations": np.concatenate([s[:-1] for s, _ in episodes]),
        "next_observations": np.concatenate([s[1:] for s, _ in episodes]),
        "actions": np.concatenate([a for _, a in episodes]),
    }


def npz_files(root, episodes):
    rows = flat(episodes)
    ids = np.repeat(np.arange(len(episodes)), [len(s) for s, _ in episodes])
    firsts = np.concatenate([[0], np.flatnonzero(rows["terminals"])[:-1] + 1])
    bare = {name: rows[name] for name in ("observations", "actions")}
    layouts = {
        "terminals": rows,
        "doubles": {**bare, "observations": bare["observations"].astype(np.float64), "timeouts": rows["terminals"]},
        "valids": {**rows, "valids": (~rows["terminals"]).astype(np.float32)},
        "offsets": {**bare, "offsets": firsts},
        "ids": {**bare, "episode_ids": ids},
        "pairs": paired(episodes),
    }
    for name, arrays in layouts.items():
        np.savez_compressed(root / f"{name}.npz", **arrays)
        yield root / f"{name}.npz"


def hdf5_files(root, episodes):
    for name, arrays, chunks in (("chunked", flat(episodes), (7, 2)), ("plain", flat(episodes), None),
                                 ("antmaze", paired(episodes), (11, 2))):  # fmt: skip
        with h5py.File(root / f"{name}.hdf5", "w") as file:
            for field, array in arrays.items():
                grid = chunks[: array.ndim] if chunks else None
                file.create_dataset(field, data=array, chunks=grid, compression="gzip" if grid else None)
        yield root / f"{name}.hdf5"
    with h5py.File(root / "main_data.hdf5", "w") as file:
        for number, (states, actions) in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group["observations"], group["actions"] = states, actions
    yield root / "main_data.hdf5"


def folder(root, episodes):
    root.mkdir()
    for number, (states, actions) in enumerate(episodes):
        np.savez(root / f"episode_{number}.npz", observations=states, actions=actions)
    return root


def test_every_format_becomes_the_same_store_whatever_the_window(tmp_path):
    episodes = walks()
    sources = [*npz_files(tmp_path, episodes), *hdf5_files(tmp_path, episodes), folder(tmp_path / "many", episodes)]
    assert len(sources) == 11
    for source in sources:
        memory = read(source)
        for window in (1, 13, 64, 10_000):
            out = tmp_path / "stores" / f"{source.stem}-{window}"
            disk = convert(source, out, window=window, trust=True)
            assert disk.fingerprint == memory.fingerprint, (source, window)
            assert np.array_equal(disk.observations, memory.observations) and np.array_equal(
                disk.offsets, memory.offsets
            )
            assert np.array_equal(disk.actions, memory.actions) and disk.checked and disk.stored is not None
            assert Trajectories(disk.observations, disk.actions, disk.offsets).fingerprint == disk.fingerprint
            for fact in ("scale", "mean", "constant"):
                assert np.array_equal(getattr(disk, fact), getattr(memory, fact)), (source, fact)


def test_short_episodes_of_public_files_are_left_out_as_in_memory(tmp_path):
    rows = flat(walks(6))
    rows["terminals"][5], rows["terminals"][6] = True, True  # an episode of one row
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in rows.items():
            file[name] = array
    memory = read(tmp_path / "a.hdf5", trust=True)
    for window in (1, 5, 1000):
        assert convert(tmp_path / "a.hdf5", tmp_path / f"s{window}", trust=True, window=window).fingerprint == (
            memory.fingerprint
        )


def test_moments_of_many_blocks_are_numpys_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("iel.data.store.WINDOW", 100)
    rng = np.random.default_rng(3)
    episodes = [(rng.normal(3, 50, (40, 7)), rng.uniform(-1, 1, (39, 2))) for _ in range(30)]
    memory = Trajectories.from_episodes(episodes, trust=True)
    rows = Rows(memory.observations, memory.actions, memory.offsets, "x")
    disk = write_store([rows], tmp_path / "s", "x", trust=True)
    assert np.array_equal(disk.scale, memory.scale) and np.array_equal(disk.mean, memory.mean)


def test_rows_are_read_by_number(tmp_path):
    disk = convert(next(npz_files(tmp_path, walks())), tmp_path / "s", trust=True)
    numbers = np.random.default_rng(0).integers(0, disk.num_states, (4, 50))
    reader = RowReader(tmp_path / "s" / "observations.f32", disk.observation_size)
    assert np.array_equal(reader(numbers), disk.observations[numbers])
    reader._ahead = True  # as for stores larger than memory
    assert np.array_equal(reader(numbers), disk.observations[numbers])
    reader.close()


def test_a_store_is_found_by_its_path_and_is_never_overwritten(tmp_path):
    source = next(npz_files(tmp_path, walks()))
    convert(source, tmp_path / "s", trust=True)
    data = load(tmp_path / "s", env="somewhere")
    assert data.name == "somewhere" and data.named("other").fingerprint == data.fingerprint
    assert len(data.select([0, 2])) == 2 and data.select([0, 2]).stored is None
    with pytest.raises(DataError, match="there already"):
        convert(source, tmp_path / "s")
    np.savez(tmp_path / "b.npz", **{**flat(walks()), "actions": 9 * flat(walks())["actions"]})
    with pytest.raises(DataError, match=r"policies act in \[-1, 1\]"):
        convert(tmp_path / "b.npz", tmp_path / "t")
    assert not (tmp_path / "t").exists() and not list(tmp_path.glob(".tmp-*"))


def test_the_command_says_what_was_written_and_check_reads_it_all(tmp_path, capsys):
    source = next(npz_files(tmp_path, walks()))
    assert run(["data", "store", str(source), "--out", str(tmp_path / "s"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["fingerprint"] == read(source).fingerprint and facts["episodes"] == 9
    assert run(["data", "check", str(tmp_path / "s")]) == 0
    with (tmp_path / "s" / "actions.f32").open("r+b") as file:
        file.write(b"\x01")
    assert run(["data", "check", str(tmp_path / "s")]) == 1
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("scale", [0.0, 1e300])
def test_a_store_whose_columns_cannot_be_divided_is_refused(tmp_path, scale):
    """Sealed again, so that only the content is wrong: 1e300 became infinity in float32 without a word."""
    data = convert(next(npz_files(tmp_path, walks())), tmp_path / "s", trust=True)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    facts = {key: value for key, value in manifest.items() if key not in ("format", "versions", "files", "sha256")}
    (tmp_path / "s" / "manifest.json").unlink()
    seal(tmp_path / "s", 1, {}, **{**facts, "scale": [scale] * data.observation_size})
    with pytest.raises(DataError, match=r"scale\[0\]: expected `float`"):
        open_store(tmp_path / "s")


@pytest.mark.parametrize("file", ["observations.f32", "actions.f32", "offsets.i64", "manifest.json"])
def test_damage_is_refused(tmp_path, file):
    convert(next(npz_files(tmp_path, walks())), tmp_path / "s", trust=True)
    content = bytearray((tmp_path / "s" / file).read_bytes())
    (tmp_path / "s" / file).write_bytes(content[:-4])  # cut off: seen when it is opened
    with pytest.raises(DataError):
        open_store(tmp_path / "s")
    content[len(content) // 2] ^= 1
    (tmp_path / "s" / file).write_bytes(content)  # one bit: seen when all of it is read
    with pytest.raises(DataError, match=r"damaged|sha256"):
        verify_store(tmp_path / "s")


def test_a_store_that_is_shortened_while_it_is_read_is_refused(tmp_path):
    (tmp_path / "observations.f32").write_bytes(np.arange(24, dtype="<f4").tobytes())
    reader = RowReader(tmp_path / "observations.f32", 3)
    np.testing.assert_array_equal(reader(np.array([7, 0])), [[21, 22, 23], [0, 1, 2]])
    (tmp_path / "observations.f32").write_bytes(bytes(24))
    for rows in (np.array([7]), slice(5, 8)):
        with pytest.raises(DataError, match="became shorter while it was read; copy the store again"):
            reader(rows) if isinstance(rows, np.ndarray) else reader[rows]
