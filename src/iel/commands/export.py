"""`iel export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from iel.commands.common import Flag, Output


@dataclass(frozen=True, kw_only=True)
class ExportCommand(Output):
    """Write a trained model for machines without JAX: weights, ONNX graphs, and states to plan over."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    out: Path | None = None
    """Directory to write, which must not exist yet (default: RUN/export)."""
    nodes: int | None = None
    """Take so many states of the data along, so that graph planners need none (2048; 8192 for waypoint policies)."""
    coreset: Literal["farthest", "dpp"] = "farthest"
    """How those states are chosen."""
    witnesses: float | None = None
    """Take along who was seen to pass between them; an edge that nobody took costs so many times as much (1000)."""
    data: Path | None = None
    """Take states from this file or folder instead of the data the run was trained on."""
    no_onnx: Flag = False
    """Leave the ONNX files out (writing them needs the extra `onnx`)."""


def export_command(options: ExportCommand) -> dict[str, Any]:
    """`iel export`."""
    from iel.export import export_run
    from iel.training import open_run

    run = open_run(options.run)
    data = run.data(options.data) if options.nodes is not None else None
    out = options.out or run.path / "export"
    chosen: dict[str, Any] = {"nodes": options.nodes, "coreset": options.coreset, "witnesses": options.witnesses}
    card = export_run(run, out, data=data, onnx=not options.no_onnx, **chosen)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if not options.json:
        for name, size in files.items():
            print(f"{name:22} {size:12,} bytes")
        print(f"exported to {out}; next: copy it, and read README.txt there")
    return {"out": str(out), "files": files, **card}
