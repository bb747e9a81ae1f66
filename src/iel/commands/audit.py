"""`iel audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from iel.commands.common import Output
from iel.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from iel.data import Trajectories
    from iel.training import Run


@dataclass(frozen=True, kw_only=True)
class AuditCommand(Output):
    """How far can this geometry be trusted? Latent dynamics, calibration and agreement with exact hitting times."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    data: Path | None = None
    """Audit on these trajectories (default: the validation set of the run's data, which training never saw)."""
    seed: int = 0
    """Seed of the pairs that are drawn."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/audit.png)."""


def audit_command(options: AuditCommand) -> dict[str, Any]:
    """`iel audit`."""
    import numpy as np

    from iel.theory import audit_embedding, draw_audit
    from iel.training import open_run

    run = open_run(options.run)
    if run.model.metric is None:
        raise ConfigError(f"{run.path} is a run of {run.config['algo']}, which learns no geometry to audit.")
    data = audit_data(run, options.data)
    observations, model = data.observations, run.model
    audit = audit_embedding(
        model.embed(observations),
        data.actions,
        data.offsets,
        predicted=lambda i, j: model.steps(observations[i], observations[j]),
        task=lambda goals: model.omega(observations[goals]),
        exact=exact_steps(run, observations),
        generator=np.random.default_rng(options.seed),
    )
    picture = options.picture or run.folder("plots") / "audit.png"
    draw_audit(audit, picture)
    if not options.json:
        print("\n".join(audit.sentences()))
        print(f"drawn in {picture}")
    return {"run": str(run.path), "data": data.name, "picture": str(picture), **audit.to_dict()}


def audit_data(run: Run, file: Path | None) -> Trajectories:
    """Trajectories training never saw: the validation set that was made with the training set, or a file."""
    from iel.commands.runs import run_data
    from iel.data import load
    from iel.data.catalogue import find

    facts = run.config["data"]
    for episodes in (None, facts["episodes"]):
        if file is None and (path := find(facts["name"], episodes, split="val")):
            return load(path)
    return run_data(run, file)


def exact_steps(run: Run, observations: np.ndarray) -> Any:
    """(i, j) -> the fewest steps the maze allows between stored states, where the environment has a map."""
    from iel.envs import make_env
    from iel.theory import Teleports, maze_from_map, steps_between

    if not run.env.startswith("pointmaze"):
        return None
    simulator: Any = make_env(run.env).unwrapped
    info = simulator._teleport_info
    radius = 1.5  # OGBench's teleports swallow whatever comes within one and a half radii
    teleports = info and Teleports(info["teleport_in_ijs"], info["teleport_out_ijs"], radius * info["teleport_radius"])
    maze = maze_from_map(simulator.maze_map, subcells=8, margin=0.7, teleports=teleports)
    return lambda i, j: steps_between(maze, observations[i, :2], observations[j, :2], step=0.2)
