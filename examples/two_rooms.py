"""Plan through teleports: two rooms without a door, and pads that move a robot to one room or the other at random.

python examples/two_rooms.py      (two to three minutes)
"""

import gymnasium
import numpy as np

import iel
from iel.policies import Waypoints

PADS = ((3.0, 1.0), 0.8), ((3.0, 5.0), 0.2), ((9.0, 3.0), 0.0)
"""Position of each pad, and the probability that it leads into the right room instead of the far end of the left."""
LEFT, RIGHT = ((0.0, 0.0), (4.0, 6.0)), ((6.0, 0.0), (10.0, 6.0))


class TwoRooms(gymnasium.Env):
    """A point that observes x and y; the action is a step in both. It starts on the left; its goal is on the right."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    horizon = 400

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform((0.0, 0.0), (2.0, 6.0))
        self.goal = self.np_random.uniform((6.0, 0.0), (8.0, 6.0))
        return self.position.astype(np.float32), {"goal": self.goal.astype(np.float32)}

    def step(self, action):
        self.position = np.clip(
            self.position + 0.1 * np.clip(action, -1.0, 1.0), *(LEFT if self.position[0] < 5.0 else RIGHT)
        )
        moved = False
        for pad, across in PADS:
            if np.linalg.norm(self.position - pad) < 0.5:
                moved = True
                self.position = np.array([7.0, 3.0] if self.np_random.random() < across else [0.5, 3.0])
        success = bool(np.linalg.norm(self.position - self.goal) < 0.4)
        return self.position.astype(np.float32), 0.0, False, False, {"success": success, "moved": moved}


def logs(episodes: int = 100, steps: int = 400) -> iel.Trajectories:
    """The point is driven from target to target within a room, and sometimes over a pad."""
    rng, room, rows, pushes = np.random.default_rng(0), TwoRooms(), [], []
    for episode in range(episodes):
        room.reset(seed=episode)
        moved, aim = True, room.position
        for _ in range(steps):
            if moved or np.linalg.norm(aim - room.position) < 0.3:
                aim = rng.uniform(*(LEFT if room.position[0] < 5.0 else RIGHT))
            direction = (aim - room.position) / (np.linalg.norm(aim - room.position) + 1e-9)
            push = np.clip(direction + 0.3 * rng.standard_normal(2), -1.0, 1.0)
            rows.append(room.position)
            pushes.append(push)
            moved = room.step(push)[-1]["moved"]
    ends = np.arange(0, episodes * steps + 1, steps)
    return iel.Trajectories(np.array(rows, np.float32), np.array(pushes, np.float32), ends)


def main(steps: int = 6600) -> tuple[float, float]:
    data = logs()
    # Transitions over a pad say nothing about moving: with `cut_jumps` (on in `laptop`) the data is cut there.
    policy = Waypoints(columns=(0, 1), steps=steps // 5)
    model = iel.train(data, iel.IEL.preset("laptop", steps=steps, dimension=16, policy=policy)).model
    rates = []
    for teleports in (False, True):
        options = {"asym-graph": {"teleports": teleports, "nodes": 512}}
        rollouts = iel.evaluate(model, data, TwoRooms, ("asym-graph",), settings=options)["asym-graph"]
        rates.append(rollouts.summary()["success_rate"])
        print(f"{'with' if teleports else 'without'} teleports: {rates[-1]:.0%} of the goals in the other room")
    planner = iel.AsymGraph(model, data, nodes=512)
    planner.prepare([7.0, 5.0])
    print(f"predicted from (1, 3): {planner.predicted_steps([1.0, 3.0]):.0f} steps")
    return rates[0], rates[1]


if __name__ == "__main__":
    main()
