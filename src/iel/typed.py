"""Values from files and command lines, checked against what they should be: types, ranges, finite numbers.

    class Facts(Struct, frozen=True):            a document is a `msgspec.Struct`, ranges are in its annotations
        step: Count

    as_struct({"step": 0}, Facts, "state.json")    ConfigError: state.json, step: expected `int` >= 1; ...
    check_settings(IEL(beta=float("nan")))       ConfigError: beta must be a finite number, but is nan.

Keys that a struct does not name are left alone unless it says otherwise: a later version may have added them.
"""

import dataclasses
import math
import pkgutil
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from iel.errors import ConfigError, IELError

LARGEST = 2**31 - 1
"""Largest whole number of a setting: what counts steps and rows on a device."""
SEEDS = 2**32
T = TypeVar("T")
Seed = Annotated[int, Meta(ge=0, lt=SEEDS)]
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Index = Annotated[int, Meta(ge=0, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0.0)]
Fraction = Annotated[float, Meta(gt=0.0, lt=1.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]


def as_struct(value: object, kind: type[T], source: str, error: type[IELError] = ConfigError) -> T:
    """A value of JSON or TOML as a `kind` (a `msgspec.Struct`); `error` names what does not fit and its path."""
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as problem:
        what, location = _parts(problem)
        raise error(f"{source}{location and ', '}{location}: {what}; it is damaged or of another version.") from None


def violation(value: object, kind: Any) -> str | None:
    """Why a value is not of a type, such as "expected `int`, got `str`"; None if it is."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        what, location = _parts(problem)
        return f"{what}{location and ' at '}{location}"
    except TypeError:  # a declared type that cannot be checked
        return None
    return None


def _parts(problem: msgspec.ValidationError) -> tuple[str, str]:
    """(what was expected, where)."""
    what, _, path = str(problem).partition(" - at `$")
    return what[0].lower() + what[1:], path.strip(".`")


def imported(text: str, option: str) -> Any:
    """The object `package.module:name`, also from the current directory; `option` names its source in errors."""
    if not all(text.partition(":")):
        raise ConfigError(f"{option} is '{text}'; give package.module:name.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return pkgutil.resolve_name(text)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(f"{option} {text} cannot be imported ({problem}); check the name.") from None


def shown(value: object) -> str:
    """A value as messages quote it: at most 60 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number too long to be printed, a list that contains itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def check_settings(config: Any) -> None:
    """Refuse a configuration (a dataclass) whose values are not of their declared types and ranges, or not finite."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_settings(value)
            continue
        _check_numbers(field.name, value)
        if wrong := violation(float(value) if isinstance(value, float) else value, hints[field.name]):
            raise ConfigError(f"{field.name} is {shown(value)}; {wrong}.")


def _check_numbers(name: str, value: object) -> None:
    """Refuse NaN, infinities and whole numbers of 2^31 and more, inside of tables and lists too."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_numbers(f"{name}, {key}", item)
        return
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, float) and not math.isfinite(item):
            raise ConfigError(f"settings: {name} must be a finite number, but is {shown(value)}.")
        if type(item) is int and abs(item) > LARGEST:
            raise ConfigError(f"settings: {name} must be at most {LARGEST:,} in size, but is {shown(value)}.")
