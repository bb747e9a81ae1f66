"""`iel export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import iel
from iel.commands.common import Facts, Flag, RunCommand


@dataclass(frozen=True, kw_only=True)
class ExportCommand(RunCommand):
    """Write a trained model for machines without JAX: weights, ONNX graphs, and states to plan over."""

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

    def __call__(self) -> Facts:
        from iel.export import export_run

        run = iel.open_run(self.run)
        data = run.data(self.data) if self.nodes is not None else None
        out = self.out or run.path / "export"
        card = export_run(
            run, out, data=data, nodes=self.nodes, coreset=self.coreset, witnesses=self.witnesses, onnx=not self.no_onnx
        )
        files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
        for name, size in files.items():
            print(f"{name:22} {size:12,} bytes")
        print(f"exported to {out}; next: copy it, and read README.txt there")
        return {"out": str(out), "files": files, **card}
