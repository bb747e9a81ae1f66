"""`scripts/trace.py` follows one goal from the planner to the action."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "trace.py"


@pytest.mark.slow
def test_the_walk_of_a_goal_begins_with_the_planner_and_ends_with_the_policy():
    done = subprocess.run([sys.executable, SCRIPT, "goal", "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    files = [file for file, _ in found["path"]]
    assert files[0].startswith("planning/") and "model/model.py" in files[-3:]
    assert found["files"] == len(set(files)) and found["functions"] == len(files)
    assert found["files"] <= found["changes"] + 1 <= found["functions"]
