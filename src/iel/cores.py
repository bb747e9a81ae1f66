"""The processor's cores: which ones this process may use, and how a child is limited to some of them."""

import os
from collections.abc import Sequence

CAN_PIN = hasattr(os, "sched_setaffinity")
"""Whether this system can limit a process to chosen cores (Linux can, macOS cannot)."""


def usable_cores() -> list[int]:
    """Numbers of the cores this process may run on; in a container often fewer than the machine has."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def keep_to(cores: Sequence[int]) -> None:
    """Run this process, and all threads it starts from now on, on these cores only, where the system can do that."""
    if CAN_PIN:
        os.sched_setaffinity(0, set(cores))


def environment_for(cores: Sequence[int]) -> dict[str, str]:
    """Variables for a child process that shares the machine: as many threads as cores, memory only as needed."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if len(cores) == 1:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
        environment["XLA_FLAGS"] = flags.strip()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(len(cores))
    return environment
