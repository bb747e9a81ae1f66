"""`iel data check`: every kind of problem is found where it was put, and clean data has no findings."""

import numpy as np
import pytest

from iel.data import Trajectories, examine
from iel.data.examine import SHOWN, examine_rows
from iel.data.trajectories import Rows
from iel.errors import DataError


def walk(episodes: int = 6, length: int = 60) -> Rows:
    """Random walks with bounded steps, as a robot's are."""
    rng = np.random.default_rng(1)
    steps = rng.uniform(-1, 1, (episodes, length, 3))
    states = np.cumsum(steps, axis=1).reshape(-1, 3).astype(np.float32)
    actions = rng.uniform(-1, 1, (episodes * length, 2)).astype(np.float32)
    return Rows(states, actions, np.arange(episodes + 1) * length, "walk")


def kinds(rows: Rows) -> set[str]:
    return {finding.kind for finding in examine_rows(rows, "walk.npz")}


def test_clean_data_has_no_findings(maze_data, tmp_path):
    assert examine_rows(walk(), "walk.npz") == []
    maze_data.save(tmp_path / "maze.npz")
    assert examine(tmp_path / "maze.npz") == []


def only(rows: Rows, kind: str):
    findings = examine_rows(rows, "walk.npz")
    assert {finding.kind for finding in findings} == {kind}
    return findings


def test_non_finite():
    rows = walk()
    rows.observations[60 + 7, 2] = np.nan
    (finding,) = only(rows, "non-finite")
    assert (finding.episode, finding.step, finding.column) == (1, 7, "observation column 2")
    assert str(finding).startswith("error: non-finite: walk.npz, episode 1, step 7, observation column 2: ")
    rows = walk()
    rows.actions[59, 0] = np.inf  # the action of a last row, which is not read
    assert examine_rows(rows, "walk.npz") == []


def test_teleporting_names_the_step_before_the_jump():
    rows = walk()
    rows.observations[130:180] += 100.0
    findings = only(rows, "teleporting")
    assert {(finding.episode, finding.step) for finding in findings} == {(2, 9)}
    assert findings[0].severity == "warning" and "mark the boundary" in findings[0].message


def test_a_forgotten_boundary_is_a_teleport():
    rows = walk()
    rows.observations[60:120] += 50
    findings = examine_rows(rows._replace(offsets=np.array([0, 120, 180, 240, 300, 360])), "walk.npz")
    assert next((f.kind, f.episode, f.step) for f in findings) == ("teleporting", 0, 59)


def test_jumps_of_the_position_are_reported_once():
    rows = walk(episodes=20, length=200)
    rows.observations[450:600] += 60.0
    (finding,) = only(rows, "jumping")
    assert (finding.episode, finding.step, finding.severity) == (2, 49, "warning") and "cut the data" in finding.message


def test_out_of_range():
    rows = walk()
    rows.actions[10:13, 1] = 1.5
    (finding,) = only(rows, "out-of-range")
    assert (finding.severity, finding.episode, finding.step, finding.column) == ("error", 0, 10, "action column 1")
    assert "1.5" in finding.message and finding.count == 3 and "2 more" in finding.message
    rows = walk()
    rows.observations[:, 0] *= 1e7
    assert "out-of-range" in kinds(rows)


def test_constant_columns():
    rows = walk()
    rows.observations[:, 1] = 4.0
    (finding,) = only(rows, "constant-column")
    assert finding.column == "observation column 1" and "4" in finding.message
    rows = walk()
    rows.actions[:, 0] = 0.25
    (finding,) = only(rows, "constant-column")
    assert finding.column == "action column 0"


def test_overlapping_episodes():
    rows = walk()
    rows.observations[200:220] = rows.observations[20:40]
    assert "overlapping" not in kinds(rows)  # pushed into the same corner by other actions
    rows.actions[200:220] = rows.actions[20:40]
    findings = [f for f in examine_rows(rows, "walk.npz") if f.kind == "overlapping"]
    assert [(f.severity, f.episode, f.step) for f in findings] == [("error", 3, 20)]
    assert "also in episode 0" in findings[0].message


def test_sliding_windows_overlap():
    """Episodes that were cut as windows that share rows."""
    rows = walk(1, 100)
    pieces = [np.arange(start, start + 40) for start in range(0, 61, 20)]
    index = np.concatenate(pieces)
    windows = Rows(rows.observations[index], rows.actions[index], np.arange(5) * 40, "windows")
    findings = [f for f in examine_rows(windows, "w") if f.kind == "overlapping"]
    assert {f.episode for f in findings} == {1, 2, 3} and all(f.step == 0 for f in findings)


def test_duplicated_episodes():
    rows = walk()
    rows.observations[300:360] = rows.observations[60:120]
    (finding,) = only(rows, "duplicated-episode")
    assert finding.episode == 5 and "repeats episode 1" in finding.message


def test_standing_still_is_no_overlap():
    rows = walk()
    rows.observations[70:90] = rows.observations[70]
    rows.observations[130:150] = rows.observations[70]
    assert "overlapping" not in kinds(rows)
    rows = walk()
    rows.observations[120:180] = 3.0
    assert only(rows, "standing-still")[0].episode == 2


def test_single_steps_and_counts():
    rows = walk()
    offsets = np.concatenate([np.arange(0, 20, 2), rows.offsets[1:]])
    findings = only(rows._replace(offsets=offsets), "single-step")
    assert len(findings) == SHOWN and findings[0].episode == 0 and findings[0].count == 9
    assert "(6 more like this)" in findings[-1].message
    assert findings[0].kind == "single-step"


def test_errors_come_first():
    rows = walk()
    rows.observations[:, 1] = 4.0
    rows.actions[0, 0] = 9.0
    assert [finding.severity for finding in examine_rows(rows, "w")] == ["error", "warning"]


def test_an_ant_like_spike_is_no_teleport():
    """Velocities jump when a leg touches the ground; a position that leaps across the maze is another thing."""
    rows = walk(10, 200)
    rng = np.random.default_rng(0)
    rows.observations[:, 2] = rng.standard_t(4, len(rows.observations))
    assert examine_rows(rows, "w") == []


def test_names_and_unknown_names(tmp_path, monkeypatch):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    data = walk()
    Trajectories(data.observations, data.actions, data.offsets).save(tmp_path / "mine-v0.npz")
    assert examine("mine-v0") == []
    with pytest.raises(DataError, match="not on this machine"):
        examine("pointmaze-large-navigate-v0")
    assert examine(tmp_path / "none.npz")[0].kind == "unreadable"
