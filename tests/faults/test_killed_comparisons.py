"""`iel compare` whose worker, or which itself, is killed. SIGKILL at random moments is in test_killed_commands.py."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import ended, started

from compare_worlds import TINY
from iel.files import locked

GRID = (
    TINY
    + """
[[methods]]
algo = "gcbc"
label = "GCBC"
settings = { steps = 300, hidden = [16, 16], batch_size = 16 }

[[methods]]
algo = "gcbc"
label = "narrow"
settings = { steps = 300, hidden = [8], batch_size = 16 }
"""
)


@pytest.fixture(scope="module")
def location(tmp_path_factory, maze_data) -> Path:
    """The grid file, beside data that is there already."""
    path = tmp_path_factory.mktemp("compare")
    (path / "smoke.toml").write_text(GRID)
    return path


def start(location: Path, out: str) -> subprocess.Popen:
    """`iel compare` in a process group of its own."""
    words = ["compare", str(location / "smoke.toml"), "--out", str(location / out), "--jobs", "2", "--json"]
    return started([sys.executable, "-m", "iel.cli", *words])


def finish(process: subprocess.Popen) -> dict:
    out, errors = ended(process)
    assert process.returncode == 0, errors
    return json.loads(out.strip().splitlines()[-1])


def wait_for_worker(out: Path, process: subprocess.Popen) -> int:
    """The process that trains the first GCBC cell, as soon as it does."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and process.poll() is None:
        for metrics in out.glob("cells/*--GCBC--seed0--*/run/metrics.csv"):
            if len(metrics.read_text().splitlines()) > 1:
                return int(metrics.with_name(".lock").read_text().split()[1])
        time.sleep(0.02)
    raise AssertionError("no worker was seen")


@pytest.mark.faults
def test_a_killed_worker_is_named_and_the_comparison_fails(location):
    """It ended with 0, and scripts went on."""
    process = start(location, "crashed")
    os.kill(wait_for_worker(location / "crashed", process), signal.SIGKILL)
    out, _ = ended(process)
    result = json.loads(out.strip().splitlines()[-1])
    assert process.returncode == 1 and result["done"] == 3
    ((cell, error),) = result["errors"].items()
    assert cell == "pointmaze-medium-navigate-v0 GCBC seed 0" and "SIGKILL" in error
    assert finish(start(location, "crashed"))["done"] == 4


@pytest.mark.faults
def test_the_worker_of_a_killed_comparison_is_waited_for(location):
    """Its cell was called 'being trained by another process' and failed, while that process was only saving."""
    process = start(location, "orphans")
    wait_for_worker(location / "orphans", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (cell,) = (location / "orphans").glob("cells/*--GCBC--seed0--*/run")
    (cell.parent / "log.txt").unlink()
    with locked(cell, patience=60.0):  # as a worker does that is still saving
        second = start(location, "orphans")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (cell.parent / "log.txt").exists():
            time.sleep(0.1)
        time.sleep(8.0)
    assert finish(second)["done"] == 4
