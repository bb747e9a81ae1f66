"""`iel diagnose`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from iel.commands.common import (
    Facts,
    OwnWorld,
    PlannerSettings,
    Planning,
    RunCommand,
    WorldSettings,
    known_environment,
)


@dataclass(frozen=True, kw_only=True)
class DiagnoseCommand(RunCommand):
    """Why does an agent fail? Coverage, graph, ways, predicted steps, policy and episodes, each with a remedy."""

    episodes: int = 4
    """Episodes per task to look at; 0 asks the data and the model only."""
    seed: int = 0
    """Seed of the episodes and of the states that are drawn."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/diagnosis.png)."""
    environment: OwnWorld = WorldSettings()
    planning: Planning = PlannerSettings()

    def __call__(self) -> Facts:
        from iel.commands.audit import audit_data
        from iel.commands.pictures import ground
        from iel.evaluation import Arena, Protocol
        from iel.evaluation.diagnosis import diagnose
        from iel.model.support import support_of
        from iel.planning import AsymGraph
        from iel.training import open_run
        from iel.viz.diagnosis import draw_diagnosis

        run = open_run(self.run)
        model, data = run.model, run.data(self.planning.data)
        held, seen = audit_data(run, self.planning.data)
        planner = self.planning.agent("direct" if model.metric is None else "asym-graph", model, data).planner
        rollouts, maze = None, None
        place = self.environment.world() or known_environment(run.env)
        if self.episodes and place is not None:
            protocol = Protocol(self.episodes, None, self.seed, self.environment.max_steps)
            arena = Arena(place, protocol, reference=data.observations[0])
            rollouts, maze = arena.rollout(model, planner, planner.name), arena.envs[0].map
        graph = planner if isinstance(planner, AsymGraph) else None
        support = model.support or support_of(data)
        diagnosis = diagnose(model, held, support, planner=graph, rollouts=rollouts, maze=maze, seed=self.seed)
        picture = self.picture or run.folder("plots") / "diagnosis.png"
        nodes = None if graph is None else graph.observations[graph.states]
        draw_diagnosis(picture, diagnosis, maze or ground(data), nodes, rollouts)
        print("\n".join(str(finding) for finding in diagnosis.findings))
        print(f"{diagnosis.verdict} Steps and policy were measured on {seen}.")
        print(f"drawn in {picture}")
        return {"run": str(run.path), "data": seen, "picture": str(picture), **diagnosis.as_dict()}
