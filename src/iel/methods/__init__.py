"""Methods by name, with the facts the paper's first table states about each.

IEL and HILP have a row in that table. The goal-conditioned reference methods do not; theirs is written in its terms.
"""

from __future__ import annotations

from typing import NamedTuple

from iel.errors import unknown_name
from iel.methods.check import check_algo
from iel.methods.clearning import CLearning
from iel.methods.cmd import CMD
from iel.methods.contract import Method
from iel.methods.crl import CRL
from iel.methods.fb import FB
from iel.methods.gas import GAS
from iel.methods.gcbc import GCBC
from iel.methods.gccql import GCCQL
from iel.methods.gciql import GCIQL
from iel.methods.gcivl import GCIVL
from iel.methods.hilp import HILP
from iel.methods.hiql import HIQL
from iel.methods.htp import HTP
from iel.methods.iel import IEL
from iel.methods.psm import PSM
from iel.methods.qrl import QRL
from iel.methods.tmd import TMD


class Facts(NamedTuple):
    """A row of the paper's comparison of methods."""

    family: str
    distils: str
    distance: str
    directional: bool
    triangle_inequality: bool
    temporal_difference: bool
    goal_agnostic_policy: bool


class Registered(NamedTuple):
    """A registered method: its configuration class and its facts."""

    config: type[Method]
    facts: Facts
    planners: tuple[str, ...]
    """Those its model allows (`iel.planning.planners_for`): all where there is an embedding, graphs where there are
    distances, otherwise only `direct`."""


EMBEDDED = ("direct", "rec-mid", "sym-graph", "asym-graph", "gas-graph")
VALUED = ("direct", "sym-graph", "asym-graph")

ALGOS: dict[str, Registered] = {
    "htp": Registered(
        HTP, Facts("hitting time", "hitting time", "support function", True, True, False, True), EMBEDDED
    ),
    "iel": Registered(
        IEL, Facts("hitting time", "hitting time", "directed displacement", True, True, True, True), EMBEDDED
    ),
    "hilp": Registered(
        HILP, Facts("hitting time", "hitting time", "Euclidean feature", False, True, True, True), EMBEDDED
    ),
    "gas": Registered(
        GAS, Facts("hitting time", "hitting time", "Euclidean feature", False, True, True, False), EMBEDDED
    ),
    "fb": Registered(
        FB, Facts("successor measure", "successor measure", "bilinear projection", True, False, True, False), VALUED
    ),
    "psm": Registered(
        PSM, Facts("successor measure", "successor measure", "bilinear projection", True, False, True, False), VALUED
    ),
    "clearning": Registered(
        CLearning, Facts("successor measure", "reachability", "classifier logit", True, False, True, False), VALUED
    ),
    "crl": Registered(
        CRL, Facts("successor measure", "density ratio", "inner product", True, False, False, False), VALUED
    ),
    "hiql": Registered(
        HIQL, Facts("reachability", "multi-step reachability", "value gap", True, False, True, False), VALUED
    ),
    "gcbc": Registered(GCBC, Facts("goal-conditioned", "actions", "none", False, False, False, False), ("direct",)),
    "gcivl": Registered(GCIVL, Facts("goal-conditioned", "values", "negative value", True, False, True, False), VALUED),
    "gciql": Registered(
        GCIQL, Facts("goal-conditioned", "Q-values", "negative value", True, False, True, False), VALUED
    ),
    "gccql": Registered(
        GCCQL, Facts("goal-conditioned", "Q-values", "negative Q-value", True, False, True, False), VALUED
    ),
    "qrl": Registered(QRL, Facts("reachability", "Q-values", "implicit Q-distance", True, True, False, False), VALUED),
    "cmd": Registered(
        CMD, Facts("successor measure", "successor features", "log density ratio", True, True, False, False), EMBEDDED
    ),
    "tmd": Registered(
        TMD, Facts("reachability", "time to arrival", "quasimetric feature", True, True, True, False), EMBEDDED
    ),
}


def get_algo(name: str) -> type[Method]:
    """The configuration class of a method."""
    if name not in ALGOS:
        raise unknown_name("algorithm", name, ALGOS)
    return ALGOS[name].config


__all__ = [
    "ALGOS",
    "CMD",
    "CRL",
    "FB",
    "GAS",
    "GCBC",
    "GCCQL",
    "GCIQL",
    "GCIVL",
    "HILP",
    "HIQL",
    "HTP",
    "IEL",
    "PSM",
    "QRL",
    "TMD",
    "CLearning",
    "Facts",
    "Method",
    "Registered",
    "check_algo",
    "get_algo",
]
