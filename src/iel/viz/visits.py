"""Where a data set has been: how often its states visited each place of a maze."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm

from iel.data.trajectories import Trajectories
from iel.envs.mazes import MazeMap
from iel.viz.style import draw_maze, figure

BINS_A_CELL = 8
EXAMPLES = 3
"""Episodes drawn as lines over the counts."""


def draw_visits(path: Path | str, maze: MazeMap, data: Trajectories) -> None:
    """States a place on a logarithmic scale over the walls, and the first few episodes as lines."""
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
            way = data.episode(number).observations
            panel.plot(way[:, 0], way[:, 1], color="white", linewidth=0.7, alpha=0.85, zorder=3)
        panel.figure.colorbar(image, ax=panel, shrink=0.8, label="states a bin")
        panel.set_title(
            f"{data.name}: {len(data):,} episodes, {data.num_transitions:,} steps, {len(visited)} of {len(free)} cells",
            fontsize=9.5,
        )
