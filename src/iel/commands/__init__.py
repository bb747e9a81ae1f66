"""What `iel` can do: one module per command, or for a few that belong together."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iel.commands.common import Command

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
    "completion": "completion:CompletionCommand",
}
"""Command -> module and class of this package: a dataclass of its options. The first line of its docstring is the
command's line in lists, the docstring of a field is its `--help`, and a call of it is the command."""


def command_class(name: str) -> type[Command]:
    """The class of a command of COMMANDS; only its own module is imported."""
    module, kind = COMMANDS[name].split(":")
    return getattr(importlib.import_module(f"iel.commands.{module}"), kind)


def summary(name: str) -> str:
    """A command's line in lists."""
    return (command_class(name).__doc__ or "").strip().splitlines()[0]
