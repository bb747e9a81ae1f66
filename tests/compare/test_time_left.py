"""What a comparison prints about its cells, from the files that they write."""

import json

import pytest

from iel.compare.execute import Job
from iel.compare.grid import Cell, DataChoice, GridProtocol, Variant
from iel.compare.progress import CellProgress, stage_of


def job(tmp_path, method: str, state: str, step: int = 0) -> Job:
    cell = Cell("maze", method, "gcbc", {"steps": 1000}, 0, DataChoice(), (Variant("a", "a", {}),) * 2, GridProtocol())
    made = Job(cell, tmp_path / method, "", state)
    (made.directory / "run").mkdir(parents=True)
    (made.directory / "run" / "config.json").write_text(json.dumps({"status": "running"}))
    (made.directory / "run" / "metrics.csv").write_text(f"step,loss\n1,0.5\n{step},0.5\n70")
    return made


def test_the_share_of_a_cell_follows_its_training_and_its_evaluations(tmp_path):
    running = job(tmp_path, "running", "running", step=500)
    assert stage_of(running) == ("step 500/1,000", pytest.approx(0.4))
    (running.directory / "run" / "config.json").write_text(json.dumps({"status": "finished"}))
    (running.directory / "evaluations").mkdir()
    (running.directory / "evaluations" / "a.json").write_text("{}")
    assert stage_of(running) == ("evaluating 2/2", pytest.approx(0.9))
    assert stage_of(job(tmp_path, "failed", "failed"))[1] == 1.0 and stage_of(job(tmp_path, "done", "done"))[1] == 1.0
    assert stage_of(job(tmp_path, "waiting", "waiting"))[1] == 0.0


def test_cells_that_begin_or_end_have_a_line_each(tmp_path, capsys):
    done, other = job(tmp_path, "quick", "done"), job(tmp_path, "slow", "waiting")
    with CellProgress([done, other]) as shown:
        assert shown.bar.done == 1000 and shown.bar.total == 2000
        other.state = "running"
        shown.update()
        other.state, other.error = "failed", "out of memory"
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "compare: 2 cells, 1 already finished",
        "compare: running: maze slow seed 0",
        "compare: failed: maze slow seed 0 out of memory",
    ]
