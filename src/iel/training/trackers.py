"""Where metrics go. CSV always; TensorBoard when asked for (extra `tensorboard`)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from iel.errors import ConfigError


class Tracker(Protocol):
    """Anything that takes metrics: one call a logged step, and `close` at the end."""

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class CSVTracker:
    """`metrics.csv` in long form (step, phase, metric, value), so that new metrics never change old columns."""

    def __init__(self, path: Path):
        self._file = path.open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(["step", "phase", "metric", "value"])

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.writerow([step, phase, name, f"{value:.8g}"])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardTracker:
    """Event files TensorBoard reads."""

    def __init__(self, directory: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError(
                "TensorBoard output needs an extra package; run `pip install 'iel[tensorboard]'`."
            ) from None
        self._writer = SummaryWriter(str(directory))

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """metric -> (steps, values) of a `metrics.csv`; a half-written last line is left out."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                step, value = int(row["step"]), float(row["value"])
            except (TypeError, ValueError):
                continue
            steps, values = curves.setdefault(row["metric"], ([], []))
            steps.append(step)
            values.append(value)
    return curves
