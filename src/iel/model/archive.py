"""A model's or an agent's directory as one file: a plain zip of it.

The manifest inside says what the archive may hold. Only its names are unpacked, each of them no longer than it says,
and compared with their checksums; anything else in the archive is refused.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from iel.errors import RunError
from iel.files import MANIFEST, FileFacts, read_manifest, require_space, verify_seal, writing
from iel.loader import JSON_BYTES, check_budget, open_regular, open_zip, os_errors

MANIFEST_FORMAT = 1
SUFFIX = ".zip"
BLOCK = 1 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the same files give the same archive."""


def pack(directory: Path, out: Path) -> None:
    """Write what the manifest of a directory lists as a zip archive, stored as it is, whole or not at all."""
    _, listed = read_manifest(directory / MANIFEST, MANIFEST_FORMAT)
    with os_errors(RunError, out, writing=True), writing(out) as file, zipfile.ZipFile(file, "w") as archive:
        for name in (MANIFEST, *listed):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            with open_regular(directory / name, RunError) as (source, size):
                entry.file_size = size
                with archive.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, BLOCK)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The directory of a model: `path` itself or, if it is a zip archive, a temporary copy of what is in it."""
    if not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="iel-") as scratch:
        directory = Path(scratch) / path.name
        directory.mkdir()
        unpack(path, directory)
        yield directory


def unpack(path: Path, directory: Path) -> None:
    """Unpack an archive into an empty directory, and verify it. All files may be in one folder of the archive."""
    with open_zip(path, RunError) as (archive, entries):
        folder = next((name.removesuffix(MANIFEST) for name in entries if name.endswith(f"/{MANIFEST}")), "")
        known = {name.removeprefix(folder): entry for name, entry in entries.items() if name != folder}

        def take(name: str, size: int) -> None:
            if name not in known:
                raise RunError(f"{path} lacks {folder}{name}, so it is not an agent; pack its whole directory again.")
            with archive.open(known[name]) as stream:
                receive(iter(lambda: stream.read(BLOCK), b""), directory / name, size, str(path))

        take(MANIFEST, JSON_BYTES)
        listed = read_listed(directory, str(path))
        if extra := known.keys() - listed.keys() - {MANIFEST}:
            raise RunError(f"{path} holds {min(extra)[:80]!r}, which its {MANIFEST} does not list; do not use it.")
        for name, facts in listed.items():
            take(name, facts.size)
    verify_seal(directory, MANIFEST_FORMAT, remedy="get it again")


def read_listed(directory: Path, source: str) -> dict[str, FileFacts]:
    """The files that a directory is going to hold, by its manifest, if there is room and memory for them."""
    _, listed = read_manifest(directory / MANIFEST, MANIFEST_FORMAT, remedy="get it again")
    total = sum(facts.size for facts in listed.values())
    check_budget(source, total, RunError)
    require_space(directory, total, f"the files of {source}")
    return listed


def receive(blocks: Iterable[bytes], target: Path, most: int, source: str) -> None:
    """Write blocks to a new file of at most `most` bytes; more is refused before it is written."""
    with os_errors(RunError, target, writing=True), target.open("xb") as file:
        for block in blocks:
            if file.tell() + len(block) > most:
                raise RunError(
                    f"{source}: {target.name} is longer than the {most:,} bytes it should have; do not use it."
                )
            file.write(block)
