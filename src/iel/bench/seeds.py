"""Eight seeds in one program, against eight programs.

All ways of training n seeds are measured in one run, in processes of their own, on the same data:

- `one after another`: one process with one seed; n of them in turn take n times as long. This is the baseline.
- `vmap`: one process, all seeds in one program, as `iel train --seeds 0 1 2 ...` does.
- `processes, all at once`: n processes, started together and left to the operating system.
- `processes, one a core`: as many processes as cores, each kept to its own, as `iel compare` does. When one ends the
  next seed takes its place, so the rate of the first ones is the rate of all.

The number compared is the sum over seeds of gradient steps a second, once everything is compiled: all processes of a
way wait for each other before the clock of a phase starts, and it stops when the last one is done. What is paid before
the first step (starting Python, importing, compiling) is given separately, as the wall time until all are ready.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import time
from dataclasses import dataclass
from typing import Any

import jax

from iel.algos.iel import IEL
from iel.bench.training import _synthetic_data
from iel.errors import IELError
from iel.progress import Progress
from iel.training.loop import CHUNK, Trainer

PATIENCE = 900.0
"""Seconds without a word from any process after which something must be wrong."""


@dataclass(frozen=True)
class Way:
    """Groups of seeds, one process each, and the cores of each process (None: all of them)."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    cores: tuple[int | None, ...]


def ways(count: int) -> list[Way]:
    """The four ways of training `count` seeds on this machine; the baseline comes first."""
    seeds = tuple(range(count))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = cores[:count]
    return [
        Way("one after another", ((0,),), (None,)),
        Way("vmap", (seeds,), (None,)),
        Way("processes, all at once", tuple((seed,) for seed in seeds), (None,) * count),
        Way("processes, one a core", tuple((seed,) for seed in range(len(cores))), tuple(cores)),
    ]


def run(count: int = 8, *, preset: str = "laptop", steps: int = 300, rounds: int = 2, progress: bool = True) -> dict:
    """Train `steps` steps of every phase in every way, the whole `rounds` times over; the best round of each counts."""
    phases = [phase.name for phase in IEL(preset=preset).phases()]
    found: dict[str, dict[str, Any]] = {}
    with Progress("bench seeds", 4 * rounds, unit="trainings", show=progress) as bar:
        for _ in range(rounds):
            for way in ways(count):
                ready, rates = _measure(way, preset, steps, phases)
                best = found.setdefault(way.name, {"ready_seconds": ready, "rates": rates})
                best["ready_seconds"] = min(best["ready_seconds"], ready)
                best["rates"] = {name: max(rate, best["rates"][name]) for name, rate in rates.items()}
                bar.advance(1, f"{way.name} {sum(rates.values()) / len(rates):.0f} seed-steps/s")
    baseline = found["one after another"]["rates"]
    rows = [
        {
            "way": name,
            **{f"{phase}_seed_steps_per_second": round(rate, 1) for phase, rate in values["rates"].items()},
            **{f"{phase}_ratio": round(rate / baseline[phase], 2) for phase, rate in values["rates"].items()},
            "ready_seconds": round(values["ready_seconds"], 1),
        }
        for name, values in found.items()
    ]
    return {
        "seeds": count,
        "preset": preset,
        "steps": steps,
        "rounds": rounds,
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "rows": rows,
    }


def _measure(way: Way, preset: str, steps: int, phases: list[str]) -> tuple[float, dict[str, float]]:
    """Wall seconds until every process is ready for its first step, and seed-steps a second of every phase."""
    context = mp.get_context("spawn")
    barrier, words = context.Barrier(len(way.groups) + 1), context.Queue()
    started = time.monotonic()
    processes = [
        context.Process(target=_work, args=(group, core, preset, steps, barrier, words), daemon=True)
        for group, core in zip(way.groups, way.cores, strict=True)
    ]
    ready, seconds = 0.0, {}
    try:
        for process in processes:
            process.start()
        for phase in phases:
            compiled = max(_word(words, processes) for _ in processes)
            ready += compiled - started
            barrier.wait(PATIENCE)
            began = time.monotonic()
            started = max(_word(words, processes) for _ in processes)
            seconds[phase] = started - began
        for process in processes:
            process.join(PATIENCE)
    finally:
        for process in processes:
            process.kill()
    seeds = sum(map(len, way.groups))
    return ready, {phase: seeds * steps / seconds[phase] for phase in phases}


def _word(words: Any, processes: list) -> float:
    """The time a process says it reached its next mark."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            return float(words.get(timeout=1.0))
        except queue.Empty:
            if any(process.exitcode for process in processes):
                break
    raise IELError("A process of the benchmark ended early; run it with fewer --seeds if memory is short.")


def _work(seeds: tuple[int, ...], core: int | None, preset: str, steps: int, barrier: Any, words: Any) -> None:
    """One process: for every phase compile, say so, wait for the others, train, say so."""
    if core is not None:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
        os.sched_setaffinity(0, {core})
    trainer = Trainer(_synthetic_data(), IEL(preset=preset), list(seeds), {})
    for phase in trainer.algo.phases():
        advance = trainer.stepper(phase.name)
        advance(10)
        words.put(time.monotonic())
        barrier.wait(PATIENCE)
        for done in range(0, steps, CHUNK):
            advance(min(CHUNK, steps - done))
        jax.block_until_ready(trainer.state)
        words.put(time.monotonic())
