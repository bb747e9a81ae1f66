"""The paper's first table, made from the registry: what each method learns, and beside it what was measured of it.

Facts come from `ALGOS`. Measured figures come from `iel audit --json`; of each method's newest audit the few numbers
that the table shows are kept in a JSON file beside the page, so that the page can be made again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iel.compare.insert import replaced, require_place
from iel.errors import ConfigError
from iel.files import write_json, write_text
from iel.loader import read_json
from iel.methods import ALGOS

NAME = "methods"
"""What the marks in the page call the table."""
TITLES = {"clearning": "C-Learning", "gciql": "GC-IQL", "gccql": "GC-CQL"}
"""Names that are not written in capitals throughout."""
COLUMNS = ("method", "family", "distils", "distance", "directional", "triangle", "TD", "goal-agnostic policy")
MEASURED = ("order", "triangle fails", "there and back differ")
UNKNOWN = "-"


class Measured(NamedTuple):
    """Of one audit: rank correlation with exact steps (or observed gaps), share of broken triangles, asymmetry."""

    data: str
    against_exact: bool
    order: float
    triangle: float
    asymmetry: float


def title(name: str) -> str:
    """A method's name as people write it."""
    return TITLES.get(name, name.upper())


def measured_of(audit: Mapping[str, Any], source: Path) -> tuple[str, Measured]:
    """(method, what the table shows of its audit), of one output of `iel audit --json`."""
    try:
        numbers = Measured(
            str(audit["name"]),
            bool(audit["against_exact"]),
            float(audit["order"]["value"]),
            float(audit["triangle"]["value"]),
            float(audit["asymmetry"]),
        )
        name = str(audit["algo"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{source} is not what `iel audit RUN --json` prints (no {error}); make it again.") from error
    if name not in ALGOS:
        raise ConfigError(f"{source} is an audit of {name}, which is not one of {', '.join(ALGOS)}.")
    return name, numbers


def read_measured(file: Path) -> dict[str, Measured]:
    """What is known so far; nothing where there is no such file."""
    return {name: Measured(**figures) for name, figures in read_json(file).items()} if file.exists() else {}


def table(measured: Mapping[str, Measured]) -> str:
    """The table in Markdown, one row per registered method, in the order of the registry."""
    head = [*COLUMNS, *MEASURED]
    rows = [head, ["---"] * len(head)]
    for name, entry in ALGOS.items():
        facts = [value if isinstance(value, str) else "yes" if value else "no" for value in entry.facts]
        rows.append([f"[{title(name)}]({name}.md)", *facts, *_figures(measured.get(name))])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    sources = sorted({(known.data, known.against_exact) for known in measured.values()})
    notes = [
        f"Measured on {data}: order is the rank correlation of costs with {'exact' if exact else 'observed'} steps."
        for data, exact in sources
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _figures(known: Measured | None) -> list[str]:
    if known is None:
        return [UNKNOWN] * len(MEASURED)
    return [f"{known.order:.2f}", f"{100 * known.triangle:.1f} %", f"{100 * known.asymmetry:.0f} %"]


def write_page(page: Path, audits: Iterable[Path] = ()) -> dict[str, Measured]:
    """Put the table between its marks; `audits` are added to the figures kept beside the page first."""
    text, kept = require_place(page, NAME), page.with_suffix(".json")
    measured = {**read_measured(kept), **dict(measured_of(read_json(file), file) for file in audits)}
    if measured:
        write_json(kept, {name: known._asdict() for name, known in sorted(measured.items())})
    write_text(page, replaced(text, NAME, table(measured)))
    return measured
