"""`iel push` and `iel pull`: agents for others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from iel.commands.common import Command, Facts, Flag


@dataclass(frozen=True, kw_only=True)
class PushCommand(Command):
    """Put an agent on the Hugging Face Hub, into a directory or into one file."""

    agent: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="AGENT")]
    """An export, a saved agent, or a zip archive of one."""
    destination: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DEST")]
    """hf:owner/name or hf:owner/name@branch (needs the extra `hub`), a new directory, or a new file.zip."""
    private: Flag = False
    """On the Hub, a repository that is new is private."""

    def __call__(self) -> Facts:
        from iel.sharing import push

        return _said(push(self.agent, self.destination, private=self.private))


@dataclass(frozen=True, kw_only=True)
class PullCommand(Command):
    """Get an agent from the Hugging Face Hub, a web server, a directory or a file; checked before it is there."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """hf:owner/name or hf:owner/name@revision (needs the extra `hub`), http(s)://..., a directory, or a file.zip."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """A new directory, or a new file.zip."""
    sha256: str | None = None
    """Refuse any other agent than the one for which `iel push` printed this."""

    def __call__(self) -> Facts:
        from iel.sharing import pull

        return _said(pull(self.source, self.out, sha256=self.sha256))


def _said(facts: Facts) -> Facts:
    revision = f", revision {facts['revision']}" if "revision" in facts else ""
    print(f"{facts['source']} -> {facts['destination']}{revision}: {len(facts['files'])} files, "
          f"{sum(facts['files'].values()) / 1e6:,.1f} MB, sha256 {facts['sha256']}")  # fmt: skip
    return facts
