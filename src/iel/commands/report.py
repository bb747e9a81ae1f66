"""`iel report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from iel.commands.common import Command, Facts
from iel.errors import RunError


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
        from iel.files import write_json, write_text

        if not self.sources:
            raise RunError("Say what to report on: a directory of `iel compare`, or evaluated run directories.")
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
