"""The pictures of a run: the hitting-time field, the planning graph, the rollouts, the training curves, the data.

Each function takes arrays and a path, and writes one PNG.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from iel.data.trajectories import Trajectories
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
    Ground,
    draw_maze,
    draw_walls,
    figure,
    mark,
    panels,
)

RESOLUTION = 24
"""Points a maze cell along each axis in the hitting-time field."""
BINS_A_CELL = 8
"""Bins a maze cell along each axis where visits are counted."""
LOWERED = ("/loss", "_error")
"""Ends of the names of metrics that training lowers."""
EXAMPLES = 3
"""Episodes drawn as lines over these counts."""


def draw_field(
    path: Path | str,
    maze: MazeMap,
    goal: ArrayLike,
    fields: Mapping[str, Callable[[NDArray], NDArray]],
    template: ArrayLike,
    *,
    ranked: bool = False,
) -> None:
    """Predicted steps to one goal from every free point of the maze: colour and contour lines, one panel a predictor.

    `fields` are functions from observations (n, size) to steps (n,), by title; all panels share one scale of colours.
    `template` is an observation whose first two columns are replaced by the position (a point has no others). With
    `ranked`, for costs in units of their own, colour is the share of points that are nearer to the goal.
    """
    left, right, bottom, top = maze.extent
    rows, columns = (RESOLUTION * n for n in maze.walls.shape)
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = bottom + (np.arange(rows) + 0.5) * (top - bottom) / rows
    points = np.stack(np.meshgrid(x, y), -1)
    free = ~maze.walls[tuple(np.moveaxis(maze.cell_of(points), -1, 0))]
    observations = np.tile(np.asarray(template, np.float32), (int(free.sum()), 1))
    observations[:, :2] = points[free]
    predicted = {title: predict(observations) for title, predict in fields.items()}
    if ranked:
        last = max(1, len(observations) - 1)
        predicted = {title: np.argsort(np.argsort(costs, kind="stable")) / last for title, costs in predicted.items()}
    highest = max(float(values[np.isfinite(values)].max(initial=1.0)) for values in predicted.values())
    shape, across = (right - left) / (top - bottom), 5 if ranked else len(fields)
    with panels(path, len(fields), across, (0.8 + 2.6 * shape, 3.0) if ranked else (1.1 + 3.9 * shape, 4.2)) as axes:
        for panel, (title, values) in zip(axes, predicted.items(), strict=True):
            field = np.full(free.shape, np.nan)
            field[free] = values
            image = panel.imshow(field, FIELD_MAP, extent=maze.extent, origin="lower", vmin=0, vmax=highest, zorder=1)
            levels = np.linspace(0, highest, 14)[1:-1]
            panel.contour(x, y, field, levels=levels, colors="white", linewidths=0.6, alpha=0.7, zorder=1)
            draw_walls(panel, maze)
            mark(panel, np.asarray(goal)[:2], "goal")
            panel.set_title(title)
        label = "share of points nearer to the goal" if ranked else "steps"
        axes[0].figure.colorbar(image, ax=axes, shrink=0.8, label=label)


def draw_graph(
    path: Path | str,
    maze: MazeMap | Ground,
    nodes: NDArray,
    edges: NDArray,
    route: NDArray,
    title: str = "planning graph and shortest path",
    *,
    avoided: NDArray | None = None,
    rewards: NDArray | None = None,
    doubted: NDArray | None = None,
) -> None:
    """Nodes and edges of the planning graph at the nodes' positions, with a route through them.

    nodes (n, 2) positions, edges (m, 2) node numbers, route (k, 2) positions from start to goal; `avoided` (n,) marks
    nodes in avoided regions, `rewards` (n,) colour the others, `doubted` (k - 1,) hops of the route are dashed and red.
    """
    used = np.ones(len(nodes), bool) if avoided is None else ~avoided
    left, right, bottom, top = maze.extent
    with figure(path, size=(7.5, 0.6 + 7.2 * (top - bottom) / (right - left))) as axes:
        panel = axes[0, 0]
        draw_maze(panel, maze)
        routes, label = list(nodes[edges]), "edge of the graph"
        panel.add_collection(LineCollection(routes, colors=EDGE, linewidths=0.35, alpha=0.5, zorder=2, label=label))
        if rewards is None:
            label = "node (a state of the data)"
            panel.scatter(*nodes[used].T, s=4, color=INK, linewidth=0, alpha=0.75, zorder=3, label=label)
        else:
            shown = panel.scatter(*nodes[used].T, s=14, c=rewards[used], cmap=REWARD_MAP, linewidth=0, zorder=3)
            panel.figure.colorbar(shown, ax=panel, shrink=0.7, label="reward a step")
        if not used.all():
            panel.scatter(*nodes[~used].T, s=14, color=FAILURE, linewidth=0, alpha=0.6, zorder=3, label="avoided")
        panel.plot(*route.T, color=PATH, linewidth=2.6, zorder=4, solid_capstyle="round", label="planned route")
        if doubted is not None and doubted.any():
            over = LineCollection(
                np.stack([route[:-1], route[1:]], 1)[doubted], colors=FAILURE, linewidths=2.6, zorder=5
            )
            over.set(linestyle="--", label="hop that the data speaks against")
            panel.add_collection(over)
        panel.scatter(*route[1:-1].T, s=16, color=PATH, edgecolor="white", linewidth=0.6, zorder=5)
        mark(panel, route[0], "start")
        mark(panel, route[-1], "goal")
        panel.set_title(title)
        panel.figure.legend(loc="outside lower center", ncols=5, fontsize=8)


def draw_rollouts(path: Path | str, maze: MazeMap | Ground, results: Mapping[str, Rollouts]) -> None:
    """The path of every episode: rows are planners, columns tasks; blue where it succeeded, red where it failed."""
    x, y = maze.columns if isinstance(maze, Ground) else (0, 1)
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
                    panel.plot(*result.paths[episode][:, [x, y]].T, color=colour, linewidth=1.0, alpha=0.55, zorder=3)
                for episode in chosen[:1]:
                    mark(panel, result.paths[episode][0, [x, y]], "start", 45)
                    mark(panel, result.goals[episode, [x, y]], "goal", 45)
                rate = result.success[chosen].mean()
                panel.set_title(f"{name}, task {task}: {rate:.0%}", fontsize=8.5)
        colours = {"succeeded": SUCCESS, "failed": FAILURE}
        keys = [Line2D([], [], color=colour, linewidth=1.6, label=word) for word, colour in colours.items()]
        marks, _ = axes[0, 0].get_legend_handles_labels()
        axes[0, 0].figure.legend(handles=[*keys, *marks[:2]], loc="outside lower center", ncols=4, fontsize=8)


def draw_curves(path: Path | str, curves: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> None:
    """Training curves: phase after phase, its loss first, a panel per metric; ↓ is what training lowers."""
    phases: dict[str, list[str]] = {}
    for name in sorted(curves, key=lambda name: not name.endswith("/loss")):
        phases.setdefault(name.split("/")[0], []).append(name)
    if not phases:
        return
    order = sorted(phases, key=lambda phase: min(curves[phases[phase][0]][0], default=0))
    drawn = [(LINES[n % len(LINES)], name) for n, phase in enumerate(order) for name in phases[phase]]
    with panels(path, len(drawn), 4, (2.7, 2.2), (0.4, 0.3)) as axes:
        for panel, (colour, name) in zip(axes, drawn, strict=True):
            steps, values = (np.asarray(column, np.float64) for column in curves[name])
            panel.plot(steps / 1000, values, color=colour, alpha=0.25, linewidth=0.8)
            dot = "o" if len(values) == 1 else None
            wide = np.pad(values, 4, mode="edge")
            smooth = np.convolve(wide, np.ones(9) / 9, mode="valid") if len(values) >= 9 else values
            panel.plot(steps / 1000, smooth, color=colour, linewidth=1.6, marker=dot)
            lowered = " ↓" if name.endswith(LOWERED) else ""
            panel.set_title(name.replace("/", ": ").replace("_", " ") + lowered, fontsize=9)
            panel.tick_params(labelsize=8)
            panel.ticklabel_format(useOffset=False)
            panel.grid(color=EDGE, alpha=0.2, linewidth=0.6)
            if len(values) > 20:  # the first values are those of untrained networks, and would flatten the rest
                late = values[len(values) // 20 :]
                margin = 0.08 * (late.max() - late.min()) + 1e-9
                panel.set_ylim(late.min() - margin, late.max() + margin)
        axes[0].figure.supxlabel(
            "thousand steps; ↓ is lowered by training, other values have no good direction", fontsize=8
        )


def draw_visits(path: Path | str, maze: MazeMap, data: Trajectories) -> None:
    """Number of states at each position on a logarithmic scale over the walls, and the first episodes as lines."""
    left, right, bottom, top = maze.extent
    rows, columns = (BINS_A_CELL * size for size in maze.walls.shape)
    xy = data.observations[:, :2]
    counts, _, _ = np.histogram2d(xy[:, 1], xy[:, 0], bins=(rows, columns), range=((bottom, top), (left, right)))
    free = {tuple(cell) for cell in maze.free}
    visited = free & {tuple(cell) for cell in np.unique(maze.cell_of(xy), axis=0)}
    with figure(path, size=(1.2 + 6.4, 0.8 + 6.4 * (top - bottom) / (right - left))) as axes:
        panel = axes[0, 0]
        draw_maze(panel, maze)
        shown = np.ma.masked_equal(counts, 0)
        image = panel.imshow(
            shown, extent=maze.extent, origin="lower", cmap="viridis", zorder=1,
            norm=LogNorm(1, max(2, counts.max())), interpolation="nearest",
        )  # fmt: skip
        for number in range(min(EXAMPLES, len(data))):
            states = data.episode(number).observations
            panel.plot(states[:, 0], states[:, 1], color="white", linewidth=0.7, alpha=0.85, zorder=3)
        panel.figure.colorbar(image, ax=panel, shrink=0.8, label="states a bin")
        panel.set_title(
            f"{data.name}: {len(data):,} episodes, {data.num_transitions:,} steps, {len(visited)} of {len(free)} cells",
            fontsize=9.5,
        )
