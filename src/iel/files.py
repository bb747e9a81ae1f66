"""How files are written: whole or not at all, sealed by manifests, by one process per directory.

Everything is written beside its final name, flushed to the disk and renamed. Readers see only the rename, so a process
that is killed, or a machine that loses its power, leaves the old content or the new one and never a mixture. A rename
also replaces a symbolic link instead of following it, and files that are written in place (locks, logs) are opened
without following links. So nothing in a third-party directory can make us write anywhere else.

A seal is `manifest.json`: size and sha256 of every file of a directory, and of itself.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, structs

from iel.errors import RunError
from iel.loader import JSON_BYTES, PARTIAL, ErrorType, open_regular, os_errors, os_sentence, parse_json, read_limited
from iel.progress import STDERR, silence
from iel.typed import as_struct

MANIFEST = "manifest.json"
SLACK = 1 << 20
"""Bytes left free beyond what a save needs, for metrics and directory entries."""
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


# ------------------------------------------------------------------------------------------------------- single files


def partial_name(parent: Path) -> Path:
    """A unique name for an unfinished file or directory beside the final one."""
    return parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def writing(path: Path | str) -> Iterator[BinaryIO]:
    """`with writing(path) as file:` the file gets its name when the block ends well; else nothing has changed.

    A file that is replaced keeps its permissions; those of a new one follow from the umask.
    """
    path = Path(path)
    partial = partial_name(path.parent)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with writing(path) as file:
        file.write(content)


def write_text(path: Path | str, text: str) -> None:
    """Write a text file as UTF-8 with the line ends of the text, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path | str, value: object) -> None:
    """Write JSON with a final newline, whole or not at all."""
    write_text(path, _json_text(value))


def _json_text(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def open_in_place(path: Path, *, append: bool = False) -> BinaryIO:
    """An unbuffered file that others may read while it grows; a link, or a file with a second name, is refused."""
    flags = os.O_RDWR | os.O_CREAT | (os.O_APPEND if append else 0) | NO_LINKS
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise RunError(f"{path} is a symbolic link, which is not written through; remove it.") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            raise RunError(f"{path} is not a file of its own (a device, or a second name of another file); remove it.")
        if not append:
            os.ftruncate(descriptor, 0)
        return os.fdopen(descriptor, "ab" if append else "wb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


# -------------------------------------------------------------------------------------------------------- directories


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """`with new_directory(final) as partial:` renames `partial` to `final` when all of its files are on the disk and
    removes the directory that had that name. If the block fails, nothing has changed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_name(final.parent)
    try:
        partial.mkdir()
        yield partial
        for path in (*partial.iterdir(), partial):
            flush(path)
        replace_directory(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_directory(partial: Path, final: Path) -> None:
    """Rename a finished directory to `final`; a directory of that name is moved aside first and removed last."""
    old = partial_name(final.parent) if os.path.lexists(final) else None
    if old is not None:
        final.rename(old)
    partial.rename(final)
    flush(final.parent)
    if old is not None:
        _remove(old)


def remove_directory(directory: Path) -> None:
    """Remove a directory that others may read: first its name, then its content. Of a link, only the link."""
    doomed = partial_name(directory.parent)
    directory.rename(doomed)
    _remove(doomed)


def remove_partials(directory: Path) -> None:
    """Remove unfinished files and directories of killed processes. Call it only while holding the directory's lock."""
    for path in directory.glob(f"{PARTIAL}*"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | NO_LINKS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_space(directory: Path, needed: int, purpose: str) -> None:
    """Refuse to start writing `needed` bytes that do not fit on the disk."""
    free = shutil.disk_usage(directory).free
    if free < needed + SLACK:
        raise RunError(
            f"{directory} has {free / 1e6:,.1f} MB free, but {purpose} need {(needed + SLACK) / 1e6:,.1f} MB; "
            "free some space or choose another --out."
        )


def require_writable(directory: Path, error: ErrorType = RunError) -> None:
    """Refuse a directory that cannot be written, before work begins: create it, and a file in it."""
    with os_errors(error, directory, writing=True):
        directory.mkdir(parents=True, exist_ok=True)
        probe = partial_name(directory)
        probe.touch(exist_ok=False)
        probe.unlink()


@contextmanager
def write_errors(what: str, location: Path) -> Iterator[None]:
    """Raise RunError with a remedy for any OSError of a training inside of the block."""
    try:
        yield
    except OSError as error:
        remedy = "make it writable" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else "free some space"
        raise RunError(
            f"{what} could not be written to {location} ({error.strerror or error}); {remedy}, then continue with "
            "`iel train --resume`."
        ) from error


# -------------------------------------------------------------------------------------------------------------- seals


class FileFacts(Struct, frozen=True):
    """Digest and size of a file, in a manifest."""

    sha256: str
    size: int


class Manifest(Struct, frozen=True):
    """Fields of every manifest, besides its format and digest."""

    files: dict[str, FileFacts]
    versions: dict[str, str] = {}


def file_facts(path: Path, error: ErrorType = RunError) -> FileFacts:
    """Digest and size of a regular file."""
    with open_regular(path, error) as (file, size):
        return FileFacts(hashlib.file_digest(file, "sha256").hexdigest(), size)


def seal(directory: Path, version: int, versions: Mapping[str, str], **facts: object) -> None:
    """Write the manifest of all files of a directory, flush all of them, and verify them."""
    names = sorted(path.name for path in directory.iterdir() if path.name != MANIFEST)
    content = {
        "format": version,
        "versions": dict(versions),
        **facts,
        "files": {name: structs.asdict(file_facts(directory / name)) for name in names},
    }
    write_json(directory / MANIFEST, {**content, "sha256": _digest(content)})
    for path in (*directory.iterdir(), directory):
        flush(path)
    verify_seal(directory, version, names)


def verify_seal(
    directory: Path,
    version: int,
    names: Iterable[str] | None = None,
    *,
    remedy: str = "copy the directory again",
    error: ErrorType = RunError,
) -> dict[str, Any]:
    """Refuse files that differ from the manifest (all that it lists, or `names`); returns the manifest."""
    manifest, listed = read_manifest(directory / MANIFEST, version, remedy=remedy, error=error)
    for name in listed if names is None else names:
        if name not in listed:
            raise error(f"{directory / name} is not listed in {MANIFEST}; it does not belong here, {remedy}.")
        if file_facts(directory / name, error) != listed[name]:
            raise error(f"{directory / name} is damaged (it differs from {MANIFEST}); {remedy}.")
    return manifest


def read_manifest(
    source: Path, version: int, *, remedy: str = "copy the directory again", error: ErrorType = RunError
) -> tuple[dict[str, Any], dict[str, FileFacts]]:
    """(a manifest that matches its own sha256, digest and size of every file it lists, by name).

    Unknown keys and versions of packages are ignored.
    """
    text = read_limited(source, JSON_BYTES, error)
    manifest = parse_json(text, str(source), error)
    if manifest.get("format") != version or isinstance(manifest.get("format"), bool):
        raise error(
            f"{source} has format {str(manifest.get('format'))[:40]}, but this version of iel reads format {version}; "
            "use the version that wrote it."
        )
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    if manifest.get("sha256") != _digest(content) or text != _json_text(manifest).encode():
        raise error(f"{source} is damaged (it does not match its own sha256); {remedy}.")
    listed = as_struct(manifest, Manifest, str(source), error).files
    for name in listed:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise error(
                f"{source} lists {name[:80]!r}, which is not the name of a file in its directory; do not use it."
            )
    return manifest, listed


def _digest(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------- notices and locks


def guarded(action: Callable[[], int]) -> int:
    """The exit code of a command after its output is flushed; an OSError becomes a notice and code 2.

    A reader of stdout that closes it (`| head`) ends the command quietly, with the code of SIGPIPE.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file need not be text
    try:
        try:
            code = action()
        except SystemExit as leaving:
            code = leaving.code  # type: ignore[assignment]
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        silence("stdout")
        return 128 + signal.SIGPIPE
    except OSError as problem:
        silence("stdout")
        notice(os_sentence(problem) if problem.filename else f"The output could not be written ({problem.strerror}).")
        return 2


_said: set[str] = set()


def notice(message: str, once: bool = False) -> None:
    """Print a message for the user on stderr; with `once`, not a second time in this process."""
    if once and message in _said:
        return
    _said.add(message)
    print(f"iel: {message}", file=STDERR, flush=True)


@contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of `directory` (created if need be), after waiting for at most `patience` seconds.

    The kernel frees the lock of a killed process, so no lock is ever stale.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open_in_place(directory / ".lock", append=True)
    except OSError as error:
        raise RunError(f"{directory} cannot be written ({error.strerror}); choose another --out.") from error
    with file:
        deadline = time.monotonic() + patience
        while not _acquire(file, directory):
            if time.monotonic() >= deadline:
                holder = os.pread(file.fileno(), 100, 0).decode(errors="replace").strip() or "unknown"
                raise RunError(
                    f"{directory} is being trained by another process ({holder}); wait for it, or choose another --out."
                )
            time.sleep(0.2)
        os.ftruncate(file.fileno(), 0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        yield


def _acquire(file: BinaryIO, directory: Path) -> bool:
    """Whether the lock is ours now; true with a notice on a file system without locks."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        notice(f"{directory} is on a file system without locks ({error.strerror}); train in it only once at a time.")
    return True
