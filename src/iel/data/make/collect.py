"""Runs a collector in several processes and joins their episodes in order; stopped half-way, it goes on from there.

The workers are plain subprocesses (`python -m iel.data.make.collect JOB`): no pickling, and a script that calls
`iel.load` at its top level is not imported again. Each prints one line per episode, which drives the progress bar.

Episodes are collected in blocks. A finished block is a file in a directory beside the final one, which says what it was
collected with; a later call with the same settings reuses its blocks, and the directory goes when the data is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.cluster import Cluster
from iel.cores import usable_cores
from iel.data.catalogue import Split, data_directory, file_name, set_aside
from iel.data.make.ant import WEIGHTS
from iel.data.make.episodes import MazeCollector
from iel.data.make.recipes import Recipe, recipe
from iel.data.npz import read_npz
from iel.data.trajectories import Trajectories
from iel.envs import require_simulator
from iel.errors import ConfigError, DataError
from iel.files import locked, write_text, writing
from iel.loader import read_json
from iel.progress import Progress

SPLITS: tuple[Split, ...] = ("train", "val")
VALIDATION_SHARE = 10
"""One validation episode for this many training episodes, as in OGBench."""
BLOCK_STEPS = 10_000
"""Transitions a block: some ten seconds of an ant, which is what a kill can cost a worker."""


def make_dataset(
    name: str,
    *,
    episodes: int | None = None,
    seed: int = 0,
    directory: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    controller: Path | None = None,
    cluster: Cluster | None = None,
) -> dict[str, Path]:
    """Collect the training and validation episodes of a data set; returns the two files.

    With a `cluster` its blocks are collected on the nodes, which must see the directory under the same path.
    `controller` is the file of another ant controller than our own (`iel.data.make.ant.load_controller`).
    """
    plan = recipe(name)
    require_simulator(f"Making '{name}'")
    count = plan.episodes if episodes is None else episodes
    if count < 1:
        raise ConfigError(f"Asked for {count} episodes of {name}; ask for at least one.")
    directory = directory or data_directory()
    files = {split: directory / file_name(plan.name, episodes, seed, split) for split in SPLITS}
    parts = directory / f".{files['train'].name}.parts"
    before = _written(files)
    with locked(parts, patience=math.inf):
        now = _written(files)
        if now == before or None in now:  # else another process has made them meanwhile
            _make(plan, count, seed, workers or len(usable_cores()), progress, controller, files, parts, cluster)
    return {str(split): path for split, path in files.items()}


def _written(files: dict[Split, Path]) -> list[int | None]:
    """When each file was written last; None where there is none."""
    return [path.stat().st_mtime_ns if path.is_file() else None for path in files.values()]


def _make(
    plan: Recipe,
    count: int,
    seed: int,
    workers: int,
    progress: bool,
    controller: Path | None,
    files: dict[Split, Path],
    parts: Path,
    cluster: Cluster | None = None,
) -> None:
    """Collect what is missing of both splits, and write their files."""
    held_out = max(1, count // VALIDATION_SHARE)
    _open_parts(parts, _settings(plan, seed, controller))

    sizes: dict[Split, int] = {"train": count, "val": held_out}
    blocks = [block for split, size in sizes.items() for block in _blocks(plan, split, size, parts)]
    with Progress(f"collect {plan.name}", count + held_out, unit="episodes", show=progress) as bar:
        todo = [block for block in blocks if _read_block(block, plan) is None]
        bar.advance(count + held_out - sum(block["count"] for block in todo))
        if cluster is None:
            _collect(plan, seed, controller, todo, workers, bar.advance)
        elif todo:
            _collect_on(cluster, plan, seed, controller, todo, bar.advance)
    for split in SPLITS:
        data = _join(plan, [block for block in blocks if block["split"] == split])
        set_aside(files[split])
        data.save(files[split], recipe=plan.version)
    shutil.rmtree(parts)


def _settings(plan: Recipe, seed: int, controller: Path | None) -> dict[str, Any]:
    """Everything an episode depends on besides its number."""
    weights = (controller or WEIGHTS) if plan.body == "antmaze" else None
    if weights is not None and not weights.is_file():
        raise DataError(f"There is no ant controller at {weights}; give the path of a .safetensors or .npz file.")
    digest = None if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest()
    return {"recipe": asdict(plan), "seed": seed, "controller": digest}


def _open_parts(parts: Path, settings: dict[str, Any]) -> None:
    """The directory of blocks; blocks that were collected with other settings are thrown away."""
    label = parts / "settings.json"
    if label.is_file():
        try:
            if read_json(label, DataError) == settings:
                return
        except DataError:
            pass  # a damaged label: nothing is known about the blocks
    for block in parts.glob("*.npz"):
        block.unlink()
    write_text(label, json.dumps(settings))


def _blocks(plan: Recipe, split: str, size: int, parts: Path) -> list[dict[str, Any]]:
    """The episodes of a split in blocks of about `BLOCK_STEPS` transitions."""
    length = max(1, BLOCK_STEPS // plan.steps)
    return [
        {"split": split, "first": first, "count": count, "file": str(parts / f"{split}-{first:06d}-{count}.npz")}
        for first in range(0, size, length)
        for count in [min(length, size - first)]
    ]


def _read_block(block: dict[str, Any], plan: Recipe) -> dict[str, NDArray] | None:
    """The arrays of a finished block, or None where it is missing or not whole."""
    try:
        arrays = read_npz(block["file"], ("observations", "actions"))
    except DataError:
        return None
    whole = {name: array.shape[:2] for name, array in arrays.items()}
    expected = {"observations": (block["count"], plan.steps + 1), "actions": (block["count"], plan.steps)}
    return arrays if whole == expected else None


def _join(plan: Recipe, blocks: list[dict[str, Any]]) -> Trajectories:
    episodes: list[tuple[NDArray, NDArray]] = []
    for block in blocks:
        arrays = _read_block(block, plan)
        if arrays is None:
            raise DataError(f"{block['file']} is missing or damaged; run the same command again to collect it anew.")
        episodes.extend(zip(arrays["observations"], arrays["actions"], strict=True))
    return Trajectories.from_episodes(episodes, plan.name)


def _collect(
    plan: Recipe,
    seed: int,
    controller: Path | None,
    blocks: list[dict[str, Any]],
    workers: int,
    advance: Callable[[int], None],
) -> None:
    """Collect blocks in `workers` processes."""
    job = _job(plan, seed, controller)
    # One thread each: the matrices are small, and the workers are as many as the cores.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "iel.data.make.collect"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(min(workers, len(blocks)))
    ]
    try:
        watchers = [threading.Thread(target=_watch, args=(p.stdout, advance), daemon=True) for p in processes]
        for number, (process, watcher) in enumerate(zip(processes, watchers, strict=True)):
            watcher.start()
            assert process.stdin is not None
            process.stdin.write(json.dumps({**job, "blocks": blocks[number :: len(processes)]}))
            process.stdin.close()
        for process in processes:
            complaint = process.stderr.read() if process.stderr else ""
            if process.wait() != 0:
                reason = complaint.strip().splitlines()[-1] if complaint.strip() else "no message"
                raise DataError(f"Collecting {plan.name} failed in a worker process: {reason}")
        for watcher in watchers:
            watcher.join()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _job(plan: Recipe, seed: int, controller: Path | None) -> dict[str, Any]:
    """What a worker is told, its blocks aside."""
    return {"name": plan.name, "seed": seed, "controller": None if controller is None else str(controller.absolute())}


def _collect_on(
    cluster: Cluster,
    plan: Recipe,
    seed: int,
    controller: Path | None,
    blocks: list[dict[str, Any]],
    advance: Callable[[int], None],
) -> None:
    """Collect every block as a task of its own on the nodes of a cluster."""
    with cluster:
        running = {}
        for block in blocks:
            own = {**block, "file": str(Path(block["file"]).absolute())}
            job = json.dumps({**_job(plan, seed, controller), "blocks": [own]})
            running[cluster.submit("iel.data.make.collect", [], stdin=job)] = block
        try:
            while running:
                for ticket in cluster.ended(list(running), 1.0):
                    block, end = running.pop(ticket), cluster.result(ticket)
                    if end.code != 0:
                        raise DataError(f"Collecting {plan.name} failed on a node: {end.said or 'no message'}")
                    advance(block["count"])
        finally:
            if running:
                cluster.stop(list(running))


def _watch(lines, advance) -> None:
    for _ in lines:
        advance(1)


def make_collector(plan: Recipe, seed: int, controller: Path | None = None) -> MazeCollector:
    """The collector of a recipe's body."""
    if plan.body == "antmaze":
        from iel.data.make.antmaze import AntMazeCollector

        return AntMazeCollector(plan, seed, controller)
    from iel.data.make.pointmaze import PointMazeCollector

    return PointMazeCollector(plan, seed)


def _work(job: dict[str, Any]) -> None:
    """One worker: its blocks, one after another, each written when it is whole."""
    controller = None if job["controller"] is None else Path(job["controller"])
    collector = make_collector(recipe(job["name"]), job["seed"], controller)
    for block in job["blocks"]:
        episodes = []
        for index in range(block["first"], block["first"] + block["count"]):
            episodes.append(collector.episode(index, block["split"]))
            print(index, flush=True)  # a parent that is gone closes the pipe, which ends this process too
        observations, actions = (np.stack(column) for column in zip(*episodes, strict=True))
        with writing(block["file"]) as file:
            np.savez(file, observations=observations, actions=actions)


if __name__ == "__main__":
    _work(json.loads(sys.stdin.read()))
