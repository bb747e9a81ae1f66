"""`iel compare` and `iel report`."""

from __future__ import annotations

import builtins
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from iel.commands.common import Command, Facts, Flag
from iel.cores import usable_cores
from iel.errors import RunError
from iel.files import write_json, write_text
from iel.loader import read_json

if TYPE_CHECKING:
    from iel.compare.grid import Grid


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Command):
    """Train and evaluate a grid of environments, methods, planners and seeds; resumes where it was stopped."""

    grid: tyro.conf.Positional[str]
    """A TOML file (docs/comparing.md) or a grid of the package: ablation, antmaze, geometries, kitchen, paper-table-2,
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
    """Only print which cells there are and which are done."""

    def __call__(self) -> Facts:
        from rich.console import Console
        from rich.markdown import Markdown

        from iel.cluster import Cluster, Needs
        from iel.compare.execute import execute, summary_of
        from iel.compare.grid import read_grid
        from iel.compare.results import collect_grid
        from iel.compare.tables import interval_table, protocol_text

        grid = read_grid(self.grid, self.scale)
        out = self.out or Path("runs") / f"compare-{grid.name}{f'-{grid.scale}' if grid.scale else ''}"
        if self.list:
            return self._list_cells(grid, out)
        started, sessions = time.monotonic(), out / "sessions.json"
        session: Facts = {"command": self._command(grid), "jobs": self.jobs or len(usable_cores())}
        before: builtins.list[Facts] = []

        def begin(waiting: int) -> None:
            """Record this session: without a time if it is killed, and not at all if the command is refused."""
            before.extend(read_json(sessions)["sessions"] if sessions.exists() else [])
            session.update(ran=waiting, seconds=None)
            write_json(sessions, {"sessions": [*before, session]})

        cluster = None if self.on is None else Cluster(self.on, Needs(self.cores, self.memory, self.accelerators))
        jobs = execute(grid, out, self.jobs, self.json, begin, cluster, self.only)
        session["seconds"] = round(time.monotonic() - started, 1)
        write_json(sessions, {"sessions": [*before, session]})
        comparison = collect_grid(out)
        result = {"out": str(out), **summary_of(jobs), **comparison.describe()}
        write_json(out / "results.json", comparison.describe())
        Console().print(Markdown("\n".join([protocol_text(comparison), "", *interval_table(comparison)])))
        for cell, error in result["errors"].items():
            print(f"failed: {cell}: {error}")
        print(f"written to {out}; next: iel report {out}")
        return result

    def _command(self, grid: Grid) -> str:
        """The command line, as reports quote it."""
        words = ["iel compare", Path(self.grid).name if self.grid.endswith(".toml") else self.grid]
        words += [f"--scale {grid.scale}"] if grid.scale else []
        words += [f"--jobs {self.jobs}"] if self.jobs else []
        words += ["--only", *map(shlex.quote, self.only)] if self.only else []
        return " ".join([*words, *(["--on ray"] if self.on else [])])

    def _list_cells(self, grid: Grid, out: Path) -> Facts:
        """Print the cells and their states without running anything."""
        from iel.compare.execute import chosen, list_jobs, read_recorded, summary_of

        try:
            fingerprints = read_recorded(out).data
        except RunError:
            fingerprints = {}
        jobs = [job for job in list_jobs(grid, out, fingerprints) if chosen(job.cell, self.only)]
        for job in jobs:
            labels = ", ".join(variant.label for variant in job.cell.planners)
            print(f"{job.state:8} {job.cell.name}: {job.total_steps:,} steps; {labels}")
        return {"out": str(out), **summary_of(jobs), "list": [job.cell.name for job in jobs]}


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Command):
    """Turn the results of a comparison into a Markdown table, pictures and one HTML page."""

    sources: tyro.conf.Positional[tuple[Path, ...]]
    """A directory of `iel compare`, or evaluated run directories."""
    out: Path | None = None
    """Directory to write (default: report in the first of them)."""

    def __call__(self) -> Facts:
        from iel.compare.page import html_page
        from iel.compare.pictures import draw_pictures
        from iel.compare.results import collect
        from iel.compare.tables import markdown

        if not self.sources:
            raise RunError("Give a directory of `iel compare`, or evaluated run directories, to report on.")
        comparison = collect(self.sources)
        if not comparison.entries:
            raise RunError(f"{self.sources[0]} holds no finished result yet; let `iel compare` finish a cell first.")
        out = self.out or self.sources[0] / "report"
        out.mkdir(parents=True, exist_ok=True)
        pictures = draw_pictures(comparison, out)
        relative = {title: path.name for title, path in pictures.items()}
        files = {"markdown": out / "report.md", "html": out / "report.html", "json": out / "results.json"}
        write_text(files["markdown"], markdown(comparison, relative))
        write_text(files["html"], html_page(comparison, pictures))
        write_json(files["json"], comparison.describe())
        print("\n".join(str(path) for path in (*files.values(), *pictures.values())))
        return {
            **{kind: str(path) for kind, path in files.items()},
            "pictures": [str(path) for path in pictures.values()],
            "results": comparison.describe()["results"],
            "unfinished": comparison.unfinished,
        }
