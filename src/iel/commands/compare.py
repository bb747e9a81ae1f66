"""`iel compare`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from iel.compare.execute import execute, list_tasks, read_recorded, summary_of
from iel.compare.grid import Grid, read_grid
from iel.compare.results import Comparison, collect_grid
from iel.compare.tables import cell_text, protocol_text
from iel.cores import usable_cores
from iel.errors import RunError
from iel.files import write_json
from iel.loader import read_json
from iel.options import CompareCommand


def compare_command(options: CompareCommand) -> dict[str, Any]:
    """`iel compare`."""
    grid = read_grid(options.grid, options.scale)
    out = options.out or Path("runs") / f"compare-{grid.name}{f'-{grid.scale}' if grid.scale else ''}"
    if options.list:
        return _list_cells(grid, out, options.json)
    session = _Session(options, grid, out)
    tasks = execute(grid, out, options.jobs, quiet=options.json, on_start=session.begin)
    session.end()
    comparison = collect_grid(out)
    result = {"out": str(out), **summary_of(tasks), **comparison.describe()}
    write_json(out / "results.json", comparison.describe())
    if not options.json:
        Console().print(results_table(comparison))
        for cell, error in result["errors"].items():
            print(f"failed: {cell}: {error}")
        print(f"written to {out}; next: iel report {out}")
    return result


def results_table(comparison: Comparison) -> Table:
    """The comparison for a terminal: a row a method and planner, a column an environment."""
    table = Table(title=comparison.title, caption=protocol_text(comparison), title_style="bold", caption_justify="left")
    table.add_column("method")
    table.add_column("planner")
    for env in comparison.environments:
        table.add_column(env, justify="right")
    for column in comparison.columns:
        entries = [comparison.entries.get((env, column)) for env in comparison.environments]
        table.add_row(*column, *(cell_text(entry, float("inf"), with_interval=True) for entry in entries))
    return table


def _list_cells(grid: Grid, out: Path, quiet: bool) -> dict[str, Any]:
    """What would be run, without running anything."""
    try:
        fingerprints = read_recorded(out)[1]
    except RunError:
        fingerprints = {}
    tasks = list_tasks(grid, out, fingerprints)
    if not quiet:
        for task in tasks:
            labels = ", ".join(variant.label for variant in task.cell.planners)
            print(f"{task.state:8} {task.cell.name}: {task.total_steps:,} steps; {labels}")
    return {"out": str(out), **summary_of(tasks), "list": [task.cell.name for task in tasks]}


class _Session:
    """The command and its duration, kept beside the results; a killed session keeps its line without a time."""

    def __init__(self, options: CompareCommand, grid: Grid, out: Path):
        source = str(options.grid) if not str(options.grid).endswith(".toml") else Path(options.grid).name
        words = ["iel compare", source, *([f"--scale {grid.scale}"] if grid.scale else [])]
        words += [f"--jobs {options.jobs}"] if options.jobs else []
        self.path, self.started = out / "sessions.json", time.monotonic()
        self.facts: dict[str, Any] = {"command": " ".join(words), "jobs": options.jobs or len(usable_cores())}

    def begin(self, waiting: int) -> None:
        """So many cells will be run; a command that is refused leaves no line."""
        self.before = read_json(self.path)["sessions"] if self.path.exists() else []
        self.facts["ran"] = waiting
        self._write(None)

    def end(self) -> None:
        self._write(round(time.monotonic() - self.started, 1))

    def _write(self, seconds: float | None) -> None:
        write_json(self.path, {"sessions": [*self.before, {**self.facts, "seconds": seconds}]})
