"""D4RL's kitchen on gymnasium-robotics' FrankaKitchen: a robot arm, seven things to operate, four of them in a task.

State: 9 robot joints and 21 object joints, observed with D4RL's noise. An element is done while its joints are within
0.3 of their target; an episode ends when all four have been done at some step, or after 280 steps.
"""

import contextlib
import io
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.envs.own import Info
from iel.errors import ConfigError, install

HORIZON = 280
TOLERANCE = 0.3
"""An element is done within this Euclidean distance of its target."""
NOISE = 0.1
"""Observed joints are off by at most this fraction of the amplitudes in the robot's specification."""
JOINTS, STATE = 9, 30
LAST_AMPLITUDE = 0.005
"""The specification's amplitude of column 29, which gymnasium-robotics does not read."""
TARGETS = {
    "bottom burner": (slice(11, 13), (-0.88, -0.01)),
    "top burner": (slice(15, 17), (-0.92, -0.01)),
    "light switch": (slice(17, 19), (-0.69, -0.05)),
    "slide cabinet": (slice(19, 20), (0.37,)),
    "hinge cabinet": (slice(20, 22), (0.0, 1.45)),
    "microwave": (slice(22, 23), (-0.75,)),
    "kettle": (slice(23, 30), (-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06)),
}
"""Columns of each element, and where they should be."""
ELEMENTS = {
    "complete": ("microwave", "kettle", "light switch", "slide cabinet"),
    "partial": ("microwave", "kettle", "light switch", "slide cabinet"),
    "mixed": ("microwave", "kettle", "bottom burner", "light switch"),
}


def goal_state(kind: str) -> NDArray[np.float64]:
    """(30,) D4RL's goal half: targets of the four elements, zero elsewhere (also where objects never are at zero)."""
    goal = np.zeros(STATE)
    for columns, target in map(TARGETS.__getitem__, ELEMENTS[kind]):
        goal[columns] = target
    return goal


def distances(states: ArrayLike, kind: str) -> NDArray[np.float64]:
    """(..., 4) Euclidean distance of each element of the task from its target, for states (..., 30 or more)."""
    states = np.asarray(states, np.float64)
    parts = [states[..., columns] - np.array(target) for columns, target in map(TARGETS.__getitem__, ELEMENTS[kind])]
    return np.stack([np.sqrt(np.sum(part**2, axis=-1)) for part in parts], axis=-1)


class Kitchen(gymnasium.Env):
    """reward = elements done in the observation, info["subtasks"] = elements done so far (D4RL's return).

    The goal observation is D4RL's goal half with the robot joints of `reference` (the official evaluation takes the
    data set's first observation); without one, the joints every episode starts from.
    """

    def __init__(self, kind: str, *, reference: ArrayLike | None = None, **settings: Any):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # it greets with news about another environment
                from gymnasium_robotics.envs.franka_kitchen.kitchen_env import KitchenEnv
        except ImportError as error:
            raise ConfigError(f"kitchen-{kind} needs gymnasium-robotics; {install('kitchen')}.") from error
        self.kind, self.elements = kind, ELEMENTS[kind]
        self.simulator = KitchenEnv(list(self.elements), robot_noise_ratio=NOISE, object_noise_ratio=0.0, **settings)
        self.robot = self.simulator.robot_env
        self.amplitudes = NOISE * np.append(self.robot.robot_pos_noise_amp[JOINTS:], LAST_AMPLITUDE)
        self.action_space = self.simulator.action_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (STATE,), np.float64)
        self.goal = goal_state(kind)
        joints = self.robot.init_qpos if reference is None else np.asarray(reference, np.float64)
        if joints.shape not in ((STATE,), (2 * STATE,)):
            raise ConfigError(
                f"The reference observation of a kitchen has {joints.size} numbers instead of {STATE}; "
                "pass one observation of its data set."
            )
        self.goal[:JOINTS] = joints[:JOINTS]
        self.done = np.zeros(len(self.elements), bool)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        super().reset(seed=seed)
        robot, _ = self.robot.reset(seed=seed)
        observation = self._observe(robot)
        self.done = distances(observation, self.kind) < TOLERANCE
        return observation, {"goal": self.goal.copy(), "subtasks": int(self.done.sum())}

    def step(self, action: NDArray) -> tuple[NDArray, float, bool, bool, Info]:
        robot, *_ = self.robot.step(action)
        observation = self._observe(robot)
        now = distances(observation, self.kind) < TOLERANCE
        self.done |= now
        success = bool(self.done.all())
        info = {"success": success, "subtasks": int(self.done.sum())}
        return observation, float(now.sum()), success, False, info

    def restore(self, state: ArrayLike) -> None:
        """Put robot and objects where an observation says, at rest."""
        state = np.asarray(state, np.float64)[:STATE]
        self.robot.set_state(state, np.zeros(self.robot.model.nv))
        # The controller adds its velocity command to the joints as last observed.
        self.robot._last_robot_qpos = state[:JOINTS].copy()

    def render(self) -> Any:
        return self.robot.render()

    def close(self) -> None:
        self.simulator.close()

    def _observe(self, robot: NDArray) -> NDArray[np.float64]:
        noise = self.amplitudes * self.robot.np_random.uniform(-1.0, 1.0, STATE - JOINTS)
        return np.concatenate([robot[:JOINTS], self.robot.data.qpos[JOINTS:] + noise])
