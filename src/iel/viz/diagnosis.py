"""One picture of a diagnosis: where the data, the graph's parts and the episodes' ends are, and two curves."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from iel.envs.mazes import MazeMap
from iel.evaluation.diagnosis import Diagnosis
from iel.evaluation.rollout import Rollouts
from iel.viz.style import EDGE, FAILURE, INK, LINES, SUCCESS, Ground, draw_maze, figure

ENDS = {"succeeded": SUCCESS, "stuck": FAILURE, "lost": LINES[3], "slow": LINES[1]}


def draw_diagnosis(
    path: Path | str, diagnosis: Diagnosis, ground: MazeMap | Ground, nodes: NDArray | None, rollouts: Rollouts | None
) -> None:
    """`nodes` are the observations of the planning graph's nodes."""
    pair = list(getattr(ground, "columns", (0, 1)))
    with figure(path, 2, 2, size=(10, 8)) as axes:
        _episodes(axes[0, 0], diagnosis, ground, pair, rollouts)
        _parts(axes[0, 1], diagnosis, ground, pair, nodes)
        panel = axes[1, 0]
        if len(diagnosis.falls):
            logged = np.linspace(1, 0, len(diagnosis.falls))
            panel.plot(diagnosis.falls, color=LINES[0], linewidth=2, label="predicted (median)")
            panel.plot(logged, color=INK, linewidth=1, linestyle="--", label="as logged")
            panel.legend(fontsize=8)
        panel.set(title="steps to the end of a logged stretch")
        panel.set(xlabel="logged steps", ylabel="steps to go / steps to go at the start")
        panel = axes[1, 1]
        numbers = next(f.numbers for f in diagnosis.findings if f.topic == "policy")
        names = {"right_command": "command: where\nthe log went", "other_command": "command:\nsomewhere else",
                 "constant_action": "a constant\naction"}  # fmt: skip
        panel.bar(list(names.values()), [numbers[name] for name in names], color=[SUCCESS, FAILURE, EDGE], width=0.6)
        panel.set(title="the policy on logged actions", ylabel="squared error")


def _episodes(
    panel: Axes, diagnosis: Diagnosis, ground: MazeMap | Ground, pair: list[int], rollouts: Rollouts | None
) -> None:
    draw_maze(panel, ground)
    panel.set_title("where episodes ended")
    if rollouts is None:
        panel.set_title("where the data was (no episodes were run)")
        return
    for route, name in zip(rollouts.paths, diagnosis.fates, strict=True):
        panel.plot(*route[:, pair].T, color=ENDS[name], linewidth=0.6, alpha=0.4, zorder=3)
    fates, ends = np.array(diagnosis.fates), np.array([route[-1, pair] for route in rollouts.paths])
    for name in dict.fromkeys(diagnosis.fates):
        x, y = ends[fates == name].T
        panel.scatter(x, y, s=26, color=ENDS[name], edgecolor="white", linewidth=0.6, zorder=5, label=name)
    panel.legend(fontsize=8, loc="upper right", frameon=True, framealpha=0.8)


def _parts(panel: Axes, diagnosis: Diagnosis, ground: MazeMap | Ground, pair: list[int], nodes: NDArray | None) -> None:
    draw_maze(panel, ground)
    if diagnosis.parts is None or nodes is None:
        panel.set_title("this method has no graph")
        return
    order = np.argsort(-np.bincount(diagnosis.parts), kind="stable")
    rank = np.argsort(order)
    colours = [LINES[min(rank[part], len(LINES) - 1)] for part in diagnosis.parts]
    sizes = [9 if rank[part] == 0 else 30 for part in diagnosis.parts]  # the small ones are what matters
    panel.scatter(nodes[:, pair[0]], nodes[:, pair[1]], s=sizes, color=colours, linewidth=0, zorder=4)
    panel.set_title(f"nearest-neighbour graph: {len(order)} connected component{'s' if len(order) != 1 else ''}")
