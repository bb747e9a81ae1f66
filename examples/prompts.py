"""Goals that are more than a point: columns, orders, regions to avoid, rewards, goals that repel.

python examples/prompts.py runs/demo-001 prompts.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.patches import Rectangle

import iel
from iel.planning import Avoid, Reward, Sequence, Weighted
from iel.viz.style import FAILURE, LINES, START, draw_maze, figure, mark

ROOM = {0: (34.0, 38.0), 1: (22.0, 26.0)}  # columns 0 and 1 are x and y
CORRIDOR = {0: (22.0, 26.0), 1: (-2.0, 2.0)}


def near(x: float, y: float):
    return lambda states: np.exp(-np.hypot(states[:, 0] - x, states[:, 1] - y) / 4.0)


def boxes(prompt: object) -> list[tuple[dict, str]]:
    """The ranges of x and y that a prompt names, and whether they are to be reached (green) or avoided (red)."""
    if isinstance(prompt, Avoid):
        return [(prompt.positions, FAILURE)]
    parts = prompt.goals if isinstance(prompt, Sequence) else [prompt]
    return [(part, START) for part in parts if isinstance(part, dict) and np.ndim(part.get(0)) and np.ndim(part.get(1))]


PROMPTS = {
    "a position: {0: 32, 1: 8}": {0: 32.0, 1: 8.0},
    "the same, but not through the corridor": Avoid({0: 32.0, 1: 8.0}, CORRIDOR),
    "anywhere in the room": ROOM,
    "first x = 16, y = 24, then the room": Sequence([{0: 16.0, 1: 24.0}, ROOM]),
    "a reward around (36, 0)": Reward(near(36.0, 0.0)),
    "towards (0, 24), away from (36, 0)": Weighted([[0.0, 24.0], [36.0, 0.0]], [1.0, -1.0]),
}


def main(
    path: str, picture: str, prompts: dict = PROMPTS, steps: int = 600, nodes: int | None = None
) -> dict[str, np.ndarray]:
    run = iel.open_run(path)
    planner = iel.AsymGraph(run.model, run.data(), nodes=nodes)
    env = iel.make_env(run.env)
    routes = {}
    for name, prompt in prompts.items():
        observation, _ = env.reset(seed=0, options={"task_id": 1})
        planner.prepare(prompt)
        route = [observation]
        for _ in range(steps):
            observation, *_ = env.step(planner.act(observation))
            route.append(observation)
        routes[name] = np.array(route)
        print(f"{name}: after {steps} steps at {np.round(observation[:2], 1)}")
    with figure(Path(picture), -(-len(routes) // 3), 3, size=(13.0, 3.4 * -(-len(routes) // 3))) as axes:
        for panel, (name, route) in zip(axes.ravel(), routes.items(), strict=False):
            draw_maze(panel, env.map)
            for box, colour in boxes(prompts[name]):
                (left, right), (bottom, top) = box[0], box[1]
                panel.add_patch(Rectangle((left, bottom), right - left, top - bottom, color=colour, alpha=0.35, lw=0))
            panel.plot(*route[:, :2].T, color=LINES[3], linewidth=1.6)
            mark(panel, route[0], "start", 60)
            mark(panel, route[-1], "goal", 60)
            panel.set_title(name, fontsize=10)
    return routes


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("give the directory of a run and a picture, e.g. python examples/prompts.py runs/demo-001 prompts.png")
    main(*sys.argv[1:])
