"""The four pictures of a run: the hitting-time field, the planning graph, the rollouts, the training curves.

Each function takes arrays and a path, and writes one PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from numpy.typing import ArrayLike, NDArray

from iel.envs.mazes import MazeMap
from iel.evaluation.rollout import Rollouts
from iel.viz.style import (
    EDGE,
    FAILURE,
    FIELD_MAP,
    INK,
    LINES,
    PATH,
    REWARD_MAP,
    SUCCESS,
    draw_maze,
    draw_walls,
    figure,
    mark,
)

RESOLUTION = 24
"""Points a maze cell along each axis in the hitting-time field."""


def draw_field(
    path: Path | str,
    maze: MazeMap,
    goal: ArrayLike,
    fields: Mapping[str, Callable[[NDArray], NDArray]],
    template: ArrayLike,
) -> None:
    """Predicted steps to one goal from every free point of the maze: colour and contour lines, one panel a predictor.

    `fields` are functions from observations (n, size) to steps (n,), by title. `template` is an observation whose first
    two columns are replaced by the position (a point's are all there is).
    """
    left, right, bottom, top = maze.extent
    rows, columns = (RESOLUTION * n for n in maze.walls.shape)
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = bottom + (np.arange(rows) + 0.5) * (top - bottom) / rows
    points = np.stack(np.meshgrid(x, y), -1)
    free = ~maze.walls[tuple(np.moveaxis(maze.cell_of(points), -1, 0))]
    observations = np.tile(np.asarray(template, np.float32), (int(free.sum()), 1))
    observations[:, :2] = points[free]

    shape = (right - left) / (top - bottom)
    with figure(path, 1, len(fields), size=((1.1 + 3.9 * shape) * len(fields), 4.2)) as axes:
        for panel, (title, predict) in zip(axes[0], fields.items(), strict=True):
            steps = np.full(free.shape, np.nan)
            steps[free] = predict(observations)
            image = panel.imshow(steps, extent=maze.extent, origin="lower", cmap=FIELD_MAP, zorder=1)
            levels = np.linspace(0, np.nanmax(steps), 14)[1:-1]
            panel.contour(x, y, steps, levels=levels, colors="white", linewidths=0.6, alpha=0.7, zorder=1)
            draw_walls(panel, maze)
            mark(panel, np.asarray(goal)[:2], "goal")
            panel.set_title(title)
            panel.figure.colorbar(image, ax=panel, shrink=0.8, label="steps")


def draw_graph(
    path: Path | str,
    maze: MazeMap,
    nodes: NDArray,
    edges: NDArray,
    route: NDArray,
    title: str = "planning graph and shortest path",
    *,
    avoided: NDArray | None = None,
    rewards: NDArray | None = None,
) -> None:
    """Nodes and edges of the planning graph at the nodes' positions, with a route through them.

    nodes (n, 2) positions, edges (m, 2) node numbers, route (k, 2) positions from start to goal; `avoided` (n,) marks
    nodes to keep out of, `rewards` (n,) colour the others.
    """
    used = np.ones(len(nodes), bool) if avoided is None else ~avoided
    left, right, bottom, top = maze.extent
    with figure(path, size=(7.5, 0.6 + 7.2 * (top - bottom) / (right - left))) as axes:
        panel = axes[0, 0]
        draw_maze(panel, maze)
        panel.add_collection(LineCollection(nodes[edges], colors=EDGE, linewidths=0.35, alpha=0.5, zorder=2))
        if rewards is None:
            panel.scatter(*nodes[used].T, s=4, color=INK, linewidth=0, alpha=0.75, zorder=3)
        else:
            shown = panel.scatter(*nodes[used].T, s=14, c=rewards[used], cmap=REWARD_MAP, linewidth=0, zorder=3)
            panel.figure.colorbar(shown, ax=panel, shrink=0.7, label="reward a step")
        panel.scatter(*nodes[~used].T, s=14, color=FAILURE, linewidth=0, alpha=0.6, zorder=3)
        panel.plot(*route.T, color=PATH, linewidth=2.6, zorder=4, solid_capstyle="round")
        panel.scatter(*route[1:-1].T, s=16, color=PATH, edgecolor="white", linewidth=0.6, zorder=5)
        mark(panel, route[0], "start")
        mark(panel, route[-1], "goal")
        panel.set_title(title)


def draw_rollouts(path: Path | str, maze: MazeMap, results: Mapping[str, Rollouts]) -> None:
    """Every episode's way through the maze: rows are planners, columns tasks; blue where it arrived, red where not."""
    tasks = np.unique(next(iter(results.values())).tasks)
    left, right, bottom, top = maze.extent
    size = (2.5 * len(tasks) + 0.6, 2.5 * (top - bottom) / (right - left) * len(results) + 0.3 * len(results) + 0.3)
    with figure(path, len(results), len(tasks), size=size) as axes:
        for row, (name, result) in zip(axes, results.items(), strict=True):
            for panel, task in zip(row, tasks, strict=True):
                chosen = np.flatnonzero(result.tasks == task)
                draw_maze(panel, maze)
                for episode in chosen:
                    colour = SUCCESS if result.success[episode] else FAILURE
                    panel.plot(*result.paths[episode][:, :2].T, color=colour, linewidth=1.0, alpha=0.55, zorder=3)
                for episode in chosen[:1]:
                    mark(panel, result.paths[episode][0, :2], "start", 45)
                    mark(panel, result.goals[episode, :2], "goal", 45)
                rate = result.success[chosen].mean()
                panel.set_title(f"{name}, task {task}: {rate:.0%}", fontsize=8.5)


def draw_curves(path: Path | str, curves: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> None:
    """Training curves, one panel per phase, lightly smoothed over the raw values."""
    phases: dict[str, list[str]] = {}
    for name in curves:
        phases.setdefault(name.split("/")[0], []).append(name)
    if not phases:
        return
    with figure(path, 1, len(phases), size=(4.6 * len(phases), 3.6)) as axes:
        for panel, (phase, names) in zip(axes[0], phases.items(), strict=True):
            for colour, name in zip(LINES, names, strict=False):
                steps, values = (np.asarray(column) for column in curves[name])
                panel.plot(steps, values, color=colour, alpha=0.2, linewidth=0.8)
                panel.plot(steps, _smooth(values), color=colour, linewidth=1.6, label=name.split("/")[1])
            panel.set(title=phase, xlabel="gradient step")
            panel.set_yscale("symlog", linthresh=0.1)
            panel.legend(fontsize=8, ncols=2, loc="upper right")
            panel.margins(y=0.25)


def _smooth(values: NDArray, width: int = 9) -> NDArray:
    if len(values) < width:
        return values
    padded = np.pad(values, width // 2, mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")
