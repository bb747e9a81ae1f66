"""The study of docs/direction.md: what directed distances and observed edges are worth behind one-way doors.

    python scripts/direction_study.py RUN... [--episodes 10] [--seed 0] [--factor 1000 | --factor 1] [--out study.json]
    python scripts/direction_study.py --pictures docs/images [RUN...]   # also those of docs/directed-maze.md

For every run and each of {sym-graph, asym-graph} x {all edges, unobserved ones penalised} (with --factor 1 the former
alone): success over the five tasks, how many of the same episodes' plans lead through a door backwards, and how many of
the edges across a door do. And once per run, over all ordered pairs of some states of the data: the learned steps
against the exact ones of the discretised maze (`iel.evaluation.agreement`), by the distance itself and by each graph.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from iel.envs import MazeMap, make_env
from iel.envs.directed import WORLDS
from iel.evaluation import Arena, Protocol
from iel.evaluation.agreement import KnownMaze, agreements
from iel.files import write_text
from iel.planning import Planner, make_planner
from iel.theory import maze_of, shortest_steps, steps_between
from iel.theory.audit import json_safe
from iel.training import Run, open_run
from iel.viz.pictures import draw_field
from iel.viz.style import LINES, draw_maze, figure

PLANNERS = ("sym-graph", "asym-graph")
STATES = 60
"""States whose ordered pairs are compared with the exact steps."""


def closed_edges(maze: MazeMap, planner: Planner) -> float:
    """Of the edges across a door that the graph trusts, the share that leads through it backwards."""
    graph: Any = planner.graph  # type: ignore[attr-defined]
    goal = planner._fields[next(reversed(planner._fields))].goal  # type: ignore[attr-defined]
    edges, node_positions = graph.geometric(goal), planner.observations[planner.states, :2]  # type: ignore[attr-defined]
    trusted = np.ones(len(edges), bool) if graph.observed_edges is None else graph.seen(edges)
    start, end = node_positions[edges.source[trusted]], node_positions[edges.target[trusted]]
    back, forth = maze.against(start, end).sum(), maze.against(end, start).sum()
    return float(back / max(back + forth, 1))


def study(run: Run, arena: Arena, factor: float, nodes: int | None) -> dict[str, Any]:
    """All figures of one run."""
    env, data, model = make_env(run.env), run.data(), run.model
    known = KnownMaze.of(run.env)
    assert env.map is not None and known is not None
    some = data.observations[np.random.default_rng(0).choice(len(data.observations), STATES, replace=False)]
    planners: dict[str, Planner] = {"direct": make_planner("direct", model, data)}
    result: dict[str, Any] = {"run": run.path.name}
    for name in PLANNERS:
        for penalty in dict.fromkeys((1.0, factor)):
            started = time.perf_counter()
            planner = make_planner(name, model, data, unobserved_cost=penalty, nodes=nodes)
            ready = time.perf_counter() - started
            rollouts = arena.rollout(model, planner, name)
            starts = np.array([path[0] for path in rollouts.paths])
            plans = [_route(planner, start, goal) for start, goal in zip(starts, rollouts.goals, strict=True)]
            shortest = known.steps(starts, rollouts.goals)
            facts: dict[str, Any] = {
                "success": float(rollouts.success.mean()),
                "per_task": [float(rollouts.success[rollouts.tasks == task].mean()) for task in arena.tasks],
                "taken_over_exact": float((rollouts.steps / shortest)[rollouts.success].mean()),
                "backward_plans": float(np.mean([env.map.against(route[:-1], route[1:]).any() for route in plans])),
                "backward_edges": closed_edges(env.map, planner),
                "prepare_seconds": round(ready, 2),
            }
            if penalty > 1.0:
                goal = planner._fields[next(reversed(planner._fields))].goal  # type: ignore[attr-defined]
                share, components = planner.graph.observed_connectivity(goal)
                facts |= {"observed": share, "components": components}
            label = f"{name}{'' if penalty == 1.0 else '+observed'}"
            result[label], planners[label] = facts, planner
            print(run.path.name, name, penalty, json.dumps(facts), flush=True)
    result["agreement"] = json_safe(agreements(model, planners, some, known))
    return result


def _route(planner: Planner, start: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Positions of a plan, start and goal included."""
    planner.prepare(goal)
    return np.concatenate([start[None, :2], planner.path(start).observations[:, :2], goal[None, :2]])


def pictures(folder: Path, runs: list[Path]) -> None:
    """The worlds with their tasks, the exact steps to a position and from it; and both as runs learned them."""
    for size, height in (("medium", 5.6), ("large", 4.3)):
        with figure(folder / f"directed-{size}.png", 1, 2, size=(9.0, height)) as axes:
            for panel, kind in zip(axes[0], ("doors", "wind"), strict=True):
                draw_tasks(panel, f"{size}-{kind}")
    maze = make_env("pointmaze-medium-doors-v0").map
    assert maze is not None
    position = maze.centre(maze.doors[0][0]).astype(np.float32)
    draw_field(folder / "directed-exact.png", maze, position, exact_fields(maze, position), position)
    for path in runs:
        draw_both_directions(folder / f"direction-{path.name}.png", open_run(path))


def draw_tasks(panel: Axes, world: str) -> None:
    """Doors, wind, and every task from its disc to its star; below, the exact steps there, back, and on a plain map."""
    maze, lines = make_env(f"pointmaze-{world}-v0").map, []
    assert maze is not None
    draw_maze(panel, maze)
    directed, plain = maze_of(maze), maze_of(MazeMap(maze.walls))
    for number, (task, colour) in enumerate(zip(WORLDS[world].tasks, LINES, strict=False), 1):
        start, goal = maze.centre(task)
        shift = 0.22 * maze.cell * np.array([np.cos(1.26 * number), np.sin(1.26 * number)])  # ends may share a cell
        for xy, shape, area in ((start + shift, "o", 110), (goal - shift, "*", 220)):
            panel.scatter(*xy, s=area, marker=shape, color=colour, edgecolor="white", zorder=6)
            panel.text(*xy, str(number), ha="center", va="center", fontsize=6, color="white", zorder=7)
        there, back, calm = (
            steps_between(where, first[None], last[None])[0]
            for where, first, last in ((directed, start, goal), (directed, goal, start), (plain, start, goal))
        )
        lines.append(f"{number}: {there:.0f} there, {back:.0f} back, {calm:.0f} plain")
    panel.set_title(world)
    panel.set_xlabel("\n".join(lines), fontsize=8)


def exact_fields(maze: MazeMap, position: np.ndarray) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Exact steps to a position and from it, as functions of observations."""
    exact = maze_of(maze)
    to_position = shortest_steps(exact, position[None])[0]
    from_position = shortest_steps(exact, exact.positions())[:, exact.nearest_state(position)]
    return {
        "exact steps to the star": lambda x: to_position[exact.nearest_state(x[:, :2])],
        "exact steps from it": lambda x: from_position[exact.nearest_state(x[:, :2])],
    }


def draw_both_directions(path: Path, run: Run) -> None:
    """Steps to the front of the first door and steps from it: exact, and as the run learned them."""
    maze, model = make_env(run.env).map, run.model
    assert maze is not None
    position = maze.centre(maze.doors[0][0]).astype(np.float32)
    fields = {
        **exact_fields(maze, position),
        "learned steps to it": lambda x: model.steps(x, np.repeat(position[None], len(x), 0)),
        "learned steps from it": lambda x: model.steps(np.repeat(position[None], len(x), 0), x),
    }
    draw_field(path, maze, position, fields, position)


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
