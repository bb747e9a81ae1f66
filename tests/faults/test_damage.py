"""No damaged, swapped or half-written checkpoint is ever loaded: it is named, and the one before it is used."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import results
from trainee import EVERY, STEPS

from iel.errors import RunError
from iel.training import open_run
from iel.training.checkpoint import (
    Facts,
    find_checkpoint,
    newest_common,
    save_checkpoint,
    saved_steps,
    verify_checkpoint,
)
from iel.training.trackers import MetricsFacts

FILES = ["config.json", "manifest.json", "state.json", "state.safetensors"]
CONFIG = {
    "format": 1, "env": "maze", "algo": "iel", "settings": {"beta": 0.1}, "seeds": [0], "checkpoint_every": 20,
    "data": {"fingerprint": "f" * 64}, "status": "running", "seed": 0,
}  # fmt: skip


def state(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {"kernel": rng.standard_normal((40, 50)).astype(np.float32), "count": np.array(step, np.int32)}


def make_run(path: Path, **changes) -> Path:
    """A run directory with whole checkpoints of steps 20 and 40."""
    config = {**CONFIG, **changes}
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    for step in (20, 40):
        facts = Facts(step, "task", config["seed"], MetricsFacts(0, ""))
        save_checkpoint(path / "checkpoints", state(step + config["seed"]), config, facts)
    return path


def loaded_step(run: Path) -> int:
    """The step a resumed run would start from."""
    resumed = find_checkpoint({0: open_run(run)}, state(0))
    assert resumed is not None
    assert np.array_equal(resumed.states[0]["kernel"], state(resumed.step)["kernel"])
    return resumed.step


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "run")


def assert_refused(run: Path, name: str) -> None:
    """The newest checkpoint is refused with the name of the damaged file, and the older one is found."""
    step, problems = newest_common([run / "checkpoints"])
    assert step == 20 and len(problems) == 1
    assert str(run / "checkpoints" / "step_000000040" / name) in problems[0]


def test_two_hundred_flipped_bits(run):
    rng = np.random.default_rng(0)
    for name in FILES:
        path = run / "checkpoints" / "step_000000040" / name
        whole = path.read_bytes()
        for location in rng.choice(8 * len(whole), 50, replace=False):
            damaged = bytearray(whole)
            damaged[location // 8] ^= 1 << location % 8
            path.write_bytes(damaged)
            assert_refused(run, name)
        path.write_bytes(whole)
    assert loaded_step(run) == 40


def test_fifty_truncations(run):
    for name in FILES:
        path = run / "checkpoints" / "step_000000040" / name
        whole = path.read_bytes()
        for length in np.linspace(0, len(whole) - 1, 13).astype(int):
            path.write_bytes(whole[:length])
            assert_refused(run, name)
        path.write_bytes(whole + b"\n")
        assert_refused(run, name)
        path.write_bytes(whole)


@pytest.mark.parametrize("name", FILES)
def test_deleted_and_replaced_files(run, tmp_path, name):
    other = make_run(tmp_path / "other", seed=1, settings={"beta": 0.2})
    path = run / "checkpoints" / "step_000000040" / name
    whole = path.read_bytes()
    path.unlink()
    assert_refused(run, name)
    path.symlink_to(other / "checkpoints" / "step_000000040" / name)  # a link leads out of the directory
    assert_refused(run, name)
    path.unlink()
    for foreign in (other / "checkpoints" / "step_000000040", run / "checkpoints" / "step_000000020"):
        path.write_bytes((foreign / name).read_bytes())
        step, problems = newest_common([run / "checkpoints"])
        if path.read_bytes() == whole:  # the two runs' files may be equal; then nothing was swapped
            assert step == 40
        else:
            assert step == 20 and "step_000000040" in problems[0]
    path.write_bytes(b"")
    assert_refused(run, name)


def test_a_whole_checkpoint_of_another_run_or_step_is_not_taken(run, tmp_path, capsys):
    root = run / "checkpoints"
    for number, changes in enumerate(({"seed": 1}, {"settings": {"beta": 0.2}}, {"data": {"fingerprint": "0" * 64}})):
        other = make_run(tmp_path / f"other{number}", **changes)
        shutil.rmtree(root / "step_000000040")
        shutil.copytree(other / "checkpoints" / "step_000000040", root / "step_000000040")
        verify_checkpoint(root / "step_000000040")  # whole, but not this run's
        assert loaded_step(run) == 20
        assert "belongs to another run" in capsys.readouterr().err
        save_checkpoint(root, state(40), CONFIG, Facts(40))
    shutil.copytree(root / "step_000000020", root / "step_000000099")
    assert loaded_step(run) == 40
    assert "holds step 20" in capsys.readouterr().err


def test_when_nothing_is_whole_the_run_is_refused_and_not_restarted_in_silence(run):
    for step in (20, 40):
        (run / "checkpoints" / f"step_{step:09d}" / "state.json").write_text("{}")
    with pytest.raises(RunError, match="No checkpoint"):
        loaded_step(run)


def test_a_damaged_checkpoint_is_set_aside_and_not_counted_as_stored(run):
    root = run / "checkpoints"
    (root / "step_000000040" / "state.json").write_text("{}")
    assert loaded_step(run) == 20
    assert sorted(path.name for path in root.iterdir()) == ["damaged_step_000000040", "step_000000020"]


CRASH = """
import os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import test_damage as world
from iel.training.checkpoint import Facts, newest_common, prune, save_checkpoint, saved_steps, is_whole
from iel.files import remove_partials

def killed_before(call):
    "Save step 60 in a child that is killed before its `call`-th change to the file system; False if it had fewer."
    child = os.fork()
    if child == 0:
        done = 0
        for name in ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir"):
            def counted(*args, real=getattr(os, name), **kwargs):
                nonlocal done
                done += 1
                if done == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)
            setattr(os, name, counted)
        save_checkpoint(root, world.state(60), world.CONFIG, Facts(60))
        prune(root, 2)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

root = Path(sys.argv[1]) / "checkpoints"
newest, call = [], 1
while True:
    killed = killed_before(call)
    found, _ = newest_common([root])
    newest.append(found)
    assert sum(map(is_whole, saved_steps(root).values())) == len(saved_steps(root)) >= 2, call
    remove_partials(root)
    if not killed:
        break
    for step, directory in saved_steps(root).items():
        if step > 40:
            shutil.rmtree(directory)
    for step in (20, 40):
        save_checkpoint(root, world.state(step), world.CONFIG, Facts(step))
    call += 1
assert newest == sorted(newest) and newest[0] == 40 and newest[-1] == 60, newest
print(len(newest) - 1)
"""


def test_a_save_killed_before_each_of_its_system_calls(run):
    """Real processes, real SIGKILL: at every point there are two whole checkpoints and no broken one."""
    script = CRASH.format(here=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script, str(run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15
    assert sorted(saved_steps(run / "checkpoints")) == [40, 60]


@pytest.mark.slow
def test_training_goes_on_from_the_older_checkpoint_to_the_same_bits(lab, uninterrupted, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out)
    newest = out / "checkpoints" / f"step_{STEPS:09d}" / "state.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    (out / "metrics.csv").write_bytes((out / "metrics.csv").read_bytes() + b"400,policy,policy/lo")
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace('"finished"', '"running"'))
    begun, said = lab.finish(out)
    assert begun == STEPS - EVERY and str(newest) in said
    assert results(out) == results(uninterrupted)
