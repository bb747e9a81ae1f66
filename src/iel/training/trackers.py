"""Where metrics go. CSV always; TensorBoard when asked for (extra `tensorboard`)."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from iel.errors import ConfigError, RunError
from iel.files import notice, open_in_place, write_bytes, write_error
from iel.loader import open_regular

HEADER = ("step", "phase", "metric", "value")


class Tracker(Protocol):
    """Anything that takes metrics: one call a logged step, `sync` before a checkpoint, and `close` at the end."""

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None: ...

    def sync(self) -> dict[str, Any]:
        """Bring everything to the disk; returns what a checkpoint should remember of it."""
        ...

    def close(self) -> None: ...


class CSVTracker:
    """`metrics.csv` in long form (step, phase, metric, value), so that new metrics never change old columns.

    Nothing in it depends on the clock, so two runs of one seed write the same bytes. A checkpoint remembers how many
    bytes there were and their sha256; a resumed run cuts the file there and continues.
    """

    def __init__(self, path: Path, resumed: Mapping[str, Any] | None = None):
        """`resumed` holds the facts of the checkpoint that training continues from."""
        self._path = path
        before = b"" if resumed is None else rewind(path, resumed)
        self._bytes, self._digest = len(before), hashlib.sha256(before)
        try:
            # Unbuffered: when the disk is full, the error comes here and not again when the file is closed.
            self._file = open_in_place(path, append=resumed is not None)
        except OSError as error:
            raise write_error("Metrics", path, error) from error
        if not before:
            self._write([HEADER])

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._write([(step, phase, name, f"{value:.8g}") for name, value in metrics.items()])

    def _write(self, rows: list[tuple]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        block = memoryview(text.getvalue().encode())
        try:
            while block:
                written = self._file.write(block)
                self._digest.update(block[:written])
                self._bytes += written
                block = block[written:]
        except OSError as error:
            raise write_error("Metrics", self._path, error) from error

    def sync(self) -> dict[str, Any]:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_error("Metrics", self._path, error) from error
        return {"metrics": {"bytes": self._bytes, "sha256": self._digest.hexdigest()}}

    def close(self) -> None:
        self._file.close()


def rewind(path: Path, facts: Mapping[str, Any]) -> bytes:
    """Take from `metrics.csv` what was logged after a checkpoint; returns what is left.

    When the part before is not what the checkpoint remembers (lost or edited), whole lines up to its step are kept.
    """
    mark = facts["metrics"]
    try:
        with open_regular(path, RunError) as (file, _):
            content = file.read()
    except RunError:
        content = b""
    kept = content[: mark["bytes"]]
    if len(kept) != mark["bytes"] or hashlib.sha256(kept).hexdigest() != mark["sha256"]:
        notice(f"{path} is not what was written up to step {facts['step']}; only its readable lines are kept.")
        rows = [row for row in _rows(content.decode(errors="replace")) if int(row["step"]) <= facts["step"]]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, HEADER, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        kept = text.getvalue().encode()
    if kept != content:
        try:
            write_bytes(path, kept)
        except OSError as error:
            raise write_error("Metrics", path, error) from error
    return kept


class TensorBoardTracker:
    """Event files TensorBoard reads."""

    def __init__(self, directory: Path, resumed: Mapping[str, Any] | None = None):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError(
                "TensorBoard output needs an extra package; run `pip install 'iel[tensorboard]'`."
            ) from None
        self._writer = SummaryWriter(str(directory), purge_step=None if resumed is None else resumed["step"] + 1)

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def sync(self) -> dict[str, Any]:
        self._writer.flush()
        return {}

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """metric -> (steps, values) of a `metrics.csv`; a half-written last line is left out."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in _rows(_text(path)):
        steps, values = curves.setdefault(row["metric"], ([], []))
        steps.append(int(row["step"]))
        values.append(float(row["value"]))
    return curves


def read_losses(path: Path) -> tuple[list[int], list[float]]:
    """(steps, values) of what every phase minimises, PHASE/loss, one phase after the other; not of its parts.

    Between two phases stands a NaN: their losses are different things, and no line should join them.
    """
    rows = [row for row in _rows(_text(path)) if row["metric"] == f"{row['phase']}/loss"]
    steps, values = [], []
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before["phase"] != row["phase"]:
            steps.append(int(before["step"]))
            values.append(float("nan"))
        steps.append(int(row["step"]))
        values.append(float(row["value"]))
    return steps, values


def _text(path: Path) -> str:
    with open_regular(path, RunError) as (file, _):
        return file.read().decode(errors="replace")


def _rows(text: str) -> Iterator[dict[str, str]]:
    """The readable rows of a `metrics.csv`; a last line without its end may be cut off in the middle of a number."""
    for row in csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")):
        try:
            int(row["step"]), float(row["value"])
        except (KeyError, TypeError, ValueError):
            continue
        yield row
