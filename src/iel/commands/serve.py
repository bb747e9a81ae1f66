"""`iel serve`, `iel play` and `iel export`: a trained model for others."""

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

import iel
from iel.commands.common import Command, Facts, Flag, PlannerSettings, RunCommand
from iel.errors import ConfigError, install

PORT = 8420
PACKAGES = ("scipy", "threadpoolctl", "starlette", "uvicorn", "websockets", "httptools")


@dataclass(frozen=True, kw_only=True)
class Serving(Command):
    """A server of models."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="run")]
    """Run directory or export. Give several to switch between them in the playground; robots get the first."""
    host: str = "127.0.0.1"
    """Address of the server. Any other than this machine's own needs a token in the variable IEL_TOKEN."""
    port: int = PORT
    """Port of the server; 0 takes a free one."""
    allow_host: tuple[str, ...] = ()
    """Further host names of this server, such as robot.local."""
    planning: Annotated[PlannerSettings, tyro.conf.OmitArgPrefixes] = PlannerSettings()
    outside: Literal["warn", "refuse", "ignore"] = "warn"
    """What to do with goals and observations far outside of the training data: warn in the answer, or refuse."""
    rate: float = 5000.0
    """Requests per second that one address may send."""

    def serve(self, *, play: bool, browse: bool) -> Facts:
        """Serve until interrupted."""
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"Serving needs {', '.join(missing)}; {install('serve')} (docs/serving.md).")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}; give a number from 0 to 65535.")
        if self.rate <= 0:
            raise ConfigError(f"--rate is {self.rate:g}; give a positive number of requests a second.")
        if not self.runs:
            raise ConfigError("No model is given; give the directory of a run or an export.")
        from iel.serving.app import create_app
        from iel.serving.engine import open_served
        from iel.serving.guard import AccessPolicy, Limits
        from iel.serving.listen import listen

        policy = AccessPolicy(self.host, self.allow_host, os.environ.get("IEL_TOKEN"))  # refused before loading
        opened = [each for path in self.runs for each in open_served(path, data=self.planning.data)]
        served = [replace(each, options=self.planning.options) for each in opened]
        for each in served:
            each.model.outside = self.outside
        if play:
            _ = [each.drawable for each in served]  # refused now, not by the page
        app = create_app(served, policy, Limits(rate=self.rate), play=play)
        address = listen(app, self.port, browse=browse, quiet=self.json, play=play)
        return {"address": address, "models": [each.describe() for each in served]}


@dataclass(frozen=True, kw_only=True)
class ServeCommand(Serving):
    """Serve a run or export to robots: actions, routes and predicted steps over HTTP and WebSocket."""

    play: Flag = False
    """Also serve the playground's page."""

    def __call__(self) -> Facts:
        return self.serve(play=self.play, browse=False)


@dataclass(frozen=True, kw_only=True)
class PlayCommand(Serving):
    """Open a run or export in the browser: set goals, draw walls, watch the agent plan and walk."""

    no_browser: Flag = False
    """Do not open a browser."""

    def __call__(self) -> Facts:
        return self.serve(play=True, browse=not self.no_browser)


@dataclass(frozen=True, kw_only=True)
class ExportCommand(RunCommand):
    """Write a trained model for machines without JAX: weights, ONNX graphs, and states to plan over."""

    out: Path | None = None
    """Directory to write, which must not exist yet (default: RUN/export)."""
    nodes: int | None = None
    """States of the data to store for graph planners (default: 2048; 8192 for waypoint policies)."""
    coreset: Literal["farthest", "dpp"] = "farthest"
    """How those states are chosen."""
    unobserved_cost: float | None = None
    """Store which edges between these states the data takes, and multiply the cost of all others by this factor, e.g.
    1000."""
    data: Path | None = None
    """Take states from this file or folder instead of the data the run was trained on."""
    no_onnx: Flag = False
    """Leave the ONNX files out (writing them needs the extra `onnx`)."""
    licence: str | None = None
    """Licence of the agent, such as mit, for its card."""
    check: Flag = False
    """Write nothing: check that an export (given in place of the run) is complete and unchanged."""

    def __call__(self) -> Facts:
        from iel.export import check_export, export_run, file_sizes

        if self.check:
            found = check_export(self.run)
            print(f"{self.run} is whole: {len(found['files'])} files as they were written")
            return found
        run, out = iel.open_run(self.run), self.out or self.run / "export"
        data = run.data(self.data) if self.nodes is not None else None
        card = export_run(
            run,
            out,
            data=data,
            nodes=self.nodes,
            coreset=self.coreset,
            unobserved_cost=self.unobserved_cost,
            onnx=not self.no_onnx,
            licence=self.licence,
        )
        files = file_sizes(out)
        for name, size in files.items():
            print(f"{name:22} {size:12,} bytes")
        print(f"exported to {out}; next: copy it, and read README.md there")
        return {"out": str(out), "files": files, **card}
