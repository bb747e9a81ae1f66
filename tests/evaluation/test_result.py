"""A result is whole, within its ranges and as it was written, or it does not count."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from iel.errors import RunError
from iel.evaluation.result import Episodes, Evaluation, Result, rates_of, read_result
from iel.evaluation.rollout import Rollouts

PROTOCOL = {"tasks": 2, "episodes_per_task": 2, "seed": 0, "action": "policy mean", "interval": "an interval"}
EPISODES = Episodes(("task1", "task1", "task2", "task2"), (True, False, True, True), (3, 9, 4, 5))
HALF = replace(EPISODES, subtasks=(0.5, 0.25, 1.0, 1.0), others={"reward_per_step": (2.0,) * 4})


def result(episodes: Episodes = EPISODES, **more) -> Result:
    return Result("maze", "gcbc", "direct", 3, PROTOCOL, episodes, 1.25, 0.5, **more)


def sealed(content: dict) -> str:
    """The content with a right hash, as if another program had written it."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest})


@pytest.mark.parametrize("episodes", [EPISODES, HALF], ids=["success", "subtasks"])
def test_a_result_is_read_as_it_was_written(tmp_path, episodes):
    written = result(episodes, step=40, earlier={20: episodes}, bands=episodes, fingerprint="abc")
    written.write(tmp_path / "a.json")
    assert read_result(tmp_path / "a.json") == written


def test_scores_are_success_or_as_in_d4rl_the_fraction_of_subtasks():
    assert rates_of([EPISODES]).tolist() == [[0.5, 1.0]] and EPISODES.metric == "success_rate"
    assert rates_of([HALF]).tolist() == [[0.375, 1.0]] and HALF.metric == "subtask_fraction"


WRONG = {
    "a success of 200 per cent": ("episodes", "success", [2.0, False, True, True]),
    "a success in words": ("episodes", "success", ["x", False, True, True]),
    "a fraction above one": ("episodes", "subtasks", [2.0, 0.25, 1.0, 1.0]),
    "too few scores": ("episodes", "success", [True]),
    "too many episodes": ("protocol", "episodes_per_task", 1),
    "too many tasks": ("protocol", "tasks", 3),
    "negative steps": ("episodes", "steps", [-1, 1, 1, 1]),
}


@pytest.mark.parametrize("case", WRONG)
def test_impossible_results_are_refused_also_with_a_right_hash(tmp_path, case):
    part, column, values = WRONG[case]
    result(HALF).write(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    content[part][column] = values
    (tmp_path / "a.json").write_text(sealed(content))
    with pytest.raises(RunError, match="is damaged or of another version"):
        read_result(tmp_path / "a.json")


def test_a_changed_score_is_refused(tmp_path):
    result().write(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    content["episodes"]["success"][1] = True
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match="was changed or damaged after it was written; evaluate again"):
        read_result(tmp_path / "a.json")


def test_evaluations_of_earlier_versions_are_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"env": "maze", "protocol": {}, "planners": {}}))
    with pytest.raises(RunError, match="not an evaluation of this version; evaluate again"):
        read_result(tmp_path / "a.json")


def test_what_evaluate_returns_prints_as_a_table():
    tasks, success = np.array([1, 1, 2, 2]), np.array([True, False, True, True])
    rollouts = Rollouts("direct", tasks, success, np.array([3, 9, 4, 5]), 1.0, 0.5)
    shown = Evaluation("maze <1>", PROTOCOL, {"direct": rollouts})
    assert shown["direct"] is rollouts and "75.0 [" in repr(shown) and "task2" in repr(shown)
    html = shown._repr_html_()
    assert "maze &lt;1&gt;" in html and "75.0 [" in html and "2 tasks x 2 episodes" in html
