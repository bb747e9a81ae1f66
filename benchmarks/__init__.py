"""Timed comparisons: ratios against a baseline measured in the same run. `iel bench NAME` runs `command` of NAME.py."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Rows of one shape as an aligned table."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row_cells in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row_cells, widths, strict=True)))


def in_own_process(module: str, case: str, **arguments: Any) -> Any:
    """Run a case of a benchmark in a fresh interpreter, with one BLAS thread, and read its row.

    Threads that wait for a busy core would otherwise make a timing say more about other work than about this one.
    """
    command = [sys.executable, "-m", module, case, json.dumps(arguments)]
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    environment, root = {**os.environ, **one_thread}, Path(__file__).parents[1]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=root)
    return json.loads(done.stdout.splitlines()[-1])


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024.0 if sys.platform != "darwin" else 1024.0**2)
