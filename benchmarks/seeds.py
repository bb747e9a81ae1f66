"""Eight seeds in one program, against eight programs.

All variants of training n seeds are measured in one run, in processes of their own, on the same data:

- `one after another`: one process with one seed; n of them in turn take n times as long. This is the baseline.
- `vmap`: one process, all seeds in one step of a mapped program, as `iel train --seeds 0 1 2 ...` does on accelerators.
- `threads`: one process, the program of one seed run for all of them, as many at a time as there are cores, as
  `iel train --seeds` does on CPUs.
- `processes, all at once`: n processes, started together and left to the operating system.
- `processes, one per core`: as many processes as cores, each pinned to its own, as `iel compare` does, wave after wave.
  Left out where the system cannot pin a process to a core.

The number compared is gradient steps a second, summed over the seeds that train at the same time, once everything is
compiled: no process begins to train before all are ready, none goes on to compile the next phase before all have ended,
and the time is that from the first to begin to the last to end. What is paid around it (starting Python, importing,
embedding the data, compiling, ten steps to warm up) is `ready_seconds`, for all seeds: as often as there are waves.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import jax

from benchmarks import print_rows
from benchmarks.training import synthetic_data
from iel.commands.common import Output
from iel.cores import CAN_PIN, environment_for, keep_to, usable_cores
from iel.errors import ConfigError, IELError
from iel.methods.iel import IEL
from iel.progress import Progress
from iel.training.loop import CHUNK, Trainer

MAPS = {"separate": False, "stacked": True}
"""Whether the seeds of a process are stacked."""
WARM_UP = 10
"""Steps that compile a phase and are not timed."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Many seeds in one program, by vmap and by threads, against one process a seed."""

    seeds: int = 8
    """How many seeds."""
    preset: str = "laptop"
    """Preset of IEL."""
    steps: int = 300
    """Gradient steps of each phase that are timed."""
    rounds: int = 2
    """How often everything is measured; the best round of each variant counts."""


@dataclass(frozen=True)
class Variant:
    """Seeds of every process of a wave, the cores of each, how many waves train all seeds, and how a process maps over
    several of them (a name in `MAPS`)."""

    name: str
    seeds: tuple[tuple[int, ...], ...]
    cores: tuple[tuple[int, ...], ...]
    waves: int = 1
    map: str = "separate"


def variants(count: int) -> list[Variant]:
    """How `count` seeds can be trained on this machine; the baseline comes first."""
    cores, each = tuple(usable_cores()), tuple((seed,) for seed in range(count))
    found = [
        Variant("one after another", ((0,),), (cores,), waves=count),
        Variant("vmap", (tuple(range(count)),), (cores,), map="stacked"),
        Variant("threads", (tuple(range(count)),), (cores,)),
        Variant("processes, all at once", each, (cores,) * count),
    ]
    if CAN_PIN:
        at_a_time = min(count, len(cores))
        pinned = tuple((core,) for core in cores[:at_a_time])
        found.append(Variant("processes, one per core", each[:at_a_time], pinned, waves=math.ceil(count / at_a_time)))
    return found


def run(count: int = 8, *, preset: str = "laptop", steps: int = 300, rounds: int = 2, progress: bool = True) -> dict:
    """Train `steps` steps of every phase in every variant, `rounds` times; the best round of each counts."""
    phases = [phase.name for phase in IEL.preset(preset).phases()]
    best: dict[str, dict[str, float]] = {}
    with Progress("bench seeds", len(variants(count)) * rounds, unit="trainings", show=progress) as bar:
        for _ in range(rounds):
            for variant in variants(count):
                ready, rates = measure(variant, preset, steps, phases)
                found = best.setdefault(variant.name, {"ready": math.inf})
                found["ready"] = min(found["ready"], ready)
                found.update({phase: max(rates[phase], found.get(phase, 0.0)) for phase in phases})
                bar.advance(1, f"{variant.name} {sum(rates.values()) / len(rates):.0f} seed-steps/s")
    baseline = best["one after another"]
    rows = [
        {
            "variant": name,
            **{f"{phase}_steps_per_second": round(found[phase], 1) for phase in phases},
            **{f"{phase}_ratio": round(found[phase] / baseline[phase], 2) for phase in phases},
            "ready_seconds": round(found["ready"], 1),
        }
        for name, found in best.items()
    ]
    facts = {"seeds": count, "preset": preset, "steps": steps, "rounds": rounds, "cores": len(usable_cores())}
    return {**facts, "device": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": rows}


def measure(variant: Variant, preset: str, steps: int, phases: Sequence[str]) -> tuple[float, dict[str, float]]:
    """(seconds of everything but the steps, for all waves; steps a second of all seeds of a wave, by phase)."""
    ready, rates = 0.0, {}
    children: list[Child] = []
    try:
        mark = time.monotonic()
        for seeds, cores in zip(variant.seeds, variant.cores, strict=True):
            children.append(Child(seeds, cores, variant.map, preset, steps))
        for phase in phases:
            ready += max(child.hear()[0] for child in children) - mark
            for child in children:
                child.tell("train")
            times = [child.hear() for child in children]
            mark = max(ended for _, ended in times)
            rates[phase] = sum(map(len, variant.seeds)) * steps / (mark - min(began for began, _ in times))
            for child in children:
                child.tell("next")
    finally:
        for child in children:
            child.end()
    return variant.waves * ready, rates


class Child:
    """A process that trains: it says when it is ready, waits for the signal, and says when it began and ended."""

    def __init__(self, seeds: Sequence[int], cores: Sequence[int], each: str, preset: str, steps: int):
        self.seeds, self.errors = seeds, tempfile.TemporaryFile("w+")  # noqa: SIM115
        words = [_listed(seeds), _listed(cores), each, preset, str(steps)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.seeds", *words],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment_for(cores),
        )

    def hear(self) -> list[float]:
        """The times the process says next. One that has died says nothing, which ends the waiting at once."""
        line = _pipe(self.process.stdout).readline()
        if not line.endswith("\n"):
            raise IELError(self._reason())
        return [float(word) for word in line.split()]

    def tell(self, word: str) -> None:
        """Let the process go on; one that has died is noticed when it should answer."""
        with suppress(BrokenPipeError):
            _pipe(self.process.stdin).write(f"{word}\n")
            _pipe(self.process.stdin).flush()

    def _reason(self) -> str:
        code, who = self.process.wait(), f"The process of seeds {_listed(self.seeds)}"
        if code < 0:
            return f"{who} was ended by {signal.Signals(-code).name}; if memory was short, give fewer --seeds."
        self.errors.seek(0)
        said = [line.strip() for line in self.errors if line.strip()]
        return f"{who} failed: {said[-1] if said else f'it ended with code {code} and said nothing'}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(BrokenPipeError):
                _pipe(file).close()


def _pipe(file: IO[str] | None) -> IO[str]:
    assert file is not None
    return file


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def work(trainer: Trainer, steps: int, say: Callable[..., None], wait: Callable[[], object]) -> None:
    """What a child does: for every phase get ready, say so, wait, train, say when, and wait for the others."""
    for phase in trainer.phases:
        advance = trainer.stepper(phase)
        advance(WARM_UP)
        jax.block_until_ready(trainer.state)
        say(time.monotonic())
        wait()
        began = time.monotonic()
        for done in range(0, steps, CHUNK):
            advance(min(CHUNK, steps - done))
        jax.block_until_ready(trainer.state)
        say(began, time.monotonic())
        wait()


def command(options: Options) -> dict[str, Any]:
    """`iel bench seeds`."""
    if min(options.seeds, options.steps, options.rounds) < 1:
        raise ConfigError("--seeds, --steps and --rounds must be at least 1.")
    result = run(options.seeds, preset=options.preset, steps=options.steps, rounds=options.rounds)
    if not options.json:
        print_rows(result["rows"])
    return result


if __name__ == "__main__":
    own, cores, each, chosen, number = sys.argv[1:]
    keep_to([int(core) for core in cores.split(",")])
    seeds = [int(seed) for seed in own.split(",")]
    work(
        Trainer(synthetic_data(), IEL.preset(chosen), seeds, {}, MAPS[each]),
        int(number),
        say=lambda *times: print(*times, flush=True),
        wait=sys.stdin.readline,
    )
