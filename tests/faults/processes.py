"""Processes that train, and what they leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

from iel.data import Trajectories
from iel.files import sha256
from iel.training.checkpoint import latest_checkpoint
from iel.training.trackers import read_metrics

TRAINEE = Path(__file__).with_name("trainee.py")
PATIENCE = 600.0


class Lab:
    """Starts trainees."""

    def __init__(self, root: Path, data: Trajectories):
        self.root, self.data = root, data
        self.file = root / "data.npz"
        data.save(self.file)

    def start(self, out: Path, *options: object, cache: bool = True, **environment: str) -> subprocess.Popen:
        """A training process in `out`, new or continued."""
        settings = {"JAX_PLATFORMS": "cpu", **environment}
        if cache:
            settings |= {
                "JAX_COMPILATION_CACHE_DIR": str(self.root / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        command = [sys.executable, str(TRAINEE), str(out), str(self.file), *map(str, options)]
        return subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(self, out: Path, *options: object, **keywords) -> tuple[int, str]:
        """Train to the end; returns the step it began at and what it said on stderr."""
        process = self.start(out, *options, **keywords)
        output, errors = ended(process)
        assert process.returncode == 0, errors
        return int(output.split()[1]), errors

    def fail(self, out: Path, *options: object, **keywords) -> str:
        """Train until something goes wrong; returns the sentence on stderr."""
        process = self.start(out, *options, **keywords)
        _, errors = ended(process)
        assert process.returncode == 1 and "Traceback" not in errors, errors
        return errors


def ended(process: subprocess.Popen) -> tuple[str, str]:
    """What a process said until it ended; one that hangs is killed and is an error."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def logged_step(out: Path) -> int:
    """The last step in metrics.csv, -1 if there is none yet."""
    path = out / "metrics.csv"
    if not path.exists():
        return -1
    return max((steps[-1] for steps, _ in read_metrics(path).values()), default=0)


def wait_for_step(process: subprocess.Popen, out: Path, step: int) -> None:
    """Return as soon as `step` has been logged, or the process has ended."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and logged_step(out) < step:
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.002)


def results(out: Path) -> dict[str, str]:
    """sha256 of everything training produces: parameters and optimiser state, metrics, the model."""
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return {
        "step": newest.name,
        "state": sha256(newest / "state.safetensors"),
        "metrics": sha256(out / "metrics.csv"),
        "model": sha256(out / "model" / "model.safetensors"),
    }
