"""`iel video`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from iel.commands.common import Output, PlannerSettings
from iel.errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class VideoCommand(Output):
    """Film one episode of a run, with the planned waypoints drawn in: a video and a strip of pictures."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    planner: str = "asym-graph"
    """direct, rec-mid, sym-graph, asym-graph or gas-graph."""
    task: int = 1
    """Which task of the environment."""
    seed: int = 0
    """Seed of the start and the goal."""
    out: Path | None = None
    """Where to write, MP4 or GIF (default: RUN/plots/video.mp4)."""
    planning: Annotated[PlannerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=PlannerSettings)


def video_command(options: VideoCommand) -> dict[str, Any]:
    """`iel video`: one episode, driven as in an evaluation, filmed with the way planned at its start."""
    from iel.commands.runs import environment_of, planner_settings
    from iel.evaluation import Arena, Protocol
    from iel.planning import PLANNERS, make_planner
    from iel.training import open_run
    from iel.viz.video import record

    if options.planner not in PLANNERS:
        raise unknown_name("planner", options.planner, PLANNERS)
    run = open_run(options.run)
    name = environment_of(run)
    settings = planner_settings(options.planner, options.planning)
    data = run.data(options.planning.data)
    planner = make_planner(options.planner, run.model, data, **settings)
    arena = Arena(name, Protocol(1, (options.task,), options.seed), reference=data.observations[0])
    rollouts = arena.rollout(run.model, planner, options.planner)
    path, goal = rollouts.paths[0], rollouts.goals[0]
    planner.prepare(goal)
    waypoints = planner.path(path[0]).observations
    out = options.out or run.folder("plots") / "video.mp4"
    recording = record(name, path, goal, out, waypoints=waypoints)
    success = bool(rollouts.success[0])
    if not options.json:
        print(f"{'reached the goal' if success else 'did not reach the goal'} after {len(path) - 1} steps")
        print(f"{recording.video}\n{recording.strip}")
    return {
        "env": name,
        "planner": options.planner,
        "success": success,
        "steps": len(path) - 1,
        "waypoints": len(waypoints),
        "video": str(recording.video),
        "strip": str(recording.strip),
        "rendering": recording.backend,
    }
