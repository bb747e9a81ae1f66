"""From a CSV to a moving agent: a robot of our own, its logs, and everything one does with them.

python examples/own_robot.py [DIRECTORY]      (docs/own-robot.md goes through it step by step)
"""

import csv
import sys
from pathlib import Path

import gymnasium
import numpy as np

import iel

ROOM, GAP = 10.0, (4.0, 6.0)
"""A square room with a wall across the middle, open between these two heights."""


class Cart(gymnasium.Env):
    """A cart that is pushed around a room: it observes x, y and its velocity; the action is a push in x and y."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    horizon = 300

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform((1.0, 1.0), (4.0, 9.0))  # starts on the left, the goal is on the right
        self.goal = self.np_random.uniform((6.0, 1.0), (9.0, 9.0))
        self.velocity = np.zeros(2)
        return self._observation(), {"goal": {0: self.goal[0], 1: self.goal[1]}}  # x and y, at whatever speed

    def step(self, action):
        self.velocity = 0.7 * self.velocity + 0.1 * np.clip(action, -1.0, 1.0)
        there = np.clip(self.position + self.velocity, 0.0, ROOM)
        if (self.position[0] - 5.0) * (there[0] - 5.0) <= 0 and not GAP[0] < there[1] < GAP[1]:
            there, self.velocity = self.position, np.zeros(2)  # the wall
        self.position = there
        success = bool(np.linalg.norm(self.position - self.goal) < 0.5)
        return self._observation(), 0.0, False, False, {"success": success}

    def _observation(self):
        return np.concatenate([self.position, self.velocity]).astype(np.float32)


def write_logs(path: Path, episodes: int = 60, steps: int = 200) -> None:
    """Logs of a person with a joystick, who drives the cart from one position to the next, through the gap."""
    rng, cart = np.random.default_rng(0), Cart()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", "time", "x", "y", "vx", "vy", "push_x", "push_y", "battery"])
        for episode in range(episodes):
            cart.reset(seed=episode)
            aim = rng.uniform((5.5, 0.5), (9.5, 9.5))
            for step in range(steps):
                if np.linalg.norm(cart.position - aim) < 0.4:  # reached: now a position on the other side
                    aim = rng.uniform(*(((0.5, 0.5), (4.5, 9.5)) if aim[0] > 5 else ((5.5, 0.5), (9.5, 9.5))))
                other_side = (cart.position[0] - 5.0) * (aim[0] - 5.0) < 0
                near = abs(cart.position[1] - 5.0) < 0.7
                through = np.array([5.0 + (0.8 if near else -0.8) * np.sign(aim[0] - 5.0), 5.0])
                ahead = (through if other_side else aim) - cart.position
                push = np.clip(ahead / (np.linalg.norm(ahead) + 1e-9) + 0.3 * rng.standard_normal(2), -1, 1)
                table.writerow([episode, step / 10, *cart._observation(), *push, 1.0 - step / 4000])
                cart.step(push)


def main(directory: str = "own-robot", steps: int = 3000) -> float:
    here = Path(directory)
    here.mkdir(parents=True, exist_ok=True)
    write_logs(here / "logs.csv")

    columns = {"observations": ["x", "y", "vx", "vy"], "actions": ["push_x", "push_y"], "episode": "run"}
    data = iel.load(here / "logs.csv", columns=columns)
    print(data)

    # `iel.fit(data)` alone chooses settings; these take half a minute.
    policy = iel.Waypoints(steps=steps // 2, learning_rate=1e-3)
    agent = iel.fit(data, iel.HTP.preset("laptop", steps=steps, policy=policy), out=here / "run")
    agent.save(here / "agent")  # for the robot: iel.load_agent reads it without JAX

    goal = {0: 8.0, 1: 2.0}  # x and y, whatever the speed
    print(f"predicted: {agent.steps([2.0, 2.0, 0.0, 0.0], goal):.0f} steps")

    rates = {}
    for name in ("direct", "asym-graph"):
        result = iel.Agent(agent.model, data, name).evaluate(Cart)
        summary = result[name].summary()
        rates[name], (low, high) = summary["success_rate"], summary["interval"]
        print(f"{name}: {rates[name]:.0%} of goals reached [{low:.0%}, {high:.0%}]")
    return rates["asym-graph"]


if __name__ == "__main__":
    main(*sys.argv[1:2])
