"""Plan around an obstacle that was not there when the data was logged.

python examples/detour.py runs/demo-001
"""

import sys

import numpy as np

import iel

RADIUS = 2.0
"""Half the width of a corridor of the maze: what stands there blocks it."""


def main(path: str, nodes: int | None = None, radius: float = RADIUS) -> tuple[float, float]:
    run = iel.open_run(path)
    planner = iel.AsymGraph(run.model, run.data(), nodes=nodes)
    env = iel.make_env(run.env)
    observation, info = env.reset(seed=0, options={"task_id": 1})
    planner.prepare(info["goal"])
    before = planner.path(observation)

    position = before.observations[3 * len(before.nodes) // 4, :2]  # something stands in the way now
    positions = planner.observations[planner.states][:, :2]
    blocked = np.flatnonzero(np.linalg.norm(positions - position, axis=1) <= radius)
    planner.switch_off(nodes=blocked)  # the prepared goal is planned anew
    after = planner.path(observation)
    assert not set(blocked) & set(after.nodes)
    print(
        f"{before.total:.0f} predicted steps; {after.total:.0f} around the obstacle at {np.round(position, 1)} "
        f"({len(blocked)} of {len(positions)} nodes switched off)"
    )
    return before.total, after.total


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the directory of a run, e.g. python examples/detour.py runs/demo-001")
    main(sys.argv[1])
