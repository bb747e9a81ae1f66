"""`iel plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from iel.commands.common import Flag, Output, PlannerSettings
from iel.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from iel.data import Trajectories
    from iel.training import Run

SHOWN = 12
"""Waypoints that are printed unless all are asked for."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Output):
    """Plan one way from a start to a goal: prints the waypoints and draws them in the planning graph."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    planner: Literal["asym-graph", "sym-graph", "gas-graph"] = "asym-graph"
    """Which graph to plan in."""
    task: int = 1
    """Take start and goal from this task of the environment; a run on logs of your own takes them from its data."""
    start: tuple[float, ...] | None = None
    """Start observation instead of that one (for a PointMaze: x y)."""
    goal: tuple[float, ...] | None = None
    """Goal observation instead of that one."""
    goal_columns: tuple[int, ...] | None = None
    """The goal gives these columns only, and the others may be anything that the data has there."""
    outside: Literal["warn", "refuse", "ignore"] = "warn"
    """What to do about a start or a goal far outside of the training data."""
    seed: int = 0
    """Seed of the task's start and goal."""
    all: Flag = False
    """Print every waypoint, not a dozen of them."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/plan.png)."""
    planning: Annotated[PlannerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=PlannerSettings)


def plan_command(options: PlanCommand) -> dict[str, Any]:
    """`iel plan`."""
    import numpy as np

    from iel.commands.pictures import draw_plan, ground
    from iel.commands.runs import planner_settings
    from iel.planning import make_planner
    from iel.planning.support import support_of
    from iel.training import open_run

    run = open_run(options.run)
    data = run.data(options.planning.data)
    start, goal, maze = _ends(options, run, data)
    model = run.model
    model.outside = options.outside
    if model.support is None:  # trained by a version that kept none
        model.support = support_of(data)
    planner = make_planner(options.planner, model, data, **planner_settings(options.planner, options.planning))
    columns = options.goal_columns
    planner.prepare(goal if columns is None else dict(zip(columns, goal.tolist(), strict=True)))
    way = planner.path(start)
    waypoints = np.asarray(way.observations)
    picture = options.picture or run.folder("plots") / "plan.png"
    shown = goal if columns is None or len(waypoints) == 0 else waypoints[-1]
    draw_plan(picture, maze or ground(data), planner, start, shown, way)
    if not options.json:
        print(f"{len(waypoints)} waypoints, {way.total:.1f} predicted steps from start to goal")
        count = len(waypoints) if options.all else min(SHOWN, len(waypoints))
        for number in np.unique(np.linspace(0, len(waypoints) - 1, count).round().astype(int)):
            numbers = np.array2string(waypoints[number], precision=2, threshold=8, max_line_width=80)
            print(f"  {number:3d}  {numbers}  {way.steps_to_go[number + 1]:.1f} steps to go")
        if count < len(waypoints):
            print(f"({count} of {len(waypoints)} waypoints; --all prints every one)")
        print(f"drawn in {picture}")
    return {
        "planner": options.planner,
        "start": start.tolist(),
        "goal": goal.tolist(),
        "goal_columns": None if columns is None else list(columns),
        "waypoints": waypoints.tolist(),
        "costs": np.asarray(way.costs).tolist(),
        "steps": np.asarray(way.steps).tolist(),
        "predicted_steps": way.total,
        "excess": {"start": float(model.support.excess(start)[0]),
                   "goal": None if columns else float(model.support.excess(goal)[0])},
        "picture": str(picture),
    }  # fmt: skip


def _ends(options: PlanCommand, run: Run, data: Trajectories) -> tuple[np.ndarray, np.ndarray, Any]:
    """(start, goal, map or None): as they were given, of the environment's task, or two states of the data."""
    import numpy as np

    from iel.envs import canonical_name, make_env

    if options.goal_columns is not None and len(options.goal or ()) != len(options.goal_columns):
        raise ConfigError("--goal-columns names the columns of --goal; give as many numbers as columns.")
    maze = None
    try:
        canonical_name(run.env)
    except ConfigError:  # logs of one's own: a long way through the data
        first, last = data.episode(0).observations[0], data.episode(len(data) - 1).observations[-1]
    else:
        env = make_env(run.env, reference=data.observations[0])
        first, info = env.reset(seed=options.seed, options={"task_id": options.task})
        last, maze = info["goal"], env.map
    start = np.asarray(first if options.start is None else options.start, np.float32)
    goal = np.asarray(last if options.goal is None else options.goal, np.float32)
    wrong = [("start", start)] if options.goal_columns is not None else [("start", start), ("goal", goal)]
    for what, row in wrong:
        if row.shape != (data.observation_size,):
            raise ConfigError(
                f"--{what} has {row.size} numbers, but an observation has {data.observation_size}; give all of them"
                + (", or name some with --goal-columns." if what == "goal" else ".")
            )
    return start, goal, maze
