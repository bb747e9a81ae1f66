"""Progress on stderr, because stdout is for results. Plain lines where stderr is not a terminal."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUIET_SECONDS = 20.0
"""Between two lines, where stderr is not a terminal."""
PACE_SECONDS, PACE_MARKS = 60.0, 2000
"""Seconds, and updates at most, from which the time that is left is predicted."""


class SafeStream:
    """A stream whose reader may close it: later output is lost, without an exception."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(sys, self._name), attribute)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):  # no reader, closed, or no stream at all
            getattr(sys, self._name).write(text)
        return len(text)

    def flush(self) -> None:
        try:
            getattr(sys, self._name).flush()
        except (OSError, ValueError, AttributeError):
            silence(self._name)


def silence(name: str) -> None:
    """Redirect a stream without a reader to nowhere, so that flushing its buffer at exit cannot fail."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, getattr(sys, name).fileno())
        os.close(nowhere)


STDERR = SafeStream("stderr")


class Progress:
    """One bar with a free text at its end: `with Progress("train", 1000) as bar: bar.advance(10, "loss 0.3")`."""

    def __init__(self, title: str, total: int, *, unit: str = "steps", show: bool = True):
        self.title, self.total, self.unit = title, total, unit
        self.done, self._said = 0, time.monotonic()
        self._pace: list[tuple[float, int]] = []
        """(time, done) of the last minute or so."""
        self._bar: Bar | None = None
        self._plain = False
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(file=STDERR)  # type: ignore[arg-type]
            self._plain = not console.is_terminal
            texts = (TextColumn(f"{{task.fields[{name}]}}") for name in ("left", "note"))
            columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), *texts
            self._bar = Bar(*columns, console=console, disable=self._plain)
            self._task = self._bar.add_task(title, total=total, note="", left="")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._bar:
            self._bar.stop()
        if self._plain and kind is None:
            self._say("")

    def advance(self, count: int, note: str = "", usual: bool = True) -> None:
        """Count `count` more as done. Without `usual` (something was compiled first) the pace is measured anew."""
        self.done += count
        now = time.monotonic()
        self._pace = [mark for mark in self._pace if usual and now - mark[0] < PACE_SECONDS][-PACE_MARKS:]
        self._pace.append((now, self.done))
        if self._bar:
            left = self.remaining()
            self._bar.update(self._task, advance=count, note=note, left=f"{left} left" if left else "")
        if self._plain and time.monotonic() - self._said > QUIET_SECONDS:
            self._say(note)

    def line(self, text: str) -> None:
        """Print a line of its own, above the bar where there is one."""
        if self._bar:
            self._bar.console.print(f"{self.title}: {text}", soft_wrap=True, markup=False, highlight=False)

    def _say(self, note: str) -> None:
        self._said = time.monotonic()
        left = self.remaining()
        words = [f"{self.title}: {self.done}/{self.total} {self.unit}", note, f"{left} left" if left else ""]
        print("  ".join(word for word in words if word), file=STDERR, flush=True)

    def remaining(self) -> str:
        """Predicted time for the rest at the pace of the last minute: `40 s`, `12 min`; empty where it is not known."""
        if len(self._pace) < 2 or self.done >= self.total:
            return ""
        (then, before), (now, done) = self._pace[0], self._pace[-1]
        if done == before or now - then < 1.0:
            return ""
        return clock((self.total - done) * (now - then) / (done - before))


def clock(seconds: float) -> str:
    """A time as `40 s`, `12 min` or `3.1 h`; empty below one second."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else ""
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
