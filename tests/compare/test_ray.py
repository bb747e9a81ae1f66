"""A Ray cluster of several node processes here: the bits of `--jobs`, also when a node or the driver dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compare_worlds import TINY
from iel.cluster import Cluster, Needs, address_of
from iel.compare.progress import last_step
from iel.errors import ConfigError
from iel.evaluation.result import read_result
from iel.training.checkpoint import saved_steps

MAZE = "pointmaze-medium-navigate-v0"
GRID = (
    TINY
    + """
[[methods]]
algo = "gcbc"
label = "GCBC"
settings = { steps = STEPS, hidden = [16, 16], batch_size = 16 }
"""
)


def test_where_and_with_what_is_reported_in_words():
    assert address_of("ray=10.0.0.1:6379") == "10.0.0.1:6379"
    for wrong in ("slurm", "ray=", "rays"):
        with pytest.raises(ConfigError, match="say ray, or ray=ADDRESS"):
            Cluster(wrong)
    with pytest.raises(ConfigError, match="at least 1"):
        Cluster("ray", Needs(cores=0))


def test_without_ray_its_name_is_all_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"\.\[ray\]"), Cluster("ray=nowhere:1"):
        pass


@pytest.fixture(scope="module")
def nodes(maze_data):
    """A head without cores and two nodes of one core each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as Simulated

    simulated = Simulated(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    simulated.own = [simulated.add_node(num_cpus=1) for _ in range(2)]
    yield simulated
    simulated.shutdown()


def compare(grid: Path, out: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "iel.cli", "compare", str(grid), "--out", str(out), "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen) -> None:
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["errors"] == {}


def outcome(out: Path) -> dict[str, object]:
    """Weights and scores of every cell."""
    found: dict[str, object] = {}
    for cell in sorted((out / "cells").iterdir()):
        found[cell.name] = (cell / "run" / "model" / "model.safetensors").read_bytes()
        for file in sorted((cell / "evaluations").glob("*.json")):
            found[f"{cell.name} {file.name}"] = read_result(file).episodes
    assert len(found) == 4
    return found


def until(condition, what: str, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def write(tmp_path: Path, steps: int) -> Path:
    (tmp_path / "tiny.toml").write_text(GRID.replace("STEPS", str(steps)))
    return tmp_path / "tiny.toml"


@pytest.mark.long
def test_a_cluster_gives_the_bits_of_jobs_and_a_driver_that_was_killed_goes_on(nodes, tmp_path):
    grid = write(tmp_path, 6000)
    finished(compare(grid, tmp_path / "jobs", "--jobs", "2"))
    on = f"ray={nodes.address}"
    driver = compare(grid, tmp_path / "ray", "--on", on)
    cells = lambda: list((tmp_path / "ray" / "cells").glob("*/run/metrics.csv"))  # noqa: E731
    until(lambda: any(last_step(path) >= 500 for path in cells()), "no cell ever began")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    finished(compare(grid, tmp_path / "ray", "--on", on))
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "jobs")


@pytest.mark.long
def test_a_node_that_is_lost_costs_no_more_than_an_interval(nodes, tmp_path):
    """Its cell is begun again by another process, which goes on from what was saved."""
    grid = write(tmp_path, 40_000)
    finished(compare(grid, tmp_path / "jobs", "--jobs", "2"))
    driver = compare(grid, tmp_path / "ray", "--on", f"ray={nodes.address}")
    runs = lambda: sorted((tmp_path / "ray" / "cells").glob("*/run"))  # noqa: E731
    step = lambda run: last_step(run / "metrics.csv")  # noqa: E731
    until(lambda: len(runs()) == 2 and min(map(step, runs())) >= 300, "the cells never began")
    holders = lambda: {run: (run / ".lock").read_text() for run in runs()}  # noqa: E731
    first, saved = holders(), {run: max(saved_steps(run / "checkpoints")) for run in runs()}
    nodes.remove_node(nodes.own.pop(), allow_graceful=False)
    lowest = {run: step(run) for run in runs()}
    while driver.poll() is None:
        lowest = {run: min(before, step(run)) for run, before in lowest.items()}
        time.sleep(0.05)
    finished(driver)
    again = [run for run, holder in holders().items() if holder != first[run]]
    assert len(again) == 1 and lowest[again[0]] >= saved[again[0]]
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "jobs")
    nodes.own.append(nodes.add_node(num_cpus=1))


@pytest.mark.long
def test_data_made_on_a_cluster_is_the_same_file(nodes, tmp_path):
    made = {}
    for name, options in (("here", ["--workers", "2"]), ("ray", ["--on", f"ray={nodes.address}"])):
        command = [
            sys.executable,
            "-m",
            "iel.cli",
            "data",
            "make",
            MAZE,
            "--episodes",
            "25",
            "--out",
            str(tmp_path / name),
        ]
        subprocess.run([*command, *options, "--json"], check=True, capture_output=True, env=dict(os.environ))
        made[name] = [path.read_bytes() for path in sorted((tmp_path / name).glob("*.npz"))]
    assert len(made["here"]) == 2 and made["here"] == made["ray"]
