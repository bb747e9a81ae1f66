"""`iel compare`."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from iel.commands.common import Flag, Output
from iel.cores import usable_cores
from iel.errors import RunError

if TYPE_CHECKING:
    from rich.table import Table

    from iel.compare.grid import Grid
    from iel.compare.results import Comparison


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Output):
    """Train and evaluate a grid of environments, methods, planners and seeds; goes on where it was stopped."""

    grid: tyro.conf.Positional[str]
    """A TOML file (docs/comparing.md) or a shipped grid: ablation, antmaze, geometries, kitchen, paper-table-2,
    paper-sensitivity, pointmaze."""
    out: Path | None = None
    """Directory of the results (default: runs/compare-GRID-SCALE)."""
    scale: str | None = None
    """One of the grid's scales; those of the package have smoke, laptop (the default) and paper."""
    jobs: int | None = None
    """Cells at a time, each with its share of the cores (default: one per core; use 1 with an accelerator)."""
    on: str | None = None
    """`ray`: cells run on the Ray cluster of $RAY_ADDRESS, or on one started here; `ray=ADDRESS`: on that one
    (docs/scale.md). All nodes must see --out and the data directory under the same paths."""
    cores: int = 1
    """With --on: cores of one cell."""
    memory: float | None = None
    """With --on: gigabytes of memory of one cell (default: not declared)."""
    accelerators: float = 0.0
    """With --on: accelerators of one cell; a fraction lets several cells share one."""
    only: tuple[str, ...] = ()
    """Run only cells whose name, as --list shows it, matches one of these; * stands for anything
    ("antmaze-large-* IEL waypoint seed *")."""
    list: Flag = False
    """Only say which cells there are and which are done."""


def compare_command(options: CompareCommand) -> dict[str, Any]:
    """`iel compare`."""
    from rich.console import Console

    from iel.cluster import Cluster, Needs
    from iel.compare.execute import execute, summary_of
    from iel.compare.grid import read_grid
    from iel.compare.results import collect_grid
    from iel.files import write_json

    grid = read_grid(options.grid, options.scale)
    out = options.out or Path("runs") / f"compare-{grid.name}{f'-{grid.scale}' if grid.scale else ''}"
    if options.list:
        return _list_cells(grid, out, options.only, options.json)
    session = _Session(options, grid, out)
    needs = Needs(options.cores, options.memory, options.accelerators)
    cluster = None if options.on is None else Cluster(options.on, needs)
    jobs = execute(grid, out, options.jobs, options.json, session.begin, cluster, options.only)
    session.end()
    comparison = collect_grid(out)
    result = {"out": str(out), **summary_of(jobs), **comparison.describe()}
    write_json(out / "results.json", comparison.describe())
    if not options.json:
        Console().print(results_table(comparison))
        for cell, error in result["errors"].items():
            print(f"failed: {cell}: {error}")
        print(f"written to {out}; next: iel report {out}")
    return result


def results_table(comparison: Comparison) -> Table:
    """The comparison for a terminal: a row per method and planner, a column per environment."""
    from rich.table import Table

    from iel.compare.tables import cell_text, protocol_text

    table = Table(title=comparison.title, caption=protocol_text(comparison), title_style="bold", caption_justify="left")
    table.add_column("method")
    table.add_column("planner")
    for env in comparison.environments:
        table.add_column(env, justify="right")
    for column in comparison.columns:
        entries = [comparison.entries.get((env, column)) for env in comparison.environments]
        table.add_row(*column, *(cell_text(entry, float("inf"), with_interval=True) for entry in entries))
    return table


def _list_cells(grid: Grid, out: Path, only: tuple[str, ...], quiet: bool) -> dict[str, Any]:
    """What would be run, without running anything."""
    from iel.compare.execute import chosen, list_jobs, read_recorded, summary_of

    try:
        fingerprints = read_recorded(out).data
    except RunError:
        fingerprints = {}
    jobs = [job for job in list_jobs(grid, out, fingerprints) if chosen(job.cell, only)]
    if not quiet:
        for job in jobs:
            labels = ", ".join(variant.label for variant in job.cell.planners)
            print(f"{job.state:8} {job.cell.name}: {job.total_steps:,} steps; {labels}")
    return {"out": str(out), **summary_of(jobs), "list": [job.cell.name for job in jobs]}


class _Session:
    """The command and its duration, kept beside the results; a killed session keeps its line without a time."""

    def __init__(self, options: CompareCommand, grid: Grid, out: Path):
        source = str(options.grid) if not str(options.grid).endswith(".toml") else Path(options.grid).name
        words = ["iel compare", source, *([f"--scale {grid.scale}"] if grid.scale else [])]
        words += [f"--jobs {options.jobs}"] if options.jobs else []
        words += ["--only", *map(shlex.quote, options.only)] if options.only else []
        words += ["--on ray"] if options.on else []
        self.path, self.started = out / "sessions.json", time.monotonic()
        self.facts: dict[str, Any] = {"command": " ".join(words), "jobs": options.jobs or len(usable_cores())}

    def begin(self, waiting: int) -> None:
        """So many cells will be run; a command that is refused leaves no line."""
        from iel.loader import read_json

        self.before = read_json(self.path)["sessions"] if self.path.exists() else []
        self.facts["ran"] = waiting
        self._write(None)

    def end(self) -> None:
        self._write(round(time.monotonic() - self.started, 1))

    def _write(self, seconds: float | None) -> None:
        from iel.files import write_json

        write_json(self.path, {"sessions": [*self.before, {**self.facts, "seconds": seconds}]})
