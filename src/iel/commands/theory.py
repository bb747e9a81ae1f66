"""`iel theory`."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from iel.commands.common import Command, Facts
from iel.errors import IELError

WIDTH = 98


@dataclass(frozen=True, kw_only=True)
class TheoryCommand(Command):
    """Run every statement of the paper on small worlds: what was checked, on what, and the numbers."""

    seed: int = 0
    """Seed of the random instances."""

    def __call__(self) -> Facts:
        from iel.theory.statements import check_all

        rows = check_all(self.seed)
        print(report(rows))
        failed = [row["statement"] for row in rows if not row["holds"]]
        if failed:
            raise IELError(f"The numbers do not bear out the verdict on: {', '.join(failed)}.")
        return {"statements": [_json_safe(row) for row in rows], "seconds": sum(row["seconds"] for row in rows)}


def report(rows: list[Facts]) -> str:
    """One paragraph per statement."""
    lines = []
    for row in rows:
        lines += wrap(f"{row['statement']}: {row['says']}  [{row['verdict']}]", WIDTH, subsequent_indent="  ")
        for item in row["evidence"]:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in item["numbers"].items())
            text = f"{'ok ' if item['holds'] else 'NOT'} {item['on']}: {numbers}"
            lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="      ")
    count, time = sum(len(row["evidence"]) for row in rows), sum(row["seconds"] for row in rows)
    lines.append(f"{len(rows)} statements, {count} checks, {time:.0f} s.")
    return "\n".join(lines)


def _json_safe(row: Facts) -> Facts:
    """The same row with `inf` as a word, since JSON has no infinity."""
    evidence = [
        {**item, "numbers": {k: v if abs(v) < float("inf") else str(v) for k, v in item["numbers"].items()}}
        for item in row["evidence"]
    ]
    return {**row, "evidence": evidence}
