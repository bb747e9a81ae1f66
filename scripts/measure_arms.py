"""Compare the arm data that `iel data make` collects with OGBench's own controllers, driven without this library.

    python scripts/measure_arms.py [--episodes 4] [--names cube-single-play-v0 ...]

For every data set: finished moves per episode, the share of states in which the gripper touches something (contact
above one half), the standard deviation of the cubes' x and y (m), button states that change per episode, and steps per
second of one core's time. "theirs" is OGBench's environment made by Gymnasium and its controllers, seeded by numpy's
global generator: draw a move, follow the controller, draw the next one.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy as np
import ogbench  # noqa: F401  registers the environments

from iel.data.make import make_collector, recipe
from iel.data.make.arms import NOISE_OF_COLUMNS, SCENE_STACKING, STACKING, arm_signals, oracles
from iel.data.make.recipes import Recipe

TASKS = ("cube-single", "cube-double", "cube-triple", "scene", "puzzle-3x3", "puzzle-4x4")
NAMES = tuple(f"{task}-{kind}-v0" for task in TASKS for kind in ("play", "noisy"))


def theirs(plan: Recipe, episodes: int) -> tuple[list[np.ndarray], int]:
    """(states of each episode, finished moves) of the benchmark's own environment and controllers."""
    name = "-".join(word for word in plan.name.split("-") if word != plan.kind)
    env: Any = gymnasium.make(name, terminate_at_goal=False, mode="data_collection", max_episode_steps=plan.steps + 1)
    controllers, tables, moves = oracles(plan, env), [], 0
    np.random.seed(1)  # noqa: NPY002  the controllers draw from numpy's global generator
    env.action_space.seed(1)
    for episode in range(episodes):
        state, info = env.reset(seed=1000 + episode)
        stacking = np.random.uniform(*STACKING[plan.maze]) if plan.body == "cube" else SCENE_STACKING  # noqa: NPY002
        noise = np.random.uniform(0, plan.noise) * NOISE_OF_COLUMNS  # noqa: NPY002
        controller = controllers[info["privileged/target_task"]]
        controller.reset(state, info)
        states = [state]
        for _ in range(plan.steps):
            if np.random.rand() < plan.random_actions:  # noqa: NPY002
                action = env.action_space.sample()
            else:
                action = np.array(controller.select_action(state, info))
                if plan.kind == "noisy":
                    action = action + np.random.normal(0, noise)  # noqa: NPY002
            state, _, _, _, info = env.step(np.clip(action, -1, 1))
            states.append(state)
            if controller.done:
                moves += 1
                fresh, target = env.unwrapped.set_new_target(p_stack=stacking)
                controller = controllers[target["privileged/target_task"]]
                controller.reset(fresh, target)
        tables.append(np.array(states))
    return tables, moves


def ours(plan: Recipe, episodes: int) -> tuple[list[np.ndarray], int]:
    """(states of each episode, finished moves) as `iel data make` collects them."""
    collector, tables, moves = make_collector(plan, seed=0), [], 0
    for episode in range(episodes):
        tables.append(collector.episode(episode, "train")[0])
        moves += collector.moves
    return tables, moves


def facts(plan: Recipe, tables: list[np.ndarray], moves: int, seconds: float) -> dict[str, float]:
    """What is compared."""
    names = arm_signals(plan).observations
    rows = np.concatenate(tables)
    cubes = [i for i, name in enumerate(names) if name.startswith("block") and name.endswith(("_x", "_y"))]
    buttons = [i for i, name in enumerate(names) if name.endswith("_state1")]
    changes = sum(int((np.diff(table[:, buttons], axis=0) != 0).sum()) for table in tables)
    return {
        "moves": round(moves / len(tables), 1),
        "contact": round(float((rows[:, names.index("gripper_contact")] > 0.5).mean()), 3),
        "cube_std": round(float(rows[:, cubes].std(axis=0).mean()) / 10.0, 3) if cubes else float("nan"),
        "button_changes": round(changes / len(tables), 1) if buttons else float("nan"),
        "steps_per_second": round((len(rows) - len(tables)) / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--names", nargs="+", default=NAMES)
    options = parser.parse_args()
    for name in options.names:
        plan = recipe(name)
        for who, drive in (("ours", ours), ("theirs", theirs)):
            began = time.process_time()
            tables, moves = drive(plan, options.episodes)
            print(f"{name:24} {who:7} {facts(plan, tables, moves, time.process_time() - began)}", flush=True)


if __name__ == "__main__":
    main()
