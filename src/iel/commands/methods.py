"""`iel methods`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iel.commands.common import Output
from iel.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MethodsCommand(Output):
    """What each method learns: the paper's first table, and beside it what audits measured."""

    page: Path | None = None
    """Write the table into this Markdown page, between its marks; measured figures are kept beside it as JSON."""
    audits: tuple[Path, ...] = ()
    """Outputs of `iel audit RUN --json`, one per file, to add to the measured figures (with --page)."""


def methods_command(options: MethodsCommand) -> dict[str, Any]:
    """`iel methods`."""
    from iel.compare.methods import table, write_page
    from iel.methods import ALGOS

    if options.audits and options.page is None:
        raise ConfigError("Audits are kept beside a page; say which with --page.")
    measured = {} if options.page is None else write_page(options.page, options.audits)
    if not options.json:
        print(table(measured) if options.page is None else f"written to {options.page}")
    return {
        "methods": {
            name: {
                **entry.facts._asdict(),
                "planners": list(entry.planners),
                "measured": measured[name]._asdict() if name in measured else None,
            }
            for name, entry in ALGOS.items()
        }
    }
