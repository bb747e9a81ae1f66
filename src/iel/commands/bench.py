"""`iel bench NAME`: runs benchmarks/NAME.py of the checkout that `iel` was installed from."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import iel
from iel.commands.common import Facts, Output
from iel.errors import ConfigError

BENCH = "Speed, as ratios against a baseline in the same run (needs a checkout)."


def benchmarks() -> dict[str, str]:
    """Name -> the first sentence of its file; read, not imported, so that a list is quick."""
    texts = {path.stem: path.read_text() for path in sorted(_directory().glob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items() if "\ndef command(" in text}
    return {name: (ast.get_docstring(tree) or "").partition("\n")[0] for name, tree in trees.items()}


def load_benchmark(name: str) -> tuple[type[Output], Callable[[Any], Facts]]:
    """`Options` and `command(options)` of benchmarks/NAME.py."""
    root = str(_directory().parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    module = importlib.import_module(f"benchmarks.{name}")
    return module.Options, module.command


def _directory() -> Path:
    package = Path(iel.__file__).parent
    root = package.parents[1]
    if not (root / "src" / "iel" / "__init__.py").exists() or not (root / "benchmarks").is_dir():
        raise ConfigError("The benchmarks are not part of the installed package; run `iel bench` in a checkout of iel.")
    return root / "benchmarks"
