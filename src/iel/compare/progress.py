"""The live table of a comparison: how far every cell is, and when all will be done. On stderr, like every progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from iel.errors import RunError
from iel.loader import read_json
from iel.progress import STDERR, clock

if TYPE_CHECKING:
    from iel.compare.execute import Job

REFRESH_SECONDS = 1.0
QUIET_SECONDS = 60.0
ROWS = 24
FORETELLS = 0.1
"""From this share of its work on, a running cell says how long its method takes."""
MARKS = {"running": "[cyan]running[/]", "failed": "[red]failed[/]", "waiting": "waiting", "done": "[green]done[/]"}
"""States in the order of the table."""


class Board:
    """`with Board(jobs, lanes) as board: board.update()`: a table in a terminal, plain lines elsewhere."""

    def __init__(self, jobs: list[Job], lanes: int, quiet: bool = False):
        self.jobs, self.lanes, self.quiet = jobs, lanes, quiet
        console = Console(file=STDERR)  # type: ignore[arg-type]
        self.live = None if quiet or not console.is_terminal else Live(console=console, auto_refresh=False)
        self._drawn = 0.0
        self._told = {job.cell.name: job.state for job in jobs}

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        done = sum(job.state == "done" for job in self.jobs)
        self._say(f"{len(self.jobs)} cells, {done} already finished")
        for job in self.jobs:
            if job.state == "failed":
                self._say(f"failed: {job.cell.name}: {job.error}")
        return self

    def __exit__(self, *error: object) -> None:
        self._drawn = 0.0
        self.update()
        if self.live:
            self.live.stop()

    def update(self) -> None:
        """Show what changed."""
        now = time.monotonic()
        if self.live and now - self._drawn > REFRESH_SECONDS:
            self._drawn = now
            self.live.update(self._table(), refresh=True)
        if self.live or self.quiet:
            return
        for job in self.jobs:
            if job.state != self._told[job.cell.name]:
                self._told[job.cell.name], self._drawn = job.state, now
                self._say(f"{job.state}: {job.cell.name} {job.error}".rstrip() + f"  ({self._left()})")
        if now - self._drawn > QUIET_SECONDS:
            self._drawn = now
            running = [f"{job.cell.name} {stage_of(job)[0]}" for job in self.jobs if job.state == "running"]
            if running:
                self._say("; ".join(running) + f"  ({self._left()})")

    def _say(self, line: str) -> None:
        if not self.live and not self.quiet:
            print(f"compare: {line}", file=STDERR, flush=True)

    def _table(self) -> Group:
        table = Table(title="comparison", title_style="bold", expand=False)
        for column in ("environment", "method", "seed", "state", "stage", "time"):
            table.add_column(column, justify="right" if column in ("seed", "time") else "left")
        shown = sorted(self.jobs, key=lambda job: list(MARKS).index(job.state))
        for job in shown[:ROWS]:
            running = job.state == "running"
            stage = stage_of(job)[0] if running else job.error[:60]
            took = clock(time.monotonic() - job.started if running else job.seconds)
            table.add_row(job.cell.env, job.cell.method, str(job.cell.seed), MARKS[job.state], stage, took)
        more = f"and {len(shown) - ROWS} more; " if len(shown) > ROWS else ""
        return Group(table, f"{more}{self._left()}")

    def _left(self) -> str:
        """Done so far and a guess at the rest: cells of one method take the same time, others the mean of those known.

        Finished cells say what their method takes, and those under way foretell it.
        """
        done = [job for job in self.jobs if job.state == "done"]
        pending = [job for job in self.jobs if job.state in ("running", "waiting")]
        shares = {job.cell.name: stage_of(job)[1] for job in pending if job.state == "running"}
        now, takes = time.monotonic(), {}
        for job in pending:
            if (share := shares.get(job.cell.name, 0.0)) >= FORETELLS:
                takes[job.cell.method] = (now - job.started) / share
        takes |= {job.cell.method: job.seconds for job in done if job.seconds > 0}
        text = f"{len(done)}/{len(self.jobs)} cells"
        if not pending or not takes:
            return text
        mean = sum(takes.values()) / len(takes)
        work = sum(takes.get(job.cell.method, mean) * (1 - shares.get(job.cell.name, 0.0)) for job in pending)
        return f"{text}, about {clock(work / min(self.lanes, len(pending)))} left"


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
