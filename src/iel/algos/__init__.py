"""Methods by name, with the facts the paper's first table states about each."""

from __future__ import annotations

from typing import Any, NamedTuple

from iel.algos.contract import check_algo
from iel.algos.iel import IEL
from iel.algos.model import Model, load_model
from iel.errors import unknown_name


class Facts(NamedTuple):
    """A row of the paper's comparison of methods."""

    family: str
    distils: str
    distance: str
    directional: bool
    triangle_inequality: bool
    temporal_difference: bool
    goal_agnostic_policy: bool


class Entry(NamedTuple):
    """A registered method: its configuration class and its facts."""

    config: Any
    facts: Facts


ALGOS: dict[str, Entry] = {
    "iel": Entry(IEL, Facts("hitting time", "hitting time", "directed displacement", True, True, True, True)),
}


def get_algo(name: str) -> Any:
    """The configuration class of a method."""
    if name not in ALGOS:
        raise unknown_name("algorithm", name, ALGOS)
    return ALGOS[name].config


__all__ = ["ALGOS", "IEL", "Entry", "Facts", "Model", "check_algo", "get_algo", "load_model"]
