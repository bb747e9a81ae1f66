"""Which picture of a run is drawn from what, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iel.data import Trajectories
from iel.evaluation import Arena, Rollouts
from iel.planning.graph import without
from iel.training import Run
from iel.training.trackers import read_metrics

if TYPE_CHECKING:
    from iel.viz.style import Ground


def draw_training(run: Run) -> None:
    """RUN/plots/curves.png."""
    from iel.viz import draw_curves

    draw_curves(run.folder("plots") / "curves.png", read_metrics(run.path / "metrics.csv"))


def draw_evaluation(
    run: Run, arena: Arena, results: dict[str, Rollouts], planner: Any, data: Trajectories, suffix: str = ""
) -> None:
    """Training curves, the rollouts and, where there is a maze to draw in, the field of the first goal.

    `suffix` keeps a quick look apart from the pictures of a larger evaluation.
    """
    from iel.viz import draw_rollouts

    plots, maze = run.folder("plots"), arena.envs[0].map
    if maze is not None and run.model.metric is not None:
        draw_fields(plots / f"field{suffix}.png", maze, planner, next(iter(results.values())).goals[0])
    draw_rollouts(plots / f"rollouts{suffix}.png", maze or ground(data), results)
    draw_training(run)


def draw_distances(run: Run, summary: dict[str, Any]) -> None:
    """RUN/plots/distances.png: success in every band of distance, a line per planner."""
    from iel.viz.comparison import draw_by_distance

    bands = {
        ("", planner): {band: [numbers["success_rate"]] for band, numbers in result["per_task"].items()}
        for planner, result in summary["planners"].items()
    }
    draw_by_distance(run.folder("plots") / "distances.png", list(bands), {summary["env"]: bands})


def ground(data: Trajectories) -> Ground:
    """Where there is no map: the places of the data, in the two slowest columns that tell the place, else the first."""
    from iel.viz.style import Ground

    columns = data.position_columns
    both = [*columns, *(column for column in range(data.observation_size) if column not in columns)][:2]
    pair = (both[0], both[-1])
    rows = np.linspace(0, data.num_states - 1, min(data.num_states, 5000)).astype(int)
    return Ground(data.observations[rows][:, pair], pair)


def draw_fields(picture: Path, maze: Any, planner: Any, goal: np.ndarray) -> None:
    """Predicted steps to a goal: as the network says directly, and (for a graph planner) summed along the graph."""
    from iel.viz import draw_field

    def direct(observations: np.ndarray) -> np.ndarray:
        return planner.model.steps(observations, np.tile(goal, (len(observations), 1)))

    def along_graph(observations: np.ndarray) -> np.ndarray:
        embeddings = planner.model.embed(observations)
        return planner.plan(goal[None]).steps(embeddings, rows=np.zeros(len(embeddings), np.int64))

    fields = {"predicted steps": direct}
    if planner.name.endswith("graph"):
        fields["the same, added up along the planning graph"] = along_graph
    draw_field(picture, maze, goal, fields, planner.observations[0])


def _ends(plan: Any) -> list[np.ndarray]:
    """The observations that end a prepared wish, as far as they are known."""
    goals = [plan.pursuit.goals[number] for number in plan.alternatives[0][-1]]
    return [goal.observation for goal in goals if goal.observation is not None]


def draw_plan(picture: Path, maze: Any, planner: Any, start: np.ndarray, wish: Any, way: Any) -> None:
    """The planning graph of the prepared wish at the positions of its nodes, and the way through it.

    Nodes that are avoided are red; where a reward is collected, the others are coloured by it.
    """
    from iel.viz import draw_graph

    pair = list(getattr(maze, "columns", (0, 1)))
    nodes, pursuit = planner.observations[planner.states][:, pair], planner.prepared.pursuit
    start = start[pair]
    route = np.concatenate([start[None], np.asarray(way.observations)[:, pair]])
    if isinstance(wish, np.ndarray):
        wish = wish[pair]
        route = np.concatenate([route, wish[None]])
    elif ends := _ends(planner.prepared):  # some columns, or one of several: the one where the way leads
        near = np.linalg.norm(np.array(ends)[:, pair] - route[-1], axis=1).argmin()
        route = np.concatenate([route, ends[near][pair][None]])
    last = pursuit.goals[-1]
    edges = without(planner.graph.edges(last), len(nodes), last.off, ())
    pairs = np.stack([edges.source, edges.target], 1)
    title = f"{way.total:.0f} predicted steps over {len(way.nodes)} waypoints"
    draw_graph(picture, maze, nodes, pairs, route, title, avoided=last.off, rewards=last.rewards)
