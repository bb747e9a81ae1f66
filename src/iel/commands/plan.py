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
    goal: tuple[str, ...] | None = None
    """Goal observation instead of that one; or some of its columns, 0=8.5 1=2.0: any state of the data that matches
    (0=4:8 is a range)."""
    via: tuple[str, ...] | None = None
    """Places to pass on the way, in this order: 0=8.5,1=2.0 0=20:24."""
    avoid: tuple[str, ...] | None = None
    """Places to keep out of: 0=4:8,1=2:6."""
    reward: tuple[str, ...] | None = None
    """Collect a reward instead of going to a goal: places and what a step in them is worth, 0=4:8,1=2:6@1, or an npz
    file whose array `rewards` has one number per state of the data."""
    weighted: tuple[str, ...] | None = None
    """Goals that attract and repel instead of one goal: 8.5,2.0@1 20,4@-0.5."""
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
    from iel.model.support import support_of
    from iel.planning import make_planner
    from iel.training import open_run

    run = open_run(options.run)
    data, model = run.data(options.planning.data), run.model
    start, goal, maze = _ends(options, run, data)
    wish, words, reward = wished(options, goal)
    model.outside = options.outside
    if model.support is None:  # trained by a version that kept none
        model.support = support_of(data)
    planner: Any = make_planner(options.planner, model, data, **planner_settings(options.planner, options.planning))
    planner.prepare(wish)
    way = planner.path(start)
    picture = options.picture or run.folder("plots") / "plan.png"
    draw_plan(picture, maze or ground(data), planner, start, wish, way)
    waypoints = np.asarray(way.observations)
    reading = planner.landscape.read(reward) if reward else None
    if not options.json:
        if reading:
            print(reading.sentence)
        print(f"{len(waypoints)} waypoints, {way.total:.1f} predicted steps from start to goal")
        count = len(waypoints) if options.all else min(SHOWN, len(waypoints))
        for number in np.unique(np.linspace(0, len(waypoints) - 1, count).round().astype(int)):
            numbers = np.array2string(waypoints[number], precision=2, threshold=8, max_line_width=80)
            print(f"  {number:3d}  {numbers}  {way.steps_to_go[number + 1]:.1f} steps to go")
        if count < len(waypoints):
            print(f"({count} of {len(waypoints)} waypoints; --all prints every one)")
        print(f"drawn in {picture}")
    ends = {"start": start, **({"goal": wish} if isinstance(wish, np.ndarray) else {})}
    return {
        "planner": options.planner,
        "start": start.tolist(),
        "goal": words,
        "in_span": reading and reading.readout.share,
        "waypoints": waypoints.tolist(),
        "costs": np.asarray(way.costs).tolist(),
        "steps": np.asarray(way.steps).tolist(),
        "predicted_steps": way.total,
        "excess": {name: float(model.support.excess(row)[0]) for name, row in ends.items()},
        "picture": str(picture),
    }


def _ends(options: PlanCommand, run: Run, data: Trajectories) -> tuple[np.ndarray, np.ndarray, Any]:
    """(start, goal, map or None): the start as it was given; else both of the environment's task, or two states of the
    data where there is no environment."""
    import numpy as np

    from iel.envs import canonical_name, make_env

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
    if start.shape != (data.observation_size,):
        raise ConfigError(
            f"--start has {start.size} numbers, but an observation has {data.observation_size}; give all of them."
        )
    return start, np.asarray(last, np.float32), maze


def wished(options: PlanCommand, goal: Any) -> tuple[Any, Any, Any]:
    """What the planner is asked for, the same as JSON-safe words (numbers for a plain observation), and the reward in
    it, if there is one."""
    import numpy as np

    from iel.commands.prompts import parse_goal, parse_place, parse_places, parse_reward, parse_weighted
    from iel.planning import Avoid, Reward, Sequence, Weighted

    given = [name for name in ("goal", "reward", "weighted") if getattr(options, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two wishes; give one of them.")
    wish: Any = np.asarray(goal, np.float32)
    if options.goal is not None:
        wish = parse_goal(options.goal)
    elif options.reward is not None:
        wish = Reward(parse_reward(options.reward))
    elif options.weighted is not None:
        wish = Weighted(*parse_weighted(options.weighted))
    words: Any = wish.tolist() if isinstance(wish, np.ndarray) else " ".join(getattr(options, given[0]))
    reward = wish if isinstance(wish, Reward) else None
    if options.via is not None:
        wish = Sequence([*(parse_place(place) for place in options.via), wish])
    return (wish if options.avoid is None else Avoid(wish, parse_places(options.avoid))), words, reward
