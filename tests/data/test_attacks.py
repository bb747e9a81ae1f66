"""Data files made to deceive: each is read for what it says or refused in a sentence, within its memory budget."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest

import iel
from iel.data import Trajectories, examine
from iel.errors import DataError

ROWS, WIDTH = 400, 3


def arrays(**changes) -> dict[str, np.ndarray]:
    """Four episodes of a hundred rows; `changes` replace or (None) remove arrays."""
    rng = np.random.default_rng(0)
    given = {
        "observations": np.cumsum(rng.normal(size=(ROWS, WIDTH)), 0).astype(np.float32),
        "actions": rng.uniform(-0.9, 0.9, (ROWS, 2)).astype(np.float32),
        "terminals": np.arange(ROWS) % 100 == 99,
        **changes,
    }
    return {name: np.asarray(array) for name, array in given.items() if array is not None}


def npz(path: Path, **changes) -> Path:
    np.savez_compressed(path, **arrays(**changes))
    return path


def hdf5(path: Path, options: dict | None = None, **changes) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays(**changes).items():
            file.create_dataset(name, data=array, **(options or {}))
    return path


# ------------------------------------------------------------------------------------------------------------- HDF5


def test_half_written_data_are_refused(tmp_path):
    """A recorder that was killed leaves blocks that were never written; the library would read them as zeros."""
    with h5py.File(tmp_path / "half.hdf5", "w") as file:
        for name, array in arrays().items():
            shape = (50, *array.shape[1:])
            stored = file.create_dataset(name, array.shape, array.dtype, compression="gzip", chunks=shape)
            stored[: ROWS if name != "observations" else 200] = array[: ROWS if name != "observations" else 200]
    with pytest.raises(DataError, match="lacks blocks"):
        iel.load(tmp_path / "half.hdf5")


@pytest.mark.parametrize("options", [{"compression": "lzf"}, {"fletcher32": True}])
def test_other_filters_are_refused_with_the_remedy(tmp_path, options):
    with pytest.raises(DataError, match="uses a filter that is not read; save it with gzip compression or none"):
        iel.load(hdf5(tmp_path / "a.hdf5", {"chunks": True, **options}))


# ------------------------------------------------------------------------------------------- nothing without a word


def kitchen(path: Path) -> Path:
    rng = np.random.default_rng(2)
    return hdf5(path, observations=np.cumsum(rng.normal(size=(ROWS, 60)), 0), actions=rng.uniform(-1, 1, (ROWS, 9)))


def test_sixty_columns_are_cut_only_in_a_kitchen_and_it_is_reported(tmp_path, capsys):
    """A robot of one's own may have sixty columns too."""
    assert iel.load(kitchen(tmp_path / "my-arm.hdf5")).observation_size == 60
    assert "30 of 60" not in capsys.readouterr().err
    assert iel.load(kitchen(tmp_path / "kitchen-partial-v0.hdf5")).observation_size == 30
    assert iel.load(tmp_path / "my-arm.hdf5", env="kitchen-mixed-v0").observation_size == 30
    assert capsys.readouterr().err.count("first 30 of 60 columns") == 2


@pytest.mark.parametrize("value", [np.nan, 0.5, -1.0, 2.0])
@pytest.mark.parametrize("write", [npz, hdf5])
def test_flags_are_zero_or_one_in_every_format(tmp_path, write, value):
    """HDF5 took whatever is not zero for the end of an episode."""
    flags = arrays()["terminals"].astype(np.float32)
    flags[50] = value
    suffix = "npz" if write is npz else "hdf5"
    for number, both in enumerate(({}, {"timeouts": np.zeros(ROWS)})):
        path = write(tmp_path / f"{number}.{suffix}", terminals=flags, **both)
        with pytest.raises(DataError, match="neither 0 nor 1"):
            iel.load(path)


@pytest.mark.parametrize("name", ["timeoutt", "\x01imeouts", "Timeouts", "timeout"])
@pytest.mark.parametrize("write", [npz, hdf5])
def test_a_damaged_name_does_not_glue_episodes_together(tmp_path, write, name):
    if write is npz and name.startswith("\x01"):
        pytest.skip("not the name of a file")
    suffix = "npz" if write is npz else "hdf5"
    ends = arrays()["terminals"]
    only_last = np.arange(ROWS) == ROWS - 1
    path = write(tmp_path / f"a.{suffix}", terminals=only_last, **{name: ends})
    with pytest.raises(DataError, match="rename it to timeouts"):
        iel.load(path)


def test_a_maze_without_timeouts_is_refused(tmp_path):
    """There `terminals` only say that the goal was reached."""
    with h5py.File(hdf5(tmp_path / "a.hdf5"), "a") as file:
        file["infos/goal"] = np.zeros((ROWS, 2))
    with pytest.raises(DataError, match="no timeouts"):
        iel.load(tmp_path / "a.hdf5")


def test_two_episodes_of_one_number_are_not_merged(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("episode_0", "episode_1", "episode_01"):
            file[f"{name}/observations"] = np.random.default_rng(len(name)).normal(size=(6, 2))
            file[f"{name}/actions"] = np.zeros((5, 1))
    with pytest.raises(DataError, match=r"both episode_01 and episode_1|both episode_1 and episode_01"):
        iel.load(tmp_path / "a.hdf5")


# ------------------------------------------------------------------------------------------------ foreign exceptions


def episode_of_many_digits(path: Path) -> Path:
    with h5py.File(path / "a.hdf5", "w") as file:
        file["episode_0/observations"], file["episode_0/actions"] = np.zeros((5, 2)), np.zeros((4, 1))
        file["episode_" + "7" * 5000 + "/observations"] = np.zeros((5, 2))
    return path / "a.hdf5"


def link_to_itself(path: Path) -> Path:
    (path / "a.npz").symlink_to(path / "b.npz")
    (path / "b.npz").symlink_to(path / "a.npz")
    return path / "a.npz"


def folder_of_long_numbers(path: Path) -> Path:
    for name in ("1", "9" * 200):
        np.savez(path / f"{name}.npz", observations=np.zeros((5, 2)), actions=np.zeros((7, 1)))
    return path


ODD = {
    "scalar observations": lambda path: npz(path / "a.npz", observations=np.float32(3)),
    "scalar observations in HDF5": lambda path: hdf5(path / "a.hdf5", observations=np.float32(3)),
    "scalar actions": lambda path: npz(path / "a.npz", actions=1.0),
    "scalar flags": lambda path: npz(path / "a.npz", terminals=True, timeouts=True),
    "scalar valids": lambda path: npz(path / "a.npz", valids=1),
    "scalar offsets": lambda path: npz(path / "a.npz", terminals=None, offsets=3),
    "scalar ids": lambda path: npz(path / "a.npz", terminals=None, episode_ids=3),
    "scalar next": lambda path: npz(path / "a.npz", next_observations=3.0),
    "a name of 300 letters": lambda path: path / ("a" * 300 + ".npz"),
    "a name with a zero byte": lambda path: f"{path}/a\0.npz",
    "a link to itself": link_to_itself,
    "long numbers in a folder": folder_of_long_numbers,
    "an episode of 5,000 digits": episode_of_many_digits,
    "no such folder": lambda path: path / "none" / "a.npz",
}


@pytest.mark.parametrize("case", ODD)
def test_odd_files_are_refused_in_a_sentence(tmp_path, case):
    with pytest.raises(DataError) as caught:
        iel.load(ODD[case](tmp_path))
    assert "\n" not in str(caught.value)


def test_truth_values_with_their_next_ones_are_read(tmp_path):
    moving = (np.cumsum(np.random.default_rng(0).normal(size=(ROWS + 1, WIDTH)), 0) > 0).astype(bool)
    path = npz(tmp_path / "bool.npz", observations=moving[:-1], next_observations=moving[1:], terminals=None)
    assert iel.load(path, trust=True).observation_size == WIDTH


def test_a_lost_episode_is_reported(tmp_path, capsys):
    """A damaged name must not make an episode disappear without a word."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in (0, 1, 3):
            file[f"episode_{number}/observations"] = np.random.default_rng(number).normal(size=(6, 2))
            file[f"episode_{number}/actions"] = np.zeros((5, 1))
    assert len(iel.load(tmp_path / "a.hdf5")) == 3
    assert "episode 2 is not there" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ the judgement of the check


def large(**changes) -> dict:
    return arrays(actions=5 * arrays()["actions"], **changes)


@pytest.mark.parametrize("write", [npz, hdf5])
def test_what_the_check_calls_an_error_is_not_loaded(tmp_path, write, capsys):
    """Actions five times out of range were trained on without a word."""
    path = write(tmp_path / ("a.npz" if write is npz else "a.hdf5"), actions=5 * arrays()["actions"])
    assert any(finding.severity == "error" for finding in examine(path))
    with pytest.raises(DataError, match=r"a, episode 0, step 0, action column 0: .*unit-actions.*trust"):
        iel.load(path)
    data = iel.load(path, trust=True)
    assert data.checked and float(np.abs(data.actions).max()) > 4
    assert data.select([0, 1]).checked and data.named("other").checked


def test_episodes_from_python_are_checked_too(capsys):
    """Discrete actions too, in a column of whole numbers."""
    walk = np.cumsum(np.random.default_rng(0).normal(size=(50, 2)), 0)
    for actions in (np.full((49, 2), 5.0), np.arange(49).reshape(-1, 1) % 4):
        with pytest.raises(DataError, match="discrete actions cannot be used"):
            Trajectories.from_episodes([(walk, actions)])
        assert Trajectories.from_episodes([(walk, actions)], trust=True).num_transitions == 49
    with pytest.raises(DataError, match="action column"):
        Trajectories.from_flat(walk, np.full((50, 1), -3.0), np.arange(50) == 49)


def test_warnings_are_printed_once(tmp_path, capsys):
    constant = arrays()["observations"]
    constant[:, 1] = 2.0
    npz(tmp_path / "still-column.npz", observations=constant)
    iel.load(tmp_path / "still-column.npz")
    assert "still-column, observation column 1: every value is 2" in capsys.readouterr().err
    iel.load(tmp_path / "still-column.npz")
    assert capsys.readouterr().err == ""


def test_worlds_of_few_states_are_no_overlap():
    """On a grid, routes naturally share three states in a row."""
    rng = np.random.default_rng(0)
    episodes = [(np.cumsum(np.eye(2)[rng.integers(0, 2, 9)], 0) % 4, rng.uniform(-1, 1, (8, 1))) for _ in range(40)]
    assert len(Trajectories.from_episodes(episodes)) == 40


@pytest.mark.parametrize(
    "table", [np.ma.masked_greater(np.ones((5, 2)), 0.5), np.ones((5, 2), complex), [[1, 2], [3]], [["a", "b"]] * 5]
)
def test_hidden_values_and_imaginary_parts_are_not_dropped(table):
    with pytest.raises(DataError, match=r"masked|complex|table of numbers"):
        Trajectories.from_episodes([(table, np.zeros((4, 1)))])


def test_saved_data_are_loaded_to_the_same_bits(tmp_path):
    rng = np.random.default_rng(3)
    episodes = [(rng.normal(size=(n + 1, 3)), rng.uniform(-1, 1, (n, 2))) for n in (2, 9, 30)]
    data = Trajectories.from_episodes(episodes)
    assert data.save(tmp_path / "deep" / "mine.npz") == tmp_path / "deep" / "mine.npz"
    assert iel.load(tmp_path / "deep" / "mine.npz").fingerprint == data.fingerprint
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["mine.npz"]
    with pytest.raises(DataError, match=r"must end in \.npz"):
        data.save(tmp_path / "mine.hdf5")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"mine\.npz"):
        data.save(tmp_path / "file" / "mine.npz")


# ------------------------------------------------------------------------------------------------- memory and time


def bytes_that_become_floats(path: Path) -> None:
    table = np.random.default_rng(0).integers(0, 2, (40_000, 60), np.int8)
    ends = np.arange(len(table)) == len(table) - 1
    np.savez_compressed(path, observations=table, actions=table, terminals=ends)


def zeros_in_many_arrays(path: Path) -> None:
    table, ends = np.zeros((500_000, 60), np.int8), np.arange(500_000) == 499_999
    np.savez_compressed(path, observations=table, next_observations=table, actions=table, terminals=ends)


def one_array_under_many_names(path: Path) -> None:
    with h5py.File(path, "w") as file:
        states = file.create_dataset("episode_0/observations", data=np.zeros((30_000, 4), "f4"), compression="gzip")
        actions = file.create_dataset("episode_0/actions", data=np.zeros((29_999, 1), "f4"), compression="gzip")
        for number in range(1, 150):
            file[f"episode_{number}/observations"], file[f"episode_{number}/actions"] = states, actions


def one_group_under_many_names(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        group = file.create_group("episode_0")
        group["observations"], group["actions"] = np.zeros((5, 4)), np.zeros((4, 1))
        for number in range(1, 10_000):
            file[f"episode_{number}"] = group


def tiny_blocks(path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(201_000, 2)).astype("f4")
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("observations", data=table, chunks=(1, 2))
        file["actions"], file["terminals"] = np.zeros((len(table), 1)), np.arange(len(table)) == len(table) - 1


COSTLY = {
    bytes_that_become_floats: "budget is 0.02 GB",
    zeros_in_many_arrays: "decompression bomb",
    one_array_under_many_names: "another name of an array",
    one_group_under_many_names: "another name of an array",
    tiny_blocks: "201,000 blocks",
}

MEASURED = """
    import re, sys, time
    from pathlib import Path
    import h5py, iel, iel.data
    from iel.errors import IELError

    def memory(kind):
        return int(re.search(kind + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    for path in sys.argv[1:]:
        Path("/proc/self/clear_refs").write_text("5")
        before, began = memory("VmRSS"), time.process_time()
        try:
            said = repr(iel.load(path))
        except IELError as error:
            said = str(error)
        print(time.process_time() - began, memory("VmHWM") - before, said)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of memory")
def test_small_files_cost_little(tmp_path):
    """Refused within two seconds (of the processor) and 50 MB: what is counted is what the numbers become."""
    paths = []
    for make in COSTLY:
        paths.append(tmp_path / (make.__name__ + (".npz" if make.__code__.co_names[0] == "np" else ".hdf5")))
        make(paths[-1])
    done = _measured(paths, "20MB")
    for (make, message), (seconds, megabytes, said) in zip(COSTLY.items(), done, strict=True):
        assert message in said and make.__name__ in said, said
        assert seconds < 2.0 and megabytes < 50.0, (make, seconds, megabytes)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of memory")
def test_what_is_read_stays_within_the_budget(tmp_path):
    """60,000 rows of 30 columns of every type, in the layout that copies most."""
    paths, rng = [], np.random.default_rng(0)
    for dtype in ("i1", "f4", "f8"):
        table = (rng.normal(size=(60_001, 30)) * 50).astype(dtype)
        ends = np.arange(60_000) % 1000 == 999
        for path in (tmp_path / f"{dtype}.npz", tmp_path / f"{dtype}.hdf5"):
            fields = {"observations": table[:-1], "next_observations": table[1:], "timeouts": ends,
                      "actions": np.clip(table[:-1], -1, 1)}  # fmt: skip
            if path.suffix == ".npz":
                np.savez(path, **fields)
            else:
                with h5py.File(path, "w") as file:
                    for name, array in fields.items():
                        file.create_dataset(name, data=array, compression="gzip", compression_opts=1)
            paths.append(path)
    for path, (_, megabytes, said) in zip(paths, _measured(paths, "4GB"), strict=True):
        table = 60_000 * 30 * (int(path.stem[1]) + 4) / 2**20
        assert said.startswith("Trajectories("), said
        assert megabytes < 3 * table + 40, (path.name, megabytes, 3 * table)


def _measured(paths: list[Path], budget: str) -> list[tuple[float, float, str]]:
    command = [sys.executable, "-c", textwrap.dedent(MEASURED), *map(str, paths)]
    environment = {**os.environ, "IEL_MEMORY_BUDGET": budget}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    lines = [re.match(r"(\S+) (\S+) (.*)", line) for line in done.stdout.splitlines()]
    return [(float(line[1]), float(line[2]), line[3]) for line in lines if line]
