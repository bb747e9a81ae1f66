"""Options as people read them: what a value is called, and no default where there is nothing to say.

tyro prints `{None}|{[INT [INT ...]]}` for a list that may be left out, and `(default: None)` after a sentence that says
what happens then. `readable` gives every such field of an options dataclass a plain name (`INT ...`) and drops the
default of what is off or absent by default, or whose own sentence names it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro

NAMES = {int: "INT", float: "NUMBER", str: "NAME", Path: "PATH"}
ADVANCED = "--help-all"
"""Shows every setting of a method; `--help` shows what most people need."""


def readable(options: type[Any]) -> type[Any]:
    """The same options, with help that is easy to read; what is parsed does not change."""
    hints = typing.get_type_hints(options, include_extras=True)
    fields: list[Any] = []
    for field in dataclasses.fields(options):
        plain, marks = _split(hints[field.name])
        if isinstance(plain, type) and dataclasses.is_dataclass(plain):
            if field.default is dataclasses.MISSING and field.default_factory is plain:
                plain = readable(plain)
                fields.append((field.name, Annotated[(plain, *marks)], dataclasses.field(default_factory=plain)))
            continue
        words: dict[str, Any] = {"metavar": metavar} if (metavar := _name_of(plain)) else {}
        if any(field.default is nothing for nothing in (None, False, ())):
            words["help_behavior_hint"] = ""
        elif field.default is dataclasses.MISSING and typing.get_origin(plain) is tuple:
            words["help_behavior_hint"] = "(required)"
        declared = [mark for mark in marks if type(mark).__name__ == "_ArgConfig"]
        for mark in declared:  # what was said where it is declared stays
            words = {name: word for name, word in words.items() if getattr(mark, name) is None}
            rest = tuple(other for other in marks if other is not mark)
            marks = (*rest, dataclasses.replace(mark, **words)) if words else marks
        if words and declared:
            fields.append((field.name, Annotated[(plain, *marks)], *_default(field)))
        elif words:
            redeclared: Any = Annotated[(plain, *marks, tyro.conf.arg(**words))]
            fields.append((field.name, redeclared, *_default(field)))
    derived = make_dataclass(options.__name__, fields, bases=(options,), frozen=True, kw_only=True)
    derived.__doc__ = options.__doc__
    return derived


def _default(field: dataclasses.Field) -> tuple[Any, ...]:
    return () if field.default is dataclasses.MISSING else (dataclasses.field(default=field.default),)


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and what is annotated to it."""
    if typing.get_origin(hint) is Annotated:
        plain, *marks = typing.get_args(hint)
        return plain, tuple(marks)
    return hint, ()


def _name_of(hint: Any) -> str | None:
    """What a value of this type is called; None where tyro's own name is good."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return _name_of(inner[0]) if len(inner) == 1 else None
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        return f"{_name_of(parts[0])} ..." if len(parts) == 2 and parts[1] is Ellipsis else None
    if typing.get_origin(hint) is Literal:
        return f"{{{','.join(str(choice) for choice in typing.get_args(hint))}}}"
    return NAMES.get(hint)
