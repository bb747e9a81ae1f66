"""The data, the environment and the planners that several commands need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iel.commands.common import PlannerSettings
from iel.data import Trajectories, load
from iel.envs import World, canonical_name
from iel.errors import ConfigError
from iel.training import Run


def training_data(env: str | None, file: Path | None, episodes: int | None, trust: bool = False) -> Trajectories:
    """The environment's data set, or a file that stands in for it (and takes its name)."""
    if file is None:
        assert env is not None
        return load(env, episodes=episodes, trust=trust)
    return load(file, env=env, trust=trust)


def environment_of(run: Run) -> str:
    """The run's environment, refused when it was trained on a file without one."""
    try:
        canonical_name(run.env)
    except ConfigError:
        raise ConfigError(
            f"{run.path} was trained on '{run.env}', which has no environment to act in; give one of your own with "
            "`iel evaluate RUN --env-factory package:function`, or use `iel play`, `plan`, `audit` and `export`."
        ) from None
    return run.env


def world_of(options: Any) -> World | None:
    """The user's own environment, if the options name one (`--env-factory`)."""
    if options.env_factory is None:
        return None
    facts = {"tolerance": options.tolerance, "columns": options.columns, "max_steps": options.max_steps}
    return World.from_text(options.env_factory, **facts)


def planner_settings(name: str, planning: PlannerSettings) -> dict[str, Any]:
    """Only planners over a coreset have one to configure, and only GAS's graph has a reach."""
    from iel.planning import GasGraph, over_coreset

    if not over_coreset(name):
        return {"reach": planning.reach} if name == GasGraph.name else {}
    settings: dict[str, Any] = {
        "nodes": planning.nodes,
        "neighbours": planning.neighbours,
        "lookahead": planning.lookahead,
        "witnesses": planning.witnesses,
        "chance": planning.chance,
    }
    return settings if planning.coreset is None else {**settings, "coreset": planning.coreset}
