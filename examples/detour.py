"""Plan around an obstacle that was not there when the data was logged.

python examples/detour.py runs/demo-001
"""

import sys

import numpy as np

import iel


def main(path: str, nodes: int | None = None) -> tuple[float, float]:
    run = iel.open_run(path)
    planner = iel.AsymGraph(run.model, run.data(), nodes=nodes)
    env = iel.make_env(run.env)
    observation, info = env.reset(seed=0, options={"task_id": 1})
    planner.prepare(info["goal"])
    before = planner.path(observation)

    middle = before.nodes[len(before.nodes) // 2]
    planner.switch_off(nodes=[middle])  # something stands there now; the prepared goal is planned anew
    after = planner.path(observation)
    assert middle not in after.nodes
    place = np.round(planner.observations[planner.states[middle]], 1)
    print(f"{before.total:.0f} predicted steps; {after.total:.0f} around the obstacle at {place}")
    return before.total, after.total


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the directory of a run, e.g. python examples/detour.py runs/demo-001")
    main(sys.argv[1])
