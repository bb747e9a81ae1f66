"""`iel plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from iel.commands.common import Output, PlannerSettings
from iel.errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Output):
    """Plan one way from a start to a goal: prints the waypoints and draws them in the planning graph."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    planner: str = "asym-graph"
    """sym-graph, asym-graph or gas-graph."""
    task: int = 1
    """Take start and goal from this task of the environment."""
    start: tuple[float, ...] | None = None
    """Start observation instead of the task's (for a PointMaze: x y)."""
    goal: tuple[float, ...] | None = None
    """Goal observation instead of the task's."""
    seed: int = 0
    """Seed of the task's start and goal."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/plan.png)."""
    planning: Annotated[PlannerSettings, tyro.conf.arg(name="")] = field(default_factory=PlannerSettings)


def plan_command(options: PlanCommand) -> dict[str, Any]:
    """`iel plan`."""
    import numpy as np

    from iel.commands.pictures import draw_plan
    from iel.commands.runs import environment_of, planner_settings
    from iel.envs import make_env
    from iel.planning import PLANNERS, make_planner
    from iel.training import open_run

    graphs = [name for name in PLANNERS if name.endswith("graph")]
    if options.planner not in graphs:
        raise unknown_name("graph planner", options.planner, graphs)
    run = open_run(options.run)
    data = run.data(options.planning.data)
    env = make_env(environment_of(run), reference=data.observations[0])
    observation, info = env.reset(seed=options.seed, options={"task_id": options.task})
    start = np.asarray(observation if options.start is None else options.start, np.float32)
    goal = np.asarray(info["goal"] if options.goal is None else options.goal, np.float32)
    planner = make_planner(options.planner, run.model, data, **planner_settings(options.planner, options.planning))
    planner.prepare(goal)
    way = planner.path(start)
    picture = None
    if env.map is not None:
        picture = options.picture or run.folder("plots") / "plan.png"
        draw_plan(picture, env.map, planner, start, goal, way)
    waypoints = np.asarray(way.observations)
    if not options.json:
        print(f"{len(waypoints)} waypoints, {way.total:.1f} predicted steps from start to goal")
        for number, (waypoint, remaining) in enumerate(zip(waypoints, way.steps_to_go[1:], strict=True)):
            print(f"  {number:3d}  {np.array2string(waypoint, precision=2)}  {remaining:.1f} steps to go")
        print(f"drawn in {picture}" if picture else "not drawn: this environment has no map")
    return {
        "planner": options.planner,
        "start": start.tolist(),
        "goal": goal.tolist(),
        "waypoints": waypoints.tolist(),
        "costs": np.asarray(way.costs).tolist(),
        "steps": np.asarray(way.steps).tolist(),
        "predicted_steps": way.total,
        "picture": picture and str(picture),
    }
