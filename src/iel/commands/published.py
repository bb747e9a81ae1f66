"""`iel published`."""

from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Annotated

import tyro
from msgspec import structs

from iel.commands.common import Command, Facts

CLASSES = (
    "A: the benchmark's data and protocol, a learned policy; B: the same with a search or a planner at test time; "
    "C: data or protocol changed. "
)


@dataclass(frozen=True, kw_only=True)
class PublishedCommand(Command):
    """Success rates that others printed: all on one task, or the best of each protocol class on every task."""

    task: Annotated[str | None, tyro.conf.Positional] = None
    """Name of a data set, such as antmaze-large-navigate-v0 (default: all)."""

    def __call__(self) -> Facts:
        from iel.compare.published import best_on, numbers_on, published_tables, published_task, published_tasks

        tables = published_tables()
        if self.task is None:
            best = {task: best_on(task) for task in published_tasks()}
            for task, own in best.items():
                shown = (f"{kind} {each.label} {each.text}" for kind, each in own.items())
                print(f"{task:40}" + "".join(f"{words:32}" for words in shown).rstrip())
            print(CLASSES + "The best number of each class; `iel published TASK` prints all, with sources.")
            return {"tasks": {task: {kind: asdict(own[kind]) for kind in own} for task, own in best.items()}}
        task = published_task(self.task)
        numbers = numbers_on(task)
        print(f"{task}, success in per cent as others printed it; none was measured by this package.")
        for number in numbers:
            seeds = tables[number.table].seeds
            stated = "" if seeds is None else f", {seeds} seeds"
            print(f"  {number.text:13} {number.protocol}  {number.label}  [{number.table}{stated}]")
        sources = {name: tables[name] for name in dict.fromkeys(number.table for number in numbers)}
        for name, source in sources.items():
            text = f"[{name}] {source.source} ({source.evidence}; ± is the {source.deviation})"
            text += f"; changed: {source.changed}" if source.changed else ""
            text += f"; {source.note}" if source.note else ""
            print("\n".join(wrap(text, 100, subsequent_indent="    ")))
        print(CLASSES.strip())
        described = {name: structs.asdict(structs.replace(source, rows={})) for name, source in sources.items()}
        return {"task": task, "numbers": [asdict(number) for number in numbers], "sources": described}
