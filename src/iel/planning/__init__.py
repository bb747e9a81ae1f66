"""Planning over a learned latent space: coresets, directed graphs, planners.

Needs embeddings and a metric, not an algorithm: any class that inherits from `PlanningModel` will do.
"""

from iel.model.atlas import Atlas
from iel.model.model import PlanningModel, Target
from iel.planning.clusters import GasGraph
from iel.planning.coreset import automatic_sigma, farthest_point, select_coreset
from iel.planning.dpp import greedy_dpp
from iel.planning.goals import Avoid, Mixture, Region, Reward, Sequence, Weighted, Where
from iel.planning.graph import Edges, PlanningGraph
from iel.planning.greedy import Greedy
from iel.planning.midpoints import RecMid
from iel.planning.planner import ACTION_KINDS, Acting, ActionKind, Controller, Direct, Memory, Plan, Planner, Route
from iel.planning.planners import (
    PLANNERS,
    AsymGraph,
    SymGraph,
    make_planner,
    over_coreset,
    planners_for,
    usual_planner,
    usual_planners,
)
from iel.planning.watchdog import Watchdog

__all__ = [
    "ACTION_KINDS", "PLANNERS", "Acting", "ActionKind", "AsymGraph", "Atlas", "Avoid", "Controller", "Direct",
    "Edges", "GasGraph", "Greedy", "Memory", "Mixture", "Plan", "Planner", "PlanningGraph", "PlanningModel", "RecMid",
    "Region", "Reward", "Route", "Sequence", "SymGraph", "Target", "Watchdog", "Weighted", "Where", "automatic_sigma",
    "farthest_point", "greedy_dpp", "make_planner", "over_coreset", "planners_for", "select_coreset",
    "usual_planner",
    "usual_planners",
]  # fmt: skip
