"""Which picture of a run is drawn from what, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iel.agent import Agent
from iel.commands.common import Facts
from iel.data import Trajectories
from iel.envs import MazeMap
from iel.evaluation import Arena, Rollouts
from iel.planning import AsymGraph, GasGraph, Planner, Route
from iel.planning.graph import without
from iel.planning.hops import route_states
from iel.training import Run
from iel.training.trackers import read_metrics

if TYPE_CHECKING:
    from iel.viz.style import Ground


def draw_training(run: Run) -> None:
    """RUN/plots/curves.png."""
    from iel.viz import draw_curves

    draw_curves(run.folder("plots") / "curves.png", read_metrics(run.path / "metrics.csv"))


def draw_evaluation(
    run: Run, arena: Arena, results: dict[str, Rollouts], agent: Agent, data: Trajectories, suffix: str = ""
) -> None:
    """Training curves, the rollouts and, where there is a maze to draw in, the field of the first goal.

    `suffix` keeps a quick look apart from the pictures of a larger evaluation.
    """
    from iel.viz import draw_rollouts

    plots, maze = run.folder("plots"), arena.map
    if maze is not None and run.model.metric is not None:
        draw_fields(plots / f"field{suffix}.png", maze, agent, next(iter(results.values())).goals[0])
    draw_rollouts(plots / f"rollouts{suffix}.png", maze or ground(data), results)
    draw_training(run)


def draw_distances(run: Run, summary: Facts) -> None:
    """RUN/plots/distances.png: success in every band of distance, a line per planner."""
    from iel.viz.comparison import draw_by_distance

    bands = {
        ("", planner): {band: [numbers["success_rate"]] for band, numbers in result["per_task"].items()}
        for planner, result in summary["planners"].items()
    }
    draw_by_distance(run.folder("plots") / "distances.png", list(bands), {summary["env"]: bands})


def ground(data: Trajectories) -> Ground:
    """What to draw on without a map: the data in its first two position columns, else in its first two columns."""
    from iel.viz.style import Ground, picture_columns

    pair = picture_columns(data.position_columns, data.observation_size)
    rows = np.linspace(0, data.num_states - 1, min(data.num_states, 5000)).astype(int)
    names = data.signals.axis(pair[0]), data.signals.axis(pair[1])
    return Ground(data.observations[rows][:, pair], pair, names)


def draw_fields(picture: Path, maze: MazeMap, agent: Agent, goal: np.ndarray) -> None:
    """Predicted steps to a goal: as the network says directly, and (for a graph planner) summed along the graph."""
    from iel.viz import draw_field

    model, planner = agent.model, agent.planner

    fields = {"predicted steps": lambda rows: model.steps(rows, np.tile(goal, (len(rows), 1)))}
    if planner.name.endswith("graph"):
        steps, added = planner.plan(goal[None]).steps, "the same, added up along the planning graph"
        fields[added] = lambda rows: steps(model.embed(rows), rows=np.zeros(len(rows), np.int64))
    draw_field(picture, maze, goal, fields, planner.observations[0])


def draw_plan(
    picture: Path,
    ground: MazeMap | Ground,
    planner: Planner,
    start: np.ndarray,
    route: Route,
    doubted: np.ndarray | None = None,
) -> None:
    """The planning graph of the prepared goal at the positions of its nodes, and the route through it.

    Nodes that are avoided are red; where a reward is collected, the others are coloured by it. `doubted` hops of the
    route are dashed and red.
    """
    from iel.viz import draw_graph

    assert isinstance(planner, (AsymGraph, GasGraph)), "only graphs are drawn"
    pair = [0, 1] if isinstance(ground, MazeMap) else list(ground.columns)
    nodes, last = planner.observations[planner.states][:, pair], planner.prepared.pursuit.goals[-1]
    line = route_states(planner, start, route)[:, pair]
    edges = without(planner.graph.edges(last), len(nodes), last.off, ())
    pairs = np.stack([edges.source, edges.target], 1)
    title = f"{route.total:.0f} predicted steps over {len(route.nodes)} waypoints"
    draw_graph(picture, ground, nodes, pairs, line, title, avoided=last.off, rewards=last.rewards, doubted=doubted)
