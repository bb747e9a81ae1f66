"""One episode of a robot arm at a time: OGBench's cubes, scene and puzzles, driven by its own scripted controllers.

An episode is a sequence of moves: put a cube somewhere, press a button, pull the drawer, slide the window. When a
controller is done, the environment draws the next move. With u the action of the controller, of every step

    play     a = clip(u, -1, 1)       the controller follows a path through key poses, drawn at the start of a move, to
                                      which it has added smoothed noise
    noisy    a = clip(u + xi n, -1, 1) with probability 1 - p, else a ~ U(-1, 1)
             n ~ N(0, diag(1, 1, 1, 3, 10)^2), xi ~ U(0, 0.1) once per episode; the controller looks at the state only

A cube is put on another one with a probability that is drawn once per episode (`STACKING`). Every draw of episode e
follows from the seed sequence (seed, split, e). OGBench's controllers draw from numpy's global generator; they borrow
the environment's own.
"""

import math
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.data.make.recipes import SPLITS, Recipe
from iel.envs import make_env
from iel.signals import Signals

PLAN_NOISE, PLAN_SMOOTHING = 0.1, 0.5
"""`play`: standard deviation of the noise on a plan (as a share of a step's largest move); its filter's, in steps."""
NOISE_OF_COLUMNS = np.array([1.0, 1.0, 1.0, 3.0, 10.0])
"""`noisy`: the noise of an action is xi times this."""
SMALLEST_MOVE = 0.4
"""`noisy`: the controller heads for nearer points as if they were this far (m) away."""
STACKING = {"single": (0.0, 0.0), "double": (0.0, 0.25), "triple": (0.05, 0.35), "quadruple": (0.1, 0.5)}
"""Bounds of the probability that a cube is put on another one, by the number of cubes."""
SCENE_STACKING = 0.5
LARGEST_MOVE = (0.05, 0.05, 0.05, 0.3, 1.0)
"""What an action of 1 adds in a step: m, m, m, rad, share of the gripper's range."""
RATE = 20.0
POSITION = "0.1 m"


class ArmCollector:
    """Collects single episodes of a recipe; one instance per process."""

    def __init__(self, plan: Recipe, seed: int):
        self.plan, self.seed = plan, seed
        self.env = make_env(plan.name, mode="data_collection", terminate_at_goal=False)
        self.simulator: Any = self.env.unwrapped
        self.controllers = oracles(plan, self.env)
        self.signals = arm_signals(plan)
        self.moves = 0
        """Moves that were finished in the last episode."""

    def episode(self, index: int, split: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(T + 1 observations, T actions) of episode `index`."""
        rng = np.random.default_rng([self.seed, SPLITS.index(split), index])
        while True:  # a scene in which the cube was thrown out of reach is drawn again
            observations, actions = self._attempt(rng)
            if self.plan.body != "scene" or self._within_reach(observations):
                return observations, actions

    def _attempt(self, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        plan, noisy = self.plan, self.plan.kind == "noisy"
        observation, info = self.env.reset(seed=int(rng.integers(2**31)))
        stacking = rng.uniform(*STACKING[plan.maze]) if plan.body == "cube" else SCENE_STACKING
        noise = rng.uniform(0.0, plan.noise) * NOISE_OF_COLUMNS
        self.moves, observations, actions = 0, [observation], []
        with self.env.lend_generator():
            controller = self.controllers[info["privileged/target_task"]]
            controller.reset(observation, info)
            for _ in range(plan.steps):
                if noisy and rng.uniform() < plan.random_actions:
                    action = rng.uniform(-1.0, 1.0, len(LARGEST_MOVE))
                else:
                    action = controller.select_action(observation, info)
                    action = action + noise * rng.standard_normal(len(action)) if noisy else action
                actions.append(np.clip(action, -1.0, 1.0).astype(np.float32))
                observation, _, _, _, info = self.env.step(actions[-1])
                observations.append(observation)
                if controller.done:
                    self.moves += 1
                    state, target = self.simulator.set_new_target(p_stack=stacking)
                    controller = self.controllers[target["privileged/target_task"]]
                    controller.reset(state, target)
        return np.array(observations, np.float32), np.array(actions)

    def _within_reach(self, observations: NDArray) -> bool:
        """Whether the cube stayed on the table or in the drawer: OGBench leaves other scenes out."""
        first = self.signals.column("block0_x")
        _, y, z = observations[:, first : first + 3].T / 10.0
        beside_drawer = (y <= -0.3) & ((z < 0.06) | (z > 0.08))
        return not ((y >= 0.29) | beside_drawer).any()


def oracles(plan: Recipe, env: Any) -> dict[str, Any]:
    """OGBench's scripted controller for every kind of move of an environment."""
    kind, settings = "markov", {"min_norm": SMALLEST_MOVE}
    if plan.kind == "play":
        kind, settings = "plan", {"noise": PLAN_NOISE, "noise_smoothing": PLAN_SMOOTHING}

    def oracle(move: str, **further: bool) -> Any:
        module = import_module(f"ogbench.manipspace.oracles.{kind}.{move}_{kind}")
        return getattr(module, f"{move.capitalize()}{kind.capitalize()}Oracle")(env=env, **settings, **further)

    if plan.body == "puzzle":
        return {"button": oracle("button", gripper_always_closed=True)}
    moves = ("cube",) if plan.body == "cube" else ("cube", "button", "drawer", "window")
    return {move: oracle(move) for move in moves}


def arm_signals(plan: Recipe) -> Signals:
    """Names and units of the columns of an arm's data.

    Positions (`effector_x`, `block0_y`, ...) are in units of 0.1 m; x is counted from 0.425 m in front of the robot. A
    quaternion is qw, qx, qy, qz; of a yaw there are cosine and sine. A button has one column for each of its states.
    """
    units = {f"joint{i}": "rad" for i in range(6)} | {f"joint{i}_velocity": "rad/s" for i in range(6)}
    units |= dict.fromkeys(("effector_x", "effector_y", "effector_z"), POSITION)
    units |= {"effector_cos": "", "effector_sin": "", "gripper_opening": "1/3 of its range", "gripper_contact": ""}
    cubes = 1 + list(STACKING).index(plan.maze) if plan.body == "cube" else int(plan.body == "scene")
    for i in range(cubes):
        units |= {f"block{i}_{axis}": POSITION for axis in "xyz"}
        units |= {f"block{i}_{part}": "" for part in ("qw", "qx", "qy", "qz", "cos", "sin")}
    buttons = math.prod(map(int, plan.maze.split("x"))) if plan.body == "puzzle" else 2 * int(plan.body == "scene")
    for i in range(buttons):
        parts = {"state0": "", "state1": "", "position": "1/120 m", "velocity": "m/s"}
        units |= {f"button{i}_{part}": unit for part, unit in parts.items()}
    if plan.body == "scene":
        units |= {"drawer_position": "1/18 m", "drawer_velocity": "m/s"}
        units |= {"window_position": "1/15 m", "window_velocity": "m/s"}
    commands = {"move_x": "m", "move_y": "m", "move_z": "m", "turn": "rad", "close": "share of its range"}
    return Signals(
        tuple(units),
        tuple(commands),
        units={name: unit for name, unit in (units | commands).items() if unit},
        action_low=tuple(-most for most in LARGEST_MOVE),
        action_high=LARGEST_MOVE,
        rate=RATE,
    )
