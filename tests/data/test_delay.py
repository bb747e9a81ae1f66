"""Delays of actions: exact on simulated logs, none where there is none, and shifting them back."""

import numpy as np
import pytest

from iel import Trajectories
from iel.data import examine
from iel.data.delay import estimate_delay, shift_actions
from iel.data.trajectories import Rows
from iel.errors import DataError


def walk(delay: int, kind: str, seed: int = 0, episodes: int = 8, steps: int = 200) -> Rows:
    """x' = x + 0.1 a_{t-k}, or a robot that drives where it is heading; actions are noisy and slow, as people's are."""
    rng, states, actions = np.random.default_rng(seed), [], []
    for _ in range(episodes):
        noise = rng.normal(size=(steps + 1, 2))
        action = np.zeros_like(noise)
        for t in range(1, steps + 1):
            action[t] = 0.7 * action[t - 1] + 0.5 * noise[t]
        action = np.clip(action, -1, 1)
        position, yaw, seen = np.zeros(2), 0.0, []
        for t in range(steps + 1):
            seen.append([*position, np.sin(yaw), np.cos(yaw)] if kind == "car" else [*position])
            v, w = action[t - delay] if t >= delay else np.zeros(2)
            if kind == "car":
                position = position + 0.1 * v * np.array([np.cos(yaw), np.sin(yaw)])
                yaw += 0.3 * w
            else:
                position = position + 0.1 * np.array([v, w])
        states.append(np.array(seen) + rng.normal(0, 0.005, (steps + 1, len(seen[0]))))
        actions.append(action)
    offsets = np.arange(episodes + 1) * (steps + 1)
    return Rows(np.concatenate(states), np.concatenate(actions), offsets, "walk")


@pytest.mark.parametrize("kind", ["point", "car"])
@pytest.mark.parametrize("delay", [0, 1, 3, 7])
def test_the_delay_of_a_simulated_log_is_found(kind, delay):
    found = estimate_delay(walk(delay, kind))
    assert found is not None and found.steps == delay and found.clear == (delay > 0)
    assert found.explained[delay] > 0.8


def test_actions_that_do_nothing_have_no_delay():
    rows = walk(2, "point")
    assert not estimate_delay(rows._replace(actions=np.random.default_rng(0).normal(size=rows.actions.shape))).clear
    assert estimate_delay(rows._replace(actions=0 * rows.actions)) is None


def test_shifted_actions_act_at_once():
    rows = walk(3, "point")
    shifted = shift_actions(rows, 3)
    assert len(shifted.observations) == len(rows.observations) - 3 * 8
    np.testing.assert_array_equal(shifted.observations[0], rows.observations[3])
    np.testing.assert_array_equal(shifted.actions[:5], rows.actions[:5])
    assert estimate_delay(shifted).steps == 0
    assert shift_actions(rows, 0) is rows
    with pytest.raises(DataError, match="cannot be delayed by 300 steps"):
        shift_actions(rows, 300)


def test_data_check_says_it(tmp_path):
    path = walk(3, "car")._replace(name="car").trajectories(trust=True).save(tmp_path / "car.npz")
    (found,) = [finding for finding in examine(path) if finding.kind == "delayed-actions"]
    assert "3 steps after they were logged" in found.message and "--action-delay 3" in found.message
    assert found.severity == "warning"
    assert not [
        f
        for f in examine(walk(0, "car").trajectories(trust=True).save(tmp_path / "good.npz"))
        if f.kind == "delayed-actions"
    ]


def test_columns_that_repeat_others_are_named(tmp_path):
    rows = walk(0, "point")
    doubled = np.concatenate([rows.observations, rows.observations[:, :1]], axis=1)
    path = Trajectories(doubled, rows.actions, rows.offsets).save(tmp_path / "twice.npz")
    (found,) = [finding for finding in examine(path) if finding.kind == "duplicate-column"]
    assert "repeats observation column 0" in found.message and "column 2" in found.column
