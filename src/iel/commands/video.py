"""`iel video`."""

from __future__ import annotations

from typing import Any

from iel.commands.runs import environment_of, planner_settings, run_data
from iel.errors import unknown_name
from iel.evaluation import Arena, Protocol
from iel.options import VideoCommand
from iel.planning import PLANNERS, make_planner
from iel.training import open_run


def video_command(options: VideoCommand) -> dict[str, Any]:
    """`iel video`: one episode, driven as in an evaluation, filmed with the way planned at its start."""
    from iel.viz.video import record

    if options.planner not in PLANNERS:
        raise unknown_name("planner", options.planner, PLANNERS)
    run = open_run(options.run)
    name = environment_of(run)
    settings = planner_settings(options.planner, options.planning)
    data = run_data(run, options.planning.data)
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
