"""SIGKILL at any moment of `data make`, `export`, `evaluate` and `compare`: the same command again ends as if nothing
had happened, and until then nothing is there that is not whole.
"""

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from processes import Command, ended

from iel.data import load
from iel.errors import IELError
from iel.files import PARTIAL
from iel.methods import IEL
from iel.model import load_model
from iel.training import open_run, train
from run_files import sha256

MAZE = "pointmaze-medium-navigate-v0"
KILLS = 15
IN_TURN = 3
"""Kills one after another in one directory, before the command may finish there."""
VOLATILE = {"seconds", "planning_seconds", "training_seconds", "evaluation_seconds", "sessions", "sha256"}
"""What differs between two runs of the same command."""
GRID = f"""
environments = ["{MAZE}"]
seeds = [0]
preset = "smoke"
protocol = {{ episodes = 1, seed = 1, tasks = [1, 2], max_steps = 60 }}
data = {{ episodes = 60 }}
settings = {{ steps = 200, hidden = [16], batch_size = 16, dimension = 4 }}

[[methods]]
algo = "iel"
planners = ["direct", "sym-graph"]

[planners.sym-graph]
nodes = 32
"""


def scores(path: Path) -> str:
    """Digest of a JSON file without the times in it; one that is not whole is an error."""

    def lasting(value):
        if isinstance(value, dict):
            return {name: lasting(inner) for name, inner in value.items() if name not in VOLATILE}
        return [lasting(inner) for inner in value] if isinstance(value, list) else value

    return hashlib.sha256(json.dumps(lasting(json.loads(path.read_text()))).encode()).hexdigest()


def digests(root: Path, *patterns: str) -> dict[str, str]:
    """Of all finished files below a directory that one of the patterns finds."""
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    own = {path: path.relative_to(root) for path in paths}
    return {
        str(name): scores(path) if path.suffix == ".json" else sha256(path)
        for path, name in own.items()
        if not any(part.startswith(".") for part in name.parts)
    }


# Each returns the command, and how its directory is before its first start.


def data_make(lab, trained, root, episodes=24):
    words = ["data", "make", MAZE, "--episodes", str(episodes), "--json", "--out"]
    return Command(lambda location: [*words, str(location)], lambda location: digests(location, "*")), Path.mkdir


def export(lab, trained, root):
    def words(location: Path) -> list[str]:
        return ["export", str(trained.path), "--nodes", "16", "--data", str(lab.file), "--out", str(location / "robot")]

    return Command(words, lambda location: digests(location, "robot/*")), Path.mkdir


def evaluate(lab, trained, root):
    small = ["--planners", "direct", "sym-graph", "--nodes", "32", "--episodes", "1", "--tasks", "1", "2"]

    def words(location: Path) -> list[str]:
        return ["evaluate", str(location), *small, "--max-steps", "60", "--data", str(lab.file)]

    def results(location: Path) -> dict[str, str]:
        found = digests(
            location, "*", "model/*", "plots/*", "evaluations/*"
        )  # evaluations have the names of their times
        own = {name: digest for name, digest in found.items() if name.startswith("evaluations")}
        scored = {(name.split("-", 2)[-1], digest) for name, digest in own.items()}
        assert len(dict(scored)) == len(scored)  # a planner's scores are the same every time
        return {**{name: digest for name, digest in found.items() if name not in own}, **dict(scored)}

    return Command(words, results), lambda location: shutil.copytree(trained.path, location)


def compare(lab, trained, root):
    (root / "grid.toml").write_text(GRID)
    words = ["compare", str(root / "grid.toml"), "--jobs", "1", "--json", "--out"]
    ours = ("*.json", "cells/*/evaluations/*", "cells/*/run/model/*", "cells/*/run/checkpoints/*/state.safetensors")

    def results(location: Path) -> dict[str, str]:
        found = digests(location, *ours)
        found.pop("sessions.json", None)  # every start has a line there
        for name in [name for name in found if "step_" in name and "step_000000200" not in name]:
            found.pop(name)  # earlier saves, which later ones replace
        return found

    return Command(lambda location: [*words, str(location)], results), Path.mkdir


@pytest.fixture(scope="module")
def trained(lab, tmp_path_factory):
    """A tiny run on the lab's data, for others to export and to evaluate."""
    out = tmp_path_factory.mktemp("trained") / "run"
    algo = IEL.preset("smoke", steps=20, hidden=(16,), batch_size=16, dimension=4)
    train(load(lab.file, env=MAZE), algo, [0], out=out, progress=False)
    return open_run(out)


def check_leftovers(command: Command, location: Path) -> int:
    """What has a final name is what an undisturbed command makes; what has not cannot be opened. Counts the latter."""
    found = command.results(location)
    assert found.items() <= command.wanted.items(), found.items() - command.wanted.items()
    left = list(location.rglob(f"{PARTIAL}*"))
    for path in left:
        for reader in (load, load_model, open_run):
            with pytest.raises(IELError):
                reader(path)
    return len(left)


def stored(location: Path) -> dict[Path, int]:
    """Whole blocks of data and evaluations, by inode: they must not be made again."""
    paths = [*location.glob(".*.parts/*.npz"), *location.glob("cells/*/evaluations/*.json")]
    return {path: path.stat().st_ino for path in paths}


def killed_and_finished(make, lab, trained, root: Path, kills: int, seed: int, clock: bool | None = None) -> dict:
    """Kill a command so often, at moments spread over all it does, and let it finish in each directory."""
    command, prepare = make(lab, trained, root)
    prepare(root / "whole")
    command.undisturbed(root / "whole")
    rng, moments = np.random.default_rng(seed), []
    order = rng.permutation(kills)
    unfinished = locations = 0
    while len(moments) < kills:
        location, locations = root / f"location{locations}", locations + 1
        prepare(location)
        ended_early = False
        for turn in range(min(IN_TURN, kills - len(moments))):
            part = (order[len(moments)] + rng.random()) / kills
            by_clock = turn > 0 or locations % 2 == 0 if clock is None else clock  # a second start writes fewer names
            before = stored(location)
            if ended_early := not command.kill(location, part, by_clock, fresh=turn == 0):
                break
            moments.append(part)
            unfinished += check_leftovers(command, location) > 0
            after = stored(location)
            assert all(after.get(path, number) == number for path, number in before.items())
            if command.results(location) == command.wanted:  # it was done, and killed before it could say so
                break
        if not ended_early and command.results(location) != command.wanted:
            process = command.start(location)
            _, errors = ended(process)
            assert process.returncode == 0, errors
        assert command.results(location) == command.wanted
        check_leftovers(command, location)
    return {
        "kills": len(moments),
        "directories": locations,
        "with unfinished names": unfinished,
        "seconds": round(command.seconds, 1),
        "moments": sorted(round(float(part), 2) for part in moments),
    }


@pytest.mark.faults
def test_data_whose_making_was_killed_is_made_to_the_same_bits(tmp_path):
    """One kill while it writes; two blocks and one for validation."""
    make = partial(data_make, episodes=11)
    assert killed_and_finished(make, None, None, tmp_path, kills=1, seed=3, clock=False)["kills"] == 1


@pytest.mark.faults
@pytest.mark.parametrize("make", [data_make, export, evaluate, compare], ids=lambda make: make.__name__)
def test_commands_killed_at_random_end_with_the_same_results(lab, trained, maze_data, tmp_path, make, capsys):
    figures = killed_and_finished(make, lab, trained, tmp_path, KILLS, seed=len(make.__name__))
    with capsys.disabled():
        print(json.dumps({make.__name__: figures}))
    assert figures["kills"] == KILLS
