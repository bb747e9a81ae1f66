"""`iel export`."""

from __future__ import annotations

from typing import Any

from iel.commands.runs import run_data
from iel.export import export_run
from iel.options import ExportCommand
from iel.training import open_run


def export_command(options: ExportCommand) -> dict[str, Any]:
    """`iel export`."""
    run = open_run(options.run)
    data = run_data(run, options.data) if options.nodes is not None else None
    out = options.out or run.path / "export"
    card = export_run(run, out, data=data, nodes=options.nodes, coreset=options.coreset, onnx=options.onnx)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if not options.json:
        for name, size in files.items():
            print(f"{name:22} {size:12,} bytes")
        print(f"exported to {out}; next: copy it, and read README.txt there")
    return {"out": str(out), "files": files, **card}
