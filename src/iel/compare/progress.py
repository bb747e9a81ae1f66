"""How far the cells of a comparison are, and when all will be done. On stderr, like every progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from iel.errors import RunError
from iel.loader import read_json
from iel.progress import STDERR, clock

if TYPE_CHECKING:
    from iel.compare.execute import Job

REFRESH_SECONDS, QUIET_SECONDS = 1.0, 60.0
"""How often bars move, and how often those under way are named where there is no terminal."""
PREDICTS_FROM = 0.1
"""From this share of its work on, a running cell says how long its method takes."""


class ProgressTable:
    """`with ProgressTable(jobs, workers) as board: board.update()`: a line for each cell that begins or ends,
    and in a terminal a bar for each one under way."""

    def __init__(self, jobs: list[Job], workers: int, quiet: bool = False):
        self.jobs, self.workers, self.quiet = jobs, workers, quiet
        console = Console(file=STDERR, highlight=False, markup=False)  # type: ignore[arg-type]
        columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[stage]}")
        self.bars = Progress(*columns, TimeElapsedColumn(), console=console, disable=quiet or not console.is_terminal)
        self.whole = self.bars.add_task("all cells", total=len(jobs), stage="")
        self._running: dict[str, TaskID] = {}
        self._states, self._looked = {job.cell.name: job.state for job in jobs}, 0.0

    def __enter__(self) -> ProgressTable:
        self.bars.start()
        self._say(f"{len(self.jobs)} cells, {sum(job.state == 'done' for job in self.jobs)} already finished")
        for job in self.jobs:
            if job.state == "failed":
                self._say(f"failed: {job.cell.name}: {job.error}")
        return self

    def __exit__(self, *error: object) -> None:
        self._looked = 0.0
        self.update()
        self.bars.stop()

    def update(self) -> None:
        """Show what changed."""
        for job in self.jobs:
            name = job.cell.name
            if job.state != self._states[name]:
                self._states[name] = job.state
                self._say(f"{job.state}: {name} {job.error}".rstrip() + f"  ({self._left()})")
                if job.state == "running":
                    self._running[name] = self.bars.add_task(name, total=1.0, stage="")
                elif name in self._running:
                    self.bars.remove_task(self._running.pop(name))
        if time.monotonic() - self._looked < (QUIET_SECONDS if self.bars.disable else REFRESH_SECONDS):
            return
        self._looked = time.monotonic()
        stages = {job.cell.name: stage_of(job) for job in self.jobs if job.cell.name in self._running}
        for name, (stage, share) in stages.items():
            self.bars.update(self._running[name], completed=share, stage=stage)
        self.bars.update(self.whole, completed=list(self._states.values()).count("done"), stage=self._left())
        if stages and self.bars.disable:
            self._say("; ".join(f"{name} {stage}" for name, (stage, _) in stages.items()) + f"  ({self._left()})")

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.bars.console.print(f"compare: {line}", soft_wrap=True)

    def _left(self) -> str:
        """Done so far and a guess at the rest: cells of one method take the same time, others the mean of those known.

        Finished cells say what their method takes, and those under way foretell it.
        """
        done = [job for job in self.jobs if job.state == "done"]
        pending = [job for job in self.jobs if job.state in ("running", "waiting")]
        shares = {job.cell.name: stage_of(job)[1] for job in pending if job.state == "running"}
        now, takes = time.monotonic(), {}
        for job in pending:
            if (share := shares.get(job.cell.name, 0.0)) >= PREDICTS_FROM:
                takes[job.cell.method] = (now - job.started) / share
        takes |= {job.cell.method: job.seconds for job in done if job.seconds > 0}
        text = f"{len(done)}/{len(self.jobs)} cells"
        if not pending or not takes:
            return text
        mean = sum(takes.values()) / len(takes)
        work = sum(takes.get(job.cell.method, mean) * (1 - shares.get(job.cell.name, 0.0)) for job in pending)
        return f"{text}, about {clock(work / min(self.workers, len(pending)))} left"


def stage_of(job: Job) -> tuple[str, float]:
    """(what a running cell is doing, the share of its work that is done), read from the files it writes."""
    run, planners = job.directory / "run", len(job.cell.planners)
    try:
        if read_json(run / "config.json").get("status") == "finished":
            evaluated = len(list((job.directory / "evaluations").glob("*.json")))
            return f"evaluating {min(evaluated + 1, planners)}/{planners}", 0.8 + 0.2 * evaluated / planners
    except RunError:
        return "starting", 0.0
    step = last_step(run / "metrics.csv")
    return f"step {step:,}/{job.total_steps:,}", 0.8 * step / max(job.total_steps, 1)


def last_step(metrics: Path) -> int:
    """The step of the last whole line of a metrics file."""
    try:
        with metrics.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - 400, 0))
            lines = file.read().decode(errors="replace").split("\n")[1:-1]
        return int(lines[-1].split(",")[0]) if lines else 0
    except (OSError, ValueError):
        return 0
