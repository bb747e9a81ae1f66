"""What is served: a run with its data, or an export with the states it took along."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iel.envs import canonical_name
from iel.errors import ConfigError, DataError, RunError
from iel.files import notice
from iel.loader import read_json
from iel.metrics import Floats
from iel.model import Model, load_model
from iel.planning import Atlas, Planner, make_planner, over_coreset, usual_planners


@dataclass(frozen=True, eq=False)
class Served:
    """A model and what it can be used with."""

    name: str
    """What the page calls it: the directory's own name."""
    model: Model
    atlas: Atlas | None = None
    """States to plan over and to draw; None: only `direct` works, and there is nothing to draw."""
    env: str | None = None
    """The environment's name, if there is one of that name."""
    seed: int | None = None
    planning: dict[str, Any] = field(default_factory=dict)
    """Settings of graph planners."""

    @property
    def planners(self) -> tuple[str, ...]:
        """Names of the planners that can be used, the best one last."""
        return ("direct",) if self.atlas is None else usual_planners(self.model)

    @property
    def default_planner(self) -> str:
        return self.planners[-1]

    @property
    def drawable(self) -> Atlas:
        """States to draw; refused where there are none."""
        if self.atlas is None:
            raise ConfigError(
                f"{self.name} has no states to draw; export with --nodes 2048, or give the data with --data FILE."
            )
        return self.atlas

    @property
    def states(self) -> Floats:
        """Observations to draw."""
        return self.drawable.observations

    def planner(self, name: str) -> Planner:
        """A planner by name; a graph takes a second or two."""
        settings = self.planning if over_coreset(name) else {}
        return make_planner(name, self.model, self.atlas or Atlas.blank(self.model.observation_size), **settings)

    def describe(self) -> dict[str, Any]:
        """For programs: what may be asked."""
        model = self.model
        return {
            "name": self.name,
            "algo": model.algo,
            "env": self.env,
            "seed": self.seed,
            "observation_size": model.observation_size,
            "action_size": model.action_size,
            "planners": list(self.planners),
            "planner": self.default_planner,
            "predicts_steps": model.metric is not None and model.metric.discount is not None,
        }


def open_served(path: Path | str, *, data: Path | None = None, nodes: int | None = None) -> list[Served]:
    """The model in a directory: a run (all seeds of it), an export, or RUN/model."""
    path = Path(path)
    config = path / "config.json"
    if config.exists() and "observation_size" in read_json(config):
        return [_exported(path, data, nodes)]
    from iel.training import open_runs  # an export needs no JAX, a run does

    return [_trained(run, data, nodes) for run in open_runs(path)]


def _trained(run: Any, data: Path | None, nodes: int | None) -> Served:
    atlas = None
    try:
        atlas = Atlas.of(run.data(data))
    except DataError as error:
        if data is not None:
            raise
        notice(f"{error} Until then only the planner `direct` can be used, and nothing can be drawn.")
    name = run.path.resolve().name
    if name.startswith("seed_"):
        name = f"{run.path.resolve().parent.name}, seed {run.seed}"
    return Served(name, run.model, atlas, _environment(run.env), run.seed, _graph(nodes))


def _exported(path: Path, data: Path | None, nodes: int | None) -> Served:
    model = load_model(path)
    card = read_json(path / "card.json") if (path / "card.json").exists() else {}
    env, seed = card.get("env"), card.get("seed")
    name = path.resolve().name
    env = _environment(env) if isinstance(env, str) else None
    seed = seed if isinstance(seed, int) else None
    if data is None:
        return Served(name, model, model.atlas, env, seed)
    from iel.data import load

    store = load(data, env=env, trust=True)
    if store.observation_size != model.observation_size:
        raise RunError(
            f"{data} has observations of {store.observation_size} numbers, but {path} takes "
            f"{model.observation_size}; give the data it was trained on."
        )
    return Served(name, model, Atlas.of(store), env, seed, _graph(nodes))


def _graph(nodes: int | None) -> dict[str, Any]:
    return {} if nodes is None else {"nodes": nodes}


def _environment(name: str) -> str | None:
    try:
        return canonical_name(name)
    except ConfigError:
        return None
