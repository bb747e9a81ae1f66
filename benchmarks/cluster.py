"""What Ray adds to a cell: the same small process started by us and by a cluster on this machine, in turn.

iel bench cluster
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
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


def command(options: Options) -> dict[str, Any]:
    """`iel bench cluster`."""
    result = run(options)
    if not options.json:
        print_rows([result])
    return result
