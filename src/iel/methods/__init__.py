"""Methods by name: geometries with the policies they were published with."""

from __future__ import annotations

from iel.errors import unknown_name
from iel.learner import Facts, Method
from iel.methods.check import check_algo
from iel.methods.clearning import CLearning
from iel.methods.cmd import CMD
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
from iel.methods.presets import config_dict, config_from_dict, policy_from
from iel.methods.psm import PSM
from iel.methods.qrl import QRL
from iel.methods.tmd import TMD

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (HTP, IEL, HILP, GAS, FB, PSM, CLearning, CRL, HIQL, GCBC, GCIVL, GCIQL, GCCQL, QRL, CMD, TMD)
}


def get_method(name: str) -> type[Method]:
    """A method's class by its name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Facts", "Method", "check_algo", "config_dict", "config_from_dict", "get_method", "policy_from"]
__all__ += [method.__name__ for method in METHODS.values()]
