"""`iel plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from iel.commands.common import Output, PlannerSettings
from iel.errors import ConfigError, unknown_name


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
    goal: tuple[str, ...] | None = None
    """Goal observation instead of the task's; or some of its columns, 0=8.5 1=2.0: any state of the data that matches
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
    wish, words, reward = wished(options, info["goal"])
    planner = make_planner(options.planner, run.model, data, **planner_settings(options.planner, options.planning))
    planner.prepare(wish)
    way = planner.path(start)
    picture = None
    if env.map is not None:
        picture = options.picture or run.folder("plots") / "plan.png"
        draw_plan(picture, env.map, planner, start, wish, way)
    waypoints = np.asarray(way.observations)
    reading = planner.landscape.read(reward) if reward else None
    if not options.json:
        if reading:
            print(reading.sentence)
        print(f"{len(waypoints)} waypoints, {way.total:.1f} predicted steps from start to goal")
        for number, (waypoint, remaining) in enumerate(zip(waypoints, way.steps_to_go[1:], strict=True)):
            print(f"  {number:3d}  {np.array2string(waypoint, precision=2)}  {remaining:.1f} steps to go")
        print(f"drawn in {picture}" if picture else "not drawn: this environment has no map")
    return {
        "planner": options.planner,
        "start": start.tolist(),
        "goal": words,
        "in_span": reading and reading.readout.share,
        "waypoints": waypoints.tolist(),
        "costs": np.asarray(way.costs).tolist(),
        "steps": np.asarray(way.steps).tolist(),
        "predicted_steps": way.total,
        "picture": picture and str(picture),
    }


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
