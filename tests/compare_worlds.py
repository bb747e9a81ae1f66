"""A grid that runs in seconds: one maze, two seeds, two tasks; its methods are for each test to name."""

import time
from collections.abc import Iterator

from iel.compare.cells import run_cell
from iel.compare.execute import Job

TINY = """
title = "tiny"
published = "ogbench"
environments = ["pointmaze-medium-navigate-v0"]
seeds = [0, 1]
preset = "smoke"

[protocol]
episodes = 1
seed = 1000
tasks = [1, 2]
max_steps = 60

[data]
episodes = 60
"""


class InThisProcess:
    """Takes the place of `iel.compare.execute.Here`: a cell is done when it was started."""

    def __init__(self, workers: int):
        self.done: list[tuple[Job, int, str]] = []

    def start(self, job: Job) -> bool:
        if self.done:
            return False
        job.state, job.started = "running", time.monotonic()
        try:
            run_cell(job.directory)
            self.done.append((job, 0, ""))
        except Exception as error:
            self.done.append((job, 1, str(error)))
        return True

    def ended(self) -> Iterator[tuple[Job, int, str]]:
        ended, self.done = self.done, []
        yield from ended

    def stop(self) -> None:
        """There is nothing to stop."""
