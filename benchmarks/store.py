"""Data on the disk: steps per second and resident memory against the same training in memory.

    iel bench store
    iel bench store --transitions 100000000 --batches 1000000 --directory /somewhere/large

A store of `transitions` is written (one million of a random walk, repeated), opened, read in many batches, and
trained on by IEL at the laptop preset, 1,000 steps in all phases; each in a process of its own, whose peak of resident
memory is reported. Then chunks of the same training take turns in one process: on a million
transitions in memory, on the same million on the disk, and on the large store.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import in_own_process, peak_megabytes, print_rows
from iel.commands.common import Output
from iel.data.store import open_store, write_store
from iel.data.trajectories import Rows
from iel.files import require_space
from iel.learner import Phase, Spec
from iel.methods.iel import IEL
from iel.policies import Directions
from iel.training.loop import CHUNK, Trainer
from iel.training.steps import Source, step_keys

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
    """Batches that are drawn and read."""
    steps: int = 1000
    """Steps of training, all phases together."""
    rounds: int = 3
    """Rounds of a hundred steps in memory and from the disk, in turn."""
    directory: Path | None = None
    """Where the stores are written, and removed again (default: the system's temporary directory)."""


def walk(count: int) -> Rows:
    """A random walk of `transitions` in a box, in episodes."""
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
    """Write a store; its rows are not checked, as they are known."""
    started = time.perf_counter()
    data = write_store(windows(transitions), Path(directory), "walk", trust=True)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in Path(directory).iterdir())
    return {"transitions": data.num_transitions, "gb": round(size / 1e9, 2), "write_seconds": round(seconds, 1),
            "write_peak_mb": round(peak_megabytes())}  # fmt: skip


def sample_case(directory: str, batches: int) -> dict[str, Any]:
    """Open a store, and draw and read many batches of IEL's first phase: three states a row."""
    before, started = peak_megabytes(), time.perf_counter()
    data = open_store(Path(directory))
    opened = time.perf_counter() - started
    algo, key = IEL.preset("laptop"), jax.random.key(0)
    source, learner = Source(data, Spec(data.observation_size, data.action_size), None), algo.phases()[0].learner

    @jax.jit
    def chunk(first: jax.Array) -> jax.Array:
        def add(offset: jax.Array, total: jax.Array) -> jax.Array:
            sample_key, _ = step_keys(key, first + offset)
            return total + learner.sample(sample_key, *source.seen(learner, {}, source.data)).states.mean()

        return jax.lax.fori_loop(0, CHUNK, add, 0.0)

    jax.block_until_ready(chunk(0))  # compiles
    started = time.perf_counter()
    for first in range(0, batches, CHUNK):
        jax.block_until_ready(chunk(first))
    seconds = time.perf_counter() - started
    return {"open_seconds": round(opened, 3), "import_mb": round(before), "batches": batches,
            "batch_size": algo.batch_size, "batches_per_second": round(batches / seconds),
            "sampling_peak_mb": round(peak_megabytes())}  # fmt: skip


def settings(steps: int) -> IEL:
    """A fifth of the steps for omega, two fifths for the embedding and for the policy."""
    policy = Directions(steps=steps - steps * 3 // 5)
    return IEL.preset("laptop", steps=steps * 3 // 5, omega_share=1 / 3, cut_jumps=False, policy=policy)


def train_case(directory: str, steps: int) -> dict[str, Any]:
    """Train on a store: wall-clock seconds and memory."""
    trainer, started = Trainer(open_store(Path(directory)), settings(steps), [0], {}), time.perf_counter()
    for phase in trainer.phases:
        advance = trainer.stepper(phase)
        for _ in range(phase.steps // CHUNK):
            advance(CHUNK)
    return {
        "steps": trainer.step,
        "seconds": round(time.perf_counter() - started, 1),
        "peak_mb": round(peak_megabytes()),
    }


def turns_case(small: str, large: str, rounds: int) -> list[dict[str, Any]]:
    """Chunks of training in memory, from a small store and from a large one, in turn; the best round of each counts.

    Processor time is that of all threads, so it includes the reading, which wall-clock time hides while cores are free.
    """
    data = {"memory": walk(PART).trajectories(trust=True), "disk": open_store(Path(small))}
    data["large disk"] = open_store(Path(large))
    trainers = {where: Trainer(own, settings(1000), [0], {}) for where, own in data.items()}
    rows = []
    phases: tuple[Phase, ...] = settings(1000).phases()
    for phase in phases:
        steppers = {where: trainer.stepper(phase) for where, trainer in trainers.items()}
        times: dict[str, list[tuple[float, float]]] = {where: [] for where in steppers}
        for turn in range(rounds + 1):
            for where, advance in steppers.items():
                before = time.perf_counter(), time.process_time()
                advance(CHUNK)
                after = time.perf_counter(), time.process_time()
                if turn:  # the first one compiles
                    times[where].append((after[0] - before[0], after[1] - before[1]))
        best = {where: np.min(taken, axis=0) for where, taken in times.items()}
        rows += [
            {
                "phase": phase.name,
                "where": where,
                "transitions": data[where].num_transitions,
                "steps_per_second": round(CHUNK / wall, 1),
                "ratio": round(best["memory"][0] / wall, 2),
                "steps_per_processor_second": round(CHUNK / processor, 1),
                "processor_ratio": round(best["memory"][1] / processor, 2),
            }
            for where, (wall, processor) in best.items()
        ]
    return rows


CASES: dict[str, Callable[..., Any]] = {
    "write": write_case,
    "sample": sample_case,
    "train": train_case,
    "turns": turns_case,
}


def run(options: Options) -> dict[str, Any]:
    """All cases, one after another."""
    scratch = Path(tempfile.mkdtemp(prefix="iel-bench-", dir=options.directory))
    try:
        require_space(scratch, 44 * (options.transitions + PART), "the stores of this benchmark")
        small, large = str(scratch / "small"), str(scratch / "large")
        own = lambda case, **arguments: in_own_process("benchmarks.store", case, **arguments)  # noqa: E731
        own("write", transitions=PART, directory=small)
        written = own("write", transitions=options.transitions, directory=large)
        began = own("sample", directory=large, batches=options.batches)
        trained = own("train", directory=large, steps=options.steps)
        turns = own("turns", small=small, large=large, rounds=options.rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    device = jax.devices()[0].device_kind
    return {"device": device, "store": written, "sampling": began, "training": trained, "turns": turns}


def command(options: Options) -> dict[str, Any]:
    """`iel bench store`."""
    result = run(options)
    if not options.json:
        for name in ("store", "sampling", "training"):
            print_rows([result[name]])
        print_rows(result["turns"])
    return result


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](**json.loads(sys.argv[2]))))
