"""Public formats, built here field by field as their files are, become the same store as the episodes they hold."""

import json
import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from iel.data import Trajectories, load
from iel.data.catalogue import read
from iel.errors import ConfigError, DataError

INSIDE = np.float32(1 - 1e-5)


def walks(count: int = 4, steps: int = 12, size: int = 29, actions: int = 8, seed: int = 0) -> list:
    """Episodes of different lengths: (T + 1 observations, T actions in (-1, 1))."""
    rng = np.random.default_rng(seed)
    episodes = []
    for e in range(count):
        length = steps + 2 * e
        states = np.cumsum(rng.normal(size=(length + 1, size)), axis=0).astype(np.float32)
        episodes.append((states, rng.uniform(-0.99, 0.99, (length, actions)).astype(np.float32)))
    return episodes


def flat(episodes: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row per state; the last row's action is noise that must not be read."""
    states = np.concatenate([s for s, _ in episodes])
    actions = np.concatenate([np.concatenate([a, np.full((1, a.shape[1]), 0.5, np.float32)]) for _, a in episodes])
    ends = np.zeros(len(states), bool)
    ends[np.cumsum([len(s) for s, _ in episodes]) - 1] = True
    return states, actions, ends


def paired(episodes: list) -> dict[str, np.ndarray]:
    return {
        "observations": np.concatenate([s[:-1] for s, _ in episodes]),
        "next_observations": np.concatenate([s[1:] for s, _ in episodes]),
        "actions": np.concatenate([a for _, a in episodes]),
    }


def assert_same(data: Trajectories, episodes: list) -> None:
    assert data.fingerprint == Trajectories.from_episodes(episodes).fingerprint


# ------------------------------------------------------------------------------------------------------------- OGBench


def test_ogbench_file(tmp_path):
    """As downloaded: float32 rows, bool terminals, and qpos, qvel, button_states that are not needed."""
    states, actions, ends = flat(walks())
    extra = {"qpos": states[:, :15], "qvel": states[:, 15:], "button_states": np.zeros((len(states), 2), np.int64)}
    np.savez_compressed(tmp_path / "a.npz", observations=states, actions=actions, terminals=ends, **extra)
    assert_same(read(tmp_path / "a.npz"), walks())


def test_ogbench_after_both_of_its_own_loaders(tmp_path):
    """What OGBench's `load_dataset` returns, compact or not, saved again."""
    from ogbench.utils import load_dataset

    states, actions, ends = flat(walks())
    np.savez(tmp_path / "raw.npz", observations=states, actions=actions, terminals=ends)
    for compact in (True, False):
        loaded = load_dataset(str(tmp_path / "raw.npz"), compact_dataset=compact)
        assert ("valids" in loaded) == compact
        np.savez(tmp_path / "again.npz", **loaded)
        assert_same(read(tmp_path / "again.npz"), walks())


def test_the_suffix_is_only_a_name(tmp_path):
    states, actions, ends = flat(walks())
    np.savez(tmp_path / "a.npz", observations=states, actions=actions, terminals=ends)
    (tmp_path / "a.npz").rename(tmp_path / "a.hdf5")
    assert_same(load(tmp_path / "a.hdf5"), walks())


# ---------------------------------------------------------------------------------------------------------------- D4RL


def write_d4rl(path: Path, states, actions, terminals, timeouts, goal: bool, compress: bool = True) -> None:
    """The fields of the public files, `metadata` and `infos` included."""
    options = {"compression": "gzip"} if compress else {}
    with h5py.File(path, "w") as file:
        for name, array in (("observations", states), ("actions", actions), ("terminals", terminals),
                            ("timeouts", timeouts), ("rewards", np.asarray(terminals, np.float32))):  # fmt: skip
            file.create_dataset(name, data=array, **options)
        if goal:
            file.create_dataset("infos/goal", data=states[:, :2], **options)
            file.create_dataset("infos/qpos", data=states[:, :15], **options)
            file.create_dataset("infos/qvel", data=states[:, 15:], **options)
            file["metadata/algorithm"] = "SAC"
            file["metadata/iteration"] = 300
            file["metadata/policy/fc0/weight"] = np.zeros((4, 3), np.float32)


@pytest.mark.parametrize("compress", [True, False])
def test_d4rl_antmaze(tmp_path, compress):
    """Timeouts end episodes; a terminal only says that the goal was reached, and several follow one another."""
    states, actions, ends = flat(walks())
    terminals = np.zeros(len(states), bool)
    terminals[[3, 4, 5, 20]] = True
    ends[-1] = False  # the public files are cut at a million rows, not at an end
    write_d4rl(tmp_path / "antmaze-large-diverse-v0.hdf5", states, actions, terminals, ends, True, compress)
    assert_same(read(tmp_path / "antmaze-large-diverse-v0.hdf5"), walks())


def test_d4rl_with_next_observations(tmp_path):
    """Boundaries where the next observation is not the next row, though no flag says so."""
    arrays = paired(walks())
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file["infos/goal"] = arrays["observations"][:, :2]
        file["terminals"] = np.arange(len(arrays["actions"])) % 5 == 0
        file["timeouts"] = np.zeros(len(arrays["actions"]), bool)
    assert_same(read(tmp_path / "a.hdf5"), walks())


def test_d4rl_locomotion_ends_at_terminals_and_timeouts(tmp_path):
    states, actions, ends = flat(walks())
    last = np.flatnonzero(ends)
    terminals, timeouts = np.zeros_like(ends), np.zeros_like(ends)
    terminals[last[::2]], timeouts[last[1::2]] = True, True
    write_d4rl(tmp_path / "hopper.hdf5", states, actions, terminals, timeouts, goal=False)
    assert_same(read(tmp_path / "hopper.hdf5"), walks())


def test_d4rl_kitchen_keeps_the_state_half(tmp_path):
    """60 columns are 30 of state and 30 of goal; a terminal row is the last state and its action leads nowhere."""
    episodes = walks(size=30, actions=9)
    states, actions, ends = flat(episodes)
    both = np.concatenate([states, np.tile(np.arange(30, dtype=np.float32), (len(states), 1))], axis=1)
    write_d4rl(tmp_path / "kitchen-partial-v0.hdf5", both, actions, ends, np.zeros_like(ends), goal=False)
    data = read(tmp_path / "kitchen-partial-v0.hdf5")
    assert data.observation_size == 30
    assert_same(data, episodes)


def test_d4rl_actions_are_moved_inside(tmp_path):
    states, actions, ends = flat(walks())
    actions[0, 0], actions[1, 0] = 1.0, -1.0
    write_d4rl(tmp_path / "a.hdf5", states, actions, np.zeros_like(ends), ends, goal=True)
    assert read(tmp_path / "a.hdf5").actions[:2, 0].tolist() == [INSIDE, -INSIDE]


def test_short_episodes_of_public_files_are_left_out_and_reported(tmp_path, capsys):
    episodes = walks()
    states, actions, ends = flat(
        [episodes[0], (np.zeros((1, 29), np.float32), np.zeros((0, 8), np.float32)), *episodes[1:]]
    )
    write_d4rl(tmp_path / "a.hdf5", states, actions, np.zeros_like(ends), ends, goal=True)
    assert_same(read(tmp_path / "a.hdf5"), episodes)
    assert "1 episodes of fewer than two steps left out" in capsys.readouterr().err


RECONSTRUCTED = [
    Path(os.environ.get("IEL_DATA", "")) / f"kitchen-{kind}-reconstructed.hdf5" for kind in ("partial", "mixed")
]


@pytest.mark.parametrize("path", RECONSTRUCTED, ids=lambda path: path.stem)
def test_reconstructed_kitchen_files(path, monkeypatch):
    if not path.is_file():
        pytest.skip("the reconstructed kitchen files are not in IEL_DATA")
    monkeypatch.setenv("IEL_DATA", str(path.parent))
    data = load(path.stem, make=False)
    assert (len(data), data.num_transitions, data.observation_size, data.action_size) == (552, 124403 - 552, 30, 9)
    assert data.name == path.stem


# -------------------------------------------------------------------------------------------------------------- Minari


def write_minari(directory: Path, episodes: list, observations) -> Path:
    """`main_data.hdf5` and metadata as Minari 0.5 writes them."""
    (directory / "data").mkdir(parents=True)
    with h5py.File(directory / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for e, (states, actions) in enumerate(episodes):
            group = file.create_group(f"episode_{e}")
            group.attrs.update({"id": e, "total_steps": len(actions), "seed": 7})
            flags, zeros = np.zeros(len(actions), bool), np.zeros(len(actions))
            content = {"actions": actions, "rewards": zeros, "truncations": flags, "terminations": flags}
            content.update(observations(states))
            for name, array in content.items():
                group.create_dataset(name, data=array, chunks=True, maxshape=(None, *array.shape[1:]))
            group.create_dataset("infos/success", data=np.zeros(len(states), bool), chunks=True, maxshape=(None,))
    facts = {"dataset_id": "D4RL/antmaze/test-v1", "total_episodes": len(episodes), "data_format": "hdf5"}
    (directory / "data" / "metadata.json").write_text(json.dumps(facts))
    return directory


def test_minari_arrays(tmp_path):
    write_minari(tmp_path / "test-v1", walks(12), lambda states: {"observations": states})
    for path in (tmp_path / "test-v1", tmp_path / "test-v1/data", tmp_path / "test-v1/data/main_data.hdf5"):
        assert_same(read(path), walks(12))  # episode_10 comes after episode_9


def test_minari_dictionaries(tmp_path):
    """AntMaze keeps the position in `achieved_goal`, PointMaze in both: the state has it once."""
    ant = lambda s: {"observations/observation": s[:, 2:], "observations/achieved_goal": s[:, :2],  # noqa: E731
                     "observations/desired_goal": s[:, :2] + 1}  # fmt: skip
    point = lambda s: {"observations/observation": s, "observations/achieved_goal": s[:, :2]}  # noqa: E731
    for name, observations in (("ant", ant), ("point", point)):
        assert_same(read(write_minari(tmp_path / name, walks(), observations)), walks())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_written_by_its_own_package(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    import gymnasium as gym

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = []
    for e, (states, actions) in enumerate(walks(3, size=4, actions=2)):
        flags = np.arange(len(actions)) == len(actions) - 1
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                id=e, observations=states, actions=actions, rewards=[0.0] * len(actions),
                terminations=[False] * len(actions), truncations=flags.tolist(),
            )
        )  # fmt: skip
    box = gym.spaces.Box
    minari.create_dataset_from_buffers(
        "own/test-v0", buffers, observation_space=box(-99, 99, (4,)), action_space=box(-1, 1, (2,)), data_format="hdf5"
    )
    data = load("own/test-v0", make=False)
    assert data.name == "own/test-v0"
    assert_same(data, walks(3, size=4, actions=2))


# ---------------------------------------------------------------------------------------------------------- own arrays


def test_plain_arrays_with_any_boundaries(tmp_path):
    states, actions, ends = flat(walks())
    offsets = np.concatenate([[0], np.flatnonzero(ends) + 1])
    ids = np.repeat([7, 3, 9, 1], np.diff(offsets))
    for boundaries in ({"timeouts": ends}, {"terminals": ends.astype(np.float32)}, {"offsets": offsets},
                       {"offsets": offsets[:-1]}, {"episode_ids": ids},
                       {"terminals": ends & (ids == 3), "timeouts": ends & (ids != 3)}):  # fmt: skip
        np.savez(tmp_path / "a.npz", observations=states, actions=actions, **boundaries)
        assert_same(read(tmp_path / "a.npz"), walks())
    np.savez(tmp_path / "a.npz", **paired(walks()))
    assert_same(read(tmp_path / "a.npz"), walks())


def test_a_folder_of_episodes(tmp_path):
    episodes = walks(11)
    for e, (states, actions) in enumerate(episodes):
        np.savez(tmp_path / f"run_{e}.npz", observations=states, actions=actions, camera=np.zeros(3))
    (tmp_path / "notes.txt").write_text("not an episode")
    data = load(tmp_path)
    assert_same(data, episodes)
    assert data.name == tmp_path.stem
    states, actions = episodes[0]  # as many observations as actions: the last action leads nowhere
    np.savez(tmp_path / "run_0.npz", observations=states[:-1], actions=actions)
    assert_same(read(tmp_path), [(states[:-1], actions[:-1]), *episodes[1:]])


def test_numbers_of_other_types_become_float32(tmp_path):
    states, actions, ends = flat([(np.arange(10).reshape(5, 2), np.zeros((4, 1), np.float32))])
    for kind in ("f8", "f2", "i4", "u1", ">f4"):
        np.savez(tmp_path / "a.npz", observations=states.astype(kind), actions=actions, terminals=ends)
        data = read(tmp_path / "a.npz")
        assert data.observations.dtype == np.float32 and data.observations[4].tolist() == [8, 9]


# ------------------------------------------------------------------------------------------------------------- by name


def test_names_are_found_in_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    episodes = walks(size=30, actions=9)
    states, actions, ends = flat(episodes)
    for name in ("kitchen-partial-v0", "kitchen-mixed-reconstructed"):
        write_d4rl(tmp_path / f"{name}.hdf5", np.tile(states, 2), actions, ends, np.zeros_like(ends), goal=False)
        data = load(name, make=False)
        assert data.name == name
        assert_same(data, episodes)
    write_minari(tmp_path / "minari/D4RL/door/human-v2", episodes, lambda s: {"observations": s})
    assert_same(load("D4RL/door/human-v2", make=False), episodes)


def test_names_that_are_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    for name, error, message in (
        ("antmaze-huge-navigate", ConfigError, "did you mean"),
        ("kitchen-partial-v0", DataError, "neither made nor downloaded here; copy its file"),
        ("humanoidmaze-medium-stitch-v0", DataError, f"not on this machine.*{tmp_path}"),
        ("D4RL/door/human-v2", DataError, "not on this machine"),
        ("../nowhere", DataError, "does not exist"),
        ("nothing.npz", DataError, "does not exist"),
        ("nothing.hdf5", DataError, "does not exist"),
    ):
        with pytest.raises(error, match=message):
            load(name, make=False)


def test_a_link_that_its_user_names_is_followed_and_one_in_a_folder_is_not(tmp_path):
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "a.npz", **paired(walks()))
    (tmp_path / "link.npz").symlink_to(tmp_path / "a.npz")
    (tmp_path / "folder/0.npz").symlink_to(tmp_path / "a.npz")
    assert_same(load(tmp_path / "link.npz"), walks())
    with pytest.raises(DataError, match="symbolic link"):
        load(tmp_path / "folder")


def test_no_simulator_is_needed_for_ones_own_logs(tmp_path):
    import subprocess

    states, actions, ends = flat(walks())
    np.savez(tmp_path / "a.npz", observations=states, actions=actions, terminals=ends)
    code = (
        f"import sys\nfrom iel.data import load\nload({str(tmp_path / 'a.npz')!r})\n"
        "sys.exit(any(m in sys.modules for m in ('mujoco', 'ogbench', 'jax', 'h5py', 'minari')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
