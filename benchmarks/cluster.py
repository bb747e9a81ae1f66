"""What Ray adds to a cell, and what more nodes are worth.

    iel bench cluster                    the same small process started by us and by a cluster on this machine, in turn
    iel bench cluster --nodes 1 2 4      also: cells of the smoke grid a minute, on simulated nodes of one core each

Simulated nodes share the cores of this machine, so more of them than it has cores can only show what they cost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import print_rows
from iel.cluster import Cluster
from iel.commands.common import Output

MODULE = "iel.errors"
"""A process that does next to nothing."""


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """Time that Ray adds to a process."""

    on: str = "ray"
    """A cluster, as of `iel compare --on`."""
    rounds: int = 10
    """Processes of each kind."""
    nodes: tuple[int, ...] = ()
    """Numbers of nodes to run the smoke grid on."""
    only: tuple[str, ...] = ("* GCBC seed *", "* GCIVL seed *", "* HILP seed *", "* IEL seed *")
    """Its cells, as of `iel compare --only`."""


def run(options: Options) -> dict[str, Any]:
    """Median seconds of a process started here and on the cluster, and of getting the cluster."""
    started = time.perf_counter()
    with Cluster(options.on) as cluster:
        ready = time.perf_counter() - started
        cluster.result(cluster.submit(MODULE, []))  # starts a worker of Ray
        first = time.perf_counter() - started - ready
        here, there = [], []
        for _ in range(options.rounds):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", MODULE], check=True)
            middle = time.perf_counter()
            cluster.result(cluster.submit(MODULE, []))
            here.append(middle - started)
            there.append(time.perf_counter() - middle)
    plain, ray = float(np.median(here)), float(np.median(there))
    return {
        "connect_seconds": round(ready, 2),
        "first_task_seconds": round(first, 2),
        "process_seconds": round(plain, 3),
        "task_seconds": round(ray, 3),
        "added_seconds": round(ray - plain, 3),
    }


def throughput(nodes: int, only: tuple[str, ...]) -> dict[str, Any]:
    """Cells a minute of the smoke grid `pointmaze` on a head without cores and `nodes` nodes of one core."""
    from ray.cluster_utils import Cluster as Simulated

    from iel.compare.execute import execute, summary_of
    from iel.compare.grid import read_grid

    grid = read_grid("pointmaze", "smoke")
    simulated = Simulated(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            simulated.add_node(num_cpus=1)
        with tempfile.TemporaryDirectory() as out:
            started = time.perf_counter()
            jobs = execute(grid, Path(out), quiet=True, cluster=Cluster(f"ray={simulated.address}"), only=only)
            seconds = time.perf_counter() - started
    finally:
        simulated.shutdown()
    facts = summary_of(jobs)
    return {"nodes": nodes, "cells": facts["done"], "failed": facts["failed"], "seconds": round(seconds, 1)}


def command(options: Options) -> dict[str, Any]:
    """`iel bench cluster`."""
    result = run(options)
    if not options.json:
        print_rows([result])
    rows = [throughput(nodes, options.only) for nodes in options.nodes]
    for row in rows:
        row["ratio"] = round(rows[0]["seconds"] / row["seconds"], 2)
    if rows and not options.json:
        print_rows(rows)
    return {**result, "throughput": rows} if rows else result
