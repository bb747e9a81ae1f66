"""Ctrl-C, SIGTERM and SIGUSR1 (how SLURM announces the end) between chunks of training, never in the middle of one.

The first signal only raises a flag: the chunk under way is finished, a checkpoint and the model are saved, and then
training stops. A second signal is not deferred and nothing is saved: SIGTERM and SIGUSR1 end the process at once,
Ctrl-C as soon as Python runs again, which is after the chunk.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from iel.files import notice

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop and did so between two chunks; its state is whole."""


class StopRequest:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Stop here if asked to."""
        if self.requested:
            raise Interrupted


@contextmanager
def deferred_signals(saves: bool = True) -> Iterator[StopRequest]:
    """`with deferred_signals() as stop: ... stop.check()`. No effect outside the main thread, which gets no signals.

    `saves` says whether what was trained is kept, for the sentence that the first signal prints.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(number: int, frame: FrameType | None) -> None:
        stop.requested = True
        restore()  # the next one is not deferred
        notice(
            "stopping after the steps under way, which are then saved; again to stop without saving."
            if saves
            else "stopping after the steps under way; nothing is saved, because no `out` was given."
        )

    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        restore()
