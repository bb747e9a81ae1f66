"""Continuing a run: is it the same run, and from which step?

A resumed run must end with the bits of one that was never stopped, so everything that decides them has to agree: the
data, the method and its settings, the seeds trained together, and where metrics are averaged. What differs is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iel.errors import RunError
from iel.files import notice, remove_directory, remove_partials
from iel.loader import read_json
from iel.methods import config_dict
from iel.training.checkpoint import (
    checkpoint_name,
    load_checkpoint,
    newest_common,
    read_facts,
    saved_steps,
    verify_checkpoint,
    versions,
)
from iel.training.run import Run, check_config, create_run, open_run
from iel.typed import check_numbers, check_seeds


class Resumed(NamedTuple):
    """Where training continues: a step, and every seed's state and facts there."""

    step: int
    states: list[Any]
    facts: dict[int, dict[str, Any]]


def run_paths(out: Path, seeds: list[int]) -> dict[int, Path]:
    """One seed trains in OUT itself, several in OUT/seed_K."""
    return {seed: out if len(seeds) == 1 else out / f"seed_{seed}" for seed in seeds}


def holds_run(out: Path) -> bool:
    """Whether there is a run, or several seeds, in this directory."""
    return (out / "config.json").exists() or any(out.glob("seed_*/config.json"))


def open_or_create(out: Path, seeds: list[int], config: dict[str, Any], resume: bool) -> dict[int, Run]:
    """The runs of all seeds: new ones, or with `resume` those that are there, if they are runs of this `config`."""
    if not resume and holds_run(out):
        raise RunError(
            f"{out} already holds a run; continue it with `iel train --resume {out}`, choose another --out, or "
            "remove it."
        )
    check_seeds(seeds)
    check_numbers(config["settings"], "settings")
    runs: dict[int, Run] = {}
    for seed, path in run_paths(out, seeds).items():
        expected = {**config, "seed": seed}
        if (path / "config.json").exists():
            runs[seed] = open_run(path)
            require_same(runs[seed], expected)
        elif (out / "config.json").exists() or (len(seeds) == 1 and holds_run(out)):
            raise RunError(f"{out} holds a run of other seeds; give the seeds it was started with.")
        else:  # new, or killed before this seed's directory was made
            runs[seed] = create_run(path, expected)
    return runs


def nothing_left(runs: Mapping[int, Run]) -> bool:
    """Whether all runs are finished and have their models: resuming them has nothing to do, and changes no file."""
    return all(run.status == "finished" and (run.path / "model").is_dir() for run in runs.values())


# ---------------------------------------------------------------- is it the same run?


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the bits of a run, under flat names."""
    settings = dict(config.get("settings", {}))
    policy = settings.pop("policy", None) or {}
    return {
        "algo": config.get("algo"),
        **{f"settings.{name}": value for name, value in settings.items()},
        **{f"settings.policy.{name}": value for name, value in policy.items()},
        "seed": config.get("seed"),
        "seeds": config.get("seeds"),
        "checkpoint_every": config.get("checkpoint_every"),
        "snapshots": config.get("snapshots", 1),
        "data.fingerprint": config.get("data", {}).get("fingerprint"),
    }


def differences(run: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The fields in which two configurations differ, each as a phrase."""
    mine, other = identity(run), identity(now)
    return [
        f"{name} is {mine.get(name)!r} in the run and {other.get(name)!r} now"
        for name in {**mine, **other}
        if mine.get(name) != other.get(name)
    ]


def require_same(run: Run, now: dict[str, Any]) -> None:
    """Refuse to continue a run with another method, other settings, seeds or data, and say what differs."""
    if "seeds" not in run.config or "data" not in run.config:
        raise RunError(f"{run.path} was written by a version that could not resume; train it again.")
    recorded, data = dict(run.config), run.config["data"]
    if run.config["algo"] == now["algo"]:  # settings that are newer than the run have their defaults
        recorded["settings"] = config_dict(run.algo)
    if data["fingerprint"] != now["data"]["fingerprint"]:
        raise RunError(
            f"{run.path} cannot be resumed on other data: data.fingerprint is {data['fingerprint'][:12]}... in the run "
            f"('{data.get('name')}', {data.get('episodes')} episodes) and {now['data']['fingerprint'][:12]}... now "
            f"('{now['data']['name']}', {now['data']['episodes']} episodes); give the data it was started with."
        )
    different = differences(recorded, now)
    if different:
        steps = any(phrase.startswith("settings.steps ") for phrase in different)
        why = "phases are shares of the steps, so a longer run is another run: train it anew" if steps else ""
        raise RunError(
            f"{run.path} cannot be resumed with another configuration: {'; '.join(different[:5])}; "
            f"{why or 'leave these as they were, or start a new run'}."
        )


# ---------------------------------------------------------------- from which step?


def find_checkpoint(runs: dict[int, Run], like: Any) -> Resumed | None:
    """The newest step that every seed has a whole checkpoint of; None if nothing was saved yet.

    Broken ones are named and set aside; what only some of the seeds have is removed, as it will come again.
    """
    roots = {seed: run.folder("checkpoints") for seed, run in runs.items()}
    for seed, run in runs.items():
        remove_partials(run.path)
        if (run.path / "models").is_dir():
            remove_partials(run.path / "models")
        remove_partials(roots[seed])
    owners = {roots[seed]: run for seed, run in runs.items()}
    step, problems = newest_common(list(owners), lambda directory: _require_own(directory, owners[directory.parent]))
    for problem in problems:
        notice(f"skipped a checkpoint: {problem}")
    if step is None:
        if problems:
            raise RunError(
                f"No checkpoint in {next(iter(owners))} can be used; to train again from step 0, remove that directory."
            )
        return None
    states, facts = [], {}
    for seed, root in roots.items():
        state, facts[seed] = load_checkpoint(root / checkpoint_name(step), like)
        states.append(state)
    for root in owners:
        _drop_newer(root, step)
    return Resumed(step, states, facts)


def _require_own(directory: Path, run: Run) -> None:
    """A whole checkpoint, of this step and this run (not one that was copied here from elsewhere)."""
    manifest = verify_checkpoint(directory)
    step = read_facts(directory)["step"]
    if checkpoint_name(step) != directory.name:
        raise RunError(f"{directory} holds step {step}, which is not what its name says; use an older checkpoint.")
    recorded = read_json(directory / "config.json")
    check_config(recorded, directory / "config.json")
    different = differences(run.config, recorded)
    if different:
        phrase = different[0].removesuffix(" now")
        raise RunError(f"{directory} belongs to another run ({phrase} in the checkpoint); use an older checkpoint.")
    # A later version may have written down more than this one knows of.
    then, now = manifest.get("versions", {}), versions()
    changed = [f"{name} {then[name]} -> {now[name]}" for name in now if name in then and then[name] != now[name]]
    if changed:
        notice(f"{directory} was written with other versions ({', '.join(changed)}); the last bits may differ.")


def _drop_newer(root: Path, step: int) -> None:
    for other, directory in saved_steps(root).items():
        if other > step:
            try:
                verify_checkpoint(directory)
            except RunError:
                aside = root / f"damaged_{directory.name}"
                if aside.exists():
                    remove_directory(aside)
                directory.rename(aside)
            else:
                remove_directory(directory)
