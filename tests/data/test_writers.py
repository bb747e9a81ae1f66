"""Written for others and read back: the same rows, to the bit, and the same names, units and ranges."""

import json

import numpy as np
import pytest

import iel
from iel import Trajectories, load
from iel.data.writers import write_dataset
from iel.errors import ConfigError, DataError
from iel.signals import UNNAMED, Signals

SIGNALS = Signals(("x", "y", "speed"), ("push", "turn"), {"x": "m"}, (-2.0, -1.0), (2.0, 1.5), 20.0, 1)


def made(signals: Signals = SIGNALS, columns: int = 3, actions: int = 2) -> Trajectories:
    """Episodes of 2 to 40 steps whose numbers have all bits, and actions that touch 1."""
    rng, episodes = np.random.default_rng(0), []
    for steps in (40, 2, 17):
        states = np.cumsum(rng.normal(size=(steps + 1, columns)), axis=0) * 1e3
        controls = np.clip(rng.normal(size=(steps, actions)), -1, 1)
        controls[0] = 1.0
        episodes.append((states.astype(np.float32), controls.astype(np.float32)))
    return Trajectories.from_episodes(episodes, "made").described(
        **{f: getattr(signals, f) for f in signals.__struct_fields__}
    )


@pytest.mark.parametrize(("signals", "columns", "actions"), [(SIGNALS, 3, 2), (UNNAMED, 3, 2), (UNNAMED, 1, 1)])
def test_round_trip_through_all_formats(signals, columns, actions, tmp_path):
    """npz -> LeRobot -> Parquet -> Minari -> npz: every stop has the rows of the first, to the bit."""
    data = made(signals, columns, actions)
    stops = (("a.npz", None), ("robot", "lerobot"), ("b.parquet", None), ("minari", "minari"), ("c.npz", None))
    for name, to in stops:
        data = load(write_dataset(data, tmp_path / name, to))
        assert data.fingerprint == made(signals, columns, actions).fingerprint, name
        assert data.signals == signals, name
    assert np.abs(data.actions).max() == 1.0  # not moved inside


def test_minari_s_own_package_reads_what_was_written(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = made()
    write_dataset(data, tmp_path / "cart-v0", "minari")
    theirs = minari.load_dataset("cart-v0")
    assert theirs.total_episodes == 3 and theirs.total_steps == data.num_transitions
    for ours, episode in zip(data, theirs.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(episode.observations, ours.observations)
        np.testing.assert_array_equal(episode.actions, ours.actions)
        assert episode.truncations[-1] and not episode.truncations[:-1].any()
    assert theirs.action_space.contains(data.actions[0])
    assert load("cart-v0", make=False).fingerprint == data.fingerprint  # by its name


def test_what_lerobot_finds(tmp_path):
    """Its paths, its index of episodes, its features."""
    from pyarrow import parquet

    data = made()
    root = write_dataset(data, tmp_path / "robot", "lerobot")
    info = json.loads((root / "meta" / "info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == 20 and info["total_frames"] == data.num_states
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [3], "names": ["x", "y", "speed"]}
    path = root / info["data_path"].format(chunk_index=0, file_index=0)
    frames = parquet.read_table(path).to_pydict()
    assert set(frames) == set(info["features"])
    np.testing.assert_allclose(np.diff(frames["timestamp"][:41]), 0.05, atol=1e-6)
    episodes = parquet.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    for number, (first, end) in enumerate(
        zip(episodes["dataset_from_index"], episodes["dataset_to_index"], strict=True)
    ):
        assert set(frames["episode_index"][first:end]) == {number} and episodes["length"][number] == end - first
    stats = json.loads((root / "meta" / "stats.json").read_text())
    assert stats["observation.state"]["mean"] == pytest.approx(data.observations.mean(0, np.float64).tolist())


def test_outputs_that_cannot_be(tmp_path):
    data = made()
    with pytest.raises(ConfigError, match=r"end it in \.npz or \.parquet"):
        write_dataset(data, tmp_path / "data")
    write_dataset(data, tmp_path / "robot", "lerobot")
    with pytest.raises(DataError, match="is there already"):
        write_dataset(data, tmp_path / "robot", "lerobot")
    (tmp_path / "robot" / "meta" / "iel.json").write_text('{"observations": ["x"]}')
    with pytest.raises(iel.errors.DataError, match="must name 3 different observation columns"):
        load(tmp_path / "robot")
