"""How much of a reward does a prompted agent collect? Numbers and picture of docs/prompting.md.

Three rewards in the large point maze, for a run of `iel demo`:

    two rooms    1 in either of two rooms in opposite corners
    preference   1 in a room; every step elsewhere costs 1, except in the corridor that is preferred, a detour
    avoid        1 in a room; every step in one cell of the shortest way there costs 5

Each is collected from the five tasks' starts by the prompted agent and by the same agent sent to a single goal: to
every cell's centre, of which the best in hindsight counts. The oracle is exact: backward induction over small squares
of the maze, with eight moves and the point's own speed.

    python scripts/prompting.py RUN [--episodes 4] [--steps 600] [--picture FILE]
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import iel
from iel.evaluation import Arena, Protocol, TaskRequest
from iel.planning import AsymGraph, Reward, Weighted
from iel.planning.goals import inside
from iel.theory.mazes import Maze, maze_from_map, steps_between

SQUARES = 10
"""Small squares along a cell: 0.4 units, which the point crosses in two steps."""


@dataclass(frozen=True)
class Task:
    """A sum of places and what a step in them is worth, and what counts as success."""

    regions: list[tuple[dict, float]]
    there: list[dict]
    """Success: the episode ends in one of these,"""
    without: list[dict]
    """and no more than one step in a hundred was in these."""

    def reward(self, states: np.ndarray) -> np.ndarray:
        return sum((worth * inside(region, states) for region, worth in self.regions), np.zeros(len(states)))

    def success(self, path: np.ndarray) -> bool:
        return bool(inside(self.there, path[-1:])[0] and inside(self.without, path).mean() <= 0.01)


def room(row: int, column: int, rows: int = 1, columns: int = 1) -> dict:
    """Cells of the maze as a place."""
    left, low = 4.0 * column - 6.0, 4.0 * row - 6.0
    return {0: (left, left + 4.0 * columns), 1: (low, low + 4.0 * rows)}


SOUTH_WEST, NORTH_EAST, EAST, MIDDLE = room(1, 1), room(7, 10), room(5, 10), room(3, 9)
BOTTOM, RIGHT, UP_TO_IT = room(1, 6, columns=5), room(2, 10, rows=3), room(2, 6)
SHORT_CUT = room(1, 7)
TASKS = {
    "two rooms": Task([(SOUTH_WEST, 1.0), (NORTH_EAST, 1.0)], [SOUTH_WEST, NORTH_EAST], []),
    "preference": Task(
        [({0: (-99.0, 99.0)}, -1.0), (BOTTOM, 1.0), (RIGHT, 1.0), (UP_TO_IT, 1.0), (EAST, 2.0)],
        [EAST],
        [],
    ),
    "avoid": Task([(MIDDLE, 1.0), (SHORT_CUT, -5.0)], [MIDDLE], [SHORT_CUT]),
}


def oracle(maze: Maze, reward: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, steps: int) -> np.ndarray:
    """The largest mean reward a step from each start: V_t = max over moves of (reward on the way) + V_{t+1}."""
    moves = np.column_stack([np.arange(maze.states), maze.moves()])
    gained = reward(maze.positions().astype(np.float32))
    each = round(maze.side / 0.2)  # steps a move takes
    values = np.zeros(maze.states)
    for _ in range(steps // each):
        values = (each * (gained[moves] + gained[:, None]) / 2 + values[moves]).max(axis=1)
    return values[maze.nearest_state(starts)] / (each * (steps // each))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    run = iel.open_run(options.run)
    data = run.data()
    planner = AsymGraph(run.model, data)

    def rollouts(goal):
        protocol = Protocol(
            options.episodes, seed=options.seed, max_steps=options.steps, request=TaskRequest(goal=goal)
        )
        return Arena(run.env, protocol).rollout(run.model, planner, "asym-graph", progress=False)

    cells = iel.make_env(run.env).map
    assert cells is not None, "a run in a maze is needed"
    centres = cells.centre(cells.free).astype(np.float32)
    single = [rollouts(centre) for centre in centres]
    maze = maze_from_map(cells.walls.astype(int), subcells=SQUARES, margin=0.7)
    rows, drawn = [], {}
    for name, task in TASKS.items():
        reading = planner.reward_model.read(Reward(task.reward))
        prompted = rollouts(Reward(task.reward))
        returns = [np.array([task.reward(path[1:]).mean() for path in found.paths]) for found in [prompted, *single]]
        best = 1 + int(np.argmax([mean.mean() for mean in returns[1:]]))
        starts = np.array([path[0, :2] for path in prompted.paths])
        exact = oracle(maze, task.reward, starts, options.steps)
        chosen = single[best - 1]
        rows.append(
            {
                "reward": name,
                "in_span": round(reading.readout.share, 3),
                "nodes": round(reading.resolved, 3),
                "prompted": round(float(returns[0].mean()), 3),
                "best_single_goal": round(float(returns[best].mean()), 3),
                "single_goal": centres[best - 1].tolist(),
                "oracle": round(float(exact.mean()), 3),
                "success": float(np.mean([task.success(path) for path in prompted.paths])),
                "single_success": float(np.mean([task.success(path) for path in chosen.paths])),
                "oracle_share": round(float(returns[0].mean() / exact.mean()), 3),
            }
        )
        drawn[name] = (task, prompted.paths, chosen.paths)
        print(json.dumps(rows[-1]), flush=True)
    fine = Reward(lambda x: np.sin(5.0 * x[:, 0]) * np.sin(5.0 * x[:, 1]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        planner.prepare(fine)
    sentences = [planner.reward_model.read(fine).sentence, *(str(warning.message) for warning in said)]
    print(json.dumps({"reward": "a fine checkerboard", "said": sentences}))
    print(json.dumps(weighted(planner, centres, maze)))
    if options.picture:
        draw(options.picture, cells, drawn)


def weighted(planner: AsymGraph, goals: np.ndarray, maze: Maze) -> dict:
    """How far from a single weighted goal the best node lies, in steps: for R = 1 and for the inverse covariance."""
    found = {}
    inverse = np.linalg.inv(np.cov(planner.reward_model.points.T))
    for name, operator in {"identity": None, "inverse covariance": inverse}.items():
        ends = []
        for goal in goals:
            rewards = planner.reward_model.read(Weighted(goal[None], [1.0], operator)).rewards
            assert rewards is not None
            ends.append(planner.observations[planner.states[int(np.argmax(rewards))]])
        steps = steps_between(maze, np.array(ends)[:, :2], goals[:, :2])
        found[name] = {"median": float(np.median(steps)), "within 20 steps": float((steps <= 20).mean())}
    return {"weighted goals alone": found}


def draw(picture: Path, maze, drawn: dict) -> None:
    """Rewards as colours, the prompted agent's ways and those of the agent sent to the best single goal."""
    from iel.viz.style import LINES, REWARD_MAP, draw_walls, figure, mark

    left, right, bottom, top = maze.extent
    x, y = np.meshgrid(np.linspace(left, right, 240), np.linspace(bottom, top, 180))
    with figure(picture, 2, len(drawn), size=(4.4 * len(drawn), 7.0)) as axes:
        for column, (name, (task, prompted, single)) in enumerate(drawn.items()):
            colours = task.reward(np.stack([x, y], -1).reshape(-1, 2)).reshape(x.shape)
            for row, (who, paths) in enumerate({"prompted": prompted, "best single goal": single}.items()):
                panel = axes[row, column]
                panel.imshow(
                    np.clip(colours, -2, 2), extent=maze.extent, origin="lower", cmap=REWARD_MAP, vmin=-2, vmax=2
                )
                draw_walls(panel, maze)
                for path in paths:
                    panel.plot(*path[:, :2].T, color=LINES[3 if row == 0 else 1], linewidth=0.9, alpha=0.7, zorder=3)
                    mark(panel, path[0, :2], "start", 30)
                panel.set_title(f"{name}: {who}", fontsize=10)


if __name__ == "__main__":
    main()
