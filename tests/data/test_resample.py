"""Time stamps: alignment, gaps, angles, and rows at a fixed rate, against numbers worked out by hand."""

import numpy as np
import pytest

from iel import load
from iel.data.resample import align, in_order, resampled, runs, sin_cos, time_grid, yaw_sin_cos
from iel.data.trajectories import Rows
from iel.errors import DataError

TIMES = np.array([0.0, 1.0, 2.0, 6.0])
VALUES = np.array([[0.0], [10.0], [30.0], [70.0]])


@pytest.mark.parametrize(
    ("how", "expected", "there"),
    [
        ("hold", [0, 0, 10, 30, 30, 70], [1, 1, 1, 1, 0, 1]),
        ("nearest", [0, 10, 10, 30, 70, 70], [1, 1, 1, 1, 1, 1]),
        ("interpolate", [0, 6, 14, 35, 60, 70], [1, 1, 1, 0, 0, 1]),
    ],
)
def test_alignment_by_hand(how, expected, there):
    grid = np.array([0.0, 0.6, 1.2, 2.5, 5.0, 6.0])
    values, present = align(TIMES, VALUES, grid, how, gap=1.5)
    assert values[:, 0].tolist() == pytest.approx(expected)
    assert present.tolist() == [bool(flag) for flag in there]


def test_means_are_the_integral_of_what_was_held():
    grid = np.array([0.0, 1.5, 3.0, 4.5])
    values, _ = align(TIMES, VALUES, grid, "mean", gap=10.0)
    # 0 to 1.5: a second of 0 and half a second of 10; 1.5 to 3: half of 10, one of 30; then 30; then the same.
    assert values[:, 0].tolist() == pytest.approx([5 / 1.5, 35 / 1.5, 30.0, 30.0])


def test_before_the_first_and_after_the_last_message_nothing_is_there():
    grid = np.array([-1.0, 0.0, 7.0, 9.0])
    for how, there in (("hold", [0, 1, 1, 0]), ("interpolate", [0, 1, 0, 0])):
        assert align(TIMES, VALUES, grid, how, gap=1.5)[1].tolist() == [bool(flag) for flag in there]


def test_a_grid_hits_the_messages_it_was_made_for():
    """0.1 added up is not 3 / 10: rounding must not take the message before."""
    times = np.cumsum(np.full(50, 0.1))
    values, there = align(times, np.arange(50.0)[:, None], time_grid(times[0], times[-1], 10.0, 1, "log"), "hold", 0.05)
    assert there.all() and values[:, 0].tolist() == list(range(50))


def test_order_and_equal_times():
    times, values, dropped = in_order(np.array([2.0, 1.0, 1.0, 3.0]), np.array([[2.0], [0.0], [1.0], [3.0]]))
    assert times.tolist() == [1, 2, 3] and values[:, 0].tolist() == [1, 2, 3] and dropped == 1


def test_runs():
    there, begins = np.array([0, 1, 1, 0, 1, 1, 1, 1], bool), np.zeros(8, bool)
    assert runs(there, begins).tolist() == [[1, 3], [4, 8]]
    begins[6] = True
    assert runs(there, begins).tolist() == [[1, 3], [4, 6], [6, 8]]
    assert runs(~(there | ~there), begins).shape == (0, 2)


def test_headings_of_quaternions_are_those_of_their_rotation():
    rng = np.random.default_rng(0)
    quaternions = rng.normal(size=(200, 4)) * rng.uniform(0.1, 10, (200, 1))
    x, y, z, w = (quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).T
    nose = np.stack(
        [1 - 2 * (y * y + z * z), 2 * (x * y + w * z)]
    )  # where the rotation takes the x axis, seen from above
    expected = (nose / np.linalg.norm(nose, axis=0))[::-1].T
    np.testing.assert_allclose(yaw_sin_cos(quaternions), expected, atol=1e-9)
    turn = np.array([[0.0, 0.0, np.sin(0.4), np.cos(0.4)]])
    np.testing.assert_allclose(yaw_sin_cos(turn), [[np.sin(0.8), np.cos(0.8)]])
    assert np.isnan(yaw_sin_cos(np.zeros((1, 4)))).all()


def test_sines_and_cosines_stand_side_by_side():
    np.testing.assert_allclose(sin_cos(np.array([[0.0, np.pi / 2]])), [[0, 1, 1, 0]], atol=1e-15)


def irregular(seed=0, seconds=20.0):
    """x(t) = 2 t and y = -t at irregular times; the command is 1 until t = 10 and -1 afterwards."""
    times = np.unique(np.append(0.0, np.random.default_rng(seed).uniform(0, seconds, 400)))
    states = np.stack([2 * times, -times], axis=1)
    return Rows(states, np.where(times < 10, 1.0, -1.0)[:, None], np.array([0, len(times)]), "log"), times


def test_rows_at_irregular_times_become_rows_at_a_rate():
    rows, times = irregular()
    found, dropped = resampled(rows, times, rate=4.0)
    at = times[0] + np.arange(len(found.observations)) / 4
    np.testing.assert_allclose(found.observations, np.stack([2 * at, -at], axis=1), atol=1e-9)
    assert dropped == (0, 0, 0) and len(found.offsets) == 2
    np.testing.assert_allclose(found.actions[at < 9.7], 1.0)
    np.testing.assert_allclose(found.actions[at > 10.2], -1.0)


def test_gaps_in_time_end_episodes():
    rows, times = irregular()
    keep = (times < 5.0) | (times > 8.0)
    cut = Rows(rows.observations[keep], rows.actions[keep], np.array([0, keep.sum()]), "log")
    found, dropped = resampled(cut, times[keep], rate=10.0)
    assert len(found.offsets) == 3 and dropped.rows == pytest.approx(30, abs=3)
    steps = np.diff(found.observations[:, 0])
    boundary = found.offsets[1] - 1
    np.testing.assert_allclose(np.delete(steps, boundary), 0.2, atol=1e-9)
    assert steps[boundary] > 5
    with pytest.raises(DataError, match="no piece has two steps"):
        resampled(cut, times[keep], rate=0.01)


def test_rows_out_of_order_and_twice_are_put_right():
    rows, times = irregular()
    order = np.random.default_rng(1).permutation(len(times))
    order = np.append(order, order[-1])
    shuffled = Rows(rows.observations[order], rows.actions[order], np.array([0, len(order)]), "log")
    expected, _ = resampled(rows, times, rate=4.0)
    found, dropped = resampled(shuffled, times[order], rate=4.0)
    np.testing.assert_array_equal(found.observations, expected.observations)
    assert dropped.late == 1


def test_a_csv_file_with_times_becomes_rows_at_a_rate(tmp_path, capsys):
    """By the columns of a table, and in a folder of files, where a gap cuts a file in two."""
    rows, times = irregular()
    keep = (times < 5.0) | (times > 8.0)
    table = np.column_stack([times, rows.observations, rows.actions])[keep].tolist()
    lines = [",".join(map(repr, row)) for row in table]
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("\n".join(["clock,obs_x,obs_y,act", *lines]) + "\n")
    whole = tmp_path / "log.csv"
    whole.write_text("\n".join(["run,clock,obs_x,obs_y,act", *(f"1,{line}" for line in lines)]) + "\n")
    expected, _ = resampled(
        Rows(rows.observations[keep], rows.actions[keep], np.array([0, keep.sum()]), "log"), times[keep], 10.0
    )
    columns = {"step": "clock", "rate": 10.0}
    single = load(whole, columns={**columns, "episode": "run"}, trust=True)
    np.testing.assert_array_equal(single.observations, expected.observations.astype(np.float32))
    assert single.signals.rate == 10.0 and single.signals.observations == ("obs_x", "obs_y")
    assert len(load(folder, columns=columns, trust=True)) == 4
    assert "at 10 per second; dropped: 0 rows of equal times" in capsys.readouterr().err
    assert len(load(whole, columns={**columns, "episode": "run", "silence": 100.0}, trust=True)) == 1
    with pytest.raises(DataError, match=r"columns: expected `float` > 0\.0 at rate"):
        load(whole, columns={**columns, "rate": 0})
    with pytest.raises(DataError, match="no column of time"):
        load(whole, columns={"episode": "run", "rate": 10.0})
