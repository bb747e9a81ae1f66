"""What a whole table would take: one step of every method at its full size, measured, and the totals computed from it.

    iel bench table
    iel bench table paper-table-2 --scale paper --nodes 100 --cores 16 --price 0.04

A step's processor seconds (of all threads together, so other work on the machine changes little) are measured for every
method and phase of the grid on random data of an ant's size. The rest is multiplication: cells, core-hours, hours on so
many nodes, and their price. Evaluation is left out; it takes minutes a cell (docs/performance.md).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tyro

from benchmarks import print_rows
from iel.commands.common import Output
from iel.compare.grid import read_grid
from iel.data.trajectories import Trajectories
from iel.methods import Method, config_from_dict, get_method
from iel.progress import Progress
from iel.training.loop import Trainer

COLUMNS = (29, 8)
"""Observations and actions of an ant."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Core-hours of a grid, from measured steps."""

    grid: tyro.conf.Positional[str] = "paper-table-2"
    """A grid that comes with the package, or a TOML file."""
    scale: str | None = "paper"
    """One of the grid's scales."""
    steps: int = 3
    """Steps that are measured of every phase."""
    nodes: int = 100
    """Machines of the cluster."""
    cores: int = 16
    """Cores of a machine."""
    price: float = 0.04
    """Assumed price of a core for an hour."""


def ant_like(episodes: int = 20, length: int = 500) -> Trajectories:
    rng = np.random.default_rng(0)
    states = np.cumsum(rng.normal(size=(episodes, length + 1, COLUMNS[0])), axis=1)
    actions = rng.uniform(-0.9, 0.9, (episodes, length, COLUMNS[1]))
    return Trajectories.from_episodes(list(zip(states, actions, strict=True)), "ant-like", trust=True)


def core_seconds(algo: Method, data: Trajectories, steps: int) -> dict[str, float]:
    """Processor seconds of one step of every phase."""
    trainer, found = Trainer(data, algo, [0], {}), {}
    for phase in trainer.phases:
        advance = trainer.stepper(phase)
        advance(1)
        started = time.process_time()
        advance(steps)
        found[phase.name] = (time.process_time() - started) / steps
    return found


def run(options: Options) -> dict[str, Any]:
    """Measure each method once and add up."""
    grid, data = read_grid(options.grid, options.scale), ant_like()
    methods = {cell.method: cell for cell in grid.cells}
    rows = []
    with Progress("bench table", len(methods), unit="methods", show=not options.json) as bar:
        for method, cell in methods.items():
            algo = config_from_dict(get_method(cell.algo), cell.settings)
            seconds = core_seconds(algo, data, options.steps)
            hours = sum(phase.steps * seconds[phase.name] for phase in algo.phases()) / 3600
            cells = sum(other.method == method for other in grid.cells)
            rows.append(
                {
                    "method": method,
                    "cells": cells,
                    "core_seconds_a_step": {name: round(value, 3) for name, value in seconds.items()},
                    "core_hours_a_cell": round(hours, 1),
                    "core_hours": round(cells * hours),
                }
            )
            bar.advance(1, method)
    return {"grid": grid.name, "scale": grid.scale, "methods": rows, **totals(rows, options)}


def totals(rows: list[dict[str, Any]], options: Options) -> dict[str, Any]:
    """A cell keeps to one machine, so it has at most that machine's cores, and the longest cell is the least time."""
    cells, hours = sum(row["cells"] for row in rows), sum(row["core_hours"] for row in rows)
    longest = max(row["core_hours_a_cell"] for row in rows)
    positions = options.nodes * options.cores
    cores_a_cell = min(options.cores, max(1, positions // cells))
    rounds = math.ceil(cells * cores_a_cell / positions)
    return {
        "cells": cells,
        "core_hours": hours,
        "cores_a_cell": cores_a_cell,
        "hours_at_best": round(rounds * longest / cores_a_cell, 1),
        "hours_on_one_machine_of_two_cores": round(hours / 2),
        "price": round(hours * options.price),
    }


def command(options: Options) -> dict[str, Any]:
    """`iel bench table`."""
    result = run(options)
    rows = result["methods"]
    if not options.json:
        steps, shown = "core-seconds a step, by phase", []
        texts = [", ".join(f"{name} {value}" for name, value in row["core_seconds_a_step"].items()) for row in rows]
        heads = ("method", "cells", steps, "core-hours a cell", "core-hours")
        names = ("method", "cells", "core_hours_a_cell", "core_hours")
        for row, text in zip(rows, texts, strict=True):
            method, cells, each, hours = (row[name] for name in names)
            shown.append(dict(zip(heads, (method, cells, text, each, f"{hours:,}"), strict=True)))
        print_rows(shown)
        print(
            f"{result['grid']}, {result['scale']}: {result['cells']} cells, {result['core_hours']:,} core-hours; with "
            f"{result['cores_a_cell']} cores a cell {result['hours_at_best']:,} hours at best, on one machine of two "
            f"cores {result['hours_on_one_machine_of_two_cores']:,} hours; about {result['price']:,} at "
            f"{options.price:g} a core-hour"
        )
    return result
