"""Matching an agent among the nodes around its last one, against evaluating every node, on a trained run.

    iel bench matching RUN
    iel bench matching RUN --nodes 1024

For methods whose distances are a network (docs/planning.md). Agents follow stored trajectories. Reported are how often
the node found is the cheapest of all, what it costs against the cheapest, and how the times compare.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks import print_rows
from iel.commands.common import Output
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError
from iel.planning import AsymGraph, SymGraph
from iel.planning.node_costs import Matcher
from iel.planning.planners import AlongGraph
from iel.training import open_run

GOALS = 5


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Matching around the last node, against all nodes."""

    run: tyro.conf.Positional[Path]
    """A trained run whose data is on this machine."""
    nodes: int = 512
    """Nodes of the graph."""
    agents: int = 20
    """How many walk at the same time, each along its own trajectory."""
    steps: int = 30
    """Steps of each."""


def measure(planner: AsymGraph, data: Trajectories, options: Options) -> dict[str, Any]:
    """Local and full matching at every step; the first step looks at all nodes in both and is not timed."""
    generator = np.random.default_rng(0)
    goals = data.observations[generator.choice(len(data.observations), GOALS)]
    pursuit = planner.plan(list(goals)).pursuit
    assert isinstance(pursuit, AlongGraph) and isinstance(pursuit.matcher, Matcher)
    wanted, memory = np.arange(options.agents) % GOALS, np.full(options.agents, -1)
    long_enough = np.flatnonzero(np.diff(data.offsets) > options.steps)
    if not len(long_enough):
        raise ConfigError(f"No trajectory has more than {options.steps} states; give fewer --steps.")
    starts = data.offsets[generator.choice(long_enough, options.agents)]
    seconds, same, ratios = np.zeros(2), [], []
    for step in range(options.steps):
        embedded = np.asarray(planner.model.embed(data.observations[starts + step]), np.float64)
        states = pursuit.matcher.lifted(embedded)
        began = time.perf_counter()
        cheapest, least = pursuit.matcher.match_all(states, wanted)
        between = time.perf_counter()
        memory, costs = pursuit.matcher.match(states, wanted, memory)
        if step:
            seconds += between - began, time.perf_counter() - between
            same.append(cheapest == memory)
            ratios.append(costs / least)
    return {
        "planner": planner.name,
        "nodes": planner.graph.count,
        "cheapest_found": round(float(np.mean(same)), 4),
        "cost_ratio_90": round(float(np.quantile(ratios, 0.9)), 3),
        "cost_ratio_99": round(float(np.quantile(ratios, 0.99)), 3),
        "all_ms": round(1e3 * seconds[0] / (options.steps - 1), 1),
        "around_ms": round(1e3 * seconds[1] / (options.steps - 1), 1),
        "times_as_fast": round(seconds[0] / seconds[1], 1),
    }


def command(options: Options) -> dict[str, Any]:
    """`iel bench matching`."""
    if options.steps < 2 or options.agents < 1:
        raise ConfigError("At least two --steps of one of the --agents are needed.")
    run = open_run(options.run)
    if run.model.metric is None or not run.model.metric.expensive:
        raise ConfigError(
            f"The distances of {run.model.algo} are not a network, so matching is exact; take a run of a value method."
        )
    data = run.data()
    rows = [measure(planner(run.model, data, nodes=options.nodes), data, options) for planner in (SymGraph, AsymGraph)]
    if not options.json:
        print_rows(rows)
    return {"run": str(options.run), "algo": run.model.algo, "agents": options.agents, "rows": rows}
