"""The environments of an evaluation, stepped on all cores: some by the caller, the others by processes of their own.

    caller     act for all running episodes | step own environments | act ...
    process 1                               | step its environments |
    process 2                               | step its environments |

Environment e belongs to process e mod N (0 is the caller), and an episode follows from its own seed, so no bit of a
result depends on N. The model acts in the caller, for all running episodes in one batch whatever N is, because the
rounding of a matrix product depends on its shape.

A process is started by `python -m iel.evaluation.simulators` and not forked, as the caller may hold threads of JAX. It
ends when its connection closes: when the caller is done with it, was interrupted or was killed.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from iel.cores import environment_for, usable_cores
from iel.envs import GoalEnv, make_env
from iel.errors import RunError

Numbers = NDArray[Any]
SUCCESS, TERMINATED, TRUNCATED = 1, 2, 4
"""What a step says of its episode, as bits of one number."""
STEPS_PER_PROCESS = 10_000
"""Steps for which starting another process pays: it takes about 0.7 s, and so do 3,000 steps of an ant."""
PATIENCE = 5.0
"""Seconds a process has to end."""


class Start(NamedTuple):
    """What `reset` takes for one episode."""

    seed: int
    options: dict[str, Any]


class Step(NamedTuple):
    """What a step returned, one row per environment."""

    observations: NDArray[np.float32]
    flags: NDArray[np.uint8]
    """Sums of SUCCESS, TERMINATED and TRUNCATED."""
    subtasks: NDArray[np.float64]
    """Subtasks completed so far, where a task has several."""

    def put(self, rows: NDArray[np.intp], observations: Numbers, flags: Numbers, subtasks: Numbers) -> None:
        """Fill in the rows of some environments."""
        self.observations[rows], self.flags[rows], self.subtasks[rows] = observations, flags, subtasks


def usual_workers(steps: int) -> int:
    """How many processes, the caller included, step an evaluation of this number of environment steps."""
    return min(len(usable_cores()), 1 + steps // STEPS_PER_PROCESS)


def reset_all(envs: Sequence[GoalEnv], starts: Sequence[Start]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(observations, goals) of the first `len(starts)` environments at the start of an episode each."""
    begun = [env.reset(seed=seed, options=options) for env, (seed, options) in zip(envs, starts, strict=False)]
    observations, goals = ([*column] for column in zip(*((row, info["goal"]) for row, info in begun), strict=True))
    return np.array(observations, np.float32), np.array(goals, np.float32)


def step_all(envs: Sequence[GoalEnv], actions: NDArray[np.float32], width: int) -> Step:
    """One step of each environment, whose observations have `width` columns."""
    count = len(envs)
    made = Step(np.empty((count, width), np.float32), np.zeros(count, np.uint8), np.zeros(count))
    for row, (env, action) in enumerate(zip(envs, actions, strict=True)):
        made.observations[row], _, terminated, truncated, info = env.step(action)
        made.flags[row] = SUCCESS * bool(info["success"]) + TERMINATED * bool(terminated) + TRUNCATED * bool(truncated)
        made.subtasks[row] = info.get("subtasks", 0)
    return made


class Simulators:
    """`count` environments on `workers` processes, one of which is the caller's."""

    def __init__(
        self, first: GoalEnv, make: Callable[[], GoalEnv], count: int, workers: int, reference: Sequence[float] | None
    ):
        """`first` is environment 0; `make` makes those that the caller steps besides, and the processes make others
        by the name of `first` and the `reference` observation."""
        self.name, self.workers, self.count, self.reference, self.width = first.name, workers, count, reference, 0
        self._own, self._make, self._processes, self._started = [first], make, list[_Process](), False

    def _start(self) -> None:
        """Start the processes and make the environments."""
        self._processes = [_Process(self.name) for _ in range(1, self.workers)]
        for number, process in enumerate(self._processes, 1):
            process.send(self.name, len(range(number, self.count, self.workers)), self.reference)
        missing = len(range(0, self.count, self.workers)) - len(self._own)
        self._own += [self._make() for _ in range(missing)]
        for process in self._processes:
            process.receive()
        self._started = True

    def reset(self, starts: Sequence[Start]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(observations, goals) at the start of an episode in each of the first `len(starts)` environments."""
        if not self._started:
            self._start()
        busy = list(enumerate(self._processes[: len(starts) - 1], 1))
        for number, process in busy:
            process.send("reset", starts[number :: self.workers])
        observations, goals = reset_all(self._own, starts[:: self.workers])
        self.width = observations.shape[1]
        begun = np.empty((2, len(starts), self.width), np.float32)
        begun[:, :: self.workers] = observations, goals
        for number, process in busy:
            begun[:, number :: self.workers] = [_rows(part, np.float32, self.width) for part in process.receive()]
        return begun[0], begun[1]

    def step(self, chosen: NDArray[np.intp], actions: NDArray[np.float32]) -> Step:
        """One step of the chosen environments, in their order."""
        rows = [np.flatnonzero(chosen % self.workers == number) for number in range(self.workers)]
        busy = [(process, own) for process, own in zip(self._processes, rows[1:], strict=True) if len(own)]
        for process, own in busy:
            process.send("step", (chosen[own] // self.workers).tolist(), actions[own].tobytes())
        count, mine = len(chosen), chosen[rows[0]] // self.workers
        made = Step(np.empty((count, self.width), np.float32), np.empty(count, np.uint8), np.empty(count))
        made.put(rows[0], *step_all([self._own[number] for number in mine], actions[rows[0]], self.width))
        for process, own in busy:
            observations, flags, subtasks = process.receive()
            made.put(own, _rows(observations, np.float32, self.width), _rows(flags, np.uint8), _rows(subtasks, float))
        return made

    def close(self) -> None:
        """End the processes; others are started for the next episode. An answer that was not received yet must not be
        taken for that of a later request."""
        for process in self._processes:
            process.end()
        self._processes, self._started = [], False


class _Process:
    """A process that steps environments: requests are sent, and answered in their order."""

    def __init__(self, name: str):
        here, there = socket.socketpair()
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "iel.evaluation.simulators", str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                env=environment_for([0]),
            )
        self.name, self.connection = name, Connection(here.detach())
        self.end = weakref.finalize(self, _end, self.connection, self.process)

    def send(self, *request: Any) -> None:
        """Send a request; that the process has ended is noticed where its answer is missing."""
        with suppress(OSError):
            self.connection.send_bytes(msgspec.msgpack.encode(request))

    def receive(self) -> list[bytes]:
        """The next answer; raises the error that stopped the process."""
        try:
            answer = msgspec.msgpack.decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.end()
            code = self.process.returncode
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise RunError(
                f"A process that steps {self.name} ended with {ended}; use fewer --workers if memory is short."
            ) from None
        if isinstance(answer, str):
            raise RunError(f"A process that steps {self.name} failed: {answer}")
        found: list[bytes] = answer
        return found


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _rows(content: bytes, kind: type, *shape: int) -> Numbers:
    return np.frombuffer(content, kind).reshape(-1, *shape)


def _serve(connection: Connection) -> None:
    """Answer requests until the connection closes: first which environments to make, then resets and steps."""

    def answer(*columns: NDArray[Any]) -> None:
        connection.send_bytes(msgspec.msgpack.encode([column.tobytes() for column in columns]))

    name, count, reference = msgspec.msgpack.decode(connection.recv_bytes())
    row = None if reference is None else np.array(reference, np.float32)
    envs: list[GoalEnv] = [make_env(name, reference=row) for _ in range(count)]
    width = 0
    answer()
    while True:
        kind, *request = msgspec.msgpack.decode(connection.recv_bytes())
        if kind == "reset":
            observations, goals = reset_all(envs, msgspec.convert(request[0], list[Start]))
            width = observations.shape[1]
            answer(observations, goals)
        else:
            chosen = [envs[number] for number in request[0]]
            answer(*step_all(chosen, _rows(request[1], np.float32, *envs[0].action_space.shape), width))


def main(descriptor: str) -> None:
    """The process: its only input and output is an open socket. Ctrl-C is left to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(descriptor))
    try:
        _serve(connection)
    except (EOFError, OSError):
        return
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        with suppress(OSError):
            connection.send_bytes(msgspec.msgpack.encode(reason))


if __name__ == "__main__":
    main(*sys.argv[1:])
