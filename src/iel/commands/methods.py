"""`iel methods`."""

from __future__ import annotations

from dataclasses import dataclass

from iel.commands.common import Command, Facts

COLUMNS = ("method", "family", "distils", "distance", "directional", "triangle", "TD", "goal-agnostic policy")
TITLES = {"clearning": "C-Learning", "gciql": "GC-IQL", "gccql": "GC-CQL"}
"""Names that are not written in capitals throughout."""


@dataclass(frozen=True, kw_only=True)
class MethodsCommand(Command):
    """What each method learns: the paper's first table (docs/methods.md has it with measured figures)."""

    def __call__(self) -> Facts:
        from iel.methods import METHODS

        print(markdown_table([list(COLUMNS), *([title(name), *facts] for name, facts in facts_of_methods().items())]))
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
