"""The command line: parses, calls, prints. Results go to stdout, progress to stderr.

An error a user can fix is one sentence on stderr and exit code 2; Ctrl-C is exit code 130. With `--json`, the last
line of stdout is one JSON object.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

try:
    import tyro
except ImportError:  # before anything that could make a sentence of it
    sys.exit("iel: The commands need tyro; on a machine without JAX all of docs/serving.md's list is needed to serve.")

import iel
from iel.commands.common import ADVANCED, UNSAID, Facts, Output
from iel.errors import ConfigError, IELError, unknown_name
from iel.files import guarded, notice

COMMANDS = {
    "demo": "demo:Demo",
    "train": "train:Train",
    "evaluate": "evaluate:Evaluate",
    "compare": "compare:CompareCommand",
    "report": "compare:ReportCommand",
    "plan": "plan:PlanCommand",
    "video": "evaluate:VideoCommand",
    "diagnose": "audit:DiagnoseCommand",
    "play": "serve:PlayCommand",
    "serve": "serve:ServeCommand",
    "audit": "audit:AuditCommand",
    "methods": "methods:MethodsCommand",
    "published": "published:PublishedCommand",
    "theory": "methods:TheoryCommand",
    "export": "serve:ExportCommand",
    "push": "share:PushCommand",
    "pull": "share:PullCommand",
    "data make": "data:DataMake",
    "data convert": "data:DataConvert",
    "data info": "data:DataInfo",
    "data check": "data:DataCheck",
    "data score": "score:DataScore",
    "data store": "data:DataStore",
    "doctor": "doctor:Doctor",
}
"""Command -> module and class of `iel.commands`: a dataclass of its options. The first line of its docstring is the
command's line here, the docstring of a field is its `--help`, and a call of it is the command."""

RENAMED = {"--witnesses": "--unobserved-cost", "--chance": "--teleports", "--no-chance": "--no-teleports"}
"""Options of 0.2.0 and what they are called now."""

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
        notice(str(stop) or "interrupted; what was finished so far is kept.")
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
    if name.startswith("bench "):
        root = str(_directory().parent)
        if root not in sys.path:
            sys.path.insert(0, root)
        module = importlib.import_module(f"benchmarks.{name.removeprefix('bench ')}")
        return module.Options, module.command
    file, kind = COMMANDS[name].split(":")
    options = getattr(importlib.import_module(f"iel.commands.{file}"), kind)
    return options, options.__call__


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
    arguments = [_current(word) for word in arguments]
    options = _readable(kind.for_arguments(arguments))
    arguments = ["--help" if word == ADVANCED else word for word in arguments]
    chosen = tyro.cli(options, args=arguments, prog=f"iel {name}", config=(tyro.conf.DisallowNone,))
    # What a command prints is for people, what it returns for programs.
    with contextlib.redirect_stdout(io.StringIO()) if chosen.json else contextlib.nullcontext():
        result = command(chosen)
    if chosen.json:
        print(json.dumps(result))
    return result.get("exit_code", 0)


def _current(word: str) -> str:
    """An option or preset of 0.2.0 by its present name, with a notice; any other word as it is."""
    option, equals, value = word.partition("=")
    present = RENAMED.get(option) or re.sub("^laptop-body", "laptop-robot", option)
    if present != option:
        notice(f"{option} is called {present} now; the old name will go in the next version.")
    return present + equals + value


def _readable(options_type: type[Output]) -> type[Output]:
    """The same options, without the default of what is off, empty or absent unless it is given."""
    hints, missing = get_type_hints(options_type, include_extras=True), dataclasses.MISSING
    fields: list[Any] = []
    for field in dataclasses.fields(options_type):
        quiet: Any = Annotated[hints[field.name], UNSAID]
        if field.default is missing and field.default_factory is missing:
            fields.append((field.name, quiet))
        elif any(field.default is nothing for nothing in (None, False, ())):
            fields.append((field.name, quiet, dataclasses.field(default=field.default)))
    return dataclasses.make_dataclass(
        options_type.__name__, fields, bases=(options_type,), namespace={"__doc__": options_type.__doc__},
        frozen=True, kw_only=True,
    )  # fmt: skip


def _summaries(group: str = "") -> dict[str, str]:
    """Name -> its line in the list of commands: those of a group, or all that `iel` itself lists."""
    if group == "bench":
        return {f"bench {name}": line for name, line in benchmarks().items()}
    names = [name for name in COMMANDS if group in ("", name.split()[0])]
    return {name: (_load(name)[0].__doc__ or "").strip().splitlines()[0] for name in names}


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
