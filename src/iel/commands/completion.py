"""`iel completion`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import tyro

from iel.commands import COMMANDS, command_class, summary
from iel.commands.common import Command, Facts, readable


@dataclass(frozen=True, kw_only=True)
class CompletionCommand(Command):
    """Print a script that completes commands and options in your shell.

    - bash: `iel completion bash > ~/.local/share/bash-completion/completions/iel`
    - zsh: `iel completion zsh > ~/.zfunc/_iel`, and `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
    - fish: `iel completion fish > ~/.config/fish/completions/iel.fish`
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish."""

    def __call__(self) -> Facts:
        groups = sorted({name.split()[0] for name in COMMANDS if " " in name})
        kinds = [_choice([name for name in COMMANDS if " " not in name])]
        for group in groups:
            second = _choice([name for name in COMMANDS if name.startswith(f"{group} ")])
            kind: Any = make_dataclass(group, [("command", second)])
            kinds.append(Annotated[kind, tyro.conf.subcommand(group, prefix_name=False)])
        config = (tyro.conf.OmitSubcommandPrefixes,)
        with contextlib.redirect_stdout(io.StringIO()) as script, contextlib.suppress(SystemExit):
            tyro.cli(reduce(or_, kinds), args=["--tyro-print-completion", self.shell], prog="iel", config=config)
        print(script.getvalue(), end="")
        return {"shell": self.shell, "script": script.getvalue()}


def _choice(names: Sequence[str]) -> Any:
    """A type whose alternatives are these commands with their options."""
    kinds: list[Any] = []
    for name in names:
        about = tyro.conf.subcommand(name.split()[-1], prefix_name=False, description=summary(name))
        kinds.append(Annotated[readable(command_class(name).for_arguments([])), about])
    return reduce(or_, kinds)
