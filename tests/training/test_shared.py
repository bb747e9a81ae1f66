"""A policy that needs nothing of the geometry is trained by one run, and others continue from it to the same bits."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import iel.training.loop as loop
from iel.data import Trajectories
from iel.errors import ConfigError
from iel.methods import METHODS
from iel.policies import Directions, Waypoints
from iel.training import train
from iel.training.loop import Interrupted, Trainer
from iel.training.shared import policy_fingerprint
from run_files import latest_checkpoint, sha256

POLICY = Waypoints(steps=30, columns=(0, 1))
SMALL = {"steps": 20, "hidden": (16,), "batch_size": 16, "policy": POLICY}
QRL, GCIVL = (METHODS[name].preset("smoke", **SMALL) for name in ("qrl", "gcivl"))


@pytest.fixture(scope="module")
def walks() -> Trajectories:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (5, 40, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), a.cumsum(0)]), a) for a in actions], "walks")


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(loop, "CHUNK", 8)


@pytest.fixture
def phases(monkeypatch) -> list[str]:
    """Names of the phases that are trained from now on."""
    trained, stepper = [], Trainer.stepper
    monkeypatch.setattr(Trainer, "stepper", lambda self, phase: (trained.append(phase.name), stepper(self, phase))[1])
    return trained


def fit(walks, out: Path, algo=GCIVL, seed: int = 0, others: tuple[Path, ...] = ()) -> Path:
    train(walks, algo, [seed], out=out, resume=True, progress=False, policy_with=others)
    return out


def results(out: Path) -> list[str]:
    newest = latest_checkpoint(out / "checkpoints")
    files = (
        newest / "state.safetensors",
        newest / "state.json",
        out / "metrics.csv",
        out / "model" / "model.safetensors",
    )
    return [sha256(file) for file in files]


@pytest.fixture(scope="module")
def lent(walks, tmp_path_factory) -> Path:
    """The run of another geometry, which trained the policy and left it."""
    root = tmp_path_factory.mktemp("lent")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHUNK", 8)
        return fit(walks, root / "qrl", QRL, others=(root / "missing",))


def test_a_policy_of_another_geometry_gives_the_same_run_to_the_bit(walks, lent, tmp_path, phases):
    alone = fit(walks, tmp_path / "alone")
    assert phases == ["policy", "train"] and not (alone / "policy").exists()
    phases.clear()
    shared = fit(walks, tmp_path / "shared", others=(tmp_path / "missing", lent))
    assert phases == ["train"] and results(shared) == results(alone)
    assert not (shared / "policy").exists()  # there is one of it


def test_a_run_that_took_a_policy_is_resumed_without_it(walks, lent, tmp_path, monkeypatch):
    report = Trainer._report
    other = shutil.copytree(lent, tmp_path / "lent")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "_report", lambda self, *rest: (report(self, *rest), self.stop.set()))
        fit(walks, tmp_path / "run", others=(other,))
    shutil.rmtree(other)
    assert results(fit(walks, tmp_path / "run", others=(other,))) == results(fit(walks, tmp_path / "alone"))


@pytest.mark.parametrize("part", ["state.safetensors", "metrics.csv", "manifest.json", None])
def test_a_policy_that_is_damaged_or_half_there_is_trained(walks, lent, tmp_path, phases, part):
    other = shutil.copytree(lent, tmp_path / "lent")
    if part is None:
        (other / "policy" / "state.safetensors").unlink()
    else:
        content = bytearray((other / "policy" / part).read_bytes())
        content[len(content) // 2] ^= 1
        (other / "policy" / part).write_bytes(content)
    run = fit(walks, tmp_path / "run", others=(other,))
    assert phases == ["policy", "train"] and (run / "policy").is_dir()  # and left for others
    phases.clear()
    third = fit(walks, tmp_path / "third", QRL, others=(other, run))
    assert phases == ["train"] and results(third) == results(lent)


def test_a_policy_left_in_the_middle_of_its_training_is_finished_by_its_own_run(walks, lent, tmp_path, monkeypatch):
    report = Trainer._report
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trainer, "_report", lambda self, *rest: (report(self, *rest), self.stop.set()))
        fit(walks, tmp_path / "run", QRL, others=(tmp_path / "missing",))
    assert not (tmp_path / "run" / "policy").exists()
    run = fit(walks, tmp_path / "run", QRL, others=(tmp_path / "missing",))
    mine, other = (
        [sha256(where / "policy" / name) for name in ("state.safetensors", "metrics.csv")] for where in (run, lent)
    )
    assert mine == other


def test_what_decides_a_policy_is_in_its_fingerprint(walks, lent, tmp_path, phases):
    mine = policy_fingerprint(GCIVL, "data", 0)
    rate = replace(POLICY, learning_rate=GCIVL.learning_rate)
    same = replace(GCIVL, policy=replace(POLICY, steps=0), steps=30), replace(GCIVL, policy=rate), QRL
    assert {policy_fingerprint(algo, "data", 0) for algo in same} == {mine}
    changes = (
        {"batch_size": 8},
        {"hidden": (8,)},
        {"policy_hidden": (4,)},
        {"learning_rate": 1e-5},
        {"standardise": "all"},
        {"policy": replace(POLICY, steps=29)},
        {"policy": replace(POLICY, future_steps=3)},
    )
    others = [policy_fingerprint(replace(GCIVL, **change), "data", 0) for change in changes]
    others += [policy_fingerprint(GCIVL, "data", 1), policy_fingerprint(GCIVL, "other", 0)]
    assert len({mine, *others}) == len(others) + 1
    hilp = METHODS["hilp"].preset("smoke", policy=Directions())
    assert policy_fingerprint(hilp, "data", 0) is policy_fingerprint(replace(GCIVL, policy=None), "data", 0) is None
    fit(walks, tmp_path / "run", seed=1, others=(lent,))  # the policy of seed 0
    assert phases == ["policy", "train"]


def test_runs_of_several_seeds_share_nothing(walks, tmp_path):
    with pytest.raises(ConfigError, match="policy_with needs `out`, one seed"):
        train(walks, GCIVL, [0, 1], out=tmp_path, policy_with=[tmp_path])
