"""`iel serve` and `iel play`."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from iel.commands.common import Flag, Output
from iel.errors import ConfigError

PORT = 8420
PACKAGES = ("fastapi", "uvicorn", "websockets", "httptools")


@dataclass(frozen=True, kw_only=True)
class Listening(Output):
    """Where the server listens."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="run")]
    """Run directory or export; of several, the page can switch between them."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own needs a token in IEL_TOKEN."""
    port: int = PORT
    """Port to listen on; 0 takes a free one."""
    allow_host: tuple[str, ...] = ()
    """Further names this server is called by, such as robot.local."""
    data: Path | None = None
    """Take states from this file or folder instead of the data the run was trained on."""
    nodes: int | None = None
    """Nodes of the planning graph (default: the planner's own, 512 to 8192)."""
    rate: float = 5000.0
    """Requests a second that one address may ask."""


@dataclass(frozen=True, kw_only=True)
class ServeCommand(Listening):
    """Serve a run or export to robots: actions, plans and predicted steps over HTTP and WebSocket."""

    play: Flag = False
    """Also serve the playground's page."""


@dataclass(frozen=True, kw_only=True)
class PlayCommand(Listening):
    """Play with a run or export in the browser: set goals, draw walls, watch it plan and walk."""

    no_browser: Flag = False
    """Do not open a browser."""


def serve_command(options: ServeCommand) -> dict[str, Any]:
    """`iel serve`."""
    return _serve(options, play=options.play, browse=False)


def play_command(options: PlayCommand) -> dict[str, Any]:
    """`iel play`."""
    return _serve(options, play=True, browse=not options.no_browser)


def _serve(options: Listening, *, play: bool, browse: bool) -> dict[str, Any]:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"Serving needs {' and '.join(missing)}; install the extra: pip install 'iel[serve]'.")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port is {options.port}; give a number from 0 to 65535.")
    if not options.runs:
        raise ConfigError("Nothing to serve; give the directory of a run or an export.")
    from iel.serving.app import create_app
    from iel.serving.guard import AccessPolicy, Limits
    from iel.serving.listen import listen
    from iel.serving.source import open_served

    # Refused before anything is loaded: a server without a token, a name that is none.
    policy = AccessPolicy(options.host, options.allow_host, os.environ.get("IEL_TOKEN"))
    if options.rate <= 0:
        raise ConfigError(f"--rate is {options.rate:g}; give a positive number of requests a second.")
    limits = Limits(rate=options.rate)
    served = [each for path in options.runs for each in open_served(path, data=options.data, nodes=options.nodes)]
    if play:
        _ = [each.drawable for each in served]  # refused now, not by the page
    app = create_app(served, policy, limits, play=play)
    address = listen(app, policy, options.port, limits, browse=browse, quiet=options.json, play=play)
    return {"address": address, "models": [each.describe() for each in served]}
