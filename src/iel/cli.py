"""The command line: parses, calls, prints. Results go to stdout, progress to stderr.

An error a user can mend is one sentence on stderr and exit code 2; Ctrl-C is exit code 130. With `--json`, the last
line of stdout is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any

import tyro

import iel
from iel import options
from iel.errors import ConfigError, IELError, unknown_name
from iel.files import guarded, notice

DEFAULT_PRESET = "laptop"


COMMANDS: dict[str, tuple[type[Any], str]] = {
    "demo": (options.Demo, "demo:demo_command"),
    "train": (options.Train, "train:train_command"),
    "evaluate": (options.Evaluate, "evaluate:evaluate_command"),
    "compare": (options.CompareCommand, "compare:compare_command"),
    "report": (options.ReportCommand, "report:report_command"),
    "plan": (options.PlanCommand, "plan:plan_command"),
    "video": (options.VideoCommand, "video:video_command"),
    "audit": (options.AuditCommand, "audit:audit_command"),
    "export": (options.ExportCommand, "export:export_command"),
    "data make": (options.DataMake, "data:data_make_command"),
    "data info": (options.DataInfo, "data:data_info_command"),
    "data check": (options.DataCheck, "data:data_check_command"),
    "doctor": (options.Doctor, "doctor:doctor_command"),
    "bench training": (options.BenchTraining, "bench:bench_training_command"),
    "bench planning": (options.BenchPlanning, "bench:bench_planning_command"),
    "bench stepping": (options.BenchStepping, "bench:bench_stepping_command"),
    "bench checkpoints": (options.BenchCheckpoints, "bench:bench_checkpoints_command"),
    "bench runtime": (options.BenchRuntime, "bench:bench_runtime_command"),
    "bench seeds": (options.BenchSeeds, "bench:bench_seeds_command"),
}
"""Command -> its options, and the module and function of `iel.commands` that does it (imported when it is run)."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `iel` command."""
    sys.exit(guarded(lambda: _run_or_say(list(sys.argv[1:] if argv is None else argv))))


def _run_or_say(argv: list[str]) -> int:
    try:
        return run(argv)
    except IELError as error:
        notice(str(error))
        return 2
    except KeyboardInterrupt:
        notice("interrupted; what was finished so far is kept.")
        return 130


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
    options_type, place = COMMANDS[name]
    chosen = _parse(options_type, name, argv[words:])
    module, function = place.split(":")
    result: dict[str, Any] = getattr(importlib.import_module(f"iel.commands.{module}"), function)(chosen)
    if chosen.json:
        print(json.dumps(result))
    return result.get("exit_code", 0)


def _parse(options_type: type[Any], name: str, arguments: list[str]) -> Any:
    if options_type is options.Train:
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

    fields: list[Any] = []
    if run := _value_of("--resume", arguments):  # the run's own settings; one that is given all the same must agree
        from iel.training import open_runs

        config, defaults = (first := open_runs(run)[0]).config, first.algo
        fields += [("algo", str, config["algo"]), ("checkpoint_every", int | None, config.get("checkpoint_every"))]
        fields += [("seeds", tuple[int, ...], tuple(config.get("seeds", [first.seed])))]
    else:
        defaults = get_algo(_value_of("--algo", arguments) or "iel")(
            preset=_value_of("--preset", arguments) or DEFAULT_PRESET
        )
    fields += [("settings", Annotated[type(defaults), tyro.conf.arg(name="")], field(default=defaults))]
    chosen = make_dataclass("Train", fields, bases=(options.Train,), frozen=True, kw_only=True)
    chosen.__doc__ = options.Train.__doc__
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
    for name, (options_type, _) in COMMANDS.items():
        lines.append(f"  iel {name:<16} {(options_type.__doc__ or '').strip().splitlines()[0]}")
    lines += ["", "`iel COMMAND --help` explains a command. Start with `iel demo`."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
