"""Values from files and command lines, checked against what they should be: types, ranges, finite numbers.

    check_table(table, {"seed": Rule(int, low=0), "env": Rule(str)}, source, RunError)
    check_settings(IEL(beta=float("nan")))       ConfigError: beta must be a finite number, but is nan.

Keys that no rule names are left alone: a later version may have added them.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from iel.errors import ConfigError, DataError, IELError

LARGEST = 2**31 - 1
"""Largest whole number of a setting: what counts steps and rows on a device."""
SEEDS = 2**32
TEXT = 4096
"""Longest text of a setting."""
T = TypeVar("T")
WORDS = {str: "text", bool: "true or false", dict: "a table", list: "a list"}


@dataclass(frozen=True)
class Rule:
    """What one value may be."""

    kind: Any
    """str, bool, int, float (a whole number will do), dict, or list (a tuple will do)."""
    low: float = -math.inf
    high: float = math.inf
    each: Rule | None = None
    """Of every item of a list, or value of a table."""
    among: tuple[Any, ...] = ()
    required: bool = True
    """Whether the key must be there."""
    none: bool = False
    """Whether the value may be None."""

    def complaint(self, value: Any) -> str | None:
        """What the value should be, or None if it is that."""
        if value is None and self.none:
            return None
        expected = self._expected()
        if self.kind in (int, float):
            whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
            if not (whole or (self.kind is float and isinstance(value, float) and math.isfinite(value))):
                return expected
            return None if self.low <= value <= self.high else expected
        if not isinstance(value, (list, tuple) if self.kind is list else self.kind):
            return expected
        if self.kind is str and len(value) > TEXT:
            return f"text of at most {TEXT} letters"
        if self.among and value not in self.among:
            return expected
        if self.each is not None:
            for item in value.values() if isinstance(value, Mapping) else value:
                if wanted := self.each.complaint(item):
                    return f"{expected} in which every entry is {wanted}"
        return None

    def _expected(self) -> str:
        if self.among:
            return f"one of {', '.join(str(choice) for choice in self.among)}"
        if self.kind not in (int, float):
            return WORDS[self.kind]
        name = "a whole number" if self.kind is int else "a finite number"
        if self.low > -math.inf and self.high < math.inf:
            return f"{name} from {self.low:,} to {self.high:,}"
        return name if self.low == -math.inf else f"{name} of at least {self.low:,}"


def check_table(
    table: Mapping[str, Any], rules: Mapping[str, Rule], source: str, error: type[IELError] = ConfigError
) -> None:
    """Refuse a table in which a value is missing or not what its rule says."""
    missing = [name for name, rule in rules.items() if rule.required and name not in table]
    if missing:
        raise error(f"{source} lacks {', '.join(missing)}; it is incomplete or damaged.")
    for name, rule in rules.items():
        if name in table and (expected := rule.complaint(table[name])):
            raise error(f"{source}: {name} must be {expected}, but is {shown(table[name])}; it is damaged.")


def convert(value: Any, kind: type[T], source: str, error: type[IELError] = ConfigError) -> T:
    """A value of JSON or TOML as a `kind` (a `msgspec.Struct`); what does not fit is said with its path in `source`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        what, _, path = str(problem).partition(" - at `$")
        place = f", {path.strip('.`')}" if path else ""
        raise error(f"{source}{place}: {what[0].lower()}{what[1:]}; it is damaged or of another version.") from None


def shown(value: Any) -> str:
    """A value as it is quoted in a message: never longer than a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number too long to be printed, a list that contains itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def plain_numbers(array: Any, what: str, error: type[IELError] = DataError) -> NDArray:
    """Whatever a caller gave as an array of plain numbers; hidden values and imaginary parts are never dropped."""
    if isinstance(array, Mapping):
        raise error(
            f"{what}: dictionaries are not supported; put their arrays side by side, such as "
            "np.concatenate([o['position'], o['velocity']], axis=1)."
        )
    if isinstance(array, np.ma.MaskedArray) and np.ma.getmaskarray(array).any():
        raise error(f"{what}: some values are masked; fill them in, or leave their rows out.")
    try:
        table = np.asarray(array)
        table = table if table.dtype.kind in "fiubc" else np.asarray(table, np.float32)
    except (TypeError, ValueError):
        raise error(f"{what}: this is not a table of numbers; give one row per step, all equally long.") from None
    if table.dtype.kind == "c":
        raise error(f"{what}: complex numbers are not read; give real ones.")
    return table


def check_settings(config: Any) -> None:
    """Refuse a configuration (a dataclass) whose values are not of their declared types, finite and of sane size."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        rule = _rule(hints[field.name])
        value = getattr(config, field.name)
        if rule is not None and (expected := rule.complaint(value)):
            raise ConfigError(f"{field.name} must be {expected}, but is {shown(value)}.")


def check_numbers(settings: Mapping[str, Any], source: str, error: type[IELError] = ConfigError) -> None:
    """Refuse numbers no computer can work with, wherever they stand in a table: NaN, infinities, huge whole ones."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            check_numbers(value, f"{source}, {name}", error)
            continue
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, float) and not math.isfinite(item):
                raise error(f"{source}: {name} must be a finite number, but is {shown(value)}.")
            if type(item) is int and abs(item) > LARGEST:
                raise error(f"{source}: {name} must be at most {LARGEST:,} in size, but is {shown(value)}.")


def check_seeds(seeds: Sequence[Any]) -> None:
    """Refuse seeds that are not different whole numbers below 2^32."""
    if not seeds or any(Rule(int, 0, SEEDS - 1).complaint(seed) for seed in seeds) or len(set(seeds)) != len(seeds):
        raise ConfigError(f"Seeds must be different whole numbers from 0 to {SEEDS - 1}, but are {shown(list(seeds))}.")


def _rule(hint: Any) -> Rule | None:
    """The rule of a declared type; None where any value will do."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return Rule(type(arguments[0]), among=arguments)
    if origin in (Union, types.UnionType):
        rules = [_rule(choice) for choice in arguments if choice is not type(None)]
        if len(rules) != 1 or rules[0] is None:
            return None
        return dataclasses.replace(rules[0], none=type(None) in arguments)
    if origin in (tuple, list):
        return Rule(list, each=_rule(arguments[0]) if arguments else None)
    if hint is int:
        return Rule(int, -LARGEST, LARGEST)
    return Rule(hint) if hint in (float, bool, str, dict) else None
