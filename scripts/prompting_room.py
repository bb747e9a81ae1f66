"""Goals on some columns, and rewards without a graph, on a robot in a room. Numbers of docs/prompting.md.

The robot of examples/own_logs.py logs a third column that wanders by itself and that no command changes: the brightness
of the room, say. A full goal has to name some brightness; a goal on columns 0 and 1 does not.

    python scripts/prompting_room.py [--steps 6000] [--seed 0] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import iel
from iel.planning import Acting, Controller, Planner, Reward, make_planner

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
EPISODES, HORIZON, NEAR = 100, 150, 0.5
REWARDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x + y": lambda s: s[:, 0] + s[:, 1],
    "corner": lambda s: ((s[:, 0] > 8) & (s[:, 1] > 8)).astype(float),
    "middle": lambda s: -np.hypot(s[:, 0] - 5, s[:, 1] - 5),
    "stripes": lambda s: np.sin(4 * s[:, 0]),
}


def logs(seed: int) -> iel.Trajectories:
    """The example's drives, with a brightness that wanders."""
    from own_logs import drive_around  # type: ignore[import-not-found]

    rng, episodes = np.random.default_rng(seed), []
    for _ in range(EPISODES):
        positions, commands = drive_around(rng)
        brightness = rng.uniform(0, 10) + np.cumsum(rng.normal(0, 0.3, len(positions)))
        episodes.append((np.column_stack([positions, brightness]), commands))
    return iel.Trajectories.from_episodes(episodes, name="room")


def drive(planner: Planner, goal_specs: Any, starts: np.ndarray) -> np.ndarray:
    """States (steps, robots, 3) of as many robots as there are wishes; the brightness wanders on."""
    rng, states = np.random.default_rng(1), starts.copy()
    controller = Controller(planner.model, planner.plan(goal_specs), Acting(), np.random.default_rng(0))
    visited = [states.copy()]
    for _ in range(HORIZON):
        states[:, :2] = np.clip(states[:, :2] + 0.3 * controller.act(states.astype(np.float32)), 0, 10)
        states[:, 2] += rng.normal(0, 0.3, len(states))
        visited.append(states.copy())
    return np.array(visited)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = logs(options.seed)
    algo = iel.IEL.preset("smoke", steps=options.steps)
    model = iel.train(data, algo, seeds=[options.seed], out=options.out, progress=False).model
    rng = np.random.default_rng(100 + options.seed)
    starts, goals = rng.uniform(0.5, 9.5, (2, 200, 3))
    for name, settings in {"direct": {}, "asym-graph": {"nodes": 512}}.items():
        planner = make_planner(name, model, data, **settings)
        for kind, goal_specs in {
            "full goals": goals.astype(np.float32),
            "columns 0 and 1": [{0: goal[0], 1: goal[1]} for goal in goals],
        }.items():
            gaps = np.linalg.norm(drive(planner, goal_specs, starts)[..., :2] - goals[:, :2], axis=2)
            reached = (gaps < NEAR).any(axis=0)
            first = np.where(reached, (gaps < NEAR).argmax(axis=0), HORIZON)
            print(json.dumps({"planner": name, "asked": kind, "success": reached.mean(), "steps": first.mean()}))
        for text, reward in REWARDS.items():
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                share = planner.reward_model.read(Reward(reward)).readout.share
                planner.prepare(Reward(reward))
                warned = len(said) > 0
                visited = drive(planner, [Reward(reward)] * len(starts), starts)
            means = [float(np.mean([reward(states) for states in part])) for part in (visited[:1], visited[-20:])]
            facts = {"in_span": round(share, 2), "warned": warned, "at_start": means[0], "last_20_steps": means[1]}
            print(json.dumps({"planner": name, "reward": text, **facts}))


if __name__ == "__main__":
    main()
