"""The command line: parses, calls, prints. Results go to stdout, progress to stderr.

An error a user can fix is one sentence on stderr and exit code 2; Ctrl-C is exit code 130. With `--json`, the last
line of stdout is one JSON object.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import tyro
except ImportError:  # before anything that could make a sentence of it
    sys.exit("iel: The commands need tyro; to serve without JAX, install the packages listed in docs/serving.md.")

import iel
from iel.commands import COMMANDS, command_class, summary
from iel.commands.common import ADVANCED, Facts, Output, readable
from iel.errors import ConfigError, IELError, unknown_name
from iel.files import guarded, notice

RENAMED = {
    "--witnesses": "--unobserved-cost",
    "--chance": "--teleports",
    "--no-chance": "--no-teleports",
}
"""Options and presets (by how they begin) of 0.2.0, and their present names; to be removed in the next version."""

BENCH = "Speed, as ratios against a baseline in the same run (needs a checkout)."
GROUPS = {"data": "Make, convert, describe, check and score data sets.", "bench": BENCH}
"""The first words of commands of two words."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `iel` command."""
    sys.exit(guarded(lambda: _run_or_say(list(sys.argv[1:] if argv is None else argv))))


def _run_or_say(argv: list[str]) -> int:
    try:
        return run(argv)
    except IELError as error:
        notice(str(error))
        return 2
    except MemoryError:
        notice("The memory ran out; give the process more (ulimit -v), or take fewer nodes, rows or episodes.")
        return 2
    except ImportError as error:
        if (error.name or "").split(".")[0] == "iel":  # a bug of ours
            raise
        reason = str(error).splitlines()[0][:200]
        notice(
            f"A package could not be loaded ({reason}); give the process more memory (ulimit -v), or `make install`."
        )
        return 2
    except KeyboardInterrupt as stop:
        notice(str(stop) or "interrupted; what was finished so far is stored.")
        return 130


def run(argv: list[str]) -> int:
    """Parse and execute one command line; returns the exit code."""
    first, second = [*argv, "", ""][:2]
    if first in ("", "-h", "--help"):
        print(_overview())
    elif first == "--version":
        print(f"iel {iel.__version__}")
    elif first in GROUPS and second in ("-h", "--help"):
        print("\n".join([f"iel {first}: {GROUPS[first]}", "", *_listed(_summaries(first))]))
    elif first in GROUPS:
        names = _summaries(first)
        if second == "":
            raise ConfigError(f"`iel {first}` needs one more word: {', '.join(f'`iel {name}`' for name in names)}.")
        if f"{first} {second}" not in names:
            raise unknown_name(f"command of `iel {first}`", second, [name.split()[1] for name in names])
        return _call(f"{first} {second}", argv[2:])
    elif first in COMMANDS:
        return _call(first, argv[1:])
    else:
        raise unknown_name("command", first, [*COMMANDS, *GROUPS])
    return 0


def _load(name: str) -> tuple[type[Output], Callable[[Any], Facts]]:
    """(type of its options, function of them); those of a benchmark are `Options` and `command` of its file."""
    if not name.startswith("bench "):
        options = command_class(name)
        return options, options.__call__
    root = str(_directory().parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    module = importlib.import_module(f"benchmarks.{name.removeprefix('bench ')}")
    return module.Options, module.command


def benchmarks() -> dict[str, str]:
    """Name -> the first sentence of its file; read, not imported, so that a list is quick."""
    texts = {path.stem: path.read_text() for path in sorted(_directory().glob("*.py"))}
    trees = {name: ast.parse(text) for name, text in texts.items() if "\ndef command(" in text}
    return {name: (ast.get_docstring(tree) or "").partition("\n")[0] for name, tree in trees.items()}


def _directory() -> Path:
    """benchmarks/ of the checkout that iel is run from."""
    root = Path(iel.__file__).parents[2]
    if not (root / "src" / "iel" / "__init__.py").exists() or not (root / "benchmarks").is_dir():
        raise ConfigError("The benchmarks are not part of the installed package; run `iel bench` in a checkout of iel.")
    return root / "benchmarks"


def _call(name: str, arguments: list[str]) -> int:
    kind, command = _load(name)
    arguments = [_current(word, before) for before, word in zip(["", *arguments], arguments, strict=False)]
    options = readable(kind.for_arguments(arguments))
    arguments = ["--help" if word == ADVANCED else word for word in arguments]
    chosen = tyro.cli(options, args=arguments, prog=f"iel {name}", config=(tyro.conf.DisallowNone,))
    # What a command prints is for people, what it returns for programs.
    with contextlib.redirect_stdout(io.StringIO()) if chosen.json else contextlib.nullcontext():
        result = command(chosen)
    if chosen.json:
        print(json.dumps(result))
    return result.get("exit_code", 0)


def _current(word: str, before: str = "") -> str:
    """An option, or a preset after `--preset`, of 0.2.0 by its present name, with a notice; other words unchanged."""
    option, equals, value = word.partition("=")
    present = RENAMED.get(option, option) + equals + value
    if before == "--preset" or option == "--preset":
        present = present.replace("laptop-body", "laptop-robot")
    if present != word:
        notice(f"{word} is called {present} now; the next version removes the old name.")
    return present


def _summaries(group: str = "") -> dict[str, str]:
    """Name -> its line in the list of commands: those of a group, or all that `iel` itself lists."""
    if group == "bench":
        return {f"bench {name}": line for name, line in benchmarks().items()}
    return {name: summary(name) for name in COMMANDS if group in ("", name.split()[0])}


def _listed(summaries: Mapping[str, str]) -> list[str]:
    width = max(60, min(shutil.get_terminal_size().columns, 120))
    indent = " " * 24
    return [
        textwrap.fill(f"  iel {name:<17} {line}", width, subsequent_indent=indent) for name, line in summaries.items()
    ]


def _overview() -> str:
    head = [f"iel {iel.__version__}: policies learned offline that can be sent to any goal", "", "commands:"]
    foot = ["", "`iel COMMAND --help` explains a command. Start with `iel demo`."]
    return "\n".join([*head, *_listed({**_summaries(), "bench NAME": BENCH}), *foot])


if __name__ == "__main__":
    main()
