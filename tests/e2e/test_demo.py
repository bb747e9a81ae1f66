"""The demo from no data to a film, tiny, and stopped in the middle."""

from pathlib import Path

import pytest

import iel
from iel.commands import demo
from iel.training import open_run

pytestmark = pytest.mark.long

TINY = demo.Show(
    "tiny", "pointmaze-medium-navigate-v0", 4, "smoke",
    {"steps": 200, "policy": iel.Waypoints(steps=100)}, ("asym-graph",), 1, film=True,
)  # fmt: skip


def test_a_demo_makes_everything_and_one_that_was_stopped_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IEL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "ANT", TINY)
    film = demo.VideoCommand

    def stopped(**settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "VideoCommand", stopped)
    with pytest.raises(KeyboardInterrupt):
        demo.Demo(ant=True)()
    out = tmp_path / "runs" / "tiny-001"
    saved = {path: path.stat().st_mtime_ns for path in out.glob("**/*.safetensors")}
    assert saved and open_run(out).status == "finished"
    assert "if it is stopped, iel demo --ant --out runs/tiny-001 continues it" in " ".join(
        capsys.readouterr().out.split()
    )
    monkeypatch.setattr(demo, "VideoCommand", film)
    facts = demo.Demo(ant=True, out=out)()
    assert saved == {path: path.stat().st_mtime_ns for path in out.glob("**/*.safetensors")}, "nothing is trained again"
    assert facts["run"] == str(out) and len(facts["planners"]["asym-graph"]["per_task"]) == 5
    assert Path(facts["film"]["video"]).stat().st_size > 1000 and facts["seconds"] > 0
    assert not (tmp_path / "runs" / "tiny-002").exists()
