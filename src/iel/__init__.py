"""Isomorphic Embedding Learning: policies learned offline that can be sent to any goal.

    data = iel.load("pointmaze-large-navigate-v0")
    run = iel.train(data, iel.IEL.preset("laptop"), seeds=[0])
    planner = iel.AsymGraph(run.model, data)
    planner.prepare(goal)
    action = planner.act(observation)

Names are brought in when first used, so that `import iel` is instant and the numpy-only rooms (`iel.data`,
`iel.planning`, `iel.theory`) never pay for JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from iel.data import Trajectories, load
    from iel.envs import make_env
    from iel.evaluation import evaluate
    from iel.methods import GCBC, GCCQL, GCIQL, GCIVL, HILP, IEL, check_algo
    from iel.model import load_model
    from iel.planning import AsymGraph, Direct, RecMid, SymGraph
    from iel.training import open_run, train

_HOMES = {
    "GCBC": "iel.methods",
    "GCCQL": "iel.methods",
    "GCIQL": "iel.methods",
    "GCIVL": "iel.methods",
    "HILP": "iel.methods",
    "IEL": "iel.methods",
    "AsymGraph": "iel.planning",
    "Direct": "iel.planning",
    "RecMid": "iel.planning",
    "SymGraph": "iel.planning",
    "Trajectories": "iel.data",
    "check_algo": "iel.methods",
    "evaluate": "iel.evaluation",
    "load": "iel.data",
    "load_model": "iel.model",
    "make_env": "iel.envs",
    "open_run": "iel.training",
    "train": "iel.training",
}

__all__ = [
    "GCBC",
    "GCCQL",
    "GCIQL",
    "GCIVL",
    "HILP",
    "IEL",
    "AsymGraph",
    "Direct",
    "RecMid",
    "SymGraph",
    "Trajectories",
    "__version__",
    "check_algo",
    "evaluate",
    "load",
    "load_model",
    "make_env",
    "open_run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'iel' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
