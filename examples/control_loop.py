"""A control loop that fails safely: a rate, a deadline, a watchdog, an end. The robot here is a simulated cart.

python examples/control_loop.py                          # trains an agent on logs of the cart, then drives it
python examples/control_loop.py AGENT                    # an export or a saved agent
python examples/control_loop.py http://127.0.0.1:8420    # `iel serve AGENT`, the robot here and the policy there

On any fault the cart is stopped at once: no new observation, one that is not a number or outside of the
data, an answer that comes too late, a server that is gone, an exception. If it stays wrong for `patience` steps, the
loop ends and says why. The last command is always the stop.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

import iel
from iel.errors import IELError

RATE = 20.0
"""Steps per second: that of the logs."""
STOP = (0.0, 0.0)
"""The action that stops this robot. Where 0 is half speed, it is another one."""
WATCHDOG = {"stop": STOP, "max_age": 0.5, "repeats": None}
"""Observations may repeat, because a cart may stand still."""
GOAL = {0: 8.0, 1: 8.0}
"""Columns 0 and 1: the position."""


class Robot(Protocol):
    """What the loop needs of a robot. Replace the cart by yours."""

    def observe(self) -> tuple[np.ndarray, float]:
        """The newest observation, and when it was made (time.time())."""

    def command(self, action: np.ndarray) -> None:
        """Act; a real one also stops by itself if it is not commanded for a while."""


class Cart:
    """A cart in a room of 10 by 10: x, y and its velocity; pushes change the velocity."""

    def __init__(self, seed: int = 0):
        self.state = np.array([*np.random.default_rng(seed).uniform(1, 9, 2), 0.0, 0.0])

    def observe(self) -> tuple[np.ndarray, float]:
        return self.state.astype(np.float32), time.time()

    def command(self, action: np.ndarray) -> None:
        position, velocity = self.state[:2], 0.5 * self.state[2:] + 0.25 * np.clip(action, -1, 1)
        moved = np.clip(position + velocity, 0, 10)
        self.state = np.concatenate([moved, moved - position])


def logs(episodes: int = 60, steps: int = 80, seed: int = 0) -> iel.Trajectories:
    """The cart, driven at random."""
    generator, found = np.random.default_rng(seed), []
    for _ in range(episodes):
        cart = Cart(int(generator.integers(1 << 30)))
        heading = generator.uniform(0, 6.3) + np.cumsum(generator.normal(0, 0.3, steps))
        actions = np.stack([np.cos(heading), np.sin(heading)], 1)
        states = [cart.observe()[0]]
        for action in actions:
            cart.command(action)
            states.append(cart.observe()[0])
        found.append((np.array(states), actions))
    return iel.Trajectories.from_episodes(found, "cart").described(rate=RATE)


def trained() -> iel.Agent:
    """An agent for the cart, after some seconds."""
    policy = iel.Waypoints(steps=1000, columns=(0, 1), learning_rate=1e-3)
    return iel.fit(logs(), iel.HTP.preset("smoke", steps=1500, policy=policy), progress=False)


# ------------------------------------------------------------------------------------------------------------ answers

Answer = tuple[np.ndarray, str | None]
"""An action, and why it is the stop; None if it is the policy's."""


def local(agent: iel.Agent, goal: object = GOAL) -> Callable[[np.ndarray, float], Answer]:
    """Answers of an agent in this process, under a watchdog."""
    episode = agent.start(goal, rate=RATE, watchdog=iel.Watchdog(**WATCHDOG))

    def act(observation: np.ndarray, stamp: float) -> Answer:
        return episode.act(observation, stamp=stamp), episode.stopped

    return act


def remote(url: str, goal: object = GOAL, deadline: float = 0.2) -> Callable[[np.ndarray, float], Answer]:
    """Answers of a server. A connection that broke is opened again at the next step."""
    from iel.serving.client import Loop

    loops: list[Loop] = []

    def act(observation: np.ndarray, stamp: float) -> Answer:
        if not np.isfinite(observation).all():  # JSON has no such number
            return np.array(STOP), "not finite: the observation"
        try:
            if not loops:
                loops.append(Loop(url, goal, watchdog=WATCHDOG, timeout=deadline))
            return loops[0].act(observation, stamp=stamp), loops[0].stopped
        except IELError as problem:
            for loop in loops:
                loop.close()
            loops.clear()
            return np.array(STOP), f"server: {problem}"

    return act


# ----------------------------------------------------------------------------------------------------------- the loop


class Ending(NamedTuple):
    """How a drive ended."""

    reached: bool
    steps: int
    reason: str
    stops: int
    """Steps at which the stop was commanded."""


def drive(
    robot: Robot,
    act: Callable[[np.ndarray, float], Answer],
    reached: Callable[[np.ndarray], bool],
    *,
    rate: float = RATE,
    deadline: float = 0.2,
    patience: int = 20,
    most: int = 400,
) -> Ending:
    """Drive until `reached(observation)`, until something was wrong for `patience` steps, or for `most` steps."""
    wrong = stops = 0
    reason: str | None = None
    try:
        tick = time.monotonic()
        for step in range(most):
            begun = time.monotonic()
            observation, stamp = robot.observe()
            if np.isfinite(observation).all() and reached(observation):
                return Ending(True, step, "reached the goal", stops)
            action, reason = act(observation, stamp)
            if reason is None and time.monotonic() - begun > deadline:
                reason = f"late: the answer took {time.monotonic() - begun:.2f} s"
            robot.command(np.array(STOP) if reason else action)
            stops, wrong = stops + bool(reason), wrong + 1 if reason else 0
            if wrong >= patience:
                return Ending(False, step + 1, str(reason), stops)
            tick = max(tick + 1.0 / rate, time.monotonic())  # a late step does not make the next ones hurry
            time.sleep(max(0.0, tick - time.monotonic()))
        return Ending(False, most, "out of steps", stops)
    finally:
        robot.command(np.array(STOP))


def main(source: str | None = None) -> Ending:
    if source is not None and source.startswith("http"):
        act = remote(source)
    else:
        act = local(trained() if source is None else iel.load_agent(source))
    goal = np.array(list(GOAL.values()))
    ending = drive(Cart(), act, lambda observation: bool(np.linalg.norm(observation[:2] - goal) < 0.5))
    print(f"{ending.reason} after {ending.steps} steps, {ending.stops} of them stops")
    return ending


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:2]).reached else 1)
