"""Measure an ant controller: how fast it walks along the command, how straight, how often it falls, and in mazes.

    python scripts/measure_ant.py [--controller FILE ...] [--starts 8] [--episodes 20] [--json]

Floor: `online-ant-v0` without walls, 16 headings x `starts` random starts x 200 steps of the mean action; again with
the noise of the data makers (sampled action + 0.2 N(0, I)). A fall is a torso turned over (up vector below horizontal).
Maze: `episodes` episodes as the makers collect them, with the share of states turned over, of episodes that end so,
goals reached in 1000 steps, and collected steps a second of one core's time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import ogbench.online_locomotion  # noqa: F401  registers online-ant-v0

from iel.data.make import make_collector, recipe
from iel.data.make.ant import AntController, load_controller, upright

HEADINGS, STEPS, SETTLE, NOISE = 16, 200, 20, 0.2
"""Speed is measured from step `SETTLE` on."""
MAZES = ("antmaze-medium-navigate-v0", "antmaze-large-navigate-v0", "antmaze-large-diverse-v2")


def walk(controller: AntController, starts: int, noisy: bool, seed: int = 0) -> dict[str, Any]:
    """Speed along the command, heading error and falls on the open floor."""
    env: Any = gymnasium.make("online-ant-v0").unwrapped
    world = mujoco.MjData(env.model)
    rng = np.random.default_rng(seed)
    speeds, errors, falls = np.zeros((HEADINGS, starts)), [], 0
    for heading in range(HEADINGS):
        angle = 2.0 * np.pi * heading / HEADINGS
        direction = np.array([np.cos(angle), np.sin(angle)])
        for start in range(starts):
            states = _run(env, world, controller, direction, rng, noisy)
            moved = states[-1, :2] - states[SETTLE, :2]
            speeds[heading, start] = moved @ direction / (STEPS - SETTLE)
            across = direction[0] * moved[1] - direction[1] * moved[0]
            errors.append(abs(np.degrees(np.arctan2(across, moved @ direction))))
            falls += bool((upright(states) < 0.0).any())
    by_heading = speeds.mean(1)
    return {
        "runs": HEADINGS * starts,
        "speed along command": round(float(speeds.mean()), 4),
        "slowest heading": round(float(by_heading.min()), 4),
        "fastest heading": round(float(by_heading.max()), 4),
        "slowest run": round(float(speeds.min()), 4),
        "median heading error (degrees)": round(float(np.median(errors)), 2),
        "falls": falls,
    }


def _run(env: Any, world: Any, controller: AntController, direction: np.ndarray, rng: np.random.Generator, noisy: bool):
    """States of one run from the environment's own start."""
    mujoco.mj_resetData(env.model, world)
    world.qpos[:] = env.init_qpos + rng.uniform(-0.1, 0.1, env.model.nq)
    world.qvel[:] = 0.1 * rng.standard_normal(env.model.nv)
    mujoco.mj_forward(env.model, world)
    states = np.empty((STEPS + 1, 29))
    states[0] = np.concatenate([world.qpos, world.qvel])
    for step in range(STEPS):
        action = controller(states[step], direction, rng if noisy else None)
        world.ctrl[:] = np.clip(action + NOISE * rng.standard_normal(8), -1.0, 1.0) if noisy else action
        mujoco.mj_step(env.model, world, nstep=env.frame_skip)
        states[step + 1, :15], states[step + 1, 15:] = world.qpos, world.qvel
    return states


def wander(name: str, path: Path | None, episodes: int) -> dict[str, Any]:
    """What the makers get in a maze."""
    collector = make_collector(recipe(name), seed=0, controller=path)
    turned, ended, recovered, goals, hits, moved, stayed = 0.0, 0, 0, 0, 0, 0.0, 0.0
    began = time.process_time()
    for index in range(episodes):
        states, _ = collector.episode(index, "train")
        over = upright(states) < 0.0
        turned += over.mean()
        ended += bool(over[-1])
        recovered += int((over[:-1] & ~over[1:]).sum())
        goals += collector.goals_reached
        hits += collector.goals_reached > 0
        stayed += float((np.linalg.norm(states[50:, :2] - states[:-50, :2], axis=1) < 2.0).mean())
        moved += float(np.linalg.norm(np.diff(states[:, :2], axis=0), axis=1).mean())
    seconds = time.process_time() - began
    steps = episodes * collector.plan.steps
    facts = {
        "episodes": episodes,
        "states turned over": round(turned / episodes, 4),
        "episodes that end turned over": ended,
        "times it got up again": recovered,
        "mean speed": round(moved / episodes, 4),
        "states followed by less than 2 units in 50 steps": round(stayed / episodes, 4),
        "steps a second of one core": round(steps / seconds),
    }
    one_goal = collector.plan.is_d4rl
    return facts | (
        {"episodes that reach their goal": hits}
        if one_goal
        else {"goals in 1000 steps": round(1000 * goals / steps, 2)}
    )


def raw_speed(name: str, steps: int = 2000) -> int:
    """Steps a second of one core that the simulator's own `step` takes, with random actions and nothing around it."""
    collector = make_collector(recipe(name), seed=0)
    collector.env.reset(seed=0)
    step, actions = collector.env.unwrapped.step, np.random.default_rng(0).uniform(-1, 1, (steps, 8))
    began = time.process_time()
    for action in actions:
        step(action)
    return round(steps / (time.process_time() - began))


def main() -> None:
    """Measure our controller, and others to compare it with."""
    parser = argparse.ArgumentParser(description="Measure an ant controller.")
    parser.add_argument("--controller", type=Path, action="append", default=[], help="measure this file as well")
    parser.add_argument("--starts", type=int, default=8, help="starts a heading")
    parser.add_argument("--episodes", type=int, default=20, help="episodes a maze")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report: dict[str, Any] = {"raw simulator steps a second of one core": {name: raw_speed(name) for name in MAZES[:1]}}
    for path in [None, *options.controller]:
        controller = load_controller(path)
        report["ours" if path is None else path.name] = {
            "floor, mean action": walk(controller, options.starts, noisy=False),
            "floor, as when collecting": walk(controller, options.starts, noisy=True),
            **{name: wander(name, path, options.episodes) for name in MAZES},
        }
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for who, measured in report.items():
        print(who)
        for where, facts in measured.items():
            print(f"  {where:30} {facts}")


if __name__ == "__main__":
    main()
