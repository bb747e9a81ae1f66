"""`iel methods` and `iel theory`: what is known before anything is trained."""

from dataclasses import dataclass
from textwrap import wrap

from iel.commands.common import Command, Facts
from iel.errors import IELError

WIDTH = 98
COLUMNS = ("method", "family", "distils", "distance", "directional", "triangle", "TD", "goal-agnostic policy")
TITLES = {"clearning": "C-Learning", "gciql": "GC-IQL", "gccql": "GC-CQL"}
"""Names that are not written in capitals throughout."""


@dataclass(frozen=True, kw_only=True)
class MethodsCommand(Command):
    """What each method learns: the paper's first table (docs/methods.md has it with measured figures)."""

    def __call__(self) -> Facts:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Column, Table

        from iel.methods import METHODS

        heads = (*COLUMNS[:4], "directed", "triangle", "TD", "goal-free")
        fixed = ("method", *heads[4:])
        table = Table(*(Column(head, no_wrap=head in fixed) for head in heads), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name, facts in facts_of_methods().items():
            table.add_row(title(name), *facts)
        console = Console(highlight=False)
        console.print(table)
        console.print(
            "directed: from x to y may cost another than back; triangle: the triangle inequality holds; TD: learned by "
            "temporal differences; goal-free: the policy never sees a goal"
        )
        return {
            "methods": {
                name: {**entry.facts._asdict(), "planners": list(entry.planners)} for name, entry in METHODS.items()
            }
        }


def facts_of_methods() -> dict[str, list[str]]:
    """Method -> its cells under COLUMNS[1:], in the order of the registry."""
    from iel.methods import METHODS

    def word(value: str | bool) -> str:
        return value if isinstance(value, str) else "yes" if value else "no"

    return {name: [word(value) for value in entry.facts] for name, entry in METHODS.items()}


def title(name: str) -> str:
    """A method's name as people write it."""
    return TITLES.get(name, name.upper())


def markdown_table(rows: list[list[str]]) -> str:
    """Rows of cells, the first of them the head, as Markdown."""
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


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
