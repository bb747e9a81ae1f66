"""One cell: train a method with one seed, then evaluate it under each of its planners.

    CELL/
      job.json                 what to do: the fields of `Work`
      run/                     the training run (continued from its checkpoint when it was stopped)
      evaluations/LABEL.json   an `iel.evaluation.result.Result`, written whole or not at all
      evaluations/LABEL.png    the paths of the episodes, for the first seed in a maze
      times.json               seconds of training and evaluation
      log.txt                  what the process printed; its last line is the reason of a failure
      error.json               why it failed, if it did

`python -m iel.compare.cells CELL CORES` does it in a process of its own, so that a crash, or a machine out of memory,
costs one cell.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from iel.compare.grid import Cell, Variant
from iel.cores import keep_to
from iel.data import Trajectories, load
from iel.errors import IELError, RunError
from iel.evaluation import Arena, Rollouts
from iel.evaluation.distances import can_measure
from iel.evaluation.result import Episodes, Result, Seconds, read_record, read_result
from iel.files import locked, write_json
from iel.model import Model, load_model
from iel.planning import make_planner
from iel.training import open_run, train
from iel.training.loop import snapshot_model, snapshot_steps

PATIENCE = 60.0
"""Seconds to wait for another process that trains this cell."""


@dataclass(frozen=True)
class Work:
    """What the process of a cell is to do."""

    cell: Cell
    data: str
    """Fingerprint of the data."""
    draw: bool
    """Whether rollouts are drawn."""
    policy_with: tuple[str, ...] = ()
    """Directories of other cells that train the same policy."""


@dataclass(frozen=True)
class Times:
    """Seconds spent on a cell, added up over all processes that worked on it (a killed one does not report)."""

    training: Seconds = 0.0
    evaluation: Seconds = 0.0


def evaluation_file(directory: Path, label: str) -> Path:
    """Where the result under a planner is stored; its picture has the same name."""
    slug = "".join(letter if letter.isalnum() or letter in "-.=" else "_" for letter in label)
    return directory / "evaluations" / f"{slug}.json"


def finished(directory: Path, cell: Cell, data: str, variant: Variant) -> Result | None:
    """The result of exactly this cell; None if it is missing, damaged or of something else."""
    try:
        result = read_result(evaluation_file(directory, variant.label))
    except RunError:
        return None
    return result if result.fingerprint == cell.evaluation_fingerprint(data, variant) else None


def missing(directory: Path, cell: Cell, data: str) -> list[Variant]:
    """The planners still to be evaluated."""
    return [variant for variant in cell.planners if finished(directory, cell, data, variant) is None]


def run_cell(directory: Path, workers: int | None = None) -> None:
    """Do what is not done yet of a cell; `workers` processes step its evaluations (None: one per core)."""
    work = read_record(directory / "job.json", Work)
    cell, run, snapshots = work.cell, directory / "run", work.cell.protocol.checkpoints
    data = load(cell.env, episodes=cell.data.episodes, seed=cell.data.seed, make=False, progress=False)
    if data.fingerprint != work.data:
        raise RunError(f"The data of {cell.env} changed since this comparison looked at it; start it again.")
    for variant in cell.planners:  # a driver that is missing is reported before the training, not after
        _driver(directory, work, variant)
    with locked(run, PATIENCE):  # a worker of a comparison that was killed may still be saving
        pass
    others = [directory.parent / name / "run" for name in work.policy_with]
    with _timed(directory, "training"):
        trained = train(data, cell.config, [cell.seed], out=run, resume=True, snapshots=snapshots, policy_with=others)
    steps = snapshot_steps(cell.config, snapshots)[:-1]
    earlier = {step: load_model(snapshot_model(run, step)) for step in steps}
    evaluate_cell(directory, work, trained.model, earlier, data, workers)


def evaluate_cell(
    directory: Path,
    work: Work,
    model: Model,
    earlier: dict[int, Model],
    data: Trajectories,
    workers: int | None = None,
) -> None:
    """Measure the planners whose results are not there yet: with the last model, and with those of earlier steps."""
    cell, protocol = work.cell, work.cell.protocol
    arena_for = partial(Arena, cell.env, reference=data.observations[0], workers=workers)
    todo = missing(directory, cell, work.data)
    far = []
    if todo and protocol.distances and can_measure(cell.env):
        far = [arena_for(protocol.by_distance())]
    arena_of = cache(lambda columns: arena_for(protocol.by_task(columns)))
    for variant in todo:
        arena, file = arena_of(variant.columns_in(cell.env)), evaluation_file(directory, variant.label)
        driver = _driver(directory, work, variant)
        with _timed(directory, "evaluation"):
            last, *bands = _rollouts([arena, *far], model, driver, data, variant)
            result = Result.of(
                last,
                cell.env,
                cell.method,
                cell.seed,
                arena.describe(),
                step=cell.settings["steps"],
                earlier={
                    step: Episodes.of(*_rollouts([arena], young, driver, data, variant))
                    for step, young in earlier.items()
                },
                bands=Episodes.of(*bands) if bands else None,
                fingerprint=cell.evaluation_fingerprint(work.data, variant),
            )
        if work.draw and arena.map is not None:
            from iel.viz import draw_rollouts

            draw_rollouts(file.with_suffix(".png"), arena.map, {variant.label: last})
        result.write(file)


def _rollouts(
    arenas: list[Arena], model: Model, driver: Model | None, data: Trajectories, variant: Variant
) -> list[Rollouts]:
    """A model under one planner in each of these arenas; with a `driver` it is that model's policy that acts."""
    model = model if driver is None else model.driven_by(driver)
    planner = make_planner(variant.planner, model, data, **variant.settings)
    return [arena.rollout(model, planner, variant.label) for arena in arenas]


def _driver(directory: Path, work: Work, variant: Variant) -> Model | None:
    """The model whose policy acts under a planner, where it is not the cell's own."""
    if not variant.policy_of:
        return None
    other = work.cell.driver(variant.policy_of).directory(work.data)
    run = directory.parent / other / "run"
    if not run.is_dir() or (trained := open_run(run)).status != "finished":
        raise RunError(f"The policy of {other} is to act here and is not trained yet; run that cell as well.")
    return trained.model


def read_times(directory: Path) -> Times:
    """Seconds spent on a cell so far."""
    path = directory / "times.json"
    return read_record(path, Times) if path.exists() else Times()


@contextmanager
def _timed(directory: Path, kind: Literal["training", "evaluation"]) -> Iterator[None]:
    """Add the seconds of a block that ends well to `times.json`."""
    started = time.monotonic()
    yield
    times = asdict(read_times(directory))
    write_json(directory / "times.json", {**times, kind: round(times[kind] + time.monotonic() - started, 2)})


# ---------------------------------------------------------------- the process


def stop_with_parent() -> None:
    """On Linux, receive SIGTERM when the parent dies: training then saves a checkpoint and ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        if os.getppid() != parent:  # it had died before
            sys.exit(143)


def main(directory: str, cores: str = "", workers: str = "") -> int:
    """Entry point of the process: `cores` are the numbers of those it may use, `workers` is how many step evaluations.
    Its last line on stderr is the reason of a failure."""
    stop_with_parent()
    if cores:
        keep_to([int(core) for core in cores.split(",")])
    try:
        run_cell(Path(directory), int(workers) if workers else None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, IELError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
