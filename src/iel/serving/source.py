"""What is served: a run with its data, or an export with the states it took along."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iel.agent import Agent
from iel.envs.registry import ALIASES
from iel.errors import ConfigError, DataError, RunError
from iel.files import notice
from iel.loader import read_json
from iel.metrics import Floats
from iel.model import Model, load_model
from iel.planning import Atlas, over_coreset, usual_planners
from iel.serving.schemas import Answer

if TYPE_CHECKING:
    from iel.training import Run


@dataclass(frozen=True, eq=False)
class Served:
    """A model and what its agents are made of."""

    name: str
    """What the page calls it: the directory's own name."""
    model: Model
    atlas: Atlas | None = None
    """States to plan over and to draw; None: only `direct` works, and there is nothing to draw."""
    env: str | None = None
    """The environment's name, if there is one of that name."""
    seed: int | None = None
    graph: dict[str, int] = field(default_factory=dict)
    """Options of graph planners."""

    @property
    def planners(self) -> tuple[str, ...]:
        """Names of the planners that can be used, the best one last."""
        return ("direct",) if self.atlas is None else usual_planners(self.model)

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

    def agent(self, planner: str) -> Agent:
        """An agent that uses this planner; a graph takes a second or two."""
        return Agent(self.model, self.atlas, planner, **(self.graph if over_coreset(planner) else {}))

    def describe(self) -> Answer:
        """For programs: what may be requested."""
        model, planners = self.model, self.planners
        return {
            "name": self.name,
            "algo": model.algo,
            "env": self.env,
            "seed": self.seed,
            "observation_size": model.observation_size,
            "action_size": model.action_size,
            "planners": list(planners),
            "planner": planners[-1],
            "predicts_steps": model.metric is not None and model.metric.discount is not None,
        }


def open_served(path: Path | str, *, data: Path | None = None, nodes: int | None = None) -> list[Served]:
    """The model in a directory: a run (all seeds of it), an export, or RUN/model."""
    path, graph = Path(path), {} if nodes is None else {"nodes": nodes}
    config = path / "config.json"
    if config.exists() and "observation_size" in read_json(config):
        return [_exported(path, data, graph)]
    from iel.training import open_runs  # an export needs no JAX, a run does

    return [_trained(run, data, graph) for run in open_runs(path)]


def _trained(run: Run, data: Path | None, graph: dict[str, int]) -> Served:
    atlas = None
    try:
        atlas = Atlas.of(run.data(data))
    except DataError as error:
        if data is not None:
            raise
        notice(f"{error} Until then only the planner `direct` can be used, and nothing can be drawn.")
    path = run.path.resolve()
    name = f"{path.parent.name}, seed {run.seed}" if path.name.startswith("seed_") else path.name
    return Served(name, run.model, atlas, ALIASES.get(run.env), run.seed, graph)


def _exported(path: Path, data: Path | None, graph: dict[str, int]) -> Served:
    model, card = load_model(path), path / "card.json"
    facts = read_json(card) if card.exists() else {}
    env, atlas = ALIASES.get(str(facts.get("env"))), model.atlas
    if data is not None:
        from iel.data import load

        store = load(data, env=env, trust=True)
        if store.observation_size != model.observation_size:
            raise RunError(
                f"{data} has observations of {store.observation_size} numbers, but {path} takes "
                f"{model.observation_size}; give the data it was trained on."
            )
        atlas = Atlas.of(store)
    return Served(path.resolve().name, model, atlas, env, facts.get("seed"), {} if data is None else graph)
