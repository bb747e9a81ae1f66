"""Agents for others: `push` publishes one, `pull` fetches one, whole or not at all.

    push("robot", "hf:owner/name")               a model repository of the Hugging Face Hub (extra `hub`)
    push("robot", "/shared/robot.zip")           a directory, or one file
    pull("hf:owner/name@v1", "robot")            and back
    pull("https://example.org/robot.zip", "robot.zip")      and a web server: a zip archive, or the directory's address

What is fetched is written beside its final name, compared with the checksums of its manifest and loaded once; only then
it gets the name. The manifest shows that nothing was changed by accident. Its own sha256, which `push` prints and
`pull` compares if it is given, shows that it is the agent that was meant.
"""

import os
import re
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

import iel
from iel.errors import ConfigError, RunError, install
from iel.files import MANIFEST, file_facts, new_directory, read_manifest
from iel.loader import JSON_BYTES, first_line, memory_budget, open_regular, os_errors, read_json
from iel.model.archive import BLOCK, MANIFEST_FORMAT, SUFFIX, pack, read_listed, receive, unpack, unpacked
from iel.model.files import read_model
from iel.progress import Progress

Facts = dict[str, Any]
CARD = "README.md"
HUB = re.compile(r"hf:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,200}))?")
WEB = ("http", "https")
SECONDS = 30.0
"""A web server that sends nothing for this long is given up."""


def push(agent: Path | str, destination: str, *, private: bool = False, progress: bool = True) -> Facts:
    """Put an agent (a directory or a zip archive) into a directory, an archive or a repository of the Hub.

    Returns `destination`, `files`, `sha256` of the manifest and, of the Hub, the `revision` that was made.
    """
    if urlsplit(destination).scheme in WEB:
        raise ConfigError(f"{destination} cannot be pushed to; give hf:owner/name, a directory or a file.zip.")
    if not destination.startswith("hf:"):
        return {**pull(agent, destination, progress=progress), "source": str(agent)}
    location = hub_address(destination)
    with unpacked(Path(agent)) as directory:
        facts = _checked(directory, agent)
        if CARD not in facts["files"]:
            raise RunError(f"{agent} has no {CARD} to show on the Hub; write it again with `iel export` and push that.")
        revision = HubRepository(location).upload(directory, list(facts["files"]), private)
    return {"source": str(agent), "destination": destination, **facts, "revision": revision}


def pull(source: Path | str, out: Path | str, *, sha256: str | None = None, progress: bool = True) -> Facts:
    """Get an agent from the Hub, a web server, a directory or an archive; `out` is a new directory, or a new x.zip.

    With `sha256` another agent than the one whose manifest has it is refused. Returns `source`, `destination`, `files`
    and `sha256`.
    """
    final, given = Path(out), str(source)
    if os.path.lexists(final):
        raise RunError(f"{final} already exists; choose another path, or remove it.")
    with os_errors(RunError, final, writing=True), _destination(final) as partial:
        _fetch(given, partial, progress)
        facts = _checked(partial, given)
        if sha256 is not None and facts["sha256"] != sha256.lower():
            raise RunError(
                f"{given} is another agent: its manifest has sha256 {facts['sha256']}, not {sha256[:64]}; nothing was "
                "written."
            )
    return {"source": given, "destination": str(final), **facts}


@contextmanager
def _destination(final: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `final` when the block ends well: itself, or packed."""
    if final.suffix != SUFFIX:
        with new_directory(final) as partial:
            yield partial
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="iel-") as scratch:
        yield Path(scratch)
        pack(Path(scratch), final)


def _checked(directory: Path, source: Path | str) -> Facts:
    """`files` and `sha256` of an agent all of whose files are whole, and that loads."""
    config = directory / "config.json"
    if not config.exists() or "observation_size" not in read_json(config) or not (directory / MANIFEST).exists():
        raise RunError(f"{source} is not an agent; give what `iel export RUN` or agent.save wrote.")
    read_model(directory)
    manifest, listed = read_manifest(directory / MANIFEST, MANIFEST_FORMAT)
    sizes = {name: (directory / name).stat().st_size for name in (*listed, MANIFEST)}
    return {"files": sizes, "sha256": manifest["sha256"]}


# ------------------------------------------------------------------------------------------------------------ fetching


Blocks = Callable[[str, int], Iterator[bytes]]
"""The content of a file of an agent, by its name and how many bytes it should have at most."""


def _fetch(source: str, directory: Path, progress: bool) -> None:
    """Fill an empty directory from a source."""
    if source.startswith("hf:"):
        with tempfile.TemporaryDirectory(prefix="iel-") as scratch:
            _collect(HubRepository(hub_address(source), Path(scratch)).blocks, source, directory, progress)
    elif urlsplit(source).scheme in WEB:
        if not urlsplit(source).path.endswith(SUFFIX):
            _collect(partial(_web_file, source.rstrip("/")), source, directory, progress)
            return
        with tempfile.TemporaryDirectory(prefix="iel-") as scratch:
            archive = Path(scratch) / "agent.zip"
            with _answer(source) as (answer, size), Progress("pull", size // 1000, unit="kB", show=progress) as bar:
                receive(_counted(_blocks(answer), bar), archive, size, source)
            unpack(archive, directory)
    elif Path(source).is_file():
        unpack(Path(source), directory)
    else:
        if not Path(source).is_dir():
            raise RunError(f"{source} does not exist; give an agent's directory, its zip archive, or hf:owner/name.")
        if not (Path(source) / MANIFEST).exists():
            raise RunError(f"{source} is not an agent; give what `iel export RUN` or agent.save wrote.")
        _collect(partial(_local_file, Path(source)), source, directory, progress)


def _collect(blocks: Blocks, source: str, directory: Path, progress: bool) -> None:
    """The manifest first, then what it lists: no other name is ever looked at, and no file is larger than it says."""
    receive(blocks(MANIFEST, JSON_BYTES), directory / MANIFEST, JSON_BYTES, source)
    listed = read_listed(directory, source)
    total = sum(facts.size for facts in listed.values())
    with Progress("pull", total // 1000, unit="kB", show=progress) as bar:
        for name, facts in listed.items():
            receive(_counted(blocks(name, facts.size), bar), directory / name, facts.size, source)
            if file_facts(directory / name) != facts:
                raise RunError(f"{source}: {name} is damaged (it differs from {MANIFEST}); nothing was written.")


def _blocks(file: Any) -> Iterator[bytes]:
    return iter(lambda: file.read(BLOCK), b"")


def _counted(blocks: Iterator[bytes], bar: Progress) -> Iterator[bytes]:
    done = 0
    for block in blocks:
        yield block
        bar.advance((done + len(block)) // 1000 - done // 1000)
        done += len(block)


def _local_file(directory: Path, name: str, most: int) -> Iterator[bytes]:
    with open_regular(directory / name, RunError) as (file, _):
        yield from _blocks(file)


def _web_file(url: str, name: str, most: int) -> Iterator[bytes]:
    with _answer(f"{url}/{quote(name)}") as (answer, _):
        yield from _blocks(answer)


class _SameSafety(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web servers only, and never from an encrypted connection to a plain one."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = req.type, urlsplit(newurl).scheme
        if new not in WEB or (old, new) == ("https", "http"):
            raise RunError(f"{req.full_url} leads to {newurl[:200]}, which is not followed; give that address itself.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _answer(url: str) -> Iterator[tuple[HTTPResponse, int]]:
    """(the answer of a web server, how many bytes it may have at most: what it says, within the memory budget)."""
    request = urllib.request.Request(url, headers={"User-Agent": f"iel/{iel.__version__}"})
    try:
        with urllib.request.build_opener(_SameSafety()).open(request, timeout=SECONDS) as answer:
            said, most = str(answer.headers.get("Content-Length", "")), memory_budget()
            size = int(said) if said.isdecimal() else most
            if size > most:
                raise RunError(f"{url} has {size:,} bytes, but the memory budget is {most:,}; raise IEL_MEMORY_BUDGET.")
            yield answer, size
    except HTTPError as problem:
        raise RunError(f"{url} answers {problem.code} ({problem.reason}); check the address.") from None
    except (OSError, HTTPException, ValueError) as problem:
        raise RunError(f"{url} cannot be read ({first_line(problem)}); check the address and the connection.") from None


# ------------------------------------------------------------------------------------------------------------- the Hub


class HubAddress(NamedTuple):
    """A model repository."""

    repo: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "")


def hub_address(text: str) -> HubAddress:
    """The repository that `hf:owner/name@revision` names."""
    found = HUB.fullmatch(text)
    if found is None:
        raise ConfigError(f"'{text[:200]}' is not a repository; write hf:owner/name or hf:owner/name@revision.")
    return HubAddress(found["repo"], found["revision"])


class HubRepository:
    """One commit of a model repository, through `huggingface_hub` ($HF_ENDPOINT, $HF_TOKEN, `hf auth login`)."""

    def __init__(self, location: HubAddress, scratch: Path | None = None):
        """Files are downloaded into `scratch` first."""
        try:
            import huggingface_hub
        except ImportError:
            raise ConfigError(f"The Hub needs huggingface_hub; {install('hub')}.") from None
        self.location, self.scratch = location, scratch
        self.hub: Any = huggingface_hub
        self.api = self.hub.HfApi(
            endpoint=os.environ.get("HF_ENDPOINT"), library_name="iel", library_version=iel.__version__
        )
        self.commit = ""
        """The commit that is read: looked up once, so that all files are of one agent."""
        self.sizes: dict[str, int | None] = {}

    def blocks(self, name: str, most: int) -> Iterator[bytes]:
        """The content of a file, which is downloaded first."""
        with _hub_errors(self.location):
            if not self.commit:
                facts = self.api.model_info(self.location.repo, revision=self.location.revision, files_metadata=True)
                self.commit = facts.sha
                self.sizes = {file.rfilename: file.size for file in facts.siblings}
            size = self.sizes.get(name)
            if size is None:
                raise RunError(f"{self.location} has no {name}, so it is not an agent of iel; check its name.")
            if size > most:
                raise RunError(
                    f"{self.location}: {name} has {size:,} bytes instead of {most:,} at most; do not use it."
                )
            with self.hub.utils.disable_progress_bars():  # ours shows all files together
                file = self.api.hf_hub_download(self.location.repo, name, revision=self.commit, local_dir=self.scratch)
        with open_regular(file, RunError) as (content, _):
            yield from _blocks(content)

    def upload(self, directory: Path, names: list[str], private: bool) -> str:
        """One commit with these files, and without those that an earlier agent had there; returns its name."""
        repo, revision = self.location
        with _hub_errors(self.location):
            self.api.create_repo(repo, private=private, exist_ok=True)
            if revision:
                self.api.create_branch(repo, branch=revision, exist_ok=True)
            old = self._earlier() - set(names)
            add, delete = self.hub.CommitOperationAdd, self.hub.CommitOperationDelete
            done = self.api.create_commit(
                repo,
                [*(add(name, str(directory / name)) for name in names), *(delete(name) for name in sorted(old))],
                commit_message=f"Agent of iel {iel.__version__}",
                revision=revision,
            )
        return str(done.oid)

    def _earlier(self) -> set[str]:
        """The files of the agent that is there."""
        with tempfile.TemporaryDirectory(prefix="iel-") as scratch:
            self.scratch, target = Path(scratch) / "hub", Path(scratch) / MANIFEST
            try:
                receive(self.blocks(MANIFEST, JSON_BYTES), target, JSON_BYTES, str(self.location))
                return read_manifest(target, MANIFEST_FORMAT)[1].keys() & self.sizes.keys()
            except RunError:
                return set()


HUB_REMEDIES = {
    401: "log in with `hf auth login` or set HF_TOKEN, and check the name",
    403: "your token may not do that; make one that may write",
    404: "check its name; a private repository needs `hf auth login` or HF_TOKEN",
}


@contextmanager
def _hub_errors(location: HubAddress) -> Iterator[None]:
    """What the Hub or its client refuses becomes one sentence."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as problem:
        code = problem.response.status_code if problem.response is not None else 0
        remedy = HUB_REMEDIES.get(code, "try again later")
        raise RunError(f"{location}: the Hub answers {code} ({first_line(problem)}); {remedy}.") from None
    except RunError:
        raise
    except Exception as problem:  # whatever a third-party client may raise
        reason = first_line(problem) or type(problem).__name__
        raise RunError(f"{location} cannot be used ({reason}); check the name and the connection.") from None
