"""Across a wall by luck alone: two rooms without a door, and pads that throw whoever steps on them somewhere.

python examples/two_rooms.py      (two to three minutes; docs/planning.md, "Chance edges")
"""

import gymnasium
import numpy as np

import iel
from iel.policies import Waypoints

PADS = ((3.0, 1.0), 0.8), ((3.0, 5.0), 0.2), ((9.0, 3.0), 0.0)
"""Where they are, and how often they throw into the right room; otherwise one lands in the left one, far from them."""
LEFT, RIGHT = ((0.0, 0.0), (4.0, 6.0)), ((6.0, 0.0), (10.0, 6.0))


class TwoRooms(gymnasium.Env):
    """A point that sees x and y and is told a step in both; it starts on the left, and its goal is on the right."""

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
        thrown = False
        for pad, across in PADS:
            if np.linalg.norm(self.position - pad) < 0.5:
                thrown = True
                self.position = np.array([7.0, 3.0] if self.np_random.random() < across else [0.5, 3.0])
        success = bool(np.linalg.norm(self.position - self.goal) < 0.4)
        return self.position.astype(np.float32), 0.0, False, False, {"success": success, "thrown": thrown}


def logs(episodes: int = 100, steps: int = 400) -> iel.Trajectories:
    """Walks from place to place within whichever room it is, and sometimes over a pad."""
    rng, room, rows, pushes = np.random.default_rng(0), TwoRooms(), [], []
    for episode in range(episodes):
        room.reset(seed=episode)
        thrown, aim = True, room.position
        for _ in range(steps):
            if thrown or np.linalg.norm(aim - room.position) < 0.3:
                aim = rng.uniform(*(LEFT if room.position[0] < 5.0 else RIGHT))
            direction = (aim - room.position) / (np.linalg.norm(aim - room.position) + 1e-9)
            push = np.clip(direction + 0.3 * rng.standard_normal(2), -1.0, 1.0)
            rows.append(room.position)
            pushes.append(push)
            thrown = room.step(push)[-1]["thrown"]
    ends = np.arange(0, episodes * steps + 1, steps)
    return iel.Trajectories(np.array(rows, np.float32), np.array(pushes, np.float32), ends)


def main(steps: int = 6600) -> tuple[float, float]:
    data = logs()
    # Transitions over a pad teach nothing about walking: with `cut_jumps` (on in `laptop`) the data is cut there.
    policy = Waypoints(columns=(0, 1), steps=steps // 5)
    model = iel.train(data, iel.IEL.preset("laptop", steps=steps, dimension=16, policy=policy)).model
    rates = []
    for chance in (False, True):
        options = {"asym-graph": {"chance": chance, "nodes": 512}}
        rollouts = iel.evaluate(model, data, TwoRooms, ("asym-graph",), settings=options)["asym-graph"]
        rates.append(rollouts.summary()["success_rate"])
        print(f"{'with' if chance else 'without'} chance edges: {rates[-1]:.0%} of the goals in the other room")
    planner = iel.AsymGraph(model, data, nodes=512)
    planner.prepare([7.0, 5.0])
    print(f"predicted from (1, 3): {planner.predicted_steps([1.0, 3.0]):.0f} steps")
    return rates[0], rates[1]


if __name__ == "__main__":
    main()
