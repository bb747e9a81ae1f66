"""`iel diagnose`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from iel.commands.common import Output, PlannerSettings
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.envs import World
    from iel.training import Run


@dataclass(frozen=True, kw_only=True)
class DiagnoseCommand(Output):
    """Why does an agent fail? Coverage, graph, ways, predicted steps, policy and episodes, each with a remedy."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    episodes: int = 4
    """Episodes per task to look at; 0 asks the data and the model only."""
    env_factory: str | None = None
    """Act in your own environment: package.module:function makes a Gymnasium environment (docs/own-robot.md)."""
    tolerance: float | None = None
    """There, a goal counts as reached within this distance (default: info["success"] says so)."""
    columns: tuple[int, ...] | None = None
    """Columns of that distance (default: all that the goal names)."""
    max_steps: int | None = None
    """Steps an episode may take (default, and at most: the environment's own limit)."""
    seed: int = 0
    """Seed of the episodes and of the states that are drawn."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/diagnosis.png)."""
    planning: Annotated[PlannerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=PlannerSettings)


def diagnose_command(options: DiagnoseCommand) -> dict[str, Any]:
    """`iel diagnose`."""
    from iel.commands.audit import audit_data
    from iel.commands.pictures import ground
    from iel.commands.runs import planner_settings, world_of
    from iel.evaluation import Arena, Protocol
    from iel.evaluation.diagnosis import diagnose
    from iel.model.support import support_of
    from iel.planning import make_planner
    from iel.training import open_run
    from iel.viz.diagnosis import draw_diagnosis

    run = open_run(options.run)
    model, data = run.model, run.data(options.planning.data)
    support = model.support or support_of(data)
    held, seen = audit_data(run, options.planning.data)
    name = "direct" if model.metric is None else "asym-graph"
    planner: Any = make_planner(name, model, data, **planner_settings(name, options.planning))
    rollouts, maze = None, None
    place = _place(run, options.episodes, world_of(options))
    if place is not None:
        protocol = Protocol(options.episodes, None, options.seed, options.max_steps)
        arena = Arena(place, protocol, reference=data.observations[0])
        rollouts, maze = arena.rollout(model, planner, name), arena.envs[0].map
    graph = planner if name == "asym-graph" else None
    diagnosis = diagnose(model, held, support, planner=graph, rollouts=rollouts, maze=maze, seed=options.seed)
    picture = options.picture or run.folder("plots") / "diagnosis.png"
    nodes = None if graph is None else graph.observations[graph.states]
    draw_diagnosis(picture, diagnosis, maze or ground(data), nodes, rollouts)
    if not options.json:
        print("\n".join(str(finding) for finding in diagnosis.findings))
        print(f"{diagnosis.verdict} Steps and policy were measured on {seen}.")
        print(f"drawn in {picture}")
    return {"run": str(run.path), "data": seen, "picture": str(picture), **diagnosis.as_dict()}


def _place(run: Run, episodes: int, world: World | None) -> str | World | None:
    """Where to act, if anywhere."""
    from iel.envs import canonical_name

    if episodes == 0 or world is not None:
        return world if episodes else None
    try:
        canonical_name(run.env)
    except ConfigError:
        return None
    return run.env
