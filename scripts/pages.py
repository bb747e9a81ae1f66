"""Writes generated parts of the documentation, between two comments that say where they belong. For maintainers.

    python scripts/pages.py methods docs/methods.md --audits audit.json   # what each method learns, and its audit
    python scripts/pages.py report docs/results.md runs/compare-pointmaze-laptop

The comments are `<!-- iel report: NAME -->` and `<!-- end of iel report: NAME -->`, once each, in this order. NAME is
`methods`, or the title of the comparison and the scale that was run (`Point mazes, laptop`). Nothing else changes.

Facts about methods come from the registry. Measured figures come from `iel audit RUN --json`; of each method's newest
audit the numbers that the table shows are stored in a JSON file beside the page, so that the page can be made again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iel.commands.methods import COLUMNS, facts_of_methods, markdown_table, title
from iel.compare.pictures import draw_pictures
from iel.compare.results import Comparison, collect
from iel.compare.tables import markdown
from iel.errors import ConfigError, IELError, RunError
from iel.files import write_json, write_text
from iel.loader import read_json

METHODS = "methods"
MEASURED = ("order", "triangle fails", "there and back differ")
LEVEL = 2
"""Of a report's own heading: a document has one title."""


def marks(name: str) -> tuple[str, str]:
    """The lines between which the part of this name is written."""
    return f"<!-- iel report: {name} -->", f"<!-- end of iel report: {name} -->"


def require_markers(document: Path, name: str) -> str:
    """The text of the document, its line ends as they are, if it has the marks of this part exactly once."""
    begin, end = marks(name)
    text = document.read_bytes().decode()
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(end) < text.index(begin):
        raise RunError(
            f"{document} has no marks for this report; put the lines `{begin}` and `{end}` once each, in this order, "
            "where it should stand."
        )
    return text


def replaced(text: str, name: str, part: str) -> str:
    """A document's text with another part of this name between its marks."""
    begin, end = marks(name)
    between = f"\n\n{part}\n"
    if "\r\n" in text:
        between = between.replace("\n", "\r\n")
    return text[: text.index(begin)] + begin + between + text[text.index(end) :]


# ---------------------------------------------------------------- what each method learns


class Measured(NamedTuple):
    """Of one audit: rank correlation with exact steps (or observed gaps), share of broken triangles, asymmetry."""

    data: str
    against_exact: bool
    order: float
    triangle: float
    asymmetry: float

    @property
    def cells(self) -> list[str]:
        return [f"{self.order:.2f}", f"{100 * self.triangle:.1f} %", f"{100 * self.asymmetry:.0f} %"]


def measured_of(audit: Mapping[str, Any], source: Path) -> tuple[str, Measured]:
    """(method, what the table shows of its audit), of one output of `iel audit --json`."""
    try:
        values = (float(audit["order"]["value"]), float(audit["triangle"]["value"]), float(audit["asymmetry"]))
        name, numbers = str(audit["algo"]), Measured(str(audit["name"]), bool(audit["against_exact"]), *values)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{source} is not what `iel audit RUN --json` prints (no {error}); make it again.") from error
    if name not in facts_of_methods():
        raise ConfigError(f"{source} is an audit of {name}, which is not one of {', '.join(facts_of_methods())}.")
    return name, numbers


def read_measured(file: Path) -> dict[str, Measured]:
    """The figures so far; none without the file."""
    return {name: Measured(**figures) for name, figures in read_json(file).items()} if file.exists() else {}


def methods_part(measured: Mapping[str, Measured]) -> str:
    """The table, one row per registered method, and what its figures were measured on."""
    rows = [[*COLUMNS, *MEASURED]]
    for name, facts in facts_of_methods().items():
        figures = measured[name].cells if name in measured else ["-"] * len(MEASURED)
        rows.append([f"[{title(name)}]({name}.md)", *facts, *figures])
    notes = [
        f"Measured on {data}: order is the rank correlation of costs with {'exact' if exact else 'observed'} steps."
        for data, exact in sorted({(known.data, known.against_exact) for known in measured.values()})
    ]
    return "\n".join([markdown_table(rows), *([""] if notes else []), *notes]) + "\n"


def write_methods(page: Path, audits: Iterable[Path] = ()) -> None:
    """Put the table between its marks; `audits` are added to the figures beside the page first."""
    text, stored = require_markers(page, METHODS), page.with_suffix(".json")
    measured = {**read_measured(stored), **dict(measured_of(read_json(file), file) for file in audits)}
    if measured:
        write_json(stored, {name: known._asdict() for name, known in sorted(measured.items())})
    write_text(page, replaced(text, METHODS, methods_part(measured)))


# ---------------------------------------------------------------- the report of a comparison


def name_of(comparison: Comparison) -> str:
    """What the marks call a report: the grid's title and, where it has scales, the one that was run."""
    return comparison.title + (f", {comparison.scale}" if comparison.scale else "")


def write_report(document: Path, sources: list[Path]) -> list[Path]:
    """Replace the report between its marks, with its pictures in `images` beside the document; returns these."""
    comparison = collect(sources)
    name = name_of(comparison)
    text = require_markers(document, name)
    folder, slug = document.parent / "images", re.sub(r"\W+", "-", name.lower()).strip("-")
    folder.mkdir(exist_ok=True)
    shown: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as drawn:
        for caption, path in draw_pictures(comparison, Path(drawn)).items():
            shutil.copyfile(path, folder / f"{slug}-{path.name}")
            shown[caption] = f"images/{slug}-{path.name}"
    write_text(document.resolve(), replaced(text, name, markdown(comparison, shown, LEVEL)))
    return [document.parent / picture for picture in shown.values()]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    methods, report = parts.add_parser("methods"), parts.add_parser("report")
    for part in (methods, report):
        part.add_argument("page", type=Path)
    methods.add_argument("--audits", type=Path, nargs="*", default=[])
    report.add_argument("sources", type=Path, nargs="+")
    options = parser.parse_args(words)
    try:
        if options.part == "methods":
            write_methods(options.page, options.audits)
        else:
            write_report(options.page, options.sources)
    except (IELError, OSError, UnicodeDecodeError) as error:
        print(f"pages: {error}", file=sys.stderr)
        return 2
    print(f"written to {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
