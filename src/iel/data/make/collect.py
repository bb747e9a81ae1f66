"""Runs a collector in several processes and joins their episodes in order.

The workers are plain subprocesses (`python -m iel.data.make.collect ...`): no pickling, and a script that calls
`iel.load` at its top level is not imported again. Each prints one line an episode, which drives the progress bar.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from iel.data.catalogue import Split, data_directory, file_name
from iel.data.make.pointmaze import PointMazeCollector, recipe
from iel.data.readers.ogbench import write_ogbench
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, DataError
from iel.progress import Progress

VALIDATION_SHARE = 10
"""One validation episode for this many training episodes, as in OGBench."""


def make_dataset(
    name: str,
    *,
    episodes: int | None = None,
    seed: int = 0,
    directory: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Path]:
    """Collect the training and validation episodes of a data set; returns the two files."""
    plan = recipe(name)
    count = plan.episodes if episodes is None else episodes
    if count < 1:
        raise ConfigError(f"Asked for {count} episodes of {name}; ask for at least one.")
    held_out = max(1, count // VALIDATION_SHARE)
    directory = directory or data_directory()
    workers = workers or available_cores()

    splits: tuple[tuple[Split, int], ...] = (("train", count), ("val", held_out))
    with Progress(f"collect {name}", count + held_out, unit="episodes", show=progress) as bar:
        collected = {
            split: _collect(name, seed, split, size, min(workers, size), bar.advance) for split, size in splits
        }
    files: dict[str, Path] = {}
    for split, data in collected.items():
        files[split] = directory / file_name(name, episodes, seed, split)
        write_ogbench(files[split], data)
    return files


def _collect(name: str, seed: int, split: Split, size: int, workers: int, advance) -> Trajectories:
    with tempfile.TemporaryDirectory(prefix="iel-make-") as scratch:
        parts = [Path(scratch) / f"part{w}.npz" for w in range(workers)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "iel.data.make.collect", *map(str, (name, seed, split, size, w, workers, part))],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for w, part in enumerate(parts)
        ]
        try:
            watchers = [threading.Thread(target=_watch, args=(p.stdout, advance), daemon=True) for p in processes]
            for watcher in watchers:
                watcher.start()
            for process in processes:
                complaint = process.stderr.read() if process.stderr else ""
                if process.wait() != 0:
                    reason = complaint.strip().splitlines()[-1] if complaint.strip() else "no message"
                    raise DataError(f"Collecting {name} failed in a worker process: {reason}")
            for watcher in watchers:
                watcher.join()
        finally:
            for process in processes:
                process.kill()
        episodes: list = [None] * size
        for w, part in enumerate(parts):
            with np.load(part, allow_pickle=False) as archive:
                for row, e in enumerate(range(w, size, workers)):
                    episodes[e] = archive["observations"][row], archive["actions"][row]
    return Trajectories.from_episodes(episodes, name)


def available_cores() -> int:
    """The cores this process may use, which in a container is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _watch(lines, advance) -> None:
    for _ in lines:
        advance(1)


def _work(arguments: list[str]) -> None:
    """One worker: every `workers`-th episode, written as two stacked arrays."""
    name, seed, split, size, worker, workers, part = arguments
    collector = PointMazeCollector(recipe(name), int(seed))
    observations, actions = [], []
    for index in range(int(worker), int(size), int(workers)):
        states, controls = collector.episode(index, split)
        observations.append(states)
        actions.append(controls)
        print(index, flush=True)
    np.savez(part, observations=np.stack(observations), actions=np.stack(actions))


if __name__ == "__main__":
    _work(sys.argv[1:])
