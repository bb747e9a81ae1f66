"""Planning over a learned latent space: coresets, directed graphs, planners.

Needs embeddings and a cost, not an algorithm: any object with `embed`, `task`, `act` and `beta` will do.
"""

from iel.planning.coreset import (
    Coreset,
    Coverage,
    automatic_sigma,
    coverage,
    farthest_point,
    select_coreset,
)
from iel.planning.dpp import greedy_dpp
from iel.planning.geometry import CostFunction, Geometry
from iel.planning.goals import Mixture, Region, Sequence
from iel.planning.graph import Edges, Field, PlanningGraph
from iel.planning.plan import Path, Plan
from iel.planning.planners import PLANNERS, AsymGraph, Direct, Planner, RecMid, SymGraph, make_planner

__all__ = [
    "PLANNERS",
    "AsymGraph",
    "Coreset",
    "CostFunction",
    "Coverage",
    "Direct",
    "Edges",
    "Field",
    "Geometry",
    "Mixture",
    "Path",
    "Plan",
    "Planner",
    "PlanningGraph",
    "RecMid",
    "Region",
    "Sequence",
    "SymGraph",
    "automatic_sigma",
    "coverage",
    "farthest_point",
    "greedy_dpp",
    "make_planner",
    "select_coreset",
]
