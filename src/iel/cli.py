"""The command line: parses, calls, prints. Results go to stdout, progress to stderr.

An error a user can mend is one sentence on stderr and exit code 2; Ctrl-C is exit code 130. With `--json`, the last
line of stdout is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any

import tyro

import iel
from iel.errors import ConfigError, IELError, unknown_name
from iel.options import (
    AuditCommand,
    BenchPlanning,
    BenchTraining,
    DataInfo,
    DataMake,
    Demo,
    Doctor,
    Evaluate,
    PlanCommand,
    Train,
)

Result = dict[str, Any]
DEFAULT_PRESET = "laptop"


# ---------------------------------------------------------------- what each command does (imports stay lazy)


def _demo(options: Demo) -> Result:
    from iel.demo import demo

    return demo(options.out, options.seed, options.episodes, quiet=options.json)


def _train(options: Train) -> Result:
    from iel.commands import train_command

    return train_command(options)


def _evaluate(options: Evaluate) -> Result:
    from iel.commands import evaluate_command

    return evaluate_command(options)


def _plan(options: PlanCommand) -> Result:
    from iel.commands import plan_command

    return plan_command(options)


def _audit(options: AuditCommand) -> Result:
    from iel.commands import audit_command

    return audit_command(options)


def _data_make(options: DataMake) -> Result:
    from iel.data.make import make_dataset

    files = make_dataset(
        options.name, episodes=options.episodes, seed=options.seed, workers=options.workers, directory=options.out
    )
    if not options.json:
        print("\n".join(str(path) for path in files.values()))
    return {split: str(path) for split, path in files.items()}


def _data_info(options: DataInfo) -> Result:
    from iel.commands import data_info_command

    return data_info_command(options)


def _doctor(options: Doctor) -> Result:
    from iel.doctor import examine, show

    findings = examine()
    if not options.json:
        show(findings)
    return findings


def _bench_training(options: BenchTraining) -> Result:
    from iel.bench import training

    if len(options.widths) != len(options.batches):
        raise ConfigError("--widths and --batches are paired, so give equally many of both.")
    result = training.run(list(zip(options.widths, options.batches, strict=True)), seconds=options.seconds)
    if not options.json:
        _print_rows(result["rows"])
    return result


def _bench_planning(options: BenchPlanning) -> Result:
    from iel.bench import planning

    chosen = {name: value for name in ("nodes", "beta") if (value := getattr(options, name)) is not None}
    # Each case is described in a line as soon as it is done; with --json those lines are only progress.
    stream = sys.stderr if options.json else sys.stdout
    return planning.run(**chosen, quick=options.quick, progress=lambda line: print(line, file=stream, flush=True))


def _print_rows(rows: Sequence[Result]) -> None:
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row_cells in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row_cells, widths, strict=True)))


COMMANDS: dict[str, tuple[type[Any], Callable[[Any], Result]]] = {
    "demo": (Demo, _demo),
    "train": (Train, _train),
    "evaluate": (Evaluate, _evaluate),
    "plan": (PlanCommand, _plan),
    "audit": (AuditCommand, _audit),
    "data make": (DataMake, _data_make),
    "data info": (DataInfo, _data_info),
    "doctor": (Doctor, _doctor),
    "bench training": (BenchTraining, _bench_training),
    "bench planning": (BenchPlanning, _bench_planning),
}


# ---------------------------------------------------------------- parsing


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `iel` command."""
    try:
        code = run(list(sys.argv[1:] if argv is None else argv))
    except IELError as error:
        print(f"iel: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("iel: interrupted; what was finished so far is kept.", file=sys.stderr)
        code = 130
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Parse and execute one command line; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"iel {iel.__version__}")
        return 0
    words = 2 if len(argv) > 1 and f"{argv[0]} {argv[1]}" in COMMANDS else 1
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        group = [command for command in COMMANDS if command.split()[0] == name]
        if group:
            raise ConfigError(
                f"`iel {name}` needs one more word: {', '.join(f'`iel {command}`' for command in group)}."
            )
        raise unknown_name("command", name, COMMANDS)
    options_type, action = COMMANDS[name]
    options = _parse(options_type, name, argv[words:])
    result = action(options)
    if options.json:
        print(json.dumps(result))
    return 0


def _parse(options_type: type[Any], name: str, arguments: list[str]) -> Any:
    if options_type is Train:
        options_type = _train_options(arguments)
    return tyro.cli(
        options_type,
        args=arguments,
        prog=f"iel {name}",
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _train_options(arguments: list[str]) -> type[Any]:
    """`iel train` shows and takes the settings of the chosen method, with the chosen preset's values as defaults."""
    from iel.algos import get_algo

    method = get_algo(_value_of("--algo", arguments) or "iel")
    defaults = method(preset=_value_of("--preset", arguments) or DEFAULT_PRESET)
    settings = (Annotated[method, tyro.conf.arg(name="")], field(default=defaults))
    chosen = make_dataclass("Train", [("settings", *settings)], bases=(Train,), frozen=True, kw_only=True)
    chosen.__doc__ = Train.__doc__
    return chosen


def _value_of(flag: str, arguments: list[str]) -> str | None:
    for position, word in enumerate(arguments):
        if word == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return None


def _overview() -> str:
    lines = [f"iel {iel.__version__}: policies learned offline that can be sent to any goal", "", "commands:"]
    for name, (options, _) in COMMANDS.items():
        lines.append(f"  iel {name:<16} {(options.__doc__ or '').strip().splitlines()[0]}")
    lines += ["", "`iel COMMAND --help` explains a command. Start with `iel demo`."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
