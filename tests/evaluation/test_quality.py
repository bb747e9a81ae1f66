"""`iel data score`: spoiled episodes come first."""

import json

import numpy as np
import pytest

import iel
from benchmarks.quality import KINDS, area, areas, spoil
from iel.evaluation.quality import Trait, _extreme, score_episodes
from tests.test_cli import call


def point(episodes: int = 60, steps: int = 120, seed: int = 0) -> iel.Trajectories:
    """A point in a square that goes from target to target, 0.2 a step, with noise."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(episodes):
        position, wanted = rng.uniform(0, 4, (2, 2))
        states, actions = [position], []
        for _ in range(steps):
            if np.linalg.norm(wanted - position) < 0.3:
                wanted = rng.uniform(0, 4, 2)
            ahead = wanted - position
            actions.append(np.clip(ahead / np.linalg.norm(ahead) + 0.3 * rng.normal(size=2), -1, 1))
            position = np.clip(position + 0.2 * actions[-1], 0, 4)
            states.append(position)
        found.append((np.array(states), np.array(actions)))
    return iel.Trajectories.from_episodes(found, "point")


def test_windows_and_stds_by_hand():
    data = iel.Trajectories.from_episodes([(np.arange(5.0)[:, None], np.zeros((4, 1)))] * 2, trust=True)
    values = np.array([1.0, 5.0, 3.0, 0.0, 99.0, 2.0, 2.0, 2.0, 8.0, 99.0])
    found = _extreme(values, data, window=2, left_out=1, sign=1.0)  # the last row of an episode is left out
    assert found.values.tolist() == [4.0, 5.0] and found.rows.tolist() == [1, 7]
    assert _extreme(values, data, 2, 1, -1.0).values.tolist() == [1.5, 2.0]
    trait = Trait(np.array([1.0, 2.0, 3.0, 4.0, 30.0]), np.zeros(5, np.int64), 1.0)
    np.testing.assert_allclose(trait.unusual, [-2 / 1.4826, -1 / 1.4826, 0, 1 / 1.4826, 27 / 1.4826])
    assert Trait(trait.values, trait.rows, -1.0).unusual[4] < -10


def test_the_area_counts_pairs():
    assert area(np.array([3.0, 1.0, 2.0, 2.0]), np.array([True, False, True, False])) == (2 + 1.5) / 4


def test_spoiling_changes_what_it_says():
    data = point(episodes=20)
    spoiled, labels = spoil(data, 6, seed=1)
    assert sorted(labels.values()) == sorted(KINDS)
    for number, (old, new) in enumerate(zip(data, spoiled, strict=True)):
        same = np.array_equal(old.observations, new.observations) and np.array_equal(old.actions, new.actions)
        assert same == (number not in labels)
    backwards = next(episode for episode, kind in labels.items() if kind == "backwards")
    np.testing.assert_array_equal(spoiled.episode(backwards).observations[::-1], data.episode(backwards).observations)


@pytest.mark.slow
def test_spoiled_episodes_come_first(tmp_path, capsys):
    """Trained on the spoiled data itself, as people's is."""
    data, labels = spoil(point(steps=250), 12, seed=0)
    data.save(tmp_path / "spoiled.npz")
    settings = {"steps": 900, "policy": iel.Waypoints(steps=300, learning_rate=1e-3, columns=(0, 1))}
    spoiled = iel.load(tmp_path / "spoiled.npz", trust=True)
    trained = iel.train(spoiled, iel.HTP.preset("smoke", **settings), out=tmp_path / "run")
    found = areas(score_episodes(trained.model, data), labels)
    assert found["score"] >= 0.95, found
    code, out, _ = call(capsys, "data", "score", tmp_path / "run", "--json")
    assert code == 0 and (tmp_path / "run" / "plots" / "quality.png").stat().st_size > 10_000
    first = [entry["episode"] for entry in json.loads(out)["episodes"]][:12]
    assert len(set(first) & set(labels)) >= 8, first
