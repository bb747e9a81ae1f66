"""Which files and functions of src/iel one piece of work passes, in the order of their first call.

    python scripts/trace.py batch      iel.load + iel.train in memory: IEL, preset smoke, 8 steps, an npz file
    python scripts/trace.py goal       build a planner with 64 nodes, prepare a goal, act once
    python scripts/trace.py request    POST /v1/act with a new goal; the planner is built already
    python scripts/trace.py cell       one cell of a grid: read the grid, run it, train and evaluate, make the table

`changes` counts how often the next new function is in another file: what a reader who follows the work has to open.
With --json one object is printed. The walks are measured with `sys.setprofile`; data and models are made before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import iel

SOURCE = Path(iel.__file__).parent
STEPS, NODES = 8, 64
MAZE = "pointmaze-medium-navigate-v0"
GRID = f"""
environments = ["{MAZE}"]
protocol = {{ episodes = 1, tasks = [1], max_steps = 20 }}
data = {{ episodes = 3 }}

[[methods]]
algo = "iel"
settings = {{ preset = "smoke", steps = {STEPS}, hidden = [16], batch_size = 16 }}
"""


class Walk:
    """Functions of src/iel in the order of their first call."""

    def __init__(self) -> None:
        self.path: list[tuple[str, str]] = []
        self._seen: set[Any] = set()
        self._on = False
        threading.setprofile(self._event)  # threads that are started from now on

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Record what is called meanwhile, here and in those threads."""
        self._on = True
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._on = False

    def _event(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if not self._on or event != "call" or code in self._seen or code.co_name == "<module>":
            return
        self._seen.add(code)
        file = Path(code.co_filename)
        if file.is_relative_to(SOURCE):
            self.path.append((str(file.relative_to(SOURCE)), code.co_qualname))

    def summary(self) -> dict[str, Any]:
        """How many files, functions and changes of file, and the path itself."""
        files = [file for file, _ in self.path]
        changes = sum(one != other for one, other in itertools.pairwise(files))
        return {"files": len(set(files)), "functions": len(files), "changes": changes, "path": self.path}


def _data(location: Path) -> Path:
    """Eight episodes of a point that wanders in the plane, as an npz file."""
    generator = np.random.default_rng(0)
    steps = generator.uniform(-1, 1, (8, 60, 2)).astype(np.float32)
    states = np.concatenate([np.zeros((8, 1, 2), np.float32), np.cumsum(steps, axis=1)], axis=1)
    from iel.data import Trajectories

    Trajectories.from_episodes(list(zip(states, steps, strict=True)), "wander").save(location / "wander.npz")
    return location / "wander.npz"


def _smoke() -> Any:
    return iel.IEL.preset("smoke", steps=STEPS, hidden=(16,), batch_size=16)


def batch(location: Path, walk: Walk) -> None:
    load, train = iel.load, iel.train  # imports what they need
    file, method = _data(location), _smoke()
    with walk.traced():
        train(load(file), method, progress=False)


def goal(location: Path, walk: Walk) -> None:
    from iel.planning import make_planner

    data = iel.load(_data(location))
    model = iel.train(data, _smoke(), progress=False).model
    state, wanted = data.observations[0], data.observations[40]
    with walk.traced():
        planner = make_planner("asym-graph", model, data, nodes=NODES)
        planner.prepare(wanted)
        planner.act(state)


def request(location: Path, walk: Walk) -> None:
    from starlette.testclient import TestClient

    from iel.serving.app import create_app
    from iel.serving.engine import open_served

    file = _data(location)
    iel.train(iel.load(file), _smoke(), out=location / "run", progress=False)
    data = iel.load(file)
    call = {"observations": data.observations[:1].tolist(), "goals": data.observations[40:41].tolist()}
    with TestClient(create_app(open_served(location / "run")), base_url="http://127.0.0.1") as client:
        with walk.traced():
            answer = client.post("/v1/act", json=call)
        answer.raise_for_status()


def cell(location: Path, walk: Walk) -> None:
    from iel.compare.cells import run_cell
    from iel.compare.execute import execute
    from iel.compare.grid import read_grid
    from iel.compare.results import collect_grid
    from iel.compare.tables import markdown

    (location / "grid.toml").write_text(GRID)
    iel.load(MAZE, episodes=3, progress=False)
    with walk.traced():
        (job,) = execute(read_grid(location / "grid.toml"), location / "out", quiet=True)
    assert job.state == "done", job.error
    for name in ("run", "evaluations"):  # and once more here, where the worker's own work can be seen
        shutil.rmtree(job.directory / name)
    (job.directory / "evaluations").mkdir()
    with walk.traced():
        run_cell(job.directory)
        markdown(collect_grid(location / "out"), {})


WALKS: dict[str, Callable[[Path, Walk], None]] = {"batch": batch, "goal": goal, "request": request, "cell": cell}


def trace(name: str) -> dict[str, Any]:
    """What one of WALKS passes; its data and results are in a directory of its own and are removed."""
    walk = Walk()
    with tempfile.TemporaryDirectory() as location:
        os.environ["IEL_DATA"] = str(Path(location) / "data")
        try:
            WALKS[name](Path(location), walk)
        finally:
            threading.setprofile(None)
    return walk.summary()


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walk", choices=WALKS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(words)
    found = trace(options.walk)
    if options.json:
        print(json.dumps(found))
        return
    last = ""
    for file, function in found["path"]:
        print(f"{file if file != last else '':32} {function}")
        last = file
    print("{files} files, {functions} functions, {changes} changes of file".format(**found))


if __name__ == "__main__":
    main()
