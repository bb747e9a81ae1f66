"""Checkpoints are directories that are complete or do not exist.

    step_000020000/
      state.safetensors     everything training changes, one array a leaf
      config.json           the run's settings
      state.json            step, phase, seed
      manifest.json         sha256 and size of every file above, and the versions that wrote them

A checkpoint is written beside its final name, flushed, read back and verified, and only then renamed. Whether it is
complete is told by its own manifest, so it can be copied anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

import iel
from iel.errors import RunError
from iel.serial import fill, load_arrays, named_arrays, save_arrays

FORMAT = 1
MANIFEST = "manifest.json"


def save_checkpoint(root: Path, step: int, state: Any, config: dict[str, Any], facts: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` under `root` and return its directory."""
    final = root / f"step_{step:09d}"
    partial = root / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
    partial.mkdir(parents=True)
    try:
        save_arrays(partial / "state.safetensors", named_arrays(state))
        write_json(partial / "config.json", config)
        write_json(partial / "state.json", {"step": step, **facts})
        files = sorted(path for path in partial.iterdir())
        for path in files:
            _flush(path)
        manifest = {
            "format": FORMAT,
            "versions": {"iel": iel.__version__, "jax": jax.__version__, "numpy": np.__version__},
            "files": {path.name: {"sha256": _sha256(path), "size": path.stat().st_size} for path in files},
        }
        write_json(partial / MANIFEST, manifest)
        _flush(partial / MANIFEST)
        verify_checkpoint(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush(root)
    except OSError as error:
        raise RunError(
            f"The checkpoint of step {step} could not be written to {root} ({error}); free some space."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def verify_checkpoint(directory: Path) -> None:
    """Refuse a checkpoint whose files are not the ones its manifest lists."""
    manifest = read_json(directory / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise RunError(f"{directory} has checkpoint format {manifest.get('format')}; this version reads {FORMAT}.")
    for name, facts in manifest["files"].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != facts["size"] or _sha256(path) != facts["sha256"]:
            raise RunError(f"{path} is missing or damaged; use an older checkpoint.")


def latest_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint that verifies, or None."""
    for directory in sorted(root.glob("step_*"), reverse=True):
        try:
            verify_checkpoint(directory)
        except RunError:
            continue
        return directory
    return None


def load_checkpoint(directory: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """(state, facts) of a verified checkpoint; `like` gives the shapes."""
    verify_checkpoint(directory)
    source = directory / "state.safetensors"
    return fill(like, load_arrays(source), str(source)), read_json(directory / "state.json")


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints; called only after a newer one verified."""
    for directory in sorted(root.glob("step_*"))[:-keep]:
        shutil.rmtree(directory)


def write_json(path: Path, value: Any) -> None:
    """JSON with a final newline, under a temporary name first."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else is refused."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path} is missing; the directory is incomplete.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise RunError(f"{path} is not JSON; the directory is damaged.") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} does not hold a JSON object; the directory is damaged.")
    return value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
