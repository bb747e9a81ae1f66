"""Bad files and arrays, each refused with words that say what is wrong; whole files that are doubtful are reported."""

import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from iel.data import examine, load
from iel.data.catalogue import read
from iel.errors import DataError

ROWS = 12


def good(**changes) -> dict:
    """Two episodes of six rows; `changes` replace or (None) remove arrays."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": np.cumsum(rng.normal(size=(ROWS, 3)), 0).astype(np.float32),
        "actions": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "terminals": np.arange(ROWS) % 6 == 5,
    }
    arrays.update(changes)
    return {name: np.asarray(array) for name, array in arrays.items() if array is not None}


def changed(name: str, position, value) -> dict:
    arrays = good()
    arrays[name] = arrays[name].astype(np.float64)
    arrays[name][position] = value
    return arrays


def flags(*rows: int) -> np.ndarray:
    return np.isin(np.arange(ROWS), rows)


ARRAYS = {
    "nan observation": (changed("observations", (8, 1), np.nan), "episode 1, step 2, observation column 1: .* nan"),
    "infinite observation": (changed("observations", (0, 2), np.inf), "step 0, observation column 2: .* inf"),
    "nan action": (changed("actions", (3, 0), np.nan), "episode 0, step 3, action column 0"),
    "too large for float32": (changed("observations", (2, 0), 1e300), "step 2, observation column 0: .* inf"),
    "a column of nan": (changed("observations", (slice(None), 1), np.nan), r"observation column 1.*12 non-finite"),
    "no observations": (good(observations=None), "no observations"),
    "no actions": (good(actions=None), "no actions"),
    "no boundaries": (good(terminals=None), "no terminals"),
    "nothing": (good(observations=None, actions=None, terminals=None, x=[1]), "no observations, actions, terminals"),
    "flat observations": (good(observations=np.zeros(ROWS)), r"observations must be a table .* \(12,\)"),
    "flat actions": (good(actions=np.zeros(ROWS)), "actions must be a table"),
    "pictures": (good(observations=np.zeros((ROWS, 8, 8, 3), np.uint8)), "observations must be a table"),
    "no columns": (good(observations=np.zeros((ROWS, 0))), "observations must be a table"),
    "no rows": (good(observations=np.zeros((0, 3)), actions=np.zeros((0, 2)), terminals=np.zeros(0)), "no episodes"),
    "a row too few": (good(actions=np.zeros((ROWS - 1, 2))), "11 actions, 12 terminals; .* equally many"),
    "a flag too many": (good(terminals=np.ones(ROWS + 1)), "12 actions, 13 terminals"),
    "flags of two columns": (good(terminals=np.zeros((ROWS, 2))), "24 end-of-episode flags for 12 rows"),
    "open end": (good(terminals=flags(5)), "last row is not marked terminal"),
    "no end": (good(terminals=flags()), "last row is not marked terminal"),
    "positions for flags": (good(terminals=np.arange(ROWS)), "neither 0 nor 1"),
    "nan flag": (good(terminals=[0.0] * 11 + [np.nan]), "neither 0 nor 1"),
    "one step": (good(terminals=flags(1, 11)), "episode 0: 1 step, but an episode needs at least 2"),
    "no step": (good(terminals=flags(5, 6, 11)), "episode 1: 0 steps"),
    "text": (good(observations=np.full((ROWS, 3), "a")), "'observations' does not hold plain numbers"),
    "complex": (good(observations=np.zeros((ROWS, 3), complex)), "plain numbers"),
    "dates": (good(observations=np.zeros((ROWS, 3), "M8[s]")), "plain numbers"),
    "offsets that fall": (good(terminals=None, offsets=[0, 8, 4]), "episode 1: offsets 8 and 4 do not rise"),
    "offsets beyond the end": (good(terminals=None, offsets=[0, 20]), "offsets 20 and 12 do not rise"),
    "offsets from one": (good(terminals=None, offsets=[1, 6]), "whole numbers from 0 on"),
    "offsets with halves": (good(terminals=None, offsets=[0.0, 6.5]), "whole numbers from 0 on"),
    "no offsets": (good(terminals=None, offsets=np.zeros(0, int)), "whole numbers from 0 on"),
    "equal offsets": (good(terminals=None, offsets=[0, 6, 6]), "episode 1: offsets 6 and 6"),
    "unsorted episodes": (good(terminals=None, episode_ids=[0, 1] * 6), "sort them by 'episode_ids'"),
    "too few ids": (good(terminals=None, episode_ids=[0, 1]), "2 episode_ids for 12 rows"),
    "other next columns": (good(next_observations=np.zeros((ROWS, 2))), r"next_observations have the shape \(12, 2\)"),
    "other next rows": (good(next_observations=np.zeros((5, 3))), "5 next_observations"),
    "nothing continues": (good(next_observations=np.full((ROWS, 3), 99.0)), "1 step, .*12 such episodes"),
    "timeouts of another length": (good(timeouts=[True]), "12 terminals, 1 timeouts"),
    "valids of another length": (good(valids=[1, 0]), "equally many"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(tmp_path, case):
    arrays, message = ARRAYS[case]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / "bad.npz")
    assert "bad" in str(caught.value) and "\n" not in str(caught.value)
    findings = examine(tmp_path / "bad.npz")  # the check never raises, and finds it too
    assert findings and findings[0].severity == "error"
    assert "bad.npz" in str(findings[0])


def hdf5(path: Path, **arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name.replace("__", "/")] = array


def bad_hdf5_no_observations(path):
    hdf5(path, actions=np.zeros((5, 2)))


def bad_hdf5_no_flags(path):
    hdf5(path, observations=np.zeros((5, 2)), actions=np.zeros((5, 2)))


def bad_hdf5_flags_of_another_length(path):
    hdf5(path, observations=np.zeros((5, 2)), actions=np.zeros((5, 2)), terminals=np.zeros(4))


def bad_hdf5_empty(path):
    hdf5(path)


def bad_hdf5_group_for_an_array(path):
    hdf5(path, observations__x=np.zeros((5, 2)), actions=np.zeros((5, 2)), terminals=np.zeros(5))


def bad_hdf5_cut(path):
    hdf5(path, **good())
    path.write_bytes(path.read_bytes()[:-50])


def bad_minari_short_observations(path):
    hdf5(path, episode_0__observations=np.zeros((5, 2)), episode_0__actions=np.zeros((6, 1)))


def bad_minari_no_actions(path):
    hdf5(path, episode_0__observations=np.zeros((5, 2)), episode_0__rewards=np.zeros(4))


def bad_minari_other_width(path):
    hdf5(path, episode_0__observations=np.zeros((5, 2)), episode_0__actions=np.zeros((4, 1)),
         episode_1__observations=np.zeros((5, 3)), episode_1__actions=np.zeros((4, 1)))  # fmt: skip


def bad_folder_empty(path):
    path.mkdir()


def bad_folder_no_actions(path):
    path.mkdir()
    np.savez(path / "0.npz", observations=np.zeros((5, 2)))


def bad_folder_lengths(path):
    path.mkdir()
    np.savez(path / "0.npz", observations=np.zeros((5, 2)), actions=np.zeros((7, 1)))


def bad_text(path):
    path.write_text("observations,actions\n1,2\n")


def bad_empty(path):
    path.write_bytes(b"")


def bad_zip_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def bad_npz_cut(path):
    with path.open("wb") as file:
        np.savez(file, **good())
    path.write_bytes(path.read_bytes()[:-1])


FILES = {
    bad_hdf5_no_observations: "no observations; a D4RL file holds",
    bad_hdf5_no_flags: "no terminals or timeouts",
    bad_hdf5_flags_of_another_length: "5 actions, 4 terminals",
    bad_hdf5_empty: "no observations, actions",
    bad_hdf5_group_for_an_array: "no observations",
    bad_hdf5_cut: "not a whole HDF5 file",
    bad_minari_short_observations: "episode 0: 5 observations do not fit 6 actions",
    bad_minari_no_actions: "episode 0: no actions",
    bad_minari_other_width: "episode 1: 3 observation .* episode 0 has 2",
    bad_folder_empty: "holds no npz, csv or parquet files",
    bad_folder_no_actions: r"0\.npz has no actions",
    bad_folder_lengths: r"0\.npz: 5 observations do not fit 7 actions",
    bad_text: "does not say where episodes end",
    bad_empty: "not an npz, HDF5, CSV or Parquet file by its first bytes",
    bad_zip_of_text: "no observations, actions, terminals",
    bad_npz_cut: "not a whole zip archive",
}


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_bad_files(tmp_path, make):
    make(tmp_path / make.__name__)
    with pytest.raises(DataError, match=FILES[make]) as caught:
        load(tmp_path / make.__name__)
    assert make.__name__ in str(caught.value)
    (finding,) = examine(tmp_path / make.__name__)
    assert finding.severity == "error" and finding.kind != ""


def test_there_are_enough_of_them():
    assert len(ARRAYS) + len(FILES) >= 40


def test_every_cut_of_a_file_is_noticed(tmp_path):
    """npz and HDF5 cut at twenty points each: never a shorter data set, always a sentence."""
    np.savez_compressed(tmp_path / "a.npz", **good())
    hdf5(tmp_path / "a.hdf5", **good())
    for name in ("a.npz", "a.hdf5"):
        content = (tmp_path / name).read_bytes()
        for length in np.linspace(0, len(content) - 1, 20).astype(int):
            (tmp_path / f"cut-{name}").write_bytes(content[:length])
            with pytest.raises(DataError, match=f"cut-{name}"):
                read(tmp_path / f"cut-{name}")
            assert examine(tmp_path / f"cut-{name}")[0].kind == "unreadable"
