"""Files that survive: written beside their final name, flushed to the disk, renamed; and one writer a directory.

A rename is the only moment at which anything changes for a reader, so a process that is killed, or a machine that loses
its power, leaves the old content or the new one and never a mixture.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iel.errors import RunError
from iel.loader.files import open_regular

PARTIAL = ".tmp-"
"""How the names of unfinished files and directories begin."""
SLACK = 1 << 20
"""Bytes left free beyond what a save needs, for metrics and directory entries."""


def partial_name(parent: Path) -> Path:
    """A name beside the final one that nobody else uses."""
    return parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}"


def write_json(path: Path, value: Any) -> None:
    """JSON with a final newline, whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text file with the line ends the text has, whole or not at all; one that was there keeps its permissions."""
    partial = partial_name(path.parent)
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_directory(partial: Path, final: Path) -> None:
    """Give a finished directory its name; what had the name before is moved aside first and removed last."""
    old = partial_name(final.parent) if final.exists() else None
    if old is not None:
        final.rename(old)
    partial.rename(final)
    flush(final.parent)
    if old is not None:
        shutil.rmtree(old)


def remove_directory(directory: Path) -> None:
    """Remove a directory that others may look at: its name goes first, its content afterwards."""
    doomed = partial_name(directory.parent)
    directory.rename(doomed)
    shutil.rmtree(doomed)


def remove_partials(directory: Path) -> None:
    """Remove what a killed process left unfinished. Only for the holder of the lock: nobody else writes here then."""
    for path in directory.glob(f"{PARTIAL}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def sha256(path: Path) -> str:
    """Digest of a file's content."""
    with open_regular(path, RunError) as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_space(directory: Path, needed: int, purpose: str) -> None:
    """Refuse to start writing what will not fit."""
    free = shutil.disk_usage(directory).free
    if free < needed + SLACK:
        raise RunError(
            f"{directory} has {free / 1e6:,.1f} MB free, but {purpose} need {(needed + SLACK) / 1e6:,.1f} MB; "
            "free some space or choose another --out."
        )


def write_error(what: str, place: Path, error: Exception) -> RunError:
    """One sentence for whatever the disk said."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    forbidden = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    remedy = "make it writable" if forbidden else "free some space"
    return RunError(
        f"{what} could not be written to {place} ({reason}); {remedy}, then continue with `iel train --resume`."
    )


def notice(message: str) -> None:
    """Something the user should know, on stderr."""
    print(f"iel: {message}", file=sys.stderr, flush=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only process that trains in `directory` (made if need be). The kernel frees the lock of a killed one."""
    import fcntl

    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(f"{directory} cannot be written ({error.strerror}); choose another --out.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "unknown"
            raise RunError(
                f"{directory} is being trained by another process ({holder}); wait for it, or choose another --out."
            ) from None
        except OSError as error:  # a file system without locks: train all the same, but say so
            notice(
                f"{directory} is on a file system without locks ({error.strerror}); train in it only once at a time."
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
