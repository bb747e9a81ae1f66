"""Where metrics go: `metrics.csv` always, and trackers: those named in `TRACKERS`, or classes of your own."""

import csv
import hashlib
import importlib
import io
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from iel.errors import ConfigError, RunError, install, unknown_name
from iel.files import notice, open_in_place, write_bytes, write_errors
from iel.loader import open_regular

HEADER = ("step", "phase", "metric", "value")


class MetricsFacts(Struct, frozen=True):
    """How long metrics.csv was, and its content until there."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: str


def facts_of(content: bytes) -> MetricsFacts:
    """What a checkpoint remembers of a metrics.csv."""
    return MetricsFacts(len(content), hashlib.sha256(content).hexdigest())


class CSVTracker:
    """`metrics.csv` in long form (step, phase, metric, value), so that new metrics never change old columns.

    Nothing in it depends on the clock, so two runs of one seed write the same bytes. A checkpoint remembers how many
    bytes there were and their sha256; a resumed run cuts the file there and continues.
    """

    def __init__(self, path: Path, step: int = 0, resumed: MetricsFacts | None = None):
        """`resumed` is what the checkpoint of `step`, from which training continues, knows of the file."""
        self._path = path
        before = b"" if resumed is None else rewind(path, step, resumed)
        self._bytes, self._digest = len(before), hashlib.sha256(before)
        with write_errors("Metrics", path):
            # Unbuffered: when the disk is full, the error comes here and not again when the file is closed.
            self._file = open_in_place(path, append=resumed is not None)
        if not before:
            self._write([HEADER])

    @property
    def facts(self) -> MetricsFacts:
        """What a checkpoint remembers."""
        return MetricsFacts(self._bytes, self._digest.hexdigest())

    def log(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._write((step, phase, name, f"{value:.8g}") for name, value in metrics.items())

    def _write(self, rows: Iterable[tuple[object, ...]]) -> None:
        block = memoryview(_csv(rows))
        with write_errors("Metrics", self._path):
            while block:
                written = self._file.write(block)
                self._digest.update(block[:written])
                self._bytes += written
                block = block[written:]

    def sync(self) -> None:
        """Write everything to the disk, before a checkpoint."""
        with write_errors("Metrics", self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def rewind(path: Path, step: int, facts: MetricsFacts) -> bytes:
    """Take from `metrics.csv` what was logged after the checkpoint of `step`; returns what is left.

    When the part before is not what the checkpoint remembers (lost or edited), whole lines up to its step stay.
    """
    try:
        content = read_content(path)
    except RunError:
        content = b""
    stored = content[: facts.bytes]
    if facts_of(stored) != facts:
        notice(f"{path} is not what was written up to step {step}; only its readable lines stay.")
        rows = (row for row in _rows(content) if int(row["step"]) <= step)
        stored = _csv([HEADER, *([row.get(name, "") for name in HEADER] for row in rows)])
    if stored != content:
        with write_errors("Metrics", path):
            write_bytes(path, stored)
    return stored


class Tracker(ABC):
    """Another destination for metrics: a class with two functions, `iel.train(..., trackers=[MyTracker])`.

    One tracker is made for every seed.
    """

    @abstractmethod
    def start(self, config: Mapping[str, Any]) -> None:
        """Called before the first step with what config.json holds, the directory `run` and the step `resumed_at` (None
        for a new run)."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after every chunk of steps with its mean metrics."""

    def close(self) -> None:  # noqa: B027
        """Called when training ends, also by an error."""


class TensorBoardTracker(Tracker):
    """Event files of TensorBoard, in RUN/tensorboard."""

    def __init__(self) -> None:
        self._package = _package("tensorboardX", "tensorboard")

    def start(self, config: Mapping[str, Any]) -> None:
        directory, resumed = f"{config['run']}/tensorboard", config["resumed_at"]
        self._writer = self._package.SummaryWriter(directory, purge_step=None if resumed is None else resumed + 1)
        self.close = self._writer.close  # type: ignore[method-assign]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class WandbTracker(Tracker):
    """A run of Weights & Biases in the project `iel`; a resumed run continues its own."""

    def __init__(self) -> None:
        self._package = _package("wandb", "wandb")

    def start(self, config: Mapping[str, Any]) -> None:
        identity = hashlib.sha256(
            f"{platform.node()}{Path(config['run']).resolve()}{config['data']['fingerprint']}".encode()
        ).hexdigest()[:16]
        self._run = self._package.init(
            project="iel", name=_title(config), id=identity, resume="allow", reinit="create_new",
            dir=config["run"], config=dict(config),
        )  # fmt: skip
        self.close = self._run.finish  # type: ignore[method-assign]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)


class MlflowTracker(Tracker):
    """A run of MLflow in its default experiment; a resumed run is a new one of the same name."""

    def __init__(self) -> None:
        self._client = _package("mlflow", "mlflow").MlflowClient()

    def start(self, config: Mapping[str, Any]) -> None:
        tags = {f"iel.{name}": str(value) for name, value in {**config, **config["settings"]}.items()}
        self._id = self._client.create_run("0", tags=tags, run_name=_title(config)).info.run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def get_tracker(name: str) -> type[Tracker]:
    """A tracker's class by its name."""
    if name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
    return TRACKERS[name]


def _package(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"The tracker {extra} needs an extra package; {install(extra)}.") from None


def _title(config: Mapping[str, Any]) -> str:
    return f"{config['env']}-{config['algo']}-seed{config['seed']}"


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """metric -> (steps, values) of a `metrics.csv`; a half-written last line is left out."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in _rows(read_content(path)):
        steps, values = curves.setdefault(row["metric"], ([], []))
        steps.append(int(row["step"]))
        values.append(float(row["value"]))
    return curves


def read_losses(path: Path) -> tuple[list[int], list[float]]:
    """(steps, values) of what every phase minimises, PHASE/loss, one phase after the other; not of its parts.

    Between two phases stands a NaN: their losses are different things, and no line should join them.
    """
    rows = [row for row in _rows(read_content(path)) if row["metric"] == f"{row['phase']}/loss"]
    steps, values = [], []
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before["phase"] != row["phase"]:
            steps.append(int(before["step"]))
            values.append(float("nan"))
        steps.append(int(row["step"]))
        values.append(float(row["value"]))
    return steps, values


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def read_content(path: Path) -> bytes:
    with open_regular(path, RunError) as (file, _):
        return file.read()


def _rows(content: bytes) -> Iterator[dict[str, str]]:
    """The readable rows of a `metrics.csv`; a last line without its end may be cut off in the middle of a number."""
    text = content.decode(errors="replace")
    for row in csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")):
        try:
            int(row["step"]), float(row["value"])
        except (KeyError, TypeError, ValueError):
            continue
        yield row
