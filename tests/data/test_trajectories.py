"""The store: its layout, what it refuses, and that nothing in it can change."""

import numpy as np
import pytest

from iel.data import Trajectories
from iel.data.catalogue import read
from iel.errors import DataError


def episode(steps: int, start: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    return start + np.arange(2 * (steps + 1)).reshape(-1, 2), np.ones((steps, 1)) * start / 1000


@pytest.fixture
def data() -> Trajectories:
    return Trajectories.from_episodes([episode(3), episode(2, 100.0)], "two")


def test_layout(data):
    assert (len(data), data.num_states, data.num_transitions) == (2, 7, 5)
    assert data.offsets.tolist() == [0, 4, 7]
    assert data.final.tolist() == [3, 3, 3, 3, 6, 6, 6]
    assert data.transitions.tolist() == [0, 1, 2, 4, 5]
    assert data.actions[:, 0].tolist() == pytest.approx([0, 0, 0, 0, 0.1, 0.1, 0])
    assert data.episode(1).observations[0].tolist() == [100, 101]
    assert len(data.episode(1).actions) == 2


def test_flat_and_episode_forms_agree(data):
    terminals = np.array([0, 0, 0, 1, 0, 0, 1])
    flat = Trajectories.from_flat(data.observations, data.actions + (terminals[:, None] * 9), terminals, "two")
    assert flat.fingerprint == data.fingerprint  # the action of a last row is never read, so it is dropped


def test_nothing_can_be_changed(data):
    with pytest.raises(ValueError, match="read-only"):
        data.observations[0] = 1
    mine = np.zeros((4, 2), np.float32)
    Trajectories(mine, np.zeros((4, 1), np.float32), np.array([0, 4]))
    mine[0] = 1  # the caller's own array stays writable


def test_select_and_fingerprint(data):
    assert data.select([1]).observations[0].tolist() == [100, 101]
    assert data.select([0, 1]).fingerprint == data.fingerprint
    assert data.select([1, 0]).fingerprint != data.fingerprint


def test_scale_of_a_constant_column_is_one():
    states = np.stack([np.arange(5.0), np.full(5, 3.0)], 1)
    scale = Trajectories.from_episodes([(states, np.zeros((4, 1)))]).scale
    assert scale.tolist() == pytest.approx([np.std(np.arange(5)), 1.0])


def with_value(kind: str, value: float) -> list:
    episodes = [episode(3), episode(4)]
    episodes[1] = tuple(np.array(array, np.float64) for array in episodes[1])
    episodes[1][kind == "action"][2, 0] = value
    return episodes


REFUSED = {
    "no episodes": ([], "no episodes"),
    "one step": ([episode(3), episode(1)], "episode 1: 1 step, .* at least 2"),
    "no step": ([(np.zeros((1, 2)), np.zeros((0, 1)))], "episode 0: 0 steps"),
    "nan observation": (with_value("observation", np.nan), "episode 1, step 2, observation column 0: .* nan"),
    "infinite action": (with_value("action", np.inf), "episode 1, step 2, action column 0: .* inf"),
    "equal lengths": ([(np.zeros((4, 2)), np.zeros((4, 1)))], "4 observations do not fit 4 actions"),
    "other width": ([episode(3), (np.zeros((4, 3)), np.zeros((3, 1)))], "episode 1: 3 observation"),
    "other action width": ([episode(3), (np.zeros((4, 2)), np.zeros((3, 2)))], "2 action columns"),
    "flat observations": ([(np.zeros(4), np.zeros((3, 1)))], r"shape \(4,\)"),
    "no columns": ([(np.zeros((4, 0)), np.zeros((3, 1)))], "table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_position(case):
    episodes, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        Trajectories.from_episodes(episodes, "bad")


def test_short_episodes_can_be_dropped():
    data = Trajectories.from_episodes([episode(3), episode(1), episode(2, 100.0)], short="drop")
    assert len(data) == 2


FLAT = {
    "no terminal at the end": ((np.zeros((4, 2)), np.zeros((4, 1)), [0, 0, 0, 0]), "last row is not marked"),
    "rows differ": ((np.zeros((4, 2)), np.zeros((3, 1)), [0, 0, 0, 1]), "equally many"),
    "empty": ((np.zeros((0, 2)), np.zeros((0, 1)), []), "no episodes"),
}


@pytest.mark.parametrize("case", FLAT)
def test_flat_arrays_refused(case):
    arrays, message = FLAT[case]
    with pytest.raises(DataError, match=message):
        Trajectories.from_flat(*arrays)


def test_npz_round_trip(data, tmp_path):
    data.save(tmp_path / "two.npz")
    assert read(tmp_path / "two.npz").fingerprint == data.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["two.npz"]  # no temporary file is left


def test_damaged_files_are_refused(data, tmp_path):
    whole = tmp_path / "two.npz"
    data.save(whole)
    content = whole.read_bytes()
    cut = tmp_path / "cut.npz"
    for length in range(0, len(content) - 1, max(1, len(content) // 25)):
        cut.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"cut.npz|last row"):
            read(cut)
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "none.npz")
    np.savez(tmp_path / "less.npz", observations=np.zeros((3, 2)))
    with pytest.raises(DataError, match="no actions, terminals"):
        read(tmp_path / "less.npz")


def test_pickled_arrays_are_not_opened(tmp_path):
    np.savez(tmp_path / "evil.npz", observations=np.array([{}], dtype=object), actions=[0], terminals=[1])
    with pytest.raises(DataError, match="evil"):
        read(tmp_path / "evil.npz")
