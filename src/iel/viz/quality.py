"""One picture of `iel data score`: scores in order, and where the most suspicious episodes went."""

from pathlib import Path

import numpy as np

from iel.envs.mazes import MazeMap
from iel.evaluation.quality import SUSPECT, Quality
from iel.viz.style import EDGE, LINES, Ground, draw_maze, figure

SHOWN = 6


def draw_quality(path: Path | str, quality: Quality, ground: MazeMap | Ground) -> None:
    """Left: scores in order, coloured by the trait. Right: the paths of the first episodes, the worst step marked."""
    pair = list(ground.columns) if isinstance(ground, Ground) else [0, 1]
    order, names = quality.order, list(quality.traits)
    colours = [LINES[names.index(quality.worst(int(episode))) % len(LINES)] for episode in order]
    with figure(path, 1, 2, size=(10, 4.5)) as axes:
        scores, paths = np.ravel(axes)
        scores.scatter(np.arange(1, len(order) + 1), np.maximum(quality.scores[order], 0.1), s=12, color=colours)
        for number, name in enumerate(names):
            scores.scatter([], [], s=12, color=LINES[number % len(LINES)], label=name)
        scores.axhline(SUSPECT, color=EDGE, linewidth=1, linestyle="--")
        scores.set(title="how unusual episodes are", xlabel="rank", ylabel="score", yscale="log")
        scores.legend(fontsize=8, title="worst trait", title_fontsize=8)
        draw_maze(paths, ground)
        for number, episode in enumerate(order[:SHOWN].tolist()):
            states = quality.data.episode(episode).observations[:, pair]
            colour = LINES[number % len(LINES)]
            paths.plot(*states.T, color=colour, linewidth=0.7, alpha=0.7, zorder=3, label=f"episode {episode}")
            entry = quality.entry(episode)
            paths.scatter(*states[entry["at"]], s=40, color=colour, edgecolor="white", zorder=5)
        paths.set_title(f"the {min(SHOWN, len(order))} most unusual, and where")
        paths.legend(fontsize=7, loc="upper right", frameon=True, framealpha=0.8)
