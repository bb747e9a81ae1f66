"""Planners by name, and which of them a model can be used with."""

from __future__ import annotations

from typing import Any

from iel.errors import ConfigError, unknown_name
from iel.model.atlas import Source
from iel.planning.clusters import GasGraph
from iel.planning.midpoints import RecMid
from iel.planning.plan import PlanningModel
from iel.planning.planners import AsymGraph, Direct, Planner, SymGraph

PLANNERS: dict[str, type[Planner]] = {
    planner.name: planner for planner in (Direct, RecMid, SymGraph, AsymGraph, GasGraph)
}


def planners_for(model: PlanningModel) -> tuple[str, ...]:
    """Names of the planners that this model can be used with."""
    metric = model.metric
    if metric is None:
        return ("direct",)
    missing = set() if metric.spatial else {"rec-mid", "gas-graph"}
    if not metric.symmetric().for_every_goal:
        missing.add("gas-graph")  # clusters are the same for all goals
    return tuple(name for name in PLANNERS if name not in missing)


def usual_planners(model: PlanningModel) -> tuple[str, ...]:
    """The same without GAS's own graph, which other methods are only given on request."""
    return tuple(name for name in planners_for(model) if model.algo == "gas" or name != GasGraph.name)


def over_coreset(name: str) -> bool:
    """Whether a planner's graph is that of a coreset, with so many nodes and neighbours."""
    return issubclass(PLANNERS.get(name, Direct), AsymGraph)


def make_planner(name: str, model: PlanningModel, data: Source, **settings: Any) -> Planner:
    """A planner by name: direct, rec-mid, sym-graph, asym-graph or gas-graph."""
    if name not in PLANNERS:
        raise unknown_name("planner", name, PLANNERS)
    try:
        return PLANNERS[name](model, data, **settings)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise ConfigError(f"The planner {name} has no such setting: {error}.") from error
        raise
