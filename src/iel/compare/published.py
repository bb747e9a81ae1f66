"""Numbers that others printed: `published.toml`, typed and checked when it is read.

Protocol classes: A, the benchmark's own data and protocol, and a learned policy; B, the same with a search or a
planner at test time; C, data or protocol are changed, and `changed` says how.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iel.errors import IELError, unknown_name
from iel.loader import read_toml
from iel.typed import Count, as_struct

FILE = Path(__file__).parent / "published.toml"
Percent = Annotated[float, Meta(ge=0.0, le=100.0)]
Protocol = Literal["A", "B", "C"]
Column = tuple[str, str]
"""A method and a planner."""


class PublishedTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source; the head of `published.toml` says what the fields mean."""

    source: str
    evidence: Literal["paper", "transcription", "unreviewed", "figure"]
    rows: dict[str, dict[str, Annotated[list[Percent], Meta(min_length=1, max_length=2)]]]
    seeds: Count | None = None
    deviation: Literal["standard deviation", "standard error"] = "standard deviation"
    changed: str = ""
    note: str = ""

    def protocol(self, planner: str) -> Protocol:
        """The class of a number of this table."""
        return "C" if self.changed else "A" if planner == "direct" else "B"

    def numbers(self, name: str, task: str) -> list[PublishedNumber]:
        """What this table, called `name`, has on a task."""
        found = []
        for column, (mean, *more) in self.rows.get(task, {}).items():
            method, _, planner = column.partition("/")
            deviation = more[0] if more else None
            found.append(PublishedNumber(task, method, planner, mean, deviation, self.protocol(planner), name))
        return found


@dataclass(frozen=True)
class PublishedNumber:
    """Success in per cent, as printed by others."""

    task: str
    method: str
    planner: str
    mean: float
    deviation: float | None
    protocol: Protocol
    table: str
    """Key of its table."""

    @property
    def label(self) -> str:
        """Method and planner; a policy that is sent straight to the goal by its method alone."""
        return self.method if self.planner == "direct" else f"{self.method}/{self.planner}"

    @property
    def text(self) -> str:
        """`71.8 ± 6.5`."""
        return f"{self.mean:g}" + ("" if self.deviation is None else f" ± {self.deviation:g}")


@cache
def published_tables() -> dict[str, PublishedTable]:
    """All tables by name."""
    tables = {name: as_struct(table, PublishedTable, f"{FILE.name}, {name}") for name, table in read_toml(FILE).items()}
    for name, table in tables.items():
        if wrong := [column for row in table.rows.values() for column in row if column.count("/") != 1]:
            raise IELError(f"{FILE.name}, {name}: '{wrong[0]}' is not METHOD/PLANNER; correct the file.")
    return tables


def results_tables() -> dict[str, PublishedTable]:
    """All tables but the study of one method's settings."""
    return {name: table for name, table in published_tables().items() if name != "paper-sensitivity"}


def published_tasks() -> list[str]:
    """Every task with a published success rate, in the order of the file."""
    return list(dict.fromkeys(task for table in results_tables().values() for task in table.rows))


def published_task(name: str) -> str:
    """A task by its name, with or without its version."""
    known = {re.sub(r"-v\d$", "", task): task for task in published_tasks()}
    task = known.get(re.sub(r"-v\d$", "", name))
    if task is None:
        raise unknown_name("task", name, known.values(), "`iel published` lists those with published numbers.")
    return task


def numbers_on(task: str) -> list[PublishedNumber]:
    """All published numbers on a task, the best first."""
    found = [number for name, table in results_tables().items() for number in table.numbers(name, task)]
    return sorted(found, key=lambda number: -number.mean)


def best_on(task: str) -> dict[Protocol, PublishedNumber]:
    """The best published number of each protocol class, of those read in a paper or in a transcription."""
    best: dict[Protocol, PublishedNumber] = {}
    for number in numbers_on(task):
        if published_tables()[number.table].evidence in ("paper", "transcription"):
            best.setdefault(number.protocol, number)
    return dict(sorted(best.items()))


def published_numbers(
    name: str | None, environments: Sequence[str], columns: Sequence[Column]
) -> tuple[dict[tuple[str, Column], tuple[float, float | None]], str]:
    """The numbers of a published table for these environments and columns, and where they are from."""
    if name is None:
        return {}, ""
    if name not in published_tables():
        raise unknown_name("published table", name, published_tables())
    table = published_tables()[name]
    numbers: dict[tuple[str, Column], tuple[float, float | None]] = {
        (env, (number.method, number.planner)): (number.mean, number.deviation)
        for env in environments
        for number in table.numbers(name, env)
        if (number.method, number.planner) in columns
    }
    return numbers, f"{table.source}: {table.note}"
