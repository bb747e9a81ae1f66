"""Processes on a Ray cluster: `python -m MODULE ...` is started on some node, and its exit code is returned.

It is the process that this machine would start, with as many threads as it has declared cores, so a result does not
depend on where it was computed. Everything a process reads and writes is in directories that all nodes share. A task
whose node is lost is started again on another one, where it finds what it had saved.

Ray is an extra (`pip install '.[ray]'` in a clone), and nothing here is imported without `--on ray`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from iel.cores import environment_for, usable_cores
from iel.errors import ConfigError, RunError, install
from iel.files import open_in_place

RETRIES = 20
"""How often a task is started again because its node was lost."""
PATIENCE = 30.0
"""Seconds a process has to save its state after SIGTERM."""
CARRIED = ("IEL_", "JAX_", "XLA_")
"""Prefixes of the driver's variables that its processes get."""
Ticket = Any
"""Ray's reference to a submitted process."""


class Needs(NamedTuple):
    """Resources of one process; Ray starts no more of them on a node than fit."""

    cores: int = 1
    memory_gb: float | None = None
    accelerators: float = 0.0


class Cluster:
    """`with Cluster("ray") as cluster:` the one at `ray=ADDRESS`, that of $RAY_ADDRESS, or one of our own."""

    def __init__(self, on: str, needs: Needs | None = None):
        self.address, self.needs = address_of(on), needs or Needs()
        if self.needs.cores < 1:
            raise ConfigError(f"--cores must be at least 1, but is {self.needs.cores}.")

    def __enter__(self) -> Cluster:
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise ConfigError(f"--on ray needs Ray; {install('ray')}.") from None
        self.ray = ray
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self.address:
                self.ray.init(address=self.address, **quiet)
            else:
                self.ray.init(address="local", num_cpus=len(usable_cores()), include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            reason = (str(problem).splitlines() or [""])[0][:200]
            raise RunError(
                f"No Ray cluster answers at {self.address or 'this machine'} ({reason}); start one, or correct --on."
            ) from None
        cores, memory, accelerators = self.needs
        room = {"num_cpus": cores, "num_gpus": accelerators, "memory": None if memory is None else int(memory * 1e9)}
        self._task = self.ray.remote(run_process).options(**room, max_retries=RETRIES)
        return self

    def __exit__(self, *error: object) -> None:
        self.ray.shutdown()

    @property
    def slots(self) -> int:
        """Number of processes that fit at a time, as of now."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1) // self.needs.cores))

    def submit(self, module: str, arguments: Sequence[str], *, stdin: str = "", log: str | None = None) -> Ticket:
        """Start a process when there is room for it; returns a ticket."""
        carried = {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}
        if "IEL_DATA" in carried:  # a node has a working directory of its own
            carried["IEL_DATA"] = str(Path(carried["IEL_DATA"]).expanduser().absolute())
        return self._task.remote(module, list(arguments), stdin, log, carried, self.needs.cores)

    def ended(self, tickets: Sequence[Ticket], patience: float) -> list[Ticket]:
        """Those of the tickets whose processes have ended, after waiting for at most `patience` seconds."""
        ready, _ = self.ray.wait(list(tickets), num_returns=1, timeout=patience)
        more, _ = self.ray.wait(list(tickets), num_returns=len(tickets), timeout=0) if ready else ([], [])
        return more or ready

    def result(self, ticket: Ticket) -> tuple[int, str]:
        """(exit code, last line of the output where it has no log); the code is -9 if Ray could not run it."""
        try:
            return self.ray.get(ticket)
        except self.ray.exceptions.RayError as problem:
            return -signal.SIGKILL, (str(problem).splitlines() or ["Ray lost it."])[0][:300]

    def stop(self, tickets: Sequence[Ticket]) -> None:
        """Tell processes to save and end; those that have not begun never will."""
        for ticket in tickets:
            self.ray.cancel(ticket, force=False)
        if tickets:
            self.ray.wait(list(tickets), num_returns=len(tickets), timeout=PATIENCE)


def address_of(on: str) -> str | None:
    """The address in `ray=ADDRESS`; of plain `ray` that of $RAY_ADDRESS, if there is one."""
    engine, given, address = on.partition("=")
    if engine != "ray" or (given and not address):
        raise ConfigError(f"--on is '{on}'; say ray, or ray=ADDRESS of a running cluster.")
    return address or os.environ.get("RAY_ADDRESS") or None


def run_process(
    module: str, arguments: list[str], stdin: str, log: str | None, variables: dict[str, str], cores: int
) -> tuple[int, str]:
    """Run on a node: the process, with its output in `log`; when it is cancelled, it may save first."""
    os.environ.update(variables)
    environment = environment_for(range(cores))
    environment.pop("RAY_ADDRESS", None)
    with open_in_place(Path(log)) if log else nullcontext(subprocess.PIPE) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    try:
        said, _ = process.communicate(stdin.encode())
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    lines = (said or b"").decode(errors="replace").strip().splitlines()
    return process.returncode, lines[-1] if lines else ""
