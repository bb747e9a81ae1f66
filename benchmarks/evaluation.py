"""What an evaluation on several cores costs over one core, and over the bare simulator on the same cores.

`episodes` ants are driven by a random model without a planner, for the same steps in every case:

    one       `Arena.rollout` with one worker
    all       the same with a worker per core; the same bits
    bare      the environments alone, an equal share in each of as many processes, with given actions

`speed_up` is the time of one over that of all, `over_bare` the time of all over that of bare; starting processes and
making environments is left out of the three, and is `start_seconds`. The cases take turns, and medians are printed.

On a machine that does other work the ratios of wall time are those of its scheduler. `busiest_*` are the same ratios
of the processor time of the process that is busiest: the one that acts and steps its share.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import in_own_process
from benchmarks.runtime import random_model
from iel.commands.common import Output
from iel.cores import usable_cores
from iel.envs import make_env
from iel.evaluation import Arena, Protocol
from iel.planning import make_planner

ENVIRONMENT = "antmaze-large-navigate-v0"
SIZES = {"observations": 29, "actions": 8}


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """What an evaluation on all cores costs over one core, and over the bare simulator."""

    episodes: int = 100
    """Ants, a multiple of five tasks."""
    steps: int = 200
    """Steps of each."""
    workers: int | None = None
    """Processes that step (default: one per core)."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the networks."""
    rounds: int = 3
    """How often each case is measured."""


def run(options: Options) -> dict[str, Any]:
    """Seconds of the three cases, and their ratios."""
    workers = options.workers or len(usable_cores())
    model = random_model("waypoint", options.hidden, **SIZES, dimension=32)
    states = np.random.default_rng(0).normal(size=(256, SIZES["observations"])).astype(np.float32)
    planner = make_planner("direct", model, states)
    protocol = Protocol(options.episodes // 5, max_steps=options.steps)
    result: dict[str, Any] = {"env": ENVIRONMENT, "episodes": 5 * protocol.episodes, "workers": workers}
    arenas = {}
    for name, count in (("one", 1), ("all", workers)):
        started = time.perf_counter()
        arenas[name] = Arena(ENVIRONMENT, protocol, reference=states[0], workers=count)
        arenas[name].reset(range(result["episodes"]))
        result[f"{name}_start_seconds"] = round(time.perf_counter() - started, 2)
    measured: dict[str, list[tuple[float, float]]] = {"one": [], "all": [], "bare": []}
    ends = []
    for _ in range(options.rounds):
        for name, arena in arenas.items():
            wall, processor = time.perf_counter(), time.process_time()
            rollouts = arena.rollout(model, planner, name, progress=False)
            measured[name].append((time.perf_counter() - wall, time.process_time() - processor))
            ends.append(np.array([path[-1] for path in rollouts.paths]))
        share = {"count": -(-result["episodes"] // workers), "steps": int(rollouts.steps.max())}
        with ThreadPoolExecutor(workers) as pool:
            parts = [pool.submit(in_own_process, "benchmarks.evaluation", "bare", **share) for _ in range(workers)]
        rows = [part.result() for part in parts]
        measured["bare"].append(tuple(np.max(rows, axis=0)))
    assert all(np.array_equal(end, ends[0]) for end in ends), "the number of workers changed a result"
    for number, clock in enumerate(("", "busiest_")):
        one, every, bare = (float(np.median([row[number] for row in measured[name]])) for name in measured)
        result |= {f"{clock}seconds": [round(value, 3) for value in (one, every, bare)]}
        result |= {f"{clock}speed_up": round(one / every, 3), f"{clock}over_bare": round(every / bare, 3)}
    return result


def bare(count: int, steps: int) -> tuple[float, float]:
    """Wall and processor seconds of stepping `count` simulators in turn with given actions."""
    envs = [make_env(ENVIRONMENT) for _ in range(count)]
    for number, env in enumerate(envs):
        env.reset(seed=number, options={"task_id": 1 + number % 5})
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (steps, count, SIZES["actions"])).astype(np.float32)
    wall, processor = time.perf_counter(), time.process_time()
    for moment in actions:
        for env, action in zip(envs, moment, strict=True):
            env.unwrapped.step(action)
    return time.perf_counter() - wall, time.process_time() - processor


def command(options: Options) -> dict[str, Any]:
    """`iel bench evaluation`."""
    result = run(options)
    if not options.json:
        for name, value in result.items():
            print(f"{name:22} {value}")
    return result


if __name__ == "__main__":
    print(json.dumps(bare(**json.loads(sys.argv[2]))))
