"""Checkpoints are directories that are complete or do not exist.

    step_000020000/
      state.safetensors     everything training changes, one array a leaf
      config.json           the run's settings
      state.json            step, phase, seed, and how long metrics.csv was
      manifest.json         sha256 and size of every file above, of the data, of itself; the versions that wrote them

A checkpoint is written beside its final name, flushed, read back and verified, and only then renamed; older ones are
removed afterwards. Its own manifest says whether it is complete, so it can be copied anywhere.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import msgspec
import numpy as np

import iel
from iel.errors import RunError
from iel.files import (
    MANIFEST,
    new_directory,
    notice,
    remove_directory,
    remove_partials,
    require_space,
    seal,
    verify_seal,
    write_errors,
    write_json,
)
from iel.loader import read_json
from iel.serial import fill, load_arrays, named_arrays, save_arrays
from iel.training.run import Config, Run, check_config, differences
from iel.training.trackers import MetricsFacts
from iel.typed import Index, Seed, as_struct

FORMAT = 2
FILES = {"config.json", "state.json", "state.safetensors"}
Tree = TypeVar("Tree")


class Facts(msgspec.Struct, frozen=True):
    """What state.json holds."""

    step: Index
    phase: str = ""
    seed: Seed = 0
    metrics: MetricsFacts | None = None


class Resumed(NamedTuple, Generic[Tree]):
    """Where training continues: a step, and every seed's state and facts there."""

    step: int
    states: list[Tree]
    facts: dict[int, Facts]


def checkpoint_name(step: int) -> str:
    return f"step_{step:09d}"


def save_checkpoint(root: Path, state: object, config: Config, facts: Facts) -> Path:
    """Write a checkpoint under `root` and return its directory. One of this step that is there and whole stays."""
    final, what = root / checkpoint_name(facts.step), f"checkpoint of step {facts.step}"
    if final.exists() and is_whole(final):
        return final
    require_space(root, state_bytes(state), f"the {what} and what follows it")
    with write_errors(f"The {what}", root), new_directory(final) as partial:
        save_arrays(partial / "state.safetensors", named_arrays(state))
        write_json(partial / "config.json", config)
        write_json(partial / "state.json", msgspec.to_builtins(facts))
        seal(partial, FORMAT, versions(), data=config.get("data", {}).get("fingerprint"))
    return final


def state_bytes(state: object) -> int:
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


def read_facts(directory: Path) -> Facts:
    """The checked content of a checkpoint's state.json."""
    return as_struct(read_json(directory / "state.json"), Facts, str(directory / "state.json"), RunError)


def is_whole(directory: Path) -> bool:
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


def load_checkpoint(directory: Path, like: Tree) -> tuple[Tree, Facts]:
    """(state, facts) of a verified checkpoint; `like` gives the shapes."""
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


# ---------------------------------------------------------------- from which step does a run continue?


def find_checkpoint(runs: dict[int, Run], like: Tree) -> Resumed[Tree] | None:
    """The newest step that every seed has a whole checkpoint of; None if nothing was saved yet.

    Broken ones are named and set aside; what only some of the seeds have is removed, as it will come again.
    """
    owners = {run.folder("checkpoints"): run for run in runs.values()}
    for root, run in owners.items():
        for location in (run.path, run.path / "models", root):
            if location.is_dir():
                remove_partials(location)
    step, problems = newest_common(list(owners), lambda directory: _require_own(directory, owners[directory.parent]))
    for problem in problems:
        notice(f"skipped a checkpoint: {problem}")
    if step is None:
        if problems:
            raise RunError(
                f"No checkpoint in {next(iter(owners))} can be used; to train again from step 0, remove that directory."
            )
        return None
    states, facts = zip(*(load_checkpoint(root / checkpoint_name(step), like) for root in owners), strict=True)
    for root in owners:
        for other, directory in saved_steps(root).items():
            if other > step and is_whole(directory):
                remove_directory(directory)
            elif other > step:
                aside = root / f"damaged_{directory.name}"
                if aside.exists():
                    remove_directory(aside)
                directory.rename(aside)
    return Resumed(step, list(states), dict(zip(runs, facts, strict=True)))


def _require_own(directory: Path, run: Run) -> None:
    """A whole checkpoint, of this step and this run (not one that was copied here from elsewhere)."""
    manifest = verify_checkpoint(directory)
    step = read_facts(directory).step
    if checkpoint_name(step) != directory.name:
        raise RunError(f"{directory} holds step {step}, which is not what its name says; use an older checkpoint.")
    recorded = read_json(directory / "config.json")
    check_config(recorded, directory / "config.json")
    if different := differences(run.config, recorded):
        phrase = different[0].removesuffix(" now")
        raise RunError(f"{directory} belongs to another run ({phrase} in the checkpoint); use an older checkpoint.")
    # A later version may have written down more than this one knows of.
    then, now = manifest.get("versions", {}), versions()
    if changed := [f"{name} {then[name]} -> {now[name]}" for name in now if then.get(name, now[name]) != now[name]]:
        notice(f"{directory} was written with other versions ({', '.join(changed)}); the last bits may differ.")
