"""The process of one cell: `python -m iel.compare.worker CELL CORES`. Its log ends with the reason of a failure."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path

from iel.compare.cells import run_cell
from iel.cores import keep_to
from iel.errors import IELError


def stop_with_parent() -> None:
    """Ask the kernel (Linux) for SIGTERM when the parent dies: training then saves a checkpoint and ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        if os.getppid() != parent:  # it died while we asked
            sys.exit(143)


def main(arguments: list[str]) -> int:
    """Entry point of the process; its last line on stderr is the reason of a failure."""
    stop_with_parent()
    if len(arguments) > 1:
        keep_to([int(core) for core in arguments[1].split(",")])
    try:
        run_cell(Path(arguments[0]))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, IELError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
