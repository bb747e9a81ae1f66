"""What a comparison says of the time that is left, from the files that its cells write."""

import json
import time

from iel.compare.execute import Job
from iel.compare.grid import Cell, DataChoice, GridProtocol
from iel.compare.progress import ProgressTable


def job(tmp_path, method: str, state: str, seconds: float = 0.0, step: int = 0) -> Job:
    cell = Cell("maze", method, "gcbc", {"steps": 1000}, 0, DataChoice(), (), GridProtocol())
    made = Job(cell, tmp_path / method, "", state, started=time.monotonic() - seconds, seconds=seconds)
    (made.directory / "run").mkdir(parents=True)
    (made.directory / "run" / "config.json").write_text(json.dumps({"status": "running"}))
    (made.directory / "run" / "metrics.csv").write_text(f"step,loss\n1,0.5\n{step},0.5\n")
    return made


def test_cells_under_path_predict_what_those_to_come_will_take(tmp_path):
    """A quick cell is done in 60 s; a slow one has taken 400 s for half of its training, 0.4 of its work."""
    quick, slow = job(tmp_path, "quick", "done", 60.0), job(tmp_path, "slow", "running", 400.0, step=500)
    waiting = [job(tmp_path, f"other {k}", "waiting") for k in range(2)]
    # 1,000 s for the slow method, so 600 s are left of it, and the mean of 60 and 1,000 s for each of the two others.
    assert ProgressTable([quick, slow, *waiting], 1)._left() == "1/4 cells, about 28 min left"
    assert ProgressTable([quick, slow, *waiting], 2)._left() == "1/4 cells, about 14 min left"
    # One that has only just begun foretells nothing.
    slow = job(tmp_path / "again", "slow", "running", 400.0, step=100)
    assert ProgressTable([slow, *waiting], 1)._left() == "0/3 cells"
