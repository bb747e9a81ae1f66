"""`iel bench ...`: speed as ratios against a baseline in the same run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from iel.errors import ConfigError
from iel.options import BenchCheckpoints, BenchPlanning, BenchRuntime, BenchSeeds, BenchStepping, BenchTraining


def bench_training_command(options: BenchTraining) -> dict[str, Any]:
    """`iel bench training`."""
    from iel.bench import training

    if len(options.widths) != len(options.batches):
        raise ConfigError("--widths and --batches are paired, so give equally many of both.")
    result = training.run(list(zip(options.widths, options.batches, strict=True)), seconds=options.seconds)
    if not options.json:
        print_rows(result["rows"])
    return result


def bench_planning_command(options: BenchPlanning) -> dict[str, Any]:
    """`iel bench planning`."""
    from iel.bench import planning

    chosen = {name: value for name in ("nodes", "beta") if (value := getattr(options, name)) is not None}
    # Each case is described in a line as soon as it is done; with --json those lines are only progress.
    stream = sys.stderr if options.json else sys.stdout
    return planning.run(**chosen, quick=options.quick, progress=lambda line: print(line, file=stream, flush=True))


def bench_stepping_command(options: BenchStepping) -> dict[str, Any]:
    """`iel bench stepping`."""
    from iel.bench import stepping

    result = stepping.run(seconds=options.seconds)
    if not options.json:
        print_rows(result["rows"])
    return result


def bench_checkpoints_command(options: BenchCheckpoints) -> dict[str, Any]:
    """`iel bench checkpoints`."""
    from iel.bench import checkpoints

    result = checkpoints.run()
    if not options.json:
        print_rows([result])
    return result


def bench_runtime_command(options: BenchRuntime) -> dict[str, Any]:
    """`iel bench runtime`."""
    from iel.bench import runtime

    result = runtime.run(options.widths)
    if not options.json:
        print_rows(result["rows"])
        print("\nlargest differences from JAX, by size of the inputs")
        print_rows(
            [{name: f"{value:.0e}" if value else value for name, value in row.items()} for row in result["agreement"]]
        )
    return result


def bench_seeds_command(options: BenchSeeds) -> dict[str, Any]:
    """`iel bench seeds`."""
    from iel.bench import seeds

    if min(options.seeds, options.steps, options.rounds) < 1:
        raise ConfigError("--seeds, --steps and --rounds must be at least 1.")
    result = seeds.run(options.seeds, preset=options.preset, steps=options.steps, rounds=options.rounds)
    if not options.json:
        print_rows(result["rows"])
    return result


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Rows of one shape as an aligned table."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row_cells in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row_cells, widths, strict=True)))
