"""Runs the unfinished cells of a grid: several at a time, each in a process of its own.

DIR/
  grid.json      the grid as it was run, and the fingerprints of its data
  cells/*/       see `iel.compare.cells`
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec

from iel.cluster import Cluster
from iel.compare.cells import Work, missing
from iel.compare.grid import Cell, Grid
from iel.compare.progress import CellProgress
from iel.cores import environment_for, usable_cores
from iel.data import load
from iel.errors import ConfigError, IELError
from iel.evaluation.result import read_record
from iel.files import locked, open_in_place, write_json

POLL_SECONDS = 0.2
PATIENCE = 30.0
"""Seconds a process has to save its state after the signal to stop."""


@dataclass
class Job:
    """A cell, its directory and its state."""

    cell: Cell
    directory: Path
    fingerprint: str
    """Of its data; empty where there is none."""
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    error: str = ""
    sharing: list[Path] = field(default_factory=list)
    """Directories of all cells that train the same policy, this one among them; empty where its geometry matters."""

    @property
    def total_steps(self) -> int:
        return int(self.cell.settings.get("steps", 0))

    @property
    def log(self) -> Path:
        """What its process prints."""
        return self.directory / "log.txt"

    def waits_for(self, running: Sequence[Job], queue: Sequence[Job]) -> bool:
        """Whether another cell has to train a policy first that this one needs."""
        drivers = {self.cell.driver(name).directory(self.fingerprint) for name in self.cell.drivers}
        if any(job.directory.name in drivers for job in (*running, *queue)):
            return True
        there = any((directory / "run" / "policy").is_dir() for directory in self.sharing)
        return not there and any(job.directory in self.sharing for job in running)


def execute(
    grid: Grid,
    out: Path,
    workers: int | None = None,
    quiet: bool = False,
    on_start: Callable[[int], None] = lambda waiting: None,
    cluster: Cluster | None = None,
    only: Sequence[str] = (),
) -> list[Job]:
    """Run all unfinished cells of a grid into `out`; returns every cell with its state.

    `workers` is the number of processes (default: one per core). `only` are patterns (* stands for anything): cells
    whose name matches none of them keep waiting. `on_start` is called with the number of cells to run, once the
    directory is locked. With a `cluster` they run on its nodes, which must see `out` and the data directory under the
    same paths.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--jobs must be at least 1, but is {workers}.")
    wanted = [cell for cell in grid.cells if chosen(cell, only)]
    if not wanted:
        raise ConfigError(f"No cell of the grid '{grid.name}' matches --only {' '.join(only)}; --list names them.")
    with locked(out):
        fingerprints, errors = prepare_data(wanted, quiet)
        if only and (out / "grid.json").exists():
            fingerprints = {**read_recorded(out).data, **fingerprints}
        write_json(out / "grid.json", msgspec.to_builtins(Recorded(grid, fingerprints)))
        jobs = list_jobs(grid, out, fingerprints, errors)
        shown = [job for job in jobs if chosen(job.cell, only)]
        waiting = [job for job in shown if job.state == "waiting"]
        sharing: dict[str, list[Path]] = {}
        for job in jobs:
            if policy := job.cell.policy_fingerprint(job.fingerprint):
                job.sharing = sharing.setdefault(policy, [])
                job.sharing.append(job.directory)
        for job in waiting:
            (job.directory / "evaluations").mkdir(parents=True, exist_ok=True)
            others = tuple(directory.name for directory in job.sharing if directory != job.directory)
            work = Work(job.cell, job.fingerprint, job.cell.seed == grid.seeds[0], others)
            write_json(job.directory / "job.json", msgspec.to_builtins(work))
        on_start(len(waiting))
        with CellProgress(shown, quiet) as progress:
            if cluster is None or not waiting:
                _run(waiting, Here(min(workers or len(usable_cores()), max(len(waiting), 1))), progress)
            else:
                with cluster:
                    _run(waiting, OnCluster(cluster), progress)
    return jobs


def chosen(cell: Cell, only: Sequence[str]) -> bool:
    """Whether a cell's name matches one of these patterns; without patterns every cell does."""
    return not only or any(fnmatchcase(cell.name, pattern) for pattern in only)


def prepare_data(cells: Sequence[Cell], quiet: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """Make or find every data set once: (fingerprints, errors) by environment."""
    fingerprints, errors = {}, {}
    for cell in {cell.env: cell for cell in cells}.values():
        try:
            data = load(cell.env, episodes=cell.data.episodes, seed=cell.data.seed, progress=not quiet)
            fingerprints[cell.env] = data.fingerprint
        except IELError as error:
            errors[cell.env] = str(error)
    return fingerprints, errors


def list_jobs(grid: Grid, out: Path, fingerprints: Mapping[str, str], errors: Mapping[str, str] = {}) -> list[Job]:
    """All cells: done where all results are there, failed where the data could not be had, else waiting."""
    jobs: list[Job] = []
    for cell in grid.cells:
        fingerprint = fingerprints.get(cell.env, "")
        job = Job(cell, out / "cells" / cell.directory(fingerprint), fingerprint)
        if cell.env in errors:
            job.state, job.error = "failed", errors[cell.env]
        elif fingerprint and not missing(job.directory, cell, fingerprint):
            job.state = "done"
        jobs.append(job)
    return jobs


@dataclass(frozen=True)
class Recorded:
    """grid.json: a grid as it was run, so that a report needs nothing else."""

    grid: Grid
    data: dict[str, str]
    """Environment -> fingerprint of its data."""


def read_recorded(out: Path) -> Recorded:
    """The grid of a comparison's directory."""
    return read_record(out / "grid.json", Recorded)


# ---------------------------------------------------------------- processes


def _run(waiting: Sequence[Job], workers: Here | OnCluster, progress: CellProgress) -> None:
    """Run cells in their order, except for those that wait for the policy of another one."""
    queue, running = list(waiting), list[Job]()
    try:
        while queue or running:
            for job in list(queue):
                if job.waits_for(running, [other for other in queue if other is not job]):
                    continue
                if not workers.start(job):
                    break
                queue.remove(job)
                running.append(job)
            for job, code, said in workers.ended():
                running.remove(job)
                _finish(job, code, said)
            progress.update()
    except BaseException:
        workers.stop()
        raise


class Here:
    """Processes of this machine, each with its share of the cores."""

    def __init__(self, workers: int):
        cores = usable_cores()
        self.free = [tuple(cores[worker::workers]) or (cores[worker % len(cores)],) for worker in range(workers)]
        self.running: list[tuple[Job, subprocess.Popen[bytes], tuple[int, ...]]] = []

    def start(self, job: Job) -> bool:
        """Begin a cell; False where all workers are busy."""
        if not self.free:
            return False
        cores = self.free.pop(0)
        (job.directory / "error.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "iel.compare.cells", str(job.directory), ",".join(map(str, cores))]
        with open_in_place(job.log) as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment_for(cores))
        self.running.append((job, process, cores))
        job.state = "running"
        return True

    def ended(self) -> Iterator[tuple[Job, int, str]]:
        """Cells whose processes have ended, with the exit code and the reason where it is not in the log."""
        time.sleep(POLL_SECONDS)
        for job, process, cores in list(self.running):
            if (code := process.poll()) is not None:
                self.running.remove((job, process, cores))
                self.free.append(cores)
                yield job, code, ""

    def stop(self) -> None:
        """End all processes. Ctrl-C in a terminal has reached them already, and a second signal would stop them before
        they have saved, so they get one only if they have not ended after 3 s."""
        for number, seconds in ((0, 3.0), (signal.SIGTERM, PATIENCE), (signal.SIGKILL, PATIENCE)):
            deadline = time.monotonic() + seconds
            alive = [process for _, process, _ in self.running if process.poll() is None]
            for process in alive:
                process.send_signal(number)
            while time.monotonic() < deadline and any(process.poll() is None for process in alive):
                time.sleep(POLL_SECONDS)


class OnCluster:
    """Processes on the nodes of a cluster, which starts them when a node is free; their files say when that is."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.running = cluster, dict[Any, Job]()

    def start(self, job: Job) -> bool:
        for name in ("error.json", "log.txt"):
            (job.directory / name).unlink(missing_ok=True)
        arguments = [str(job.directory.absolute()), "", str(self.cluster.needs.cores)]
        self.running[self.cluster.submit("iel.compare.cells", arguments, log=str(job.log.absolute()))] = job
        return True

    def ended(self) -> Iterator[tuple[Job, int, str]]:
        for ticket in self.cluster.ended(list(self.running), POLL_SECONDS):
            yield self.running.pop(ticket), *self.cluster.result(ticket)
        for job in self.running.values():
            if job.log.exists():  # a node has begun
                job.state = "running"

    def stop(self) -> None:
        self.cluster.stop(list(self.running))


def _finish(job: Job, code: int, said: str) -> None:
    """Record how the process of a cell ended; `said` is the reason where it left no log."""
    if code == 0 and not missing(job.directory, job.cell, job.fingerprint):
        job.state = "done"
        return
    job.state, job.error = "failed", said or _reason(job.log, code)
    write_json(job.directory / "error.json", {"error": job.error, "exit_code": code, "traceback": "log.txt"})


def _reason(log: Path, code: int) -> str:
    if code < 0:
        hint = "; the machine was probably out of memory" if -code == signal.SIGKILL else ""
        return f"The process was ended by {signal.Signals(-code).name}{hint}."
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else f"The process ended with code {code} and said nothing."


def summary_of(jobs: list[Job]) -> dict[str, Any]:
    """How many cells are in which state, and the errors of those that failed, which make the command fail."""
    states = [job.state for job in jobs]
    return {
        "cells": len(jobs),
        **{state: states.count(state) for state in ("done", "failed", "waiting")},
        "errors": {job.cell.name: job.error for job in jobs if job.state == "failed"},
        "exit_code": int("failed" in states),
    }
