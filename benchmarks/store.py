"""Data on the disk: steps per second and resident memory against the same training in memory.

    iel bench store
    iel bench store --transitions 100000000 --batches 1000000 --directory /somewhere/large

A store of so many transitions is written (one million of a random walk, repeated), opened, asked for the row numbers of
many batches, and trained on by IEL at the laptop preset, 1,000 steps in all phases. The same training runs on the first
million transitions in memory and from a store of them. Every case has a process of its own, whose peak of resident
memory is reported; the time of the first chunk of a phase, which compiles, is left out.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import in_own_process, peak_megabytes, print_rows
from iel.algos.contract import Spec
from iel.algos.iel import IEL
from iel.commands.common import Output
from iel.data.store import open_store, write_store
from iel.data.trajectories import Rows
from iel.files import require_space
from iel.training.feed import CHUNK, Fed
from iel.training.loop import Trainer
from iel.training.seeds import Separate

EPISODE = 1000
"""Transitions an episode."""
PART = 1_000_000
"""Transitions that are drawn; more are repeats of them."""
COLUMNS = (8, 2)
"""Of observations and actions."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Training from the disk against training in memory."""

    transitions: int = 10_000_000
    """Size of the large store: 40 bytes each on the disk."""
    batches: int = 10_000
    """Batches whose row numbers are drawn."""
    steps: int = 1000
    """Steps of training, all phases together."""
    directory: Path | None = None
    """Where the stores are written, and removed again (default: the system's temporary directory)."""


def walk(count: int) -> Rows:
    """A random walk of so many transitions in a box, in episodes."""
    rng = np.random.default_rng(0)
    episodes = max(1, count // EPISODE)
    actions = rng.uniform(-1, 1, (episodes, EPISODE + 1, COLUMNS[1])).astype(np.float32)
    pushes = rng.normal(size=(episodes, EPISODE + 1, COLUMNS[0])).astype(np.float32)
    states = np.sin(0.05 * np.cumsum(pushes, axis=1))
    offsets = np.arange(episodes + 1) * (EPISODE + 1)
    return Rows(states.reshape(-1, COLUMNS[0]), actions.reshape(-1, COLUMNS[1]), offsets, "walk")


def windows(transitions: int) -> Iterator[Rows]:
    part = walk(min(PART, transitions))
    for _ in range(max(1, transitions // PART)):
        yield part


def write_case(transitions: int, directory: str) -> dict[str, Any]:
    """Write a store; its rows are not judged, as they are known."""
    started = time.perf_counter()
    data = write_store(windows(transitions), Path(directory), "walk", trust=True)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in Path(directory).iterdir())
    return {"transitions": data.num_transitions, "gb": round(size / 1e9, 2), "write_seconds": round(seconds, 1),
            "write_peak_mb": round(peak_megabytes())}  # fmt: skip


def indices_case(directory: str, batches: int) -> dict[str, Any]:
    """Open a store and draw the row numbers of many batches of IEL's second phase."""
    before, started = peak_megabytes(), time.perf_counter()
    data = open_store(Path(directory))
    opened = time.perf_counter() - started
    algo = IEL.preset("laptop")
    fed = Fed(data, algo, Spec(data.observation_size, data.action_size), None, Separate(1))
    fed.begin("embedding", None, (jax.random.key(0),))
    started = time.perf_counter()
    for first in range(0, batches, CHUNK):
        fed.ask(first)
    seconds = time.perf_counter() - started
    return {"open_seconds": round(opened, 3), "import_mb": round(before), "batches": batches,
            "batch_size": algo.batch_size, "batches_per_second": round(batches / seconds),
            "indices_peak_mb": round(peak_megabytes())}  # fmt: skip


def train_case(where: str, steps: int, directory: str | None = None) -> dict[str, Any]:
    """Steps per second of every phase, from a store or in memory."""
    data = walk(PART).trajectories(trust=True) if directory is None else open_store(Path(directory))
    algo = replace(IEL.preset("laptop", omega_share=0.2, embedding_share=0.4, cut_jumps=False), steps=steps)
    trainer = Trainer(data, algo, [0], {})
    rates = {}
    for phase in algo.phases():
        advance = trainer.stepper(phase.name)
        advance(CHUNK)
        started = time.perf_counter()
        for _ in range(phase.steps // CHUNK - 1):
            advance(CHUNK)
        rates[phase.name] = round((phase.steps - CHUNK) / (time.perf_counter() - started), 1)
    return {"where": where, "transitions": data.num_transitions, **rates, "peak_mb": round(peak_megabytes())}


CASES: dict[str, Callable[..., dict[str, Any]]] = {"write": write_case, "indices": indices_case, "train": train_case}


def run(options: Options) -> dict[str, Any]:
    """All cases, one after another."""
    scratch = Path(tempfile.mkdtemp(prefix="iel-bench-", dir=options.directory))
    try:
        require_space(scratch, 44 * (options.transitions + PART), "the stores of this benchmark")
        small, large = str(scratch / "small"), str(scratch / "large")
        own = lambda case, **arguments: in_own_process("benchmarks.store", case, **arguments)  # noqa: E731
        own("write", transitions=PART, directory=small)
        written = own("write", transitions=options.transitions, directory=large)
        asked = own("indices", directory=large, batches=options.batches)
        rows = [
            own("train", where="memory", steps=options.steps),
            own("train", where="disk", steps=options.steps, directory=small),
            own("train", where="disk", steps=options.steps, directory=large),
        ]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    phases = [name for name in rows[0] if name not in ("where", "transitions", "peak_mb")]
    for row in rows:
        row["ratio"] = {phase: round(row[phase] / rows[0][phase], 2) for phase in phases}
    return {"device": jax.devices()[0].device_kind, "store": written, "sampling": asked, "training": rows}


def command(options: Options) -> dict[str, Any]:
    """`iel bench store`."""
    result = run(options)
    if not options.json:
        for name in ("store", "sampling"):
            print_rows([result[name]])
        print_rows(result["training"])
    return result


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](**json.loads(sys.argv[2]))))
