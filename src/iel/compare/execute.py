"""Runs the cells of a grid: several at a time, each in a process of its own, and only what is not finished.

DIR/
  grid.json      the grid as it was run, and the fingerprints of its data
  cells/*/       see `iel.compare.cells`
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from iel.cluster import Cluster
from iel.compare.cells import Work, missing, write_job
from iel.compare.grid import Cell, Grid
from iel.compare.progress import Board
from iel.cores import environment_for, usable_cores
from iel.data import load
from iel.errors import ConfigError, IELError, RunError
from iel.evaluation.result import read_record
from iel.files import locked, open_in_place, write_json

FORMAT = 2
POLL_SECONDS = 0.2
PATIENCE = 30.0
"""Seconds a process has to save its state after it was asked to stop."""


@dataclass
class Job:
    """A cell, where it lives, and what became of it."""

    cell: Cell
    directory: Path
    fingerprint: str
    """Of its data; empty where there is none."""
    state: str = "waiting"
    """waiting, running, done, failed"""
    error: str = ""
    started: float = 0.0
    seconds: float = 0.0
    process: subprocess.Popen | None = field(default=None, repr=False)
    log: BinaryIO | None = field(default=None, repr=False)
    cores: tuple[int, ...] = ()

    @property
    def total_steps(self) -> int:
        return int(self.cell.settings.get("steps", 0))


def execute(
    grid: Grid,
    out: Path,
    lanes: int | None = None,
    quiet: bool = False,
    on_start: Callable[[int], None] = lambda waiting: None,
    cluster: Cluster | None = None,
    only: Sequence[str] = (),
) -> list[Job]:
    """Run all unfinished cells of a grid into `out`; returns every cell with its state.

    `only` are patterns (* stands for anything): cells whose name matches none of them keep waiting.
    `on_start` is told how many cells will be run, once nobody else is running them. With a `cluster` they run on its
    nodes, which must see `out` and the data directory under the same paths.
    """
    if lanes is not None and lanes < 1:
        raise ConfigError(f"--jobs must be at least 1, but is {lanes}.")
    wanted = [cell for cell in grid.cells if chosen(cell, only)]
    if not wanted:
        raise ConfigError(f"No cell of the grid '{grid.name}' matches --only {' '.join(only)}; --list names them.")
    with locked(out):
        fingerprints, errors = prepare_data(wanted, quiet)
        if only and (out / "grid.json").exists():
            fingerprints = {**read_recorded(out).data, **fingerprints}
        write_json(out / "grid.json", asdict(Recorded(grid, fingerprints)))
        jobs = list_jobs(grid, out, fingerprints, errors)
        shown = [job for job in jobs if chosen(job.cell, only)]
        waiting = [job for job in shown if job.state == "waiting"]
        for job in waiting:
            write_job(job.directory, Work(job.cell, job.fingerprint, draw=job.cell.seed == grid.seeds[0]))
        on_start(len(waiting))
        # Those that are driven by the policy of another cell come after all others.
        waves = [[job for job in waiting if bool(job.cell.drivers) == driven] for driven in (False, True)]
        if cluster is not None and waiting:
            with cluster, Board(shown, cluster.places, quiet) as board:
                for wave in waves:
                    _run_on(cluster, wave, board)
            return jobs
        lanes = min(lanes or len(usable_cores()), max(len(waiting), 1))
        with Board(shown, lanes, quiet) as board:
            for wave in waves:
                _run(wave, _shares(lanes), board)
    return jobs


def chosen(cell: Cell, only: Sequence[str]) -> bool:
    """Whether a cell's name matches one of these patterns; without patterns every cell does."""
    return not only or any(fnmatchcase(cell.name, pattern) for pattern in only)


def prepare_data(cells: Sequence[Cell], quiet: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """Every data set, made or found once: (fingerprints, reasons why there is none) by environment."""
    fingerprints, errors = {}, {}
    for cell in {cell.env: cell for cell in cells}.values():
        try:
            data = load(cell.env, episodes=cell.data.episodes, seed=cell.data.seed, progress=not quiet)
            fingerprints[cell.env] = data.fingerprint
        except IELError as error:
            errors[cell.env] = str(error)
    return fingerprints, errors


def list_jobs(
    grid: Grid, out: Path, fingerprints: Mapping[str, str], errors: Mapping[str, str] | None = None
) -> list[Job]:
    """All cells with what is known of them: finished ones by their results, others waiting."""
    jobs = []
    for cell in grid.cells:
        fingerprint = fingerprints.get(cell.env, "")
        job = Job(cell, out / "cells" / cell.directory(fingerprint), fingerprint)
        if cell.env in (errors or {}):
            job.state, job.error = "failed", (errors or {})[cell.env]
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
    format: int = FORMAT


def read_recorded(out: Path) -> Recorded:
    """The grid of a comparison's directory."""
    recorded = read_record(out / "grid.json", Recorded)
    if recorded.format != FORMAT:
        raise RunError(f"{out} has comparison format {recorded.format}, but this version reads {FORMAT}.")
    return recorded


# ---------------------------------------------------------------- processes


def _run(waiting: list[Job], shares: list[tuple[int, ...]], board: Board) -> None:
    queue, free = list(waiting), list(shares)
    running: list[Job] = []
    try:
        while queue or running:
            while queue and free:
                job = queue.pop(0)
                job.cores = free.pop(0)
                _start(job)
                running.append(job)
            time.sleep(POLL_SECONDS)
            for job in [job for job in running if job.process and job.process.poll() is not None]:
                running.remove(job)
                free.append(job.cores)
                assert job.process is not None and job.log is not None
                job.log.close()
                _finish(job, job.process.returncode)
            board.update()
    except BaseException:
        _stop(running)
        raise


def _start(job: Job) -> None:
    (job.directory / "error.json").unlink(missing_ok=True)
    job.log = open_in_place(_log(job))
    command = [sys.executable, "-m", "iel.compare.worker", str(job.directory), ",".join(map(str, job.cores))]
    job.process = subprocess.Popen(command, stdout=job.log, stderr=subprocess.STDOUT, env=environment_for(job.cores))
    job.state, job.started = "running", time.monotonic()


def _run_on(cluster: Cluster, waiting: list[Job], board: Board) -> None:
    """Hand all cells to a cluster, and watch the files they write."""
    for job in waiting:
        for name in ("error.json", "log.txt"):
            (job.directory / name).unlink(missing_ok=True)
    running = {
        cluster.submit("iel.compare.worker", [str(job.directory.absolute())], log=str(_log(job).absolute())): job
        for job in waiting
    }
    try:
        while running:
            for ticket in cluster.ended(list(running), POLL_SECONDS):
                job = running.pop(ticket)
                end = cluster.result(ticket)
                _finish(job, end.code, end.said)
            for job in running.values():
                if job.state == "waiting" and _log(job).exists():  # a node has begun
                    job.state, job.started = "running", time.monotonic()
            board.update()
    except BaseException:
        cluster.stop(list(running))
        raise


def _log(job: Job) -> Path:
    return job.directory / "log.txt"


def _finish(job: Job, code: int, said: str = "") -> None:
    """Note how the process of a cell ended; `said` is the reason where it left no log."""
    job.seconds = time.monotonic() - job.started if job.started else 0.0
    if code == 0 and not missing(job.directory, job.cell, job.fingerprint):
        job.state = "done"
        return
    job.state, job.error = "failed", said or _reason(_log(job), code)
    write_json(job.directory / "error.json", {"error": job.error, "exit_code": code, "traceback": "log.txt"})


def _reason(log: Path, code: int) -> str:
    if code < 0:
        hint = "; the machine was probably out of memory" if -code == signal.SIGKILL else ""
        return f"The process was ended by {signal.Signals(-code).name}{hint}."
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else f"The process ended with code {code} and said nothing."


def _stop(running: list[Job]) -> None:
    """Let every process save its state. Ctrl-C in a terminal has reached them already, and a second signal would stop
    them at once, so they are asked again only when they do not end by themselves.
    """
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + (3.0 if ask is None else PATIENCE)
        for job in running:
            if ask is not None and job.process and job.process.poll() is None:
                job.process.send_signal(ask)
        while time.monotonic() < deadline and any(t.process and t.process.poll() is None for t in running):
            time.sleep(POLL_SECONDS)
    for job in running:
        if job.log:
            job.log.close()


def _shares(lanes: int) -> list[tuple[int, ...]]:
    """The cores this process may use, dealt out to `lanes` processes."""
    cores = usable_cores()
    return [tuple(cores[lane::lanes]) or (cores[lane % len(cores)],) for lane in range(lanes)]


def summary_of(jobs: list[Job]) -> dict[str, Any]:
    """How many cells are in which state, and the errors of those that failed, which make the command fail."""
    states = [job.state for job in jobs]
    return {
        "cells": len(jobs),
        **{state: states.count(state) for state in ("done", "failed", "waiting")},
        "errors": {job.cell.name: job.error for job in jobs if job.state == "failed"},
        "exit_code": int("failed" in states),
    }
