"""A disk that is full, read-only or forbidden is an error at once, costs nothing that was saved, and can be mended."""

import errno
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import ended, results, wait_for_step
from trainee import STEPS

from iel.errors import RunError
from iel.methods import IEL
from iel.training import train
from run_files import latest_checkpoint

UNPRIVILEGED = 65534


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    location = tmp_path / "disk"
    location.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", location], capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield location
    subprocess.run(["umount", "-l", location], check=True)


def fill(location: Path) -> Path:
    """Write until nothing more fits."""
    filler = location / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler


@pytest.mark.faults  # `test_files_that_may_not_grow` is its short form
@pytest.mark.parametrize("look", ["looking first", "blind"])
def test_a_full_disk(lab, uninterrupted, small_disk, look):
    out = small_disk / "run"
    process = lab.start(out, *(["--blind"] if look == "blind" else []))
    wait_for_step(process, out, 60)
    process.send_signal(signal.SIGSTOP)  # so that it cannot finish while the disk is being filled
    filler = fill(small_disk)
    process.send_signal(signal.SIGCONT)
    _, errors = ended(process)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert "free some space" in errors and str(out) in errors
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None and newest.name >= "step_000000040"
    filler.unlink()
    begun, _ = lab.finish(out)
    assert 40 <= begun < STEPS
    assert results(out) == results(uninterrupted)


@pytest.mark.slow
def test_too_little_space_is_refused_before_the_first_step(lab, small_disk):
    with (small_disk / "filler").open("wb") as file:
        file.write(bytes(3 << 20))
    assert "MB free, but the checkpoints of this training need" in lab.fail(small_disk / "run")
    assert not list((small_disk / "run" / "checkpoints").glob("step_*"))


@pytest.mark.slow
def test_files_that_may_not_grow(lab, uninterrupted, tmp_path):
    """The same as a full disk or an exhausted quota, for those who cannot mount one: a limit on the size of a file."""
    out = tmp_path / "run"
    errors = lab.fail(out, "--file-size", 16_000)
    assert "The checkpoint of step 20 could not be written" in errors
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step_000000000"]
    begun, _ = lab.finish(out)
    assert begun == 0 and results(out) == results(uninterrupted)


@pytest.mark.faults
def test_permission_lost_in_mid_run(lab, uninterrupted, tmp_path):
    out = tmp_path / "run"
    process = lab.start(out, "--user", UNPRIVILEGED)  # root may write everywhere, so it becomes another user
    wait_for_step(process, out, 0)
    root = out / "checkpoints"
    deadline = time.monotonic() + 60
    while not latest_checkpoint(root) and time.monotonic() < deadline:
        time.sleep(0.01)
    root.chmod(0o555)
    _, errors = ended(process)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert "Permission denied" in errors and "make it writable" in errors
    root.chmod(0o755)
    assert latest_checkpoint(root) is not None
    lab.finish(out)
    assert results(out) == results(uninterrupted)


def test_a_read_only_directory_is_refused_at_once(maze_data, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RunError, match="Read-only file system"):
        train(maze_data, IEL.preset("smoke"), out=small_disk / "run", progress=False)


def test_a_file_in_the_path_is_refused_at_once(maze_data, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        train(maze_data, IEL.preset("smoke"), out=tmp_path / "file" / "run", progress=False)
