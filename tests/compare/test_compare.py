"""`iel compare` and `iel report` on a tiny real grid: stopped and resumed, crashed, half-written, reported."""

import json
import os
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from compare_worlds import TINY, InThisProcess
from iel.compare.cells import finished, missing, run_cell
from iel.compare.execute import execute, list_jobs, prepare_data, read_recorded
from iel.compare.grid import check_grid, read_grid
from iel.compare.results import collect_grid
from iel.compare.tables import interval_table, main_table
from iel.errors import ConfigError, RunError
from iel.files import locked

pytestmark = pytest.mark.slow

GRID = (
    TINY
    + """
[[methods]]
algo = "gcbc"
label = "GCBC"
settings = { steps = 100, hidden = [16, 16], batch_size = 16 }

[[methods]]
algo = "gcbc"
label = "narrow"
settings = { steps = 100, hidden = [8], batch_size = 16 }
"""
)


@pytest.fixture(scope="module")
def location(tmp_path_factory, maze_data) -> Path:
    """The grid file, beside data that is there already."""
    path = tmp_path_factory.mktemp("compare")
    (path / "smoke.toml").write_text(GRID)
    return path


@pytest.fixture(scope="module")
def whole(location) -> Path:
    """A comparison that ran without interruption, by the command itself."""
    from iel.cli import run

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(location)
        patch.setattr("iel.compare.execute.Here", InThisProcess)
        assert run(["compare", "smoke.toml", "--out", "whole", "--jobs", "2"]) == 0
    comparison = collect_grid(location / "whole")
    assert not comparison.unfinished and not comparison.errors
    return location / "whole"


def check_identical(whole: Path, stopped: Path, entries: int) -> None:
    one, other = collect_grid(whole), collect_grid(stopped)
    assert len(one.entries) == entries and not one.unfinished
    assert one.describe() == other.describe()
    assert main_table(one) == main_table(other) and interval_table(one) == interval_table(other)
    models = list(whole.glob("cells/*/run/model/model.safetensors"))
    assert models
    for model in models:
        assert model.read_bytes() == (stopped / model.relative_to(whole)).read_bytes()


def test_a_comparison_that_was_stopped_goes_on_and_gives_the_identical_table(whole, tmp_path):
    """One cell lost its result, one its training as well; the others are not touched."""
    out = shutil.copytree(whole, tmp_path / "stopped")
    recorded = read_recorded(out)
    jobs = {(job.cell.method, job.cell.seed): job for job in list_jobs(recorded.grid, out, recorded.data)}
    for lost in ("GCBC", 0), ("GCBC", 1):
        (jobs[lost].directory / "evaluations" / "direct.json").unlink()
    shutil.rmtree(jobs["GCBC", 1].directory / "run")
    untouched = {path: path.stat().st_mtime_ns for path in out.glob("cells/*--narrow--*/**/*")}
    waiting = [job for job in list_jobs(recorded.grid, out, recorded.data) if job.state == "waiting"]
    assert [(job.cell.method, job.cell.seed) for job in waiting] == [("GCBC", 0), ("GCBC", 1)]
    for job in waiting:
        run_cell(job.directory)
    check_identical(whole, out, entries=2)
    assert untouched == {path: path.stat().st_mtime_ns for path in out.glob("cells/*--narrow--*/**/*")}


def test_a_finished_comparison_runs_nothing(location, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.glob("cells/**/*")}
    jobs = execute(read_grid(location / "smoke.toml"), whole, quiet=True)
    assert [job.state for job in jobs] == ["done"] * 4
    assert before == {path: path.stat().st_mtime_ns for path in whole.glob("cells/**/*")}


def test_a_comparison_that_is_refused_leaves_no_trace(location, whole, capsys):
    from iel.cli import run

    before = (whole / "sessions.json").read_bytes()
    with locked(whole), pytest.raises(RunError, match="being trained by another process"):
        run(["compare", str(location / "smoke.toml"), "--out", str(whole), "--json"])
    assert (whole / "sessions.json").read_bytes() == before


def test_half_written_or_foreign_results_are_not_counted(whole, tmp_path):
    """Driver, worker and report agree: what does not count is waiting, and is measured again."""
    out = shutil.copytree(whole, tmp_path / "copy")
    recorded = read_recorded(out)
    grid = recorded.grid
    job = next(job for job in list_jobs(grid, out, recorded.data) if (job.cell.method, job.cell.seed) == ("GCBC", 1))
    file, (variant,) = job.directory / "evaluations" / "direct.json", job.cell.planners
    text = file.read_text()
    good = finished(job.directory, job.cell, job.fingerprint, variant)
    assert good is not None
    changed = json.loads(text)
    changed["episodes"]["success"] = [not success for success in changed["episodes"]["success"]]
    replace(good, fingerprint="0" * 64).write(file)
    foreign = file.read_text()
    for broken in (text[: len(text) // 2], "", "[]", "{}", foreign, json.dumps(changed)):
        file.write_text(broken)
        assert missing(job.directory, job.cell, job.fingerprint) == [variant]
        comparison = collect_grid(out)
        entry = comparison.entries[grid.environments[0], ("GCBC", "direct")]
        assert comparison.unfinished == 1 and entry.seeds == (0,)
    assert "1 cells are not finished" in _report(out)["markdown"]
    run_cell(job.directory)
    again = finished(job.directory, job.cell, job.fingerprint, variant)
    assert again is not None and again.episodes == good.episodes


def test_a_crash_is_recorded_and_the_others_go_on(tmp_path, maze_data):
    """One method needs more memory than there is, one data set is missing: the third cell is done."""
    table = {
        "environments": ["pointmaze-medium-navigate-v0", "kitchen-partial"],
        "protocol": {"episodes": 1, "tasks": [1], "max_steps": 5},
        "data": {"episodes": 60},
        "methods": [
            {"algo": "gcbc", "label": "huge", "settings": {"preset": "smoke", "hidden": [2_000_000, 2_000_000]}},
            {"algo": "gcbc", "label": "good", "settings": {"preset": "smoke", "steps": 10, "hidden": [8]}},
        ],
    }
    jobs = execute(check_grid(table, "crash"), tmp_path / "out", workers=1, quiet=True)
    states = {(job.cell.env, job.cell.method): job for job in jobs}
    assert states["pointmaze-medium-navigate-v0", "good"].state == "done"
    crashed = states["pointmaze-medium-navigate-v0", "huge"]
    recorded = json.loads((crashed.directory / "error.json").read_text())
    assert crashed.state == "failed" and recorded["exit_code"] != 0 and recorded["error"] == crashed.error
    assert "Traceback" in (crashed.directory / recorded["traceback"]).read_text()
    assert {job.state for key, job in states.items() if key[0].startswith("kitchen")} == {"failed"}
    comparison = collect_grid(tmp_path / "out")
    assert set(comparison.entries) == {("pointmaze-medium-navigate-v0", ("good", "direct"))}
    assert "pointmaze-medium-navigate-v0 huge seed 0" in comparison.errors


def test_data_is_prepared_once_and_named_when_it_cannot_be(maze_data):
    grid = check_grid({"environments": [maze_data.name], "data": {"episodes": 60}, "methods": [{"algo": "gcbc"}]}, "d")
    assert prepare_data(grid.cells, quiet=True) == ({maze_data.name: maze_data.fingerprint}, {})


def test_a_part_of_a_grid_is_run_and_the_rest_keeps_waiting(maze_data, tmp_path, in_this_process):
    settings = {"preset": "smoke", "steps": 10, "hidden": [8]}
    table = {
        "environments": [maze_data.name, "kitchen-partial"],
        "seeds": [0, 1],
        "protocol": {"episodes": 1, "max_steps": 5, "tasks": [1], "distances": 2},
        "data": {"episodes": 60},
        "methods": [{"algo": "gcbc", "settings": settings}],
    }
    grid, out = check_grid(table, "part"), tmp_path / "out"
    with pytest.raises(ConfigError, match="No cell of the grid 'part' matches --only nothing"):
        execute(grid, out, only=["nothing"], quiet=True)
    for seed in (1, 0):
        jobs = execute(grid, out, only=[f"pointmaze* gcbc seed {seed}"], quiet=True)
    states = {(job.cell.env.split("-")[0], job.cell.seed): job.state for job in jobs}
    assert states == {  # the kitchen was not chosen: its missing data is not reported
        ("pointmaze", 0): "done", ("pointmaze", 1): "done", ("kitchen", 0): "waiting", ("kitchen", 1): "waiting",
    }  # fmt: skip
    assert set(read_recorded(out).data) == {maze_data.name}
    entry = collect_grid(out).entries[maze_data.name, ("gcbc", "direct")]
    assert list(entry.bands)[:2] == ["1-2 cells", "3-5 cells"] and {len(seeds) for seeds in entry.bands.values()} == {2}
    assert "distances.png" in _report(out)["markdown"]


def test_a_policy_drives_the_distances_of_others_once_it_is_trained(maze_data, tmp_path, in_this_process):
    tiny = "steps = 60, hidden = [16, 16], batch_size = 16, dimension = 4"
    grid = f"""{TINY}
[planners.common]
planner = "sym-graph"
nodes = 64
policy_of = "waypoint policy"
[[methods]]
algo = "hilp"
label = "HILP"
planners = ["common"]
settings = {{ {tiny} }}
[[methods]]
algo = "iel"
label = "waypoint policy"
planners = ["direct", "sym-graph"]
settings = {{ {tiny}, policy = "waypoints" }}
"""
    table = tomllib.loads(grid)
    table["seeds"] = [0]
    jobs = execute(check_grid(table, "driven"), tmp_path / "out", quiet=True)
    assert [(job.cell.method, job.state) for job in jobs] == [("HILP", "done"), ("waypoint policy", "done")], jobs
    assert "fields.png" in _report(tmp_path / "out")["markdown"]  # both have distances to be seen side by side
    record = tmp_path / "out" / "grid.json"
    lent = json.loads(record.read_text())
    lent["grid"]["variants"]["waypoint policy"] = ["direct"]  # one that is only sent straight to its goals is not drawn
    record.write_text(json.dumps(lent))
    assert "fields.png" not in _report(tmp_path / "out")["markdown"]
    alone = execute(check_grid(table, "driven"), tmp_path / "alone", quiet=True, only=["*HILP*"])
    assert alone[0].state == "failed" and "waypoint_policy" in alone[0].error


def test_a_waypoint_policy_is_trained_once_for_all_geometries(maze_data, tmp_path, monkeypatch):
    """The second cell waits for the first one's policy and continues from it, to the bits it has alone."""
    settings = {"steps": 40, "hidden": [8], "batch_size": 16, "policy": {"kind": "waypoints", "steps": 120}}
    table = {
        "environments": [maze_data.name],
        "preset": "smoke",
        "protocol": {"episodes": 1, "max_steps": 5, "tasks": [1]},
        "data": {"episodes": 60},
        "methods": [{"algo": name, "settings": settings} for name in ("gcivl", "gcbc")],
    }
    grid = check_grid(table, "shared")
    jobs = execute(grid, tmp_path / "both", workers=2, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr("iel.compare.execute.Here", InThisProcess)
        alone = execute(grid, tmp_path / "alone", quiet=True, only=["* gcbc *"])
    assert [job.state for job in (*jobs, alone[1])] == ["done"] * 3, jobs
    first, second = (job.directory for job in jobs)
    assert (first / "run" / "policy").is_dir() and not (second / "run" / "policy").exists()
    for name in ("metrics.csv", "model/model.safetensors"):
        mine, others = (directory / "run" / name for directory in (second, alone[1].directory))
        assert mine.read_bytes() == others.read_bytes()
    steps = [line.split(",")[:2] for line in (second / "run" / "metrics.csv").read_text().splitlines()]
    assert ["120", "policy"] in steps and ["160", "train"] in steps
    assert sorted(path.name for path in (second / "run" / "checkpoints").iterdir())[0] == "step_000000120"


def test_cells_wait_for_a_policy_only_while_it_is_trained(tmp_path):
    settings = {"preset": "smoke", "policy": "waypoints"}
    methods = [{"algo": name, "settings": settings} for name in ("gcivl", "qrl")]
    grid = check_grid({"environments": ["pointmaze-medium-navigate-v0"], "methods": methods}, "wait")
    first, second = list_jobs(grid, tmp_path, {})
    first.sharing = second.sharing = [first.directory, second.directory]
    assert not first.waits_for([], [second]) and not second.waits_for([], [first])
    assert second.waits_for([first], [])
    (first.directory / "run" / "policy").mkdir(parents=True)
    assert not second.waits_for([first], [])


def _report(out: Path) -> dict[str, str]:
    from iel.commands.compare import ReportCommand

    result = ReportCommand(sources=(out,))()
    return {kind: Path(result[kind]).read_text() for kind in ("markdown", "html", "json")}


def test_report_writes_the_papers_layout_and_a_page_that_needs_nothing_else(whole, drawn):
    written = _report(whole)
    text, page = written["markdown"], written["html"]
    assert "| data set | GCBC<br>direct | narrow<br>direct |" in text
    assert "| *published* | *9 ± 6* |  |" in text and "were not measured here" in text
    assert "`iel compare smoke.toml --jobs 2`" in text and "last checkpoint" in text
    assert re.search(r"\| pointmaze-medium-navigate-v0 \| GCBC \| direct \| 2 \| [\d.]+ ± [\d.]+ \| \[", text)
    assert {path.stem for path in (whole / "report").glob("*.png")} == {"success", "time", "profiles", "learning"}
    assert len(drawn) == 4 and all(min(axes) > 0 for axes in drawn)
    assert not re.search(r"""(src|href)=['"](?!data:)""", page) and "http" not in page and "@import" not in page
    assert page.count("data:image/png;base64,") == 4 + 2  # four pictures and a rollout of every method and planner
    assert 'addEventListener("click"' in page and "<th>GCBC<br>direct</th>" in page and "<em>9 ± 6</em>" in page
    assert page.count("<circle") == 2 and "<code>iel compare smoke.toml --jobs 2</code>" in page  # a bar per interval
    cells = re.findall("<t[hd]>([^<[]*)", page)
    assert [cell for cell in cells if "±" in cell] and not re.search(r"\*\*|\| ", page.split("<script>")[0])
    host = os.uname().nodename
    for content in (text, page):
        assert str(Path.home()) not in content and str(whole) not in content and (len(host) < 4 or host not in content)


def test_list_says_what_is_done(location, whole, capsys):
    from iel.cli import run

    assert run(["compare", str(location / "smoke.toml"), "--out", str(whole), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.startswith("done") for line in lines)


def test_report_of_run_directories(whole, tmp_path, capsys):
    """Runs made by hand: trained, evaluated, reported together."""
    from iel.cli import run

    runs = sorted(whole.glob("cells/*GCBC*/run"))
    words = ["--planners", "direct", "--episodes", "1", "--tasks", "1", "--no-pictures", "--json"]
    copies = []
    for number, source in enumerate(runs):
        shutil.copytree(source, tmp_path / f"run{number}")
        copies.append(str(tmp_path / f"run{number}"))
        run(["evaluate", copies[-1], *words])
    capsys.readouterr()
    run(["report", *copies, "--out", str(tmp_path / "report"), "--json"])
    result = json.loads(capsys.readouterr().out)
    entry = result["results"]["pointmaze-medium-navigate-v0"]["gcbc/direct"]
    assert set(entry["per_seed"]) == {"0", "1"} and entry["episodes_per_task"] == 1
    assert (tmp_path / "report" / "report.html").exists()


def test_earlier_checkpoints_are_measured_and_drawn(tmp_path, maze_data, drawn, in_this_process):
    table = {
        "environments": [maze_data.name],
        "seeds": [0, 1],
        "protocol": {"episodes": 1, "tasks": [1, 2], "max_steps": 30, "checkpoints": 3},
        "data": {"episodes": 60},
        "methods": [{"algo": "gcbc", "settings": {"preset": "smoke", "steps": 300, "hidden": [8]}}],
    }
    execute(check_grid(table, "curves"), tmp_path / "out", workers=1, quiet=True)
    (entry,) = collect_grid(tmp_path / "out").entries.values()
    assert sorted(entry.curve) == [100, 200] and all(rates.shape == (2, 2) for rates in entry.curve.values())
    _report(tmp_path / "out")
    assert (tmp_path / "out" / "report" / "progress.png").exists() and all(min(axes) > 0 for axes in drawn)
