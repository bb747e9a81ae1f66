"""docs/bags.md: its commands make an agent that reaches its goals out of a bag."""

import shlex
import sys
from pathlib import Path

import pytest

import iel
from iel.loader import read_json
from tests.test_cli import call

ROOT = Path(__file__).parents[1]
SMALLER = {
    "bag 20": "bag 8",
    "--preset laptop --steps 6000": "--preset smoke",
    "--policy.steps 4000": "--policy.steps 600",
    "--episodes 20": "--episodes 5",
}
"""What the short test runs instead of what the page says."""


def commands(changes: dict[str, str]) -> list[list[str]]:
    """The indented lines of the page that are commands."""
    page = (ROOT / "docs" / "bags.md").read_text().replace("\\\n", " ")
    found = [line for line in page.splitlines() if line.startswith(("    iel ", "    python "))]
    text = "\n".join(found)
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return [shlex.split(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        pytest.param(SMALLER, 0.2, marks=pytest.mark.slow, id="small"),  # 0.4 measured: too little data and training
        pytest.param({}, 0.9, marks=pytest.mark.long, id="as written"),
    ],
)
def test_the_commands_of_the_page(changes, least, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    from bag_robot import record

    said = {}
    for program, *words in commands(changes):
        if program == "python":
            record(Path(words[1]), float(words[2]))
            continue
        code, out, err = call(capsys, *words)
        assert code == 0, (words, err)
        said[words[0], *words[1:2]] = out
    converted = said["data", "convert"]
    assert "rows while /odom was silent for over 0.2 s" in converted and "rows while /enable was off" in converted
    assert "nothing wrong was found" in said["data", "check"]
    assert "# nav_msgs/msg/Odometry" in (tmp_path / "guess.toml").read_text()
    signals = iel.load(tmp_path / "rover.npz").signals
    assert signals.observations == ("x", "y", "heading.sin", "heading.cos", "speed", "turn")
    assert signals.action_high == pytest.approx((0.8, 1.5)) and signals.rate == 10.0
    (result,) = (tmp_path / "rover" / "evaluations").glob("*.json")
    success = read_json(result)["episodes"]["success"]
    assert sum(success) >= least * len(success), success
    sys.modules.pop("bag_robot")
