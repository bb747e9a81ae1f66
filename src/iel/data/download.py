"""Fetches data sets with the benchmarks' own packages; the final name is only ever given to a whole file.

A package downloads into a temporary directory beside the final one. The files are read completely there, which compares
sizes and checksums and finds every missing end, and only then renamed. A connection that breaks off leaves nothing
behind, although some downloaders take it for the end of the file.
"""

import contextlib
import os
import re
import secrets
import shutil
import sys
from pathlib import Path

from iel.data.catalogue import data_directory, read_rows
from iel.data.d4rl import MINARI_FILE
from iel.envs import require_simulator
from iel.errors import DataError, install

OGBENCH = re.compile(
    r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer)-\w+-(navigate|stitch|explore)-v0"
    r"|(visual-)?(cube|scene|puzzle)(-\w+)*-(play|noisy)-v0|powderworld-\w+-play-v0"
)
MINARI = re.compile(r"\w[\w.-]*(/\w[\w.-]*)+-v\d+")


def has_source(name: str) -> bool:
    """Whether a benchmark's package offers a data set of this name."""
    return bool(OGBENCH.fullmatch(name) or MINARI.fullmatch(name))


def download(name: str, directory: Path | None = None) -> dict[str, Path]:
    """Fetch a data set that `has_source` and return its files by split."""
    directory = directory or data_directory()
    minari = MINARI.fullmatch(name) is not None
    scratch = directory / f".download-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        scratch.mkdir(parents=True)
        with contextlib.redirect_stdout(sys.stderr):
            (fetch_minari if minari else fetch_ogbench)(name, scratch)
        return _settle(name, scratch, directory, minari)
    except DataError:
        raise
    except Exception as problem:  # whatever a foreign downloader may raise
        reason = (str(problem).splitlines() or [type(problem).__name__])[0][:160]
        raise DataError(
            f"Data set '{name}' could not be downloaded ({reason}); check the connection, "
            f"or copy its file to {directory}."
        ) from problem
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def fetch_ogbench(name: str, directory: Path) -> None:
    """OGBench's own downloader: NAME.npz and NAME-val.npz."""
    require_simulator(f"Downloading '{name}'")
    from ogbench.utils import download_datasets

    download_datasets([name], str(directory))


def fetch_minari(name: str, directory: Path) -> None:
    """Minari's own downloader, writing to this directory."""
    try:
        from minari import download_dataset
    except ImportError:
        raise DataError(f"Downloading '{name}' needs the minari package; {install('minari')}.") from None
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(directory)
    try:
        download_dataset(name)
    finally:
        del os.environ["MINARI_DATASETS_PATH"]
        os.environ |= {} if before is None else {"MINARI_DATASETS_PATH": before}


def _settle(name: str, scratch: Path, directory: Path, minari: bool) -> dict[str, Path]:
    """Rename the downloaded files after all of them have been read."""
    if minari:
        downloaded, final = {"train": scratch / name}, directory / "minari" / name
        needed = scratch / name / "data" / MINARI_FILE
    else:
        downloaded, final = {"train": scratch / f"{name}.npz", "val": scratch / f"{name}-val.npz"}, directory / name
        needed = downloaded["train"]
    if not needed.exists():
        raise DataError(f"The download of '{name}' brought no {needed.name}; copy the file to {directory} by hand.")
    downloaded = {split: path for split, path in downloaded.items() if path.exists()}
    for path in downloaded.values():
        try:
            read_rows(path).trajectories(trust=True)
        except DataError as problem:
            raise DataError(f"The download of '{name}' is not whole and was removed ({problem}) Try again.") from None
    final.parent.mkdir(parents=True, exist_ok=True)
    files = {split: final.parent / path.name for split, path in downloaded.items()}
    for split, path in downloaded.items():
        # Another process may have been quicker with the directory: its files are whole, too.
        with contextlib.suppress(OSError) if minari else contextlib.nullcontext():
            path.replace(files[split])
    return files
