"""JSON and TOML: small files, read whole and strictly."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from iel.errors import ConfigError, RunError
from iel.loader.files import ErrorType, read_limited

JSON_BYTES = 16 << 20
JSON_VALUES = 500_000
"""Values a JSON file may hold: each becomes a Python object, many times the size of its text."""
TOML_BYTES = 256 << 10


def read_json(path: Path | str, error: ErrorType = RunError) -> dict[str, Any]:
    """A JSON object. Refused: anything else, a key given twice, NaN and infinities, endless nesting, huge files."""
    return parse_json(read_limited(path, JSON_BYTES, error), str(path), error)


def parse_json(text: bytes, source: str, error: ErrorType) -> dict[str, Any]:
    """A JSON object from bytes, checked as `read_json` says."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > JSON_VALUES:
        raise error(f"{source} holds more than {JSON_VALUES:,} JSON values; it is not what it should be.")
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise error(f"{source} is not JSON this package writes (it is nested too deeply); it is damaged.") from None
    except ValueError as problem:  # includes JSONDecodeError and UnicodeDecodeError
        raise error(f"{source} is not JSON ({_first_line(problem)}); it is damaged.") from None
    if not isinstance(value, dict):
        raise error(f"{source} does not hold a JSON object; it is damaged.")
    return value


def read_toml(path: Path | str, error: ErrorType = ConfigError) -> dict[str, Any]:
    """A TOML table."""
    text = read_limited(path, TOML_BYTES, error)
    try:
        return tomllib.loads(text.decode("utf-8"))
    except RecursionError:
        raise error(f"{path} is nested too deeply; write it flatter.") from None
    except ValueError as problem:  # includes TOMLDecodeError
        raise error(f"{path} is not TOML ({_first_line(problem)}); mend that place.") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key '{twice[:40]}' is given twice")
    return table


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [""])[0][:120]
