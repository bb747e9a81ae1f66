"""How far the cells of a comparison are, on stderr like every progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from iel.errors import RunError
from iel.loader import read_json
from iel.progress import Progress

if TYPE_CHECKING:
    from iel.compare.execute import Job

REFRESH_SECONDS = 1.0
TRAINING_SHARE = 0.8
"""How much of a cell's work its training counts for; the rest is its evaluation."""


class CellProgress:
    """`with CellProgress(jobs) as shown: shown.update()`: a bar over the steps of all cells, and a line for each cell
    that begins or ends."""

    def __init__(self, jobs: list[Job], quiet: bool = False):
        self.jobs, self.bar = jobs, Progress("compare", sum(job.total_steps for job in jobs), show=not quiet)
        self._states = {job.cell.name: job.state for job in jobs}
        self._looked = 0.0

    def __enter__(self) -> CellProgress:
        self.bar.__enter__()
        self.bar.line(f"{len(self.jobs)} cells, {sum(job.state == 'done' for job in self.jobs)} already finished")
        for job in self.jobs:
            if job.state == "failed":
                self.bar.line(f"failed: {job.cell.name}: {job.error}")
        self._advance(usual=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.update()
        self._advance()
        self.bar.__exit__(None)

    def update(self) -> None:
        """Show what changed."""
        for job in self.jobs:
            if job.state != self._states[job.cell.name]:
                self._states[job.cell.name] = job.state
                self.bar.line(f"{job.state}: {job.cell.name} {job.error}".rstrip())
        if time.monotonic() - self._looked >= REFRESH_SECONDS:
            self._advance()

    def _advance(self, usual: bool = True) -> None:
        self._looked, stages = time.monotonic(), [(job, *stage_of(job)) for job in self.jobs]
        done = round(sum(share * job.total_steps for job, _, share in stages))
        running = [f"{job.cell.name} {stage}" for job, stage, _ in stages if job.state == "running"]
        self.bar.advance(done - self.bar.done, "; ".join(running), usual)


def stage_of(job: Job) -> tuple[str, float]:
    """(what a cell is doing, the share of its work that is done), read from the files it writes."""
    if job.state != "running":
        return job.state, float(job.state in ("done", "failed"))
    run, planners = job.directory / "run", len(job.cell.planners)
    try:
        if read_json(run / "config.json").get("status") == "finished":
            evaluated = len(list((job.directory / "evaluations").glob("*.json")))
            share = TRAINING_SHARE + (1 - TRAINING_SHARE) * evaluated / planners
            return f"evaluating {min(evaluated + 1, planners)}/{planners}", share
    except RunError:
        return "starting", 0.0
    step = last_step(run / "metrics.csv")
    return f"step {step:,}/{job.total_steps:,}", TRAINING_SHARE * step / max(job.total_steps, 1)


def last_step(metrics: Path) -> int:
    """The step of the last whole line of a metrics file; 0 where there is none."""
    try:
        lines = metrics.read_text().split("\n")[1:-1]
        return int(lines[-1].split(",")[0]) if lines else 0
    except (OSError, ValueError):
        return 0
