"""How fast planning is: the dense formula against the pruned graph, and how long a coreset takes.

    iel bench planning --quick
    iel bench planning --nodes 8192 --beta 0.1 --goals 20
    iel bench planning --recorded benchmarks/planning.json --plot docs/images/planning-time.png

Every case runs in a process of its own, so its peak memory (of the whole process, libraries included) is its own. The
points are a smooth 4-dimensional sheet in 32 dimensions with a little noise, which is what learned embeddings look
like; rows `maze` are exact steps of a maze, under a support function over 256 landmarks; one row uses 32-dimensional
Gaussian points, where nothing can be pruned and the dense path is chosen. Dense costs are timed on ready-made lengths,
which do not depend on the goal. Processor seconds are reported beside wall-clock seconds, for machines that have other
work to do.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import in_own_process, peak_megabytes, reference
from iel.commands.common import Flag, Output
from iel.distances import Displacement, Floats, LatentGoal, Metric, SupportFunction, lengths_between
from iel.loader import read_json
from iel.planning.coreset import select_coreset
from iel.planning.graph import PlanningGraph
from iel.theory import maze_from_map, shortest_steps

NODES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
BETAS = (0.0, 0.1, 0.3, 1.0)
DIMENSION = 32
NEIGHBOURS = 10
DENSE_LIMIT = 8192
"""Beyond this many nodes dense matrices no longer fit an ordinary machine."""

ENOUGH_SECONDS = 20.0
"""A case is timed on nine goals, or on fewer once they took this long: beyond pruning, one goal takes minutes."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Planning speed: the dense formula against the exact fast path, in one run."""

    nodes: tuple[int, ...] | None = None
    """Coreset sizes (default: 1024 to 65536)."""
    beta: tuple[float, ...] | None = None
    """Values of beta (default: 0 to 1)."""
    quick: Flag = False
    """Only the small cases."""
    goals: int = 3
    """Goals whose graph is compared with the dense formula, where that fits."""
    plot: Path | None = None
    """Draw time per goal against nodes into this file."""
    recorded: Path | None = None
    """Measure nothing: take the result of an earlier run, as --json printed it."""


def sheet(count: int, generator: np.random.Generator, *, intrinsic: int = 4, noise: float = 0.3) -> Floats:
    """Points u of a cube [-1, 1]^intrinsic, mapped smoothly into 32 dimensions about 60 steps wide, plus noise."""
    latent = generator.uniform(-1.0, 1.0, size=(count, intrinsic))
    straight = generator.normal(size=(intrinsic, DIMENSION))
    bends, phases = generator.normal(size=(intrinsic, DIMENSION)), generator.uniform(0.0, 2.0 * np.pi, DIMENSION)
    surface = 30.0 / np.sqrt(DIMENSION) * (latent @ straight + np.sin(latent @ bends + phases))
    return (surface + noise * generator.normal(size=surface.shape)).astype(np.float32)


def cloud(count: int, generator: np.random.Generator) -> Floats:
    """Gaussian points that fill all 32 dimensions: the case that cannot be pruned."""
    return (10.0 * generator.normal(size=(count, DIMENSION))).astype(np.float32)


LANDMARKS = 256
SERPENTINE = np.array(
    [[int(row % 2 == 1 and column != (0 if row % 4 == 1 else 14)) for column in range(15)] for row in range(15)]
)
"""Fifteen corridors, one after the other."""


def exact_steps(nodes: int, seed: int) -> tuple[Floats, SupportFunction]:
    """Exact steps between the states of a maze, by the best rank-32 displacements: what HTP learns.

    With V(x, l) the steps from state x to landmark l, the heights A_xl = -V(x, l) less their mean over x are U S W^T;
    points are rows of U S, directions rows of W.
    """
    maze = maze_from_map(np.pad(SERPENTINE, 1, constant_values=1), subcells=math.ceil(math.sqrt(nodes / 120)))
    generator = np.random.default_rng(seed)
    landmarks = generator.choice(maze.states, LANDMARKS, replace=False)
    heights = -shortest_steps(maze, maze.positions()[landmarks]).T[generator.choice(maze.states, nodes, replace=False)]
    left, sizes, right = np.linalg.svd(heights - heights.mean(axis=0), full_matrices=False)
    return left[:, :DIMENSION] * sizes[:DIMENSION], SupportFunction(right[:DIMENSION].T.astype(np.float32))


def case_points(data: str, nodes: int, seed: int = 0) -> Floats:
    if data == "maze":
        return exact_steps(nodes, seed)[0]
    return {"sheet": sheet, "gaussian": cloud}[data](nodes, np.random.default_rng(seed))


def case_metric(data: str, nodes: int, beta: float) -> Metric:
    return exact_steps(nodes, 0)[1] if data == "maze" else Displacement(beta)


def case_goals(points: Floats, count: int, seed: int = 1) -> list[LatentGoal]:
    """Random nodes as goals, random unit vectors as their directions."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(count, points.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    goals = points[generator.integers(len(points), size=count)].astype(np.float64)
    return [LatentGoal(*goal) for goal in zip(goals, directions, strict=True)]


def fast_case(nodes: int, beta: float, data: str, goals: int) -> Row:
    """Preparation and time per goal of the planner's own graph."""
    points, metric = case_points(data, nodes), case_metric(data, nodes, beta)
    started, started_processor = time.perf_counter(), time.process_time()
    graph = PlanningGraph(points, metric, neighbours=NEIGHBOURS)
    prepared, prepared_processor = time.perf_counter() - started, time.process_time() - started_processor
    seconds, processor = [], []
    for goal in case_goals(points, goals):
        # With beta = 0 the edges serve every goal: forgetting them would time work that is never repeated.
        started, started_processor = time.perf_counter(), time.process_time()
        graph.field(goal)
        seconds.append(time.perf_counter() - started)
        processor.append(time.process_time() - started_processor)
        if sum(seconds) > ENOUGH_SECONDS:
            break
    peak = peak_megabytes()
    return {
        "exact_rows": exact_rows(graph, case_goals(points, 1)[0]),
        "seconds_per_goal": sorted(seconds)[len(seconds) // 2],
        "processor_seconds_per_goal": float(np.median(processor)),
        "prepare_seconds": prepared,
        "prepare_processor_seconds": prepared_processor,
        "peak_mb": peak,
        "path": graph.costs.path,
        "candidates_per_node": graph.costs.candidates / nodes,
    }


def exact_rows(graph: PlanningGraph, goal: LatentGoal, sample: int = 50) -> float:
    """Share of a sample of nodes whose out-edges are the k cheapest of all pairs."""
    rows = np.unique(np.linspace(0, graph.count - 1, sample).astype(int))
    retained = graph.edges(goal).target[: graph.count * graph.neighbours].reshape(graph.count, -1)
    same = 0
    for row in rows:
        costs = graph.metric.costs(graph.points[row : row + 1], graph.points, goal)
        costs[0, row] = np.inf
        best = np.argsort(costs[0], kind="stable")[: graph.neighbours]
        same += set(best.tolist()) == set(retained[row].tolist())
    return same / len(rows)


def dense_case(nodes: int, beta: float, data: str, goals: int) -> Row:
    """The dense formula, one goal timed and all goals compared; the spanning tree, one for all goals, is not timed."""
    points = case_points(data, nodes).astype(np.float64)
    graph = PlanningGraph(points, Displacement(beta), neighbours=NEIGHBOURS)
    tree = np.stack([graph.tree.first, graph.tree.second], axis=1)
    lengths = lengths_between(points, points)
    dense_seconds, dense_processor, identical = 0.0, 0.0, True
    for number, goal in enumerate(case_goals(points, goals)):
        started, started_processor = time.perf_counter(), time.process_time()
        costs = reference.cost_matrix(points, goal.direction, beta, lengths)
        matrix = reference.with_tree(costs, reference.nearest_by_partition(costs, NEIGHBOURS), tree)
        node = reference.goal_node(points, goal.point, goal.direction, beta)
        distance, next_hop = reference.search_matrix(matrix, node)
        if number == 0:
            dense_seconds = time.perf_counter() - started
            dense_processor = time.process_time() - started_processor
        identical &= same(graph, goal, matrix, distance, next_hop)
    return {
        "dense_seconds": dense_seconds,
        "dense_processor_seconds": dense_processor,
        "identical": identical,
        "checked_goals": goals,
        "dense_peak_mb": peak_megabytes(),
    }


def same(graph: PlanningGraph, goal: LatentGoal, matrix: Floats, distance: Floats, next_hop: np.ndarray) -> bool:
    """Edges, costs, distances and next hops equal to the last bit."""
    edges, field = graph.edges(goal), graph.field(goal)
    return bool(
        len(edges) == np.isfinite(matrix).sum()
        and np.array_equal(matrix[edges.source, edges.target], edges.cost)
        and np.array_equal(field.distance, distance)
        and np.array_equal(field.next_hop, next_hop)
    )


def coreset_case(points: int, picks: int, method: str) -> Row:
    """Time and memory of choosing a coreset; the DPP with the kernel width 5 of the paper's study."""
    table = sheet(points, np.random.default_rng(0))
    started, started_processor = time.perf_counter(), time.process_time()
    coreset = select_coreset(table, picks, method=method, sigma=5.0 if method == "dpp" else None)
    return {
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - started_processor,
        "peak_mb": peak_megabytes(),
        "sigma": coreset.sigma,
        "rank": coreset.rank,
    }


CASES: dict[str, Callable[..., Row]] = {"fast": fast_case, "dense": dense_case, "coreset": coreset_case}


def run(
    nodes: Sequence[int] | None = None,
    beta: Sequence[float] | None = None,
    quick: Flag = False,
    progress: Callable[[str], Any] = print,
    *,
    goals: int = 3,
) -> dict[str, list[Row]]:
    """Measure the chosen sizes and betas: {"rows": [...], "coreset": [...]}.

    `goals` goals are compared with the dense formula where it fits; the first is timed.
    """
    sizes = tuple(nodes) if nodes else ((1024, 2048) if quick else NODES)
    betas = tuple(beta) if beta else ((0.1,) if quick else BETAS)
    cases = [(size, value, "sheet") for size in sizes for value in betas]
    if not quick and not nodes:
        cases.append((4096, 0.3, "gaussian"))
    cases += [(size, 0.0, "maze") for size in sizes if size <= DENSE_LIMIT]
    rows = []
    for size, value, data in cases:
        row: Row = {"nodes": size, "dimension": DIMENSION, "neighbours": NEIGHBOURS, "beta": value, "data": data}
        row.update({"dense_seconds": None, "identical": None})
        row.update(in_own_process("benchmarks.planning", "fast", nodes=size, beta=value, data=data, goals=9))
        if size <= DENSE_LIMIT and data != "maze":
            row.update(in_own_process("benchmarks.planning", "dense", nodes=size, beta=value, data=data, goals=goals))
        rows.append(row)
        progress(described(row))
    coreset = []
    plain, large = ((5_000, 512),), ((5_000, 512), (50_000, 2048), (50_000, 8192))
    for points, picks in plain if quick or nodes else large:
        for method in ("farthest", "dpp"):
            found = in_own_process("benchmarks.planning", "coreset", points=points, picks=picks, method=method)
            coreset.append({"points": points, "picks": picks, "method": method, **found})
            progress(f"{method}: {points} -> {picks} in {found['seconds']:.1f} s, {found['peak_mb']:.0f} MB")
    return {"rows": rows, "coreset": coreset}


def described(row: Row) -> str:
    """One line for people."""
    line = (
        f"N={row['nodes']} beta={row['beta']:g} {row['data']}: {1e3 * row['seconds_per_goal']:.1f} ms per goal "
        f"({1e3 * row['processor_seconds_per_goal']:.1f} ms of processor), "
        f"prepared in {row['prepare_seconds']:.2f} s, {row['peak_mb']:.0f} MB, {row['path']}, "
        f"{row['candidates_per_node']:.0f} candidates a node, {100 * row['exact_rows']:.0f} % of checked rows exact"
    )
    if row["dense_seconds"] is not None:
        ratio = row["dense_seconds"] / row["seconds_per_goal"]
        line += f"; dense {row['dense_seconds']:.2f} s ({ratio:.0f} times), identical: {row['identical']}"
    return line


def plot(result: dict[str, list[Row]], file: str | Path, beta: float = 0.1) -> None:
    """Time per goal against the number of nodes, dense and pruned; processor time, which other work does not blur."""
    from matplotlib.figure import Figure

    rows = sorted(
        (row for row in result["rows"] if row["beta"] == beta and row["data"] == "sheet"), key=lambda row: row["nodes"]
    )
    dense = [row for row in rows if row["dense_seconds"] is not None]
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for chosen, key, style, label in (
        (dense, "dense_processor_seconds", "s--", "dense formula"),
        (rows, "processor_seconds_per_goal", "o-", "pruned, identical"),
    ):
        axes.loglog([row["nodes"] for row in chosen], [row[key] for row in chosen], style, label=label)
    axes.set_xticks([row["nodes"] for row in rows], [f"{row['nodes']:,}" for row in rows], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("nodes of the coreset")
    axes.set_ylabel("processor seconds per goal")
    axes.set_title(f"A new goal: d = {DIMENSION}, k = {NEIGHBOURS}, beta = {beta:g}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def command(options: Options) -> dict[str, Any]:
    """`iel bench planning`: a line for each case as soon as it is done; with --json that is only progress."""
    stream = sys.stderr if options.json else sys.stdout
    if options.recorded is not None:
        result = read_json(options.recorded)
    else:
        tell = partial(print, file=stream, flush=True)
        result = run(options.nodes, options.beta, options.quick, tell, goals=options.goals)
    if options.plot is not None:
        plot(result, options.plot)
    return result


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](**json.loads(sys.argv[2]))))
