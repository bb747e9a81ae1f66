"""How long it takes to see which edges were passed: a million transitions onto 8192 nodes.

    iel bench observed_edges
    iel bench observed_edges --transitions 100000 --nodes 2048

Trajectories are random walks on a smooth sheet in 32 dimensions, about one unit a step, as learned embeddings of steps
are. Nodes are farthest points of a pool, as planners choose them. A sample of states is compared with all nodes, and a
sample of passages with the definition; the command fails if one differs. Peak memory is that of a process of its own,
libraries, states and nodes included.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import in_own_process
from iel.commands.common import Output
from iel.distances import Displacement, Floats, LatentGoal, unit
from iel.errors import GeometryError
from iel.model.atlas import SLACK, ObservedEdges
from iel.planning.coreset import select_coreset
from iel.planning.graph import PlanningGraph
from iel.planning.observed import assign, passages, window_for

DIMENSION, EPISODE = 32, 1000


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Observed edges: seconds and memory for a million transitions, checked against the definition."""

    transitions: int = 1_000_000
    """Transitions, in episodes of 1000."""
    nodes: int = 8192
    """Nodes of the graph."""
    intrinsic: int = 2
    """Dimensions of the sheet that the walks live on."""
    seed: int = 0
    """Seed of the walks."""


def walks(episodes: int, intrinsic: int, generator: np.random.Generator) -> Floats:
    """Random walks u in a cube, reflected at its walls, mapped smoothly into 32 dimensions, plus noise."""
    steps = 0.03 * generator.standard_normal((episodes, EPISODE + 1, intrinsic), np.float32)
    steps[:, 0] = generator.uniform(-1.0, 1.0, (episodes, intrinsic))
    position = np.abs((np.cumsum(steps, axis=1) + 1.0) % 4.0 - 2.0).reshape(-1, intrinsic) - 1.0
    straight, bends = generator.normal(size=(2, intrinsic, DIMENSION)).astype(np.float32)
    phases = generator.uniform(0.0, 2.0 * np.pi, DIMENSION).astype(np.float32)
    surface = np.float32(30.0 / np.sqrt(DIMENSION)) * (position @ straight + np.sin(position @ bends + phases))
    return surface + np.float32(0.05) * generator.standard_normal(surface.shape, np.float32)


def measure(options: Options) -> dict[str, Any]:
    """Time both parts and check samples of them."""
    generator = np.random.default_rng(options.seed)
    episodes = max(1, options.transitions // EPISODE)
    states = walks(episodes, options.intrinsic, generator)
    offsets = np.arange(episodes + 1) * (EPISODE + 1)
    pool = states[np.sort(generator.choice(len(states), min(len(states), 50_000), replace=False))]
    points = select_coreset(pool, min(options.nodes, len(pool))).points
    graph = PlanningGraph(points, Displacement(0.1))
    window = window_for(graph.edges(LatentGoal(points[0], np.eye(DIMENSION)[0])).cost)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, processor = time.perf_counter(), time.process_time()
    nodes = assign(states, points)
    assigned = time.perf_counter()
    observed = passages(nodes, offsets, len(points), window)
    seconds, busy = time.perf_counter() - clock, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _check(states, points, nodes, observed, offsets, window, generator)
    return {
        "transitions": episodes * EPISODE,
        "nodes": len(points),
        "seconds": round(seconds, 2),
        "processor_seconds": round(busy, 2),
        "assign_seconds": round(assigned - clock, 2),
        "passage_seconds": round(seconds - (assigned - clock), 2),
        "peak_megabytes": peak // 1024,
        "megabytes_before": before // 1024,
        "window": window,
        "pairs": len(observed.codes),
        **_planning(points, observed, generator),
    }


def _check(
    states: Floats, points: Floats, nodes: Any, observed: ObservedEdges, offsets: Any, window: int, generator: Any
) -> None:
    rows = generator.integers(len(states), size=500)
    squares = np.square(states[rows, None, :].astype(np.float64) - points[None]).sum(-1)
    if not np.array_equal(squares.argmin(axis=1), nodes[rows]):
        raise GeometryError("A state was given a node that is not its nearest; this is a fault of iel.")
    for row in rows[:100]:
        ahead = np.arange(row + 1, min(row + window, offsets[np.searchsorted(offsets, row, side="right")]))
        there = ahead[nodes[ahead] != nodes[row]]
        least = observed.least(nodes[np.full(len(there), row)], nodes[there])
        if (least > there - row).any():
            raise GeometryError("A passage was overlooked; this is a fault of iel.")


def _planning(points: Floats, observed: ObservedEdges, generator: np.random.Generator) -> dict[str, Any]:
    """Milliseconds a goal, beta 0.1, without and with observed (median of nine goals)."""
    facts: dict[str, Any] = {}
    for name, known in (("plain", None), ("observed", observed)):
        graph = PlanningGraph(points, Displacement(0.1), observed_edges=known, unobserved_cost=1000.0)
        took = []
        for _ in range(9):
            direction = unit(generator.standard_normal((1, points.shape[1])))[0]
            goal = LatentGoal(points[generator.integers(len(points))], direction)
            clock = time.perf_counter()
            graph.field(goal)
            took.append(1000 * (time.perf_counter() - clock))
        facts[f"{name}_goal_milliseconds"] = round(float(np.median(took)), 1)
        if known is not None:
            share, components = graph.observed_connectivity(goal)
            facts |= {"observed_share": round(share, 3), "strong_components": components}
    return facts


def command(options: Options) -> dict[str, Any]:
    """Measure in a process of its own and print."""
    settings = {name: getattr(options, name) for name in ("transitions", "nodes", "intrinsic", "seed")}
    result = {**in_own_process("benchmarks.observed_edges", "measure", **settings), "slack": SLACK}
    if not options.json:
        for name, value in result.items():
            print(f"{name:26} {value}")
    return result


if __name__ == "__main__":
    print(json.dumps(measure(Options(**json.loads(sys.argv[2])))))
