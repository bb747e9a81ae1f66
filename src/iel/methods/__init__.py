"""Methods by name: geometries with the policies they were published with."""

from collections.abc import Iterator

from iel.errors import ConfigError, unknown_name
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
from iel.typed import imported

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (HTP, IEL, HILP, GAS, FB, PSM, CLearning, CRL, HIQL, GCBC, GCIVL, GCIQL, GCCQL, QRL, CMD, TMD)
}


def get_method(name: str) -> type[Method]:
    """A method's class by its name. One of your own is `package.module:Class`, and known by its name from then on."""
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return _own_method(name)
    own = {method.name: method for method in _below(Method) if "name" in vars(method)}  # type: ignore[type-abstract]
    if name not in own:
        raise unknown_name("method", name, METHODS)
    return own[name]


def _own_method(text: str) -> type[Method]:
    method = imported(text, "--algo")
    if not isinstance(method, type) or not issubclass(method, Method):
        raise ConfigError(f"{text} is not a class below iel.methods.Method; CONTRIBUTING.md says how to write one.")
    if "name" not in vars(method) or method.name in METHODS:
        raise ConfigError(f"{text} needs a `name` of its own, as its models and runs are found by it.")
    return method


def _below(method: type[Method]) -> Iterator[type[Method]]:
    for below in method.__subclasses__():
        yield below
        yield from _below(below)


__all__ = ["METHODS", "Facts", "Method", "check_algo", "config_dict", "config_from_dict", "get_method", "policy_from"]
__all__ += [method.__name__ for method in METHODS.values()]
