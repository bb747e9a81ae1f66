"""Checkpoints are directories that are complete or do not exist.

    step_000020000/
      state.safetensors     everything training changes, one array a leaf
      config.json           the run's settings
      state.json            step, phase, seed, and how long metrics.csv was
      manifest.json         sha256 and size of every file above, of the data, of itself; the versions that wrote them

A checkpoint is written beside its final name, flushed, read back and verified, and only then renamed; older ones are
removed afterwards. Whether it is complete is told by its own manifest, so it can be copied anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from safetensors import SafetensorError

import iel
from iel.errors import RunError
from iel.files import (
    MANIFEST,
    new_directory,
    remove_directory,
    require_space,
    seal,
    verify_seal,
    write_error,
    write_json,
)
from iel.loader import read_json
from iel.serial import fill, load_arrays, named_arrays, save_arrays
from iel.typed import Index, Seed, as_struct

FORMAT = 2
FILES = {"config.json", "state.json", "state.safetensors"}


class MetricsFacts(Struct, frozen=True):
    """How long metrics.csv was, and its content until there."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: str


class Facts(Struct, frozen=True):
    """What state.json must hold."""

    step: Index
    phase: str = ""
    seed: Seed = 0
    metrics: MetricsFacts | UnsetType = UNSET


def checkpoint_name(step: int) -> str:
    """The directory of a step."""
    return f"step_{step:09d}"


def save_checkpoint(root: Path, step: int, state: Any, config: dict[str, Any], facts: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` under `root` and return its directory. One that is there and whole is kept."""
    final = root / checkpoint_name(step)
    if final.exists() and is_whole(final):
        return final
    require_space(root, state_bytes(state), f"the checkpoint of step {step} and what follows it")
    try:
        with new_directory(final) as partial:
            save_arrays(partial / "state.safetensors", named_arrays(state))
            write_json(partial / "config.json", config)
            write_json(partial / "state.json", {"step": step, **facts})
            seal(partial, FORMAT, versions(), data=config.get("data", {}).get("fingerprint"))
    except (OSError, SafetensorError) as error:
        raise write_error(f"The checkpoint of step {step}", root, error) from error
    return final


def state_bytes(state: Any) -> int:
    """Size of a state on disk, headers aside."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def versions() -> dict[str, str]:
    """What the last bits of a result depend on besides the run's own settings."""
    return {
        "iel": iel.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "device": jax.devices()[0].device_kind,
    }


def verify_checkpoint(directory: Path) -> dict[str, Any]:
    """Refuse a checkpoint whose files are not the ones its manifest lists; returns the manifest."""
    if directory.is_symlink():
        raise RunError(f"{directory} is a symbolic link, which is not followed; use an older checkpoint.")
    manifest = verify_seal(directory, FORMAT, remedy="use an older checkpoint")
    if manifest["files"].keys() != FILES:
        raise RunError(f"{directory / MANIFEST} does not list {', '.join(sorted(FILES))}; use an older checkpoint.")
    return manifest


def read_facts(directory: Path) -> dict[str, Any]:
    """The checked content of a checkpoint's state.json."""
    facts = read_json(directory / "state.json")
    as_struct(facts, Facts, str(directory / "state.json"), RunError)
    return facts


def is_whole(directory: Path) -> bool:
    """Whether a checkpoint verifies."""
    try:
        verify_checkpoint(directory)
    except RunError:
        return False
    return True


def saved_steps(root: Path) -> dict[int, Path]:
    """step -> directory of everything that has a checkpoint's name, whole or not."""
    named = ((re.fullmatch(r"step_([0-9]{9,12})", path.name), path) for path in root.glob("step_*"))
    return {int(match[1]): path for match, path in named if match}


def newest_common(
    roots: Sequence[Path], check: Callable[[Path], object] = verify_checkpoint
) -> tuple[int | None, list[str]]:
    """The newest step whose checkpoint passes `check` under every root, or None; and what was wrong with newer ones."""
    problems: list[str] = []
    common = set.intersection(*(set(saved_steps(root)) for root in roots))
    for step in sorted(common, reverse=True):
        try:
            for root in roots:
                check(root / checkpoint_name(step))
        except RunError as error:
            problems.append(str(error))
        else:
            return step, problems
    return None, problems


def latest_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint that verifies, or None."""
    step, _ = newest_common([root])
    return None if step is None else root / checkpoint_name(step)


def load_checkpoint(directory: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """(state, facts) of a verified checkpoint; `like` gives the shapes."""
    verify_checkpoint(directory)
    source = directory / "state.safetensors"
    return fill(like, load_arrays(source), str(source)), read_facts(directory)


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints; called only after a newer one verified."""
    steps = saved_steps(root)
    try:
        for step in sorted(steps)[:-keep]:
            remove_directory(steps[step])
    except OSError as error:
        raise RunError(
            f"Old checkpoints in {root} could not be removed ({error.strerror or error}); make it writable, then "
            "continue with `iel train --resume`."
        ) from error
