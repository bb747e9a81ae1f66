"""What checkpoints cost: training with and without saves, turn by turn in the same process.

Rounds of one chunk of steps alternate with rounds of the same chunk followed by a save (states brought to the host,
written, flushed, read back, verified, renamed, the oldest removed). `save_ms` is the median time inside the save,
`difference_ms` the difference of the two kinds of round, which also holds what a save does to the steps around it (and
the machine's noise). With the default interval T, or a hundred times the save when that is longer, saving takes
save / (T + save) of the time.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import print_rows
from benchmarks.training import synthetic_data
from iel.commands.common import Output
from iel.learner import Phase
from iel.methods.iel import IEL
from iel.progress import Progress
from iel.training.checkpoint import state_bytes
from iel.training.loop import CHUNK, SAVE_SECONDS, SAVE_SHARE, Trainer
from iel.training.run import open_or_create, run_config


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """What checkpoints cost of the training time at the laptop preset."""


def run(preset: str = "laptop", *, rounds: int = 12, directory: Path | None = None, progress: bool = True) -> dict:
    """Measure every phase; `directory` is where the checkpoints go (default: the system's temporary directory)."""
    algo, data = IEL.preset(preset), synthetic_data()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="iel-bench-", dir=directory) as scratch, ExitStack() as stack:
        runs = open_or_create(Path(scratch), [0], run_config(data, algo, [0], None), resume=False)
        trainer = Trainer(data, algo, [0], runs)
        trainer.open(stack)
        bar = stack.enter_context(Progress("bench checkpoints", len(trainer.phases), unit="phases", show=progress))
        for phase in trainer.phases:
            rows.append({"phase": phase.name, **_measure(trainer, phase, rounds)})
            bar.advance(1, f"{phase.name} {rows[-1]['save_ms']} ms a save")
    return {
        "preset": preset,
        "device": jax.devices()[0].device_kind,
        "state_mb": round(state_bytes(trainer.state) / 1e6, 2),
        "rows": rows,
        "largest_fraction": max(row["fraction_of_training"] for row in rows),
    }


def _measure(trainer: Trainer, phase: Phase, rounds: int) -> dict[str, float]:
    advance = trainer.stepper(phase)

    def one_round(save: bool) -> tuple[float, float]:
        """(seconds of the whole round, seconds inside the save)."""
        started = time.perf_counter()
        advance(CHUNK)
        jax.block_until_ready(trainer.state)
        trained = time.perf_counter()
        if save:
            trainer.checkpoint()
        ended = time.perf_counter()
        return ended - started, ended - trained

    one_round(True)  # compiles
    without, having, inside = [], [], []
    for _ in range(rounds):
        without.append(one_round(False)[0])
        whole, saving = one_round(True)
        having.append(whole)
        inside.append(saving)
    save = float(np.median(inside))
    interval = max(SAVE_SECONDS, save / SAVE_SHARE)
    return {
        "steps_per_second": round(CHUNK / float(np.median(without)), 1),
        "save_ms": round(1e3 * save, 1),
        "slowest_save_ms": round(1e3 * max(inside), 1),
        "difference_ms": round(1e3 * float(np.median(having) - np.median(without)), 1),
        "interval_seconds": round(interval, 1),
        "fraction_of_training": round(save / (interval + save), 5),
        "fraction_at_slowest": round(max(inside) / (interval + max(inside)), 5),
    }


def command(options: Options) -> dict[str, Any]:
    """`iel bench checkpoints`."""
    result = run()
    if not options.json:
        print_rows(result["rows"])
    return result
