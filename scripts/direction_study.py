"""The study of docs/direction.md: what directed distances and witnesses are worth where there is no way back.

    python scripts/direction_study.py RUN... [--episodes 10] [--seed 0] [--factor 1000] [--out study.json]
    python scripts/direction_study.py --pictures docs/images [RUN...]

For every run and each of {sym-graph, asym-graph} x {no witnesses, witnesses}: success over the five tasks, how many of
the same episodes' plans lead through a door backwards, and how many of the edges across a door do. And once per run,
over all ordered pairs of some states of the data: the learned steps against the exact ones of the discretised maze
(rank correlation; of the pairs whose exact ratio of the two directions is above 5, the share whose predicted ratio is
above 2), by the distance itself and along the graph.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from iel.envs import MazeMap, make_env
from iel.evaluation import Arena, Protocol
from iel.files import write_text
from iel.planning import Planner, make_planner
from iel.theory import maze_from_map, shortest_steps, steps_between
from iel.theory.calibration import spearman
from iel.training import Run, open_run
from iel.viz.pictures import draw_field
from iel.viz.style import draw_maze, figure

PLANNERS = ("sym-graph", "asym-graph")
STATES = 60
"""States whose ordered pairs are compared with the exact steps."""


def backwards(maze: MazeMap, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which of the straight lines from (n, 2) places to others cross some door from its back to its front."""
    through = np.zeros(len(start), bool)
    for front, back in maze.doors:
        along = (maze.centre(back) - maze.centre(front)) / maze.cell
        middle = maze.centre([front, back]).mean(axis=0)
        (before, side), (after, other) = (
            ((place - middle) @ along, (place - middle) @ along[::-1]) for place in (start, end)
        )
        crossed = (before > 0) & (after <= 0)
        share = before / np.where(crossed, before - after, 1.0)
        through |= crossed & (np.abs(side + share * (other - side)) < maze.cell / 2)
    return through


def closed_edges(maze: MazeMap, planner: Planner) -> float:
    """Of the edges across a door that the graph trusts, the share that leads through it backwards."""
    graph: Any = planner.graph  # type: ignore[attr-defined]
    goal = planner._fields[next(reversed(planner._fields))].goal  # type: ignore[attr-defined]
    edges, places = graph.geometric(goal), planner.observations[planner.states, :2]  # type: ignore[attr-defined]
    trusted = np.ones(len(edges), bool) if graph.witnesses is None else graph.seen(edges)
    start, end = places[edges.source[trusted]], places[edges.target[trusted]]
    back, forth = backwards(maze, start, end).sum(), backwards(maze, end, start).sum()
    return float(back / max(back + forth, 1))


def exact_maze(maze: MazeMap) -> Any:
    """The discretised maze, half a unit a square."""
    return maze_from_map(maze.walls.astype(int), subcells=8, margin=0.7, one_way=maze.doors, winds=maze.winds)


def agreement(predicted: np.ndarray, exact: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Rank correlation over ordered pairs, and the ratio test."""
    table, truth = np.full((2, STATES, STATES), np.nan)
    table[first, second], truth[first, second] = predicted, exact
    one_way = truth / truth.T > 5.0
    ratio = (table / np.maximum(table.T, 1e-9))[one_way]
    return {"spearman": spearman(predicted, exact), "pairs": int(one_way.sum()), "ratio_above_2": (ratio > 2).mean()}


def study(run: Run, arena: Arena, factor: float, nodes: int | None) -> dict[str, Any]:
    """All figures of one run."""
    env, data, model = make_env(run.env), run.data(), run.model
    assert env.map is not None
    generator = np.random.default_rng(0)
    some = data.observations[generator.choice(len(data.observations), STATES, replace=False)]
    first, second = np.nonzero(~np.eye(STATES, dtype=bool))
    exact = steps_between(exact_maze(env.map), some[first, :2], some[second, :2])
    result: dict[str, Any] = {
        "run": run.path.name,
        "distance": agreement(model.steps(some[first], some[second]), exact, first, second),
    }
    for name in PLANNERS:
        for known in (1.0, factor):
            started = time.perf_counter()
            planner = make_planner(name, model, data, witnesses=known, nodes=nodes)
            ready = time.perf_counter() - started
            rollouts = arena.rollout(model, planner, name)
            starts = np.array([path[0] for path in rollouts.paths])
            plans = [_way(planner, start, goal) for start, goal in zip(starts, rollouts.goals, strict=True)]
            steps = planner.plan(some[second]).steps(model.embed(some[first]))
            facts: dict[str, Any] = {
                "success": float(rollouts.success.mean()),
                "per_task": [float(rollouts.success[rollouts.tasks == task].mean()) for task in arena.tasks],
                "backward_plans": float(np.mean([backwards(env.map, way[:-1], way[1:]).any() for way in plans])),
                "backward_edges": closed_edges(env.map, planner),
                "prepare_seconds": round(ready, 2),
                **agreement(steps, exact, first, second),
                "steps_over_exact": float(np.median(steps / exact)),
            }
            if known > 1.0:
                seen = planner.graph.witnessed(planner._fields[next(reversed(planner._fields))].goal)  # type: ignore[attr-defined]
                facts |= {"witnessed": seen.witnessed / seen.edges, "components": seen.components}
            result[f"{name}{'' if known == 1.0 else '+witnesses'}"] = facts
            print(run.path.name, name, known, json.dumps(facts), flush=True)
    return result


def _way(planner: Planner, start: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Places of a plan, start and goal included."""
    planner.prepare(goal)
    return np.concatenate([start[None, :2], planner.path(start).observations[:, :2], goal[None, :2]])


def pictures(folder: Path, runs: list[Path]) -> None:
    """The worlds, and the same maze coloured by steps to a place and from it: exact, and as runs learned it."""
    for size in ("medium", "large"):
        with figure(folder / f"direction-{size}.png", 1, 2, size=(9.0, 4.4 if size == "medium" else 3.6)) as axes:
            for panel, kind in zip(axes[0], ("doors", "wind"), strict=True):
                maze = make_env(f"pointmaze-{size}-{kind}-v0").map
                assert maze is not None
                draw_maze(panel, maze)
                panel.set_title(f"{size}-{kind}")
    for path in runs:
        draw_both_ways(folder / f"direction-{path.name}.png", open_run(path))


def draw_both_ways(path: Path, run: Run) -> None:
    """Steps to the front of the first door and steps from it: exact, and as the run learned them."""
    maze, model = make_env(run.env).map, run.model
    assert maze is not None
    place = maze.centre(maze.doors[0][0]).astype(np.float32)
    exact = exact_maze(maze)
    to_place = shortest_steps(exact, place[None])[0]
    from_place = shortest_steps(exact, exact.positions())[:, exact.nearest_state(place)]
    fields = {
        "exact steps to the place": lambda x: to_place[exact.nearest_state(x[:, :2])],
        "exact steps from it": lambda x: from_place[exact.nearest_state(x[:, :2])],
        "learned steps to it": lambda x: model.steps(x, np.repeat(place[None], len(x), 0)),
        "learned steps from it": lambda x: model.steps(np.repeat(place[None], len(x), 0), x),
    }
    draw_field(path, maze, place, fields, place)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("runs", nargs="*", type=Path)
    options.add_argument("--episodes", type=int, default=10)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--action", choices=("mean", "sample", "unstick"), default="unstick")
    options.add_argument("--factor", type=float, default=1000.0)
    options.add_argument("--nodes", type=int)
    options.add_argument("--out", type=Path)
    options.add_argument("--pictures", type=Path)
    given = options.parse_args()
    if given.pictures:
        pictures(given.pictures, given.runs)
        return
    arenas: dict[str, Arena] = {}
    results = []
    for path in given.runs:
        run = open_run(path)
        if run.env not in arenas:
            arenas[run.env] = Arena(run.env, Protocol(given.episodes, seed=given.seed, action=given.action))
        results.append(study(run, arenas[run.env], given.factor, given.nodes))
        if given.out:
            write_text(given.out, json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
