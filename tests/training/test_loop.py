"""The training loop: one seed, one result; whatever happens between chunks changes nothing."""

import json
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import iel.training.loop as loop
import iel.training.steps as steps
from iel.data import Trajectories
from iel.errors import ConfigError, IELError, RunError
from iel.learner import Spec
from iel.methods import IEL, get_method
from iel.model import load_model
from iel.policies import Directions
from iel.training import open_run, open_runs, train
from iel.training.checkpoint import Facts, load_checkpoint
from iel.training.loop import snapshot_steps
from iel.training.trackers import facts_of, read_metrics
from run_files import latest_checkpoint

SMALL = {"hidden": (16,), "batch_size": 16, "dimension": 4}
TINY = IEL.preset("smoke", **SMALL, steps=36, omega_share=1 / 3, policy=Directions(steps=24, target_rate=0.05))


@pytest.fixture(scope="module")
def walks() -> Trajectories:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (5, 40, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), a.cumsum(0)]), a) for a in actions], "walks")


@pytest.fixture(scope="module")
def trained(walks, tmp_path_factory):
    return train(walks, TINY, [0], out=tmp_path_factory.mktemp("run") / "a", checkpoint_every=25, progress=False)


def weights(model) -> dict[str, np.ndarray]:
    return {f"{n}.{part}": array for n, net in model.networks.items() for part, array in net.arrays().items()}


def test_one_seed_gives_the_same_bits_and_another_does_not(walks, trained, monkeypatch):
    monkeypatch.setattr(loop, "CHUNK", 7)  # and the chunk length, like checkpoints, cannot change the result
    again = train(walks, TINY, [0], progress=False)
    for name, array in weights(trained.model).items():
        assert np.array_equal(array, weights(again.model)[name]), name


def test_seeds_trained_together_are_the_seeds_trained_alone(walks, trained, tmp_path):
    """To the bit on a CPU, where every seed runs the program of one."""
    both = train(walks, TINY, [3, 0], out=tmp_path / "both", checkpoint_every=25, progress=False)
    for name, array in weights(trained.model).items():
        assert np.array_equal(array, weights(both.models[0])[name]), name
    assert any(
        not np.array_equal(array, weights(both.models[3])[name]) for name, array in weights(trained.model).items()
    )
    assert [run.seed for run in open_runs(tmp_path / "both")] == [0, 3]
    alone, together = (path / "metrics.csv" for path in (trained.path, tmp_path / "both" / "seed_0"))
    assert alone.read_bytes() == together.read_bytes()


@pytest.mark.long
@pytest.mark.optimised
def test_a_batch_changes_no_bit_of_networks_worth_sharing_among_threads(walks, monkeypatch):
    monkeypatch.setattr(steps, "usable_cores", lambda: [0, 1])  # fewer than seeds
    wide = IEL.preset("smoke", steps=90, hidden=(256, 256), batch_size=256, omega_share=0.5)
    alone, together = (train(walks, wide, seeds, progress=False).models[5] for seeds in ([5], [1, 2, 5]))
    for name, array in weights(alone).items():
        assert np.array_equal(array, weights(together)[name]), name


def test_seeds_trained_by_vmap_are_the_seeds_trained_alone(walks, trained, tmp_path, monkeypatch):
    """To float tolerance: a mapped matrix product rounds differently, and Adam turns rounding of a gradient that is
    exactly zero (phi may be shifted freely) into small steps. So distances and actions are compared, not weights."""
    monkeypatch.setattr(jax, "default_backend", lambda: "an accelerator")
    assert [loop.Trainer(walks, TINY, seeds, {}).stacked for seeds in ([0, 1], [0])] == [True, False]
    both = train(walks, TINY, [3, 0], out=tmp_path / "both", progress=False)
    for seed, model in both.models.items():
        saved = weights(load_model(tmp_path / "both" / f"seed_{seed}" / "model"))
        assert all(np.array_equal(array, saved[name]) for name, array in weights(model).items())
    states, goals = walks.observations[:100], walks.observations[100:200]

    def behaviour(model):
        return model.cost(states, goals, goals), model.act(states, model.omega(goals))

    for mine, together, other in zip(*map(behaviour, (trained.model, both.models[0], both.models[3])), strict=True):
        np.testing.assert_allclose(together, mine, rtol=1e-2, atol=1e-3)
        assert np.abs(other - mine).max() > 0.02


def test_run_directory(walks, trained):
    run = open_run(trained.path)
    assert run.status == "finished" and run.config["step"] == 60
    assert run.algo == TINY and run.config["data"]["fingerprint"] == walks.fingerprint
    assert np.array_equal(run.model.embed(walks.observations[:3]), trained.model.embed(walks.observations[:3]))
    curves = read_metrics(run.path / "metrics.csv")
    assert {"omega/loss", "embedding/td", "embedding/hitting", "policy/actor"} <= curves.keys()
    assert curves["policy/loss"][0][-1] == 60


def test_a_flipped_bit_in_a_runs_model_is_found_and_not_exported(trained, tmp_path):
    """One turned -0.21 into -7.2e37, and the export had a valid manifest."""
    from iel.export import export_run

    run = shutil.copytree(trained.path, tmp_path / "run")
    rng = np.random.default_rng(0)
    for name in ("model.safetensors", "config.json", "manifest.json"):
        file = run / "model" / name
        whole = file.read_bytes()
        for location in rng.integers(len(whole), size=10):
            broken = bytearray(whole)
            broken[location] ^= 1 << int(rng.integers(8))
            file.write_bytes(broken)
            with pytest.raises(RunError):
                _ = open_run(run).model
            with pytest.raises(RunError):
                export_run(open_run(run), tmp_path / "robot", onnx=False)
        file.write_bytes(whole)
    assert not (tmp_path / "robot").exists() and open_run(run).model is not None


def test_checkpoints_are_verified_directories(trained):
    root = trained.path / "checkpoints"
    assert sorted(path.name for path in root.iterdir()) == ["step_000000050", "step_000000060"]
    newest = latest_checkpoint(root)
    start = lambda key: {phase.slot: phase.learner.start(key, Spec(2, 2)) for phase in TINY.phases()}  # noqa: E731
    like = jax.eval_shape(start, jax.random.key(0))
    state, facts = load_checkpoint(newest, like)
    metrics = facts_of((trained.path / "metrics.csv").read_bytes())
    assert facts == Facts(step=60, phase="policy", seed=0, metrics=metrics)
    expected = weights(trained.model)["policy.log_std"]
    assert np.array_equal(state["policy"].params.policy.log_std, expected)


def test_bad_requests_are_refused_before_training(walks, trained, tmp_path):
    with pytest.raises(RunError, match="already holds a run"):
        train(walks, TINY, out=trained.path)
    with pytest.raises(ConfigError, match="different whole numbers"):
        train(walks, TINY, [1, 1])
    with pytest.raises(ConfigError, match="checkpoint_every"):
        train(walks, TINY, checkpoint_every=0)
    with pytest.raises(ConfigError, match="learns no embedding"):
        train(walks, get_method("gcbc").preset("smoke", policy=Directions()), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_divergence_is_an_error_not_a_model(walks):
    with pytest.raises(IELError, match="diverged"):
        train(walks, IEL.preset("smoke", steps=300, hidden=(16,), learning_rate=1e20), progress=False)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path.mkdir(), (path / "other").touch()), "not a run directory"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text("{")), "not JSON"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text('{"format": 99}')), "run format 99"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text('{"format": 1}')), "missing required field"),
    ],
)
def test_directories_that_are_no_runs(tmp_path, spoil, message):
    spoil(tmp_path / "run")
    with pytest.raises(RunError, match=message):
        open_runs(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_signals_save_and_leave_a_readable_run(tmp_path, name):
    script = f"""
import numpy as np
from iel.methods import IEL
from iel.data import Trajectories
from iel.training import train
states = np.random.default_rng(0).standard_normal((50, 2))
data = Trajectories.from_episodes([(states, np.zeros((49, 2)))])
train(data, IEL.preset("smoke", steps=10**9, hidden=(16,)), out={str(tmp_path / "run")!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size > 200):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=300)
    run = open_run(tmp_path / "run")
    assert run.status == "interrupted"
    assert np.isfinite(run.model.embed(np.zeros((1, 2)))).all()
    last = read_metrics(metrics)["omega/loss"][0][-1]
    newest = latest_checkpoint(run.path / "checkpoints")
    assert json.loads((newest / "state.json").read_text())["step"] == last == run.config["step"] > 0


def test_snapshots_are_the_models_of_shorter_trainings(walks, tmp_path):
    """GCBC has one phase, so its model of step 100 is that of a training of 100 steps, to the bit."""
    settings = {"hidden": (8,), "batch_size": 8}
    gcbc = lambda **more: get_method("gcbc").preset("smoke", **more)  # noqa: E731
    train(walks, gcbc(steps=350, **settings), out=tmp_path / "a", snapshots=3, progress=False)
    stored = sorted(path.name for path in (tmp_path / "a" / "models").iterdir())
    assert stored == ["step_100", "step_200"]  # 117 and 233, to the nearest end of a chunk
    short = train(walks, gcbc(steps=100, **settings), progress=False).model
    for name, array in weights(load_model(tmp_path / "a" / "models" / "step_100")).items():
        assert np.array_equal(array, weights(short)[name])
    phased = snapshot_steps(IEL.preset("laptop"), 4)
    assert phased == [26_200, 31_500, 36_800, 42_000]  # the policy's phase begins at 21,000
    assert snapshot_steps(gcbc(steps=150, **settings), 9) == [100, 150]  # no step twice, none that is never reached
    with pytest.raises(RunError, match="snapshots is 3 in the run and 2 now"):
        train(walks, gcbc(steps=350, **settings), out=tmp_path / "a", snapshots=2, resume=True, progress=False)
    with pytest.raises(ConfigError, match="snapshots"):
        train(walks, gcbc(steps=10, **settings), snapshots=2, progress=False)
