"""Runs share a machine, an output directory and a data directory without meeting."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from processes import ended, results, wait_for_step

from iel.errors import RunError
from iel.files import locked
from iel.training import open_run
from iel.training.run import next_free

MAZE = "pointmaze-medium-navigate-v0"


def test_names_are_claimed_once(tmp_path):
    together = Barrier(8)

    def claim(_: int):
        together.wait()
        return next_free(tmp_path / "runs", "maze-iel")

    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(claim, range(8)))
    assert sorted(path.name for path in claimed) == [f"maze-iel-{number:03d}" for number in range(1, 9)]


def test_two_processes_cannot_train_in_one_directory_and_a_killed_one_leaves_no_lock(tmp_path):
    script = "import sys; from pathlib import Path; from iel.files import locked\n"
    script += "with locked(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(RunError, match=f"another process .process {holder.pid} on"), locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path):
        pass


@pytest.mark.faults
def test_a_run_resumed_twice_at_once_is_trained_by_one_process(lab, uninterrupted, tmp_path):
    out = tmp_path / "run"
    first = lab.start(out)
    wait_for_step(first, out, 0)
    first.send_signal(signal.SIGSTOP)
    assert "is being trained by another process" in lab.fail(out)
    first.send_signal(signal.SIGCONT)
    _, errors = ended(first)
    assert first.returncode == 0, errors
    assert results(out) == results(uninterrupted)


@pytest.mark.faults
def test_eight_commands_started_in_the_same_second(tmp_path):
    """The same output directory and the same empty data directory: eight whole runs on one and the same data."""
    small = ["--preset", "smoke", "--steps", "40", "--hidden", "16", "--batch-size", "16"]
    command = [sys.executable, "-m", "iel.cli", "train", "--env", MAZE, "--episodes", "6", *small, "--json"]
    environment = {**os.environ, "IEL_DATA": str(tmp_path / "data")}
    processes = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    answers = []
    for process in processes:
        output, errors = ended(process)
        assert process.returncode == 0, errors
        answers.append(json.loads(output.splitlines()[-1]))
    assert len({answer["run"] for answer in answers}) == 8
    runs = [open_run(tmp_path / answer["run"]) for answer in answers]
    assert all(run.status == "finished" for run in runs)
    assert len({run.config["data"]["fingerprint"] for run in runs}) == 1
    assert len({json.dumps({**results(run.path)}) for run in runs}) == 1  # one seed, one result
    assert sorted(path.suffix for path in (tmp_path / "data").iterdir()) == [".npz", ".npz"]
