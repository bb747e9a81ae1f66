"""Policies learned offline that can be sent to any goal.

    data = iel.load("pointmaze-large-navigate-v0", episodes=300)
    agent = iel.fit(data)
    action = agent.act(observation, goal)

or, piece by piece:

    run = iel.train(data, iel.HTP.preset("laptop"), seeds=[0])
    planner = iel.AsymGraph(run.model, data)
    planner.prepare(goal)
    action = planner.act(observation)

Names are imported when first used, so that `import iel` is instant and what needs no JAX (`iel.data`, `iel.planning`,
`iel.theory`, a loaded agent) never pays for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from iel.agent import Agent, Episode, fit, load_agent
    from iel.data import Trajectories, load
    from iel.envs import make_env
    from iel.evaluation import Protocol, evaluate
    from iel.methods import (
        CMD,
        CRL,
        FB,
        GAS,
        GCBC,
        GCCQL,
        GCIQL,
        GCIVL,
        HILP,
        HIQL,
        HTP,
        IEL,
        PSM,
        QRL,
        TMD,
        CLearning,
        check_algo,
    )
    from iel.model import load_model
    from iel.planning import (
        AsymGraph,
        Avoid,
        Direct,
        GasGraph,
        Greedy,
        Mixture,
        RecMid,
        Region,
        Reward,
        Sequence,
        SymGraph,
        Watchdog,
        Weighted,
        Where,
    )
    from iel.policies import Directions, StateDirections, Waypoints
    from iel.training import open_run, train

_NAMES = {
    "iel.agent": "Agent Episode fit load_agent",
    "iel.data": "Trajectories load",
    "iel.envs": "make_env",
    "iel.evaluation": "Protocol evaluate",
    "iel.methods": "CMD CRL FB GAS GCBC GCCQL GCIQL GCIVL HILP HIQL HTP IEL PSM QRL TMD CLearning check_algo",
    "iel.model": "load_model",
    "iel.planning": "AsymGraph Direct GasGraph Greedy RecMid SymGraph "
    "Avoid Mixture Region Reward Sequence Watchdog Weighted Where",
    "iel.policies": "Directions StateDirections Waypoints",
    "iel.training": "open_run train",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("data", "envs", "evaluation", "export", "methods", "model", "planning", "policies", "theory", "training")

__all__ = ["__version__", *_HOMES]

if not TYPE_CHECKING:  # type checkers see the names above, and know of no others

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"iel.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'iel' has no attribute '{name}'")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
