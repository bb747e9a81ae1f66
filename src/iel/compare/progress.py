"""The live table of a comparison: how far every cell is, and when all will be done. On stderr, like every progress."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from iel.errors import RunError
from iel.files import STDERR
from iel.loader import read_json

if TYPE_CHECKING:
    from iel.compare.execute import Task

REFRESH_SECONDS = 1.0
QUIET_SECONDS = 60.0
ROWS = 24
MARKS = {"done": "[green]done[/]", "failed": "[red]failed[/]", "running": "[cyan]running[/]", "waiting": "waiting"}


class Board:
    """`with Board(tasks, jobs) as board: board.update()`: a table in a terminal, plain lines elsewhere."""

    def __init__(self, tasks: list[Task], lanes: int, quiet: bool = False):
        self.tasks, self.lanes, self.quiet = tasks, lanes, quiet
        self.console = Console(file=STDERR)  # type: ignore[arg-type]
        self.live = None if quiet or not self.console.is_terminal else Live(console=self.console, auto_refresh=False)
        self.started, self._drawn = time.monotonic(), 0.0
        self._told = {task.cell.name: task.state for task in tasks}

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        elif not self.quiet:
            done = sum(task.state == "done" for task in self.tasks)
            self._say(f"{len(self.tasks)} cells, {done} already finished")
            for task in self.tasks:
                if task.state == "failed":
                    self._say(f"failed: {task.cell.name}: {task.error}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.update(force=True)
        if self.live:
            self.live.stop()

    def update(self, force: bool = False) -> None:
        """Show what changed."""
        now = time.monotonic()
        if self.live and (force or now - self._drawn > REFRESH_SECONDS):
            self._drawn = now
            self.live.update(self._table(), refresh=True)
        elif not self.live and not self.quiet:
            for task in self.tasks:
                if task.state != self._told[task.cell.name]:
                    self._told[task.cell.name], self._drawn = task.state, now
                    self._say(f"{task.state}: {task.cell.name} {task.error}".rstrip() + f"  ({self._left()})")
            if now - self._drawn > QUIET_SECONDS:
                self._drawn = now
                running = [task for task in self.tasks if task.state == "running"]
                self._say(
                    "; ".join(f"{task.cell.name} {stage_of(task)[0]}" for task in running) + f"  ({self._left()})"
                )

    def _say(self, line: str) -> None:
        print(f"compare: {line}", file=STDERR, flush=True)

    def _table(self) -> Group:
        table = Table(title="comparison", title_style="bold", expand=False)
        for column in ("environment", "method", "seed", "state", "stage", "time"):
            table.add_column(column, justify="right" if column in ("seed", "time") else "left")
        order = {"running": 0, "failed": 1, "waiting": 2, "done": 3}
        shown = sorted(self.tasks, key=lambda task: order[task.state])
        for task in shown[:ROWS]:
            stage = stage_of(task)[0] if task.state == "running" else task.error[:60]
            seconds = time.monotonic() - task.started if task.state == "running" else task.seconds
            table.add_row(
                task.cell.env, task.cell.method, str(task.cell.seed), MARKS[task.state], stage, clock(seconds)
            )
        hidden = len(shown) - ROWS
        more = f"and {hidden} more; " if hidden > 0 else ""
        return Group(table, Text(f"{more}{self._left()}"))

    def _left(self) -> str:
        """Done so far and a guess at the rest: cells of one method take the same time."""
        done = [task for task in self.tasks if task.state == "done"]
        timed = [task for task in done if task.seconds > 0]
        text = f"{len(done)}/{len(self.tasks)} cells"
        pending = [task for task in self.tasks if task.state in ("running", "waiting")]
        if not pending or not timed:
            return text
        mean = sum(task.seconds for task in timed) / len(timed)
        own = {task.cell.method: task.seconds for task in timed}
        work = sum(
            own.get(t.cell.method, mean) * (1 - (stage_of(t)[1] if t.state == "running" else 0)) for t in pending
        )
        return f"{text}, about {clock(work / min(self.lanes, len(pending)))} left"


def stage_of(task: Task) -> tuple[str, float]:
    """(what a running cell is doing, the share of its work that is done), read from the files it writes."""
    evaluated = len(list((task.directory / "evaluations").glob("*.json")))
    run = task.directory / "run"
    try:
        if read_json(run / "config.json").get("status") == "finished":
            number = min(evaluated + 1, len(task.cell.planners))
            share = 0.8 + 0.2 * evaluated / len(task.cell.planners)
            return f"evaluating {number}/{len(task.cell.planners)}", share
    except RunError:
        return "starting", 0.0
    step = last_step(run / "metrics.csv")
    return f"step {step:,}/{task.total_steps:,}", 0.8 * step / max(task.total_steps, 1)


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


def clock(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 1:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
