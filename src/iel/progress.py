"""Progress bars on stderr, so that stdout stays for results. Plain lines when nobody watches a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from iel.files import STDERR

QUIET_SECONDS = 20.0
"""Without a terminal, say something this often."""


class Progress:
    """One bar with a free text at its end: `with Progress("train", 1000) as bar: bar.advance(10, "loss 0.3")`."""

    def __init__(self, title: str, total: int, *, unit: str = "steps", show: bool = True):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.title, self.total, self.unit = title, total, unit
        self.done, self._said = 0, time.monotonic()
        console = Console(file=STDERR)  # type: ignore[arg-type]
        self._plain = show and not console.is_terminal
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not show or self._plain,
        )
        self._task = self._bar.add_task(title, total=total, note="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._bar.stop()
        if self._plain and kind is None:
            self._say("")

    def advance(self, count: int, note: str = "") -> None:
        """`count` more are done."""
        self.done += count
        self._bar.update(self._task, advance=count, note=note)
        if self._plain and time.monotonic() - self._said > QUIET_SECONDS:
            self._say(note)

    def _say(self, note: str) -> None:
        self._said = time.monotonic()
        print(f"{self.title}: {self.done}/{self.total} {self.unit} {note}".rstrip(), file=STDERR, flush=True)
