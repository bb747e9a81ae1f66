"""What our environments cost over the simulators they stand on.

Both sides step the same simulator from the same seeded start with the same actions, in short blocks that take turns,
and the clock counts this thread's processor time, so that a busy machine disturbs them little. `overhead` is the median
over pairs of blocks of (our time / raw time) - 1, and should stay below 0.05.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import print_rows
from iel.commands.common import Output
from iel.envs import make_env
from iel.envs.seeded import SeededEnv
from iel.progress import Progress

ENVIRONMENTS = (
    "pointmaze-large-v0",
    "antmaze-large-v0",
    "antmaze-teleport-v0",
    "humanoidmaze-medium-v0",
    "antsoccer-arena-v0",
    "cube-single-v0",
    "antmaze-large-diverse-v2",
    "kitchen-partial-v0",
)
BLOCK_SECONDS = 0.025
"""A block takes about this long: short beside the machine's moods, long beside the clock's grain."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """What our environments cost over the simulators they stand on."""

    seconds: float = 4.0
    """Time spent on each environment."""


def run(envs: Sequence[str] = ENVIRONMENTS, *, seconds: float = 4.0, progress: bool = True) -> dict:
    """Measure every environment for about `seconds`: {"rows": [{env, raw_steps_per_second, ..., overhead}]}."""
    rows = []
    with Progress("bench stepping", len(envs), unit="environments", show=progress) as bar:
        for name in envs:
            rows.append({"env": name, **_measure(make_env(name), seconds)})
            bar.advance(1, f"{name} {rows[-1]['overhead']:+.1%}")
    return {"rows": rows}


def raw_step(env: SeededEnv) -> Callable[[Any], Any]:
    """The simulator's own step: OGBench's, on our D4RL maps that of OGBench's ant, FrankaKitchen's in the kitchen."""
    simulator: Any = env.unwrapped
    if env.name.startswith("kitchen-"):
        return simulator.simulator.step
    if type(simulator).__name__ == "D4RLAntMaze":
        from ogbench.locomaze.ant import AntEnv

        return lambda action: AntEnv.step(simulator, action)
    return simulator.step


def _measure(env: SeededEnv, seconds: float) -> dict[str, float]:
    raw = raw_step(env)
    env.reset(seed=0, options={"task_id": 1})
    shape = env.action_space.shape
    assert shape is not None
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (2000, *shape)).astype(np.float32)
    warm = actions[:20]
    steps = max(5, int(BLOCK_SECONDS / (_time(env, raw, warm) / len(warm))))
    block = actions[: min(steps, len(actions), env.horizon - 1)]
    pairs = []
    for turn in range(max(5, int(seconds / (2 * BLOCK_SECONDS)))):
        sides = [raw, env.step] if turn % 2 else [env.step, raw]
        times = {side: _time(env, side, block) for side in sides}
        pairs.append((times[raw], times[env.step]))
    ours_over_raw = np.median([ours / theirs for theirs, ours in pairs])
    theirs, ours = np.median(np.array(pairs), axis=0)
    return {
        "raw_steps_per_second": round(float(len(block) / theirs), 1),
        "steps_per_second": round(float(len(block) / ours), 1),
        "overhead": round(float(ours_over_raw) - 1.0, 4),
    }


def _time(env: SeededEnv, step: Callable[[Any], Any], actions: np.ndarray) -> float:
    env.reset(seed=0, options={"task_id": 1})
    started = time.thread_time()
    for action in actions:
        step(action)
    return time.thread_time() - started


def command(options: Options) -> dict[str, Any]:
    """`iel bench stepping`."""
    result = run(seconds=options.seconds)
    if not options.json:
        print_rows(result["rows"])
    return result
