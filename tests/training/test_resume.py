"""Resuming: the same bits wherever a run was stopped, and a refusal that names what differs."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import iel.training.loop as loop
from iel.data import Trajectories
from iel.errors import ConfigError, RunError
from iel.methods import IEL, METHODS, get_method
from iel.policies import Directions, Waypoints
from iel.training import open_run, resume, train
from iel.training.loop import Interrupted, SaveClock, Trainer
from iel.training.trackers import CSVTracker, read_losses, read_metrics
from run_files import latest_checkpoint, sha256

SMALL = {"hidden": (16,), "batch_size": 16, "dimension": 4}
TINY = IEL.preset("smoke", **SMALL, steps=36, omega_share=1 / 3, policy=Directions(steps=24, target_rate=0.05))
"""Phases end at steps 12 and 36, saves come every 10 steps and chunks every 4: sometimes together, mostly not."""


WAYPOINTS = {"policy": Waypoints(steps=20, columns=(0, 1))}


@pytest.fixture(scope="module")
def walks() -> Trajectories:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (5, 40, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), a.cumsum(0)]), a) for a in actions], "walks")


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(loop, "CHUNK", 4)


def fit(walks, out, seeds=(0,), algo=TINY, **options):
    return train(walks, algo, seeds, out=out, checkpoint_every=10, resume=True, progress=False, **options)


def stop_at(step: int, monkeypatch) -> None:
    """The signal comes during the chunk that ends at `step`."""
    report = Trainer._report

    def signal(self, *arguments):
        if self.step >= step:
            self.stop.set()
        return report(self, *arguments)

    monkeypatch.setattr(Trainer, "_report", signal)


def results(out) -> tuple[str, str]:
    return sha256(latest_checkpoint(out / "checkpoints") / "state.safetensors"), sha256(out / "metrics.csv")


@pytest.fixture(scope="module")
def whole(walks, tmp_path_factory):
    """A run that was not stopped."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHUNK", 4)
        fit(walks, root / "one")
    return root


@pytest.mark.parametrize("step", [8, 12, 20, 36, 52])
def test_a_stopped_run_ends_with_the_same_bits(walks, whole, tmp_path, monkeypatch, step):
    """Inside every phase, at both of their boundaries, on a save and off it."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(step, patch)
        fit(walks, tmp_path / "run")
    assert open_run(tmp_path / "run").config["step"] == step
    model = resume(tmp_path / "run", walks, progress=False).model
    assert results(tmp_path / "run") == results(whole / "one")
    assert open_run(tmp_path / "run").status == "finished"
    assert np.array_equal(model.embed(walks.observations), open_run(whole / "one").model.embed(walks.observations))


@pytest.mark.long
@pytest.mark.parametrize("name, policy", [*((name, {}) for name in sorted(set(METHODS) - {"iel"})), ("qrl", WAYPOINTS)])
def test_every_method_is_resumed_to_the_same_bits(walks, tmp_path, monkeypatch, name, policy):
    algo = get_method(name).preset("smoke", steps=40, hidden=(16,), batch_size=16, **policy)
    fit(walks, tmp_path / "whole", algo=algo)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(24, patch)
        fit(walks, tmp_path / "run", algo=algo)
    resume(tmp_path / "run", walks, progress=False)
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["cpu", "an accelerator"])
def test_several_seeds_are_resumed_together(walks, tmp_path, monkeypatch, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    out = tmp_path / "run"
    fit(walks, tmp_path / "two", seeds=(3, 0))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(24, patch)
        fit(walks, out, seeds=(3, 0))
    shutil.rmtree(out / "seed_0" / "checkpoints" / "step_000000024")  # as if killed between the two saves
    steps = []
    with monkeypatch.context() as patch:
        restore = Trainer.restore
        patch.setattr(Trainer, "restore", lambda self, found: (steps.append(found.step), restore(self, found)))
        resume(out, walks, progress=False)
    assert steps == [20]
    for seed in (0, 3):
        assert results(out / f"seed_{seed}") == results(tmp_path / "two" / f"seed_{seed}")
    with pytest.raises(RunError, match="seeds"):
        resume(out / "seed_0", walks, progress=False)


def test_the_comparison_would_notice_a_key_that_is_not_restored(walks, whole, tmp_path, monkeypatch):
    """Negative control: a resumed run that draws other batches does not end with the same bits."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(20, patch)
        fit(walks, tmp_path / "run")
    restore = Trainer.restore

    def forget_the_key(self, found):
        restore(self, found)
        self.keys = [jax.random.split(jax.random.key(1))[1]]

    monkeypatch.setattr(Trainer, "restore", forget_the_key)
    resume(tmp_path / "run", walks, progress=False)
    mine, other = results(tmp_path / "run"), results(whole / "one")
    assert mine[0] != other[0] and mine[1] != other[1]


def test_resuming_a_finished_run_changes_nothing_and_a_missing_one_starts(walks, whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole / "one", out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock" and path.is_file()}
    resume(out, walks, progress=False)
    assert {path: path.stat().st_mtime_ns for path in before} == before  # model and config were written anew
    shutil.rmtree(out / "model")
    resume(out, walks, progress=False)
    assert results(out) == results(whole / "one") and (out / "model" / "model.safetensors").exists()
    with pytest.raises(RunError, match="does not exist"):
        resume(tmp_path / "none", walks, progress=False)


def test_leftovers_of_a_killed_process_are_removed(walks, whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole / "one", out)
    (out / "checkpoints" / ".tmp-1-abc").mkdir()
    (out / "checkpoints" / ".tmp-1-abc" / "state.safetensors").write_bytes(b"half")
    (out / ".tmp-2-def").write_text("half a config")
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace('"finished"', '"running"'))  # as a killed process leaves it
    resume(out, walks, progress=False)
    assert not list(out.rglob(".tmp-*"))


def change(name, value):
    return lambda walks: (walks, dataclasses.replace(TINY, **{name: value}), {})


REFUSED = {
    "a setting": (change("beta", 0.3), "settings.beta is 0.1 in the run and 0.3 now"),
    "the shape of the networks": (change("hidden", (8,)), r"settings.hidden is \[16\] in the run and \[8\] now"),
    "a setting of the policy": (
        change("policy", Directions(steps=24, target_rate=0.1)),
        "configuration: settings.policy.target_rate is 0.05 in the run and 0.1 now; leave",
    ),
    "another policy": (
        change("policy", Waypoints(steps=24)),
        "settings.policy.kind is 'directions' .* 'waypoints' now",
    ),
    "more steps": (change("steps", 90), "settings.steps is 36 in the run and 90 now.*a longer run is another run"),
    "other data": (lambda walks: (walks.select([0, 1, 2]), TINY, {}), "data.fingerprint is .*5 episodes.*3 episodes"),
    "another interval": (lambda walks: (walks, TINY, {"checkpoint_every": 7}), "checkpoint_every is 10 .* and 7 now"),
    "another seed": (lambda walks: (walks, TINY, {"seeds": (1,)}), "seed is 0 in the run and 1 now"),
    "more seeds": (lambda walks: (walks, TINY, {"seeds": (0, 1)}), "other seeds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_run_is_not_continued_and_the_field_is_named(walks, whole, case):
    before = results(whole / "one")
    data, algo, options = REFUSED[case][0](walks)
    with pytest.raises(RunError, match=REFUSED[case][1]):
        train(data, algo, **{"seeds": (0,), "checkpoint_every": 10, **options}, out=whole / "one", resume=True)
    assert results(whole / "one") == before


def test_resuming_needs_a_directory(walks):
    with pytest.raises(ConfigError, match="resume=True needs"):
        train(walks, TINY, resume=True)


# ---------------------------------------------------------------- metrics and the clock


def test_metrics_continue_where_the_checkpoint_was(tmp_path):
    path = tmp_path / "metrics.csv"
    tracker = CSVTracker(path)
    tracker.log(10, "task", {"omega/loss": 0.5})
    facts = tracker.facts
    upto = path.read_bytes()
    tracker.log(20, "task", {"omega/loss": 0.25})
    tracker.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])  # killed while the last line was being written
    tracker = CSVTracker(path, 10, facts)
    assert path.read_bytes() == upto
    tracker.log(20, "task", {"omega/loss": 0.25})
    assert path.read_bytes() == whole and tracker.facts.sha256 == sha256(path)
    tracker.close()


def test_a_phase_has_one_loss_and_its_parts_are_not_taken_for_it(tmp_path):
    """A method that trains several networks in one phase logs their losses too."""
    tracker = CSVTracker(tmp_path / "metrics.csv")
    tracker.log(10, "warmup", {"warmup/loss": 7.0})
    for step in (20, 30):
        tracker.log(step, "joint", {"embedding/loss": 1.0, "joint/loss": step / 10, "policy/loss": 2.0})
    tracker.close()
    steps, values = read_losses(tmp_path / "metrics.csv")
    assert steps == [10, 10, 20, 30]
    np.testing.assert_array_equal(values, [7.0, np.nan, 2.0, 3.0])  # no line joins two phases


def test_a_damaged_log_does_not_stop_a_run_but_is_reported(tmp_path, capsys):
    path = tmp_path / "metrics.csv"
    tracker = CSVTracker(path)
    for step in (10, 20, 30):
        tracker.log(step, "task", {"omega/loss": step / 10})
    facts = tracker.facts
    tracker.close()
    path.write_bytes(path.read_bytes().replace(b"10,task", b"ab,task"))
    CSVTracker(path, 20, facts).close()
    assert "not what was written" in capsys.readouterr().err
    assert read_metrics(path) == {"omega/loss": ([20], [2.0])}


def test_a_slow_disk_is_written_to_less_often(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    clock = SaveClock(None)
    assert not clock.due(1000) and clock.stops(1000) == []
    now[0] = loop.SAVE_SECONDS
    assert clock.due(1)
    clock.saved(10.0)  # ten seconds are one per cent of a thousand
    now[0] += 999.0
    assert not clock.due(2)
    now[0] += 1.0
    assert clock.due(2)
    assert SaveClock(20).due(40) and not SaveClock(20).due(50) and SaveClock(20).stops(40) == [60]
