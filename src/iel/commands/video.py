"""`iel video`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from iel.commands.common import Facts, PlannerSettings, Planning, RunCommand, environment_of
from iel.errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class VideoCommand(RunCommand):
    """Film one episode of a run, with the planned waypoints drawn in: a video and a strip of pictures."""

    planner: str = "asym-graph"
    """direct, rec-mid, sym-graph, asym-graph or gas-graph."""
    task: int = 1
    """Which task of the environment."""
    seed: int = 0
    """Seed of the start and the goal."""
    out: Path | None = None
    """Where to write, MP4 or GIF (default: RUN/plots/video.mp4)."""
    planning: Planning = PlannerSettings()

    def __call__(self) -> Facts:
        from iel.evaluation import Arena, Protocol
        from iel.planning import PLANNERS
        from iel.training import open_run
        from iel.viz.video import record

        if self.planner not in PLANNERS:
            raise unknown_name("planner", self.planner, PLANNERS)
        run = open_run(self.run)
        name, data = environment_of(run), run.data(self.planning.data)
        agent = self.planning.agent(self.planner, run.model, data)
        arena = Arena(name, Protocol(1, (self.task,), self.seed), reference=data.observations[0])
        rollouts = arena.rollout(agent.model, agent.planner, self.planner)
        path, goal, success = rollouts.paths[0], rollouts.goals[0], bool(rollouts.success[0])
        waypoints = agent.plan(path[0], goal).observations
        recording = record(name, path, goal, self.out or run.folder("plots") / "video.mp4", waypoints=waypoints)
        print(f"{'reached the goal' if success else 'did not reach the goal'} after {len(path) - 1} steps")
        print(f"{recording.video}\n{recording.strip}")
        return {
            "env": name,
            "planner": self.planner,
            "success": success,
            "steps": len(path) - 1,
            "waypoints": len(waypoints),
            "video": str(recording.video),
            "strip": str(recording.strip),
            "rendering": recording.backend,
        }
