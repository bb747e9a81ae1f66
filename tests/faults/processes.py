"""Processes that train, collect, compare, export and evaluate, and what they leave behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from iel.data import Trajectories
from iel.files import file_facts
from iel.training.checkpoint import newest_common, saved_steps
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
        """A training process in `out`, new or continued; without `cache` it compiles all by itself."""
        settings = {} if cache else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        command = [sys.executable, str(TRAINEE), str(out), str(self.file), *map(str, options)]
        return started(command, **{"JAX_PLATFORMS": "cpu", **settings, **environment})

    def finish(self, out: Path, *options: object, **keywords) -> tuple[int, str]:
        """Train to the end; returns the step it began at (a finished run: its last) and what it said on stderr."""
        process = self.start(out, *options, **keywords)
        output, errors = ended(process)
        assert process.returncode == 0, errors
        return int(output.split()[1]) if output else logged_step(out), errors

    def fail(self, out: Path, *options: object, **keywords) -> str:
        """Train until something goes wrong; returns the sentence on stderr."""
        process = self.start(out, *options, **keywords)
        _, errors = ended(process)
        assert process.returncode == 1 and "Traceback" not in errors, errors
        return errors


def started(command: list[str], **environment: str) -> subprocess.Popen:
    """A process that leads a group of its own, so that whatever it starts can be killed with it."""
    surroundings = {**os.environ, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=surroundings, text=True, process_group=0, **pipes)


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
    newest = saved_steps(out / "checkpoints")[newest_common([out / "checkpoints"])[0]]
    return {
        "step": newest.name,
        "state": file_facts(newest / "state.safetensors").sha256,
        "metrics": file_facts(out / "metrics.csv").sha256,
        "model": file_facts(out / "model" / "model.safetensors").sha256,
    }


# -------------------------------------------------------------------------------------------- commands that are killed


class Command:
    """An `iel` command that works in a directory, and what it must have made there when it ends well.

    `words` are those of the command in a directory, `results` the digests of all that has its final name there.
    """

    def __init__(
        self, words: Callable[[Path], list[str]], results: Callable[[Path], dict[str, str]], **environment: str
    ):
        self.words, self.results, self.environment = words, results, environment
        self.seconds, self.entries = 0.0, 0
        self.wanted: dict[str, str] = {}

    def start(self, location: Path) -> subprocess.Popen:
        return started([sys.executable, "-m", "iel.cli", *self.words(location)], **self.environment)

    def undisturbed(self, location: Path) -> None:
        """Run it once, and note how long it takes, how many names it writes and what it makes."""
        before, began = names(location), time.monotonic()
        process = self.start(location)
        seen = watch(process, location, lambda _: False)
        _, errors = ended(process)
        assert process.returncode == 0, errors
        self.seconds, self.entries = time.monotonic() - began, len(seen - before)
        self.wanted = self.results(location)

    def kill(self, location: Path, part: float, by_clock: bool, fresh: bool) -> bool:
        """Start it, and kill it with all it started after this part of its time, or of the names it writes.

        False if it ended before that.
        """
        before, began = names(location), time.monotonic()
        process = self.start(location)
        if by_clock:
            seen = watch(process, location, lambda _: time.monotonic() - began > part * self.seconds)
        else:
            seen = watch(process, location, lambda seen: len(seen - before) > part * self.entries)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        _, errors = ended(process)
        assert process.returncode in (0, -signal.SIGKILL), errors
        if process.returncode == 0 and fresh:  # the machine was slower when this was measured
            if by_clock:
                self.seconds = min(self.seconds, time.monotonic() - began)
            else:
                self.entries = min(self.entries, len(seen - before))
        return process.returncode != 0


def names(location: Path) -> set[str]:
    """Everything that has a name in a directory now."""
    found: set[str] = set()
    for root, folders, files in os.walk(location):
        found.update(f"{root}/{name}" for name in (*folders, *files))
    return found


def watch(process: subprocess.Popen, location: Path, enough: Callable[[set[str]], bool]) -> set[str]:
    """All names that are seen in a directory until it is enough, or the process has ended."""
    deadline, seen = time.monotonic() + PATIENCE, names(location)
    while process.poll() is None and not enough(seen):
        assert time.monotonic() < deadline, "the command hangs"
        time.sleep(0.002)
        seen |= names(location)
    return seen
