"""Runs a collector in several processes and joins their episodes in order; stopped half-way, it goes on from there.

The workers are plain subprocesses (`python -m iel.data.make.collect JOB`): no pickling, and a script that calls
`iel.load` at its top level is not imported again. Each prints one line per episode, which drives the progress bar.

Episodes are collected in blocks. A finished block is a file in a directory beside the final one, which says what it was
collected with; a later call with the same settings reuses its blocks, and the directory goes when the data is written.
"""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.cluster import Cluster
from iel.cores import environment_for, usable_cores
from iel.data.catalogue import data_directory, file_name, set_aside
from iel.data.make.ant import controller_file, load_controller
from iel.data.make.arms import ArmCollector, arm_signals
from iel.data.make.episodes import Collector
from iel.data.make.recipes import ARMS, SPLITS, VERSION, Recipe, recipe
from iel.data.npz import read_npz
from iel.data.trajectories import Trajectories
from iel.envs import require_simulator
from iel.errors import ConfigError, DataError
from iel.files import file_facts, locked, write_text, writing
from iel.loader import read_json
from iel.progress import Progress

VALIDATION_SHARE = 10
"""One validation episode for this many training episodes, as in OGBench."""
BLOCK_STEPS = 10_000
"""Transitions a block: some ten seconds of an ant, which is what a kill can cost a worker."""


class Block(NamedTuple):
    """Episodes first .. first + size - 1 of a split, and the file that holds them."""

    split: str
    first: int
    size: int
    file: str


Job = tuple[str, int, str | None]
"""What an episode is collected with, besides its number: name, seed and the file of the controller."""


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
    again: bool = False,
) -> dict[str, Path]:
    """Collect the training and validation episodes of a data set, unless they are there; returns the two files.

    What is there was made with the same recipe, seed, number and controller; `again` collects it all the same.
    With a `cluster` its blocks are collected on the nodes, which must see the directory under the same path.
    `controller` is the file of another ant controller than our own (`iel.data.make.ant.load_controller`).
    """
    plan = recipe(name)
    require_simulator(f"Making '{name}'")
    count = plan.episodes if episodes is None else episodes
    if count < 1:
        raise ConfigError(f"episodes is {count} for {name}; give at least one.")
    directory = directory or data_directory()
    files: dict[str, Path] = {split: directory / file_name(plan.name, episodes, seed, split) for split in SPLITS}
    parts = directory / f".{files['train'].name}.parts"
    settings = _settings(plan, seed, controller)
    facts = {"recipe": np.array(VERSION), "controller": np.frombuffer(str(settings["controller"]).encode(), np.uint8)}
    with locked(parts, patience=math.inf):  # another process may be making them
        if not again and all(_made_with(facts, path) for path in files.values()):
            shutil.rmtree(parts)
            return files
        _open_parts(parts, settings)
        job = plan.name, seed, None if controller is None else str(controller.absolute())
        validation = max(1, count // VALIDATION_SHARE)
        blocks = [*_blocks(plan, "train", count, parts), *_blocks(plan, "val", validation, parts)]
        with Progress(f"collect {plan.name}", count + validation, unit="episodes", show=progress) as bar:
            todo = [block for block in blocks if _read_block(block, plan) is None]
            bar.advance(count + validation - sum(block.size for block in todo))
            if cluster is None:
                _collect(job, todo, workers or len(usable_cores()), bar.advance)
            elif todo:
                _collect_on(cluster, job, todo, bar.advance)
        for split, path in files.items():
            data = _join(plan, [block for block in blocks if block.split == split])
            set_aside(path)
            data.save(path, **facts)
        shutil.rmtree(parts)
    return files


def _made_with(facts: dict[str, NDArray], path: Path) -> bool:
    """Whether a file is there whose facts are these."""
    try:
        found = read_npz(path, facts)
    except DataError:
        return False
    return found.keys() == facts.keys() and all(np.array_equal(found[name], facts[name]) for name in facts)


def _settings(plan: Recipe, seed: int, controller: Path | None) -> dict[str, object]:
    """Everything an episode depends on besides its number."""
    weights = controller_file(controller) if plan.body == "antmaze" else None
    digest = None if weights is None else file_facts(weights, DataError).sha256
    return {"recipe": asdict(plan), "version": VERSION, "seed": seed, "controller": digest}


def _open_parts(parts: Path, settings: dict[str, object]) -> None:
    """The directory of blocks; blocks that were collected with other settings are thrown away."""
    label = parts / "settings.json"
    with suppress(DataError):  # no label, or a damaged one: nothing is known about the blocks
        if read_json(label, DataError) == settings:
            return
    for block in parts.glob("*.npz"):
        block.unlink()
    write_text(label, json.dumps(settings))


def _blocks(plan: Recipe, split: str, size: int, parts: Path) -> Iterator[Block]:
    """The episodes of a split in blocks of about `BLOCK_STEPS` transitions."""
    length = max(1, BLOCK_STEPS // plan.steps)
    for first in range(0, size, length):
        count = min(length, size - first)
        yield Block(split, first, count, str(parts.absolute() / f"{split}-{first:06d}-{count}.npz"))


def _read_block(block: Block, plan: Recipe) -> dict[str, NDArray] | None:
    """The arrays of a finished block, or None where it is missing or not whole."""
    try:
        arrays = read_npz(block.file, ("observations", "actions"))
    except DataError:
        return None
    whole = {name: array.shape[:2] for name, array in arrays.items()}
    expected = {"observations": (block.size, plan.steps + 1), "actions": (block.size, plan.steps)}
    return arrays if whole == expected else None


def _join(plan: Recipe, blocks: list[Block]) -> Trajectories:
    episodes: list[tuple[NDArray, NDArray]] = []
    for block in blocks:
        arrays = _read_block(block, plan)
        if arrays is None:
            raise DataError(f"{block.file} is missing or damaged; run the same command again to collect it anew.")
        episodes.extend(zip(arrays["observations"], arrays["actions"], strict=True))
    data = Trajectories.from_episodes(episodes, plan.name, trust=True)
    return replace(data, signals=arm_signals(plan)) if plan.body in ARMS else data


def _collect(job: Job, blocks: list[Block], workers: int, advance: Callable[[int], None]) -> None:
    """Collect blocks in `workers` processes, of one thread each: their matrices are small."""
    command, pipe = [sys.executable, "-m", "iel.data.make.collect"], subprocess.PIPE
    processes = [
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment_for([0])
        )
        for _ in range(min(workers, len(blocks)))
    ]

    def watch(number: int) -> None:
        process, last = processes[number], "no message"
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(_text(job, blocks[number :: len(processes)]))
        process.stdin.close()
        for line in process.stdout:
            if line.strip().isdecimal():
                advance(1)
            else:
                last = line.strip() or last
        if process.wait() != 0:
            raise DataError(f"Collecting {job[0]} failed in a worker process: {last}")

    with ThreadPoolExecutor(max(1, len(processes))) as pool:
        try:
            list(pool.map(watch, range(len(processes))))
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _collect_on(cluster: Cluster, job: Job, blocks: list[Block], advance: Callable[[int], None]) -> None:
    """Collect every block as a task of its own on the nodes of a cluster."""
    with cluster:
        running = {cluster.submit("iel.data.make.collect", [], stdin=_text(job, [block])): block for block in blocks}
        try:
            while running:
                for ticket in cluster.ended(list(running), 1.0):
                    block, (code, said) = running.pop(ticket), cluster.result(ticket)
                    if code != 0:
                        raise DataError(f"Collecting {job[0]} failed on a node: {said or 'no message'}")
                    advance(block.size)
        finally:
            if running:
                cluster.stop(list(running))


def _text(job: Job, blocks: list[Block]) -> str:
    """JSON for the standard input of a worker."""
    return json.dumps([*job, blocks])


def make_collector(plan: Recipe, seed: int, controller: Path | None = None) -> Collector | ArmCollector:
    """The collector of a recipe; `controller` is the file of another ant controller than our own."""
    if plan.body in ARMS:
        return ArmCollector(plan, seed)
    return Collector(plan, seed, load_controller(controller) if plan.body == "antmaze" else None)


def _work(name: str, seed: int, controller: str | None, blocks: list[tuple[str, int, int, str]]) -> None:
    """One worker: its blocks, one after another, each written when it is whole."""
    collector = make_collector(recipe(name), seed, None if controller is None else Path(controller))
    for split, first, count, path in blocks:
        episodes = []
        for index in range(first, first + count):
            episodes.append(collector.episode(index, split))
            print(index, flush=True)  # a parent that is gone closes the pipe, which ends this process too
        observations, actions = (np.stack(column) for column in zip(*episodes, strict=True))
        with writing(path) as file:
            np.savez(file, observations=observations, actions=actions)


if __name__ == "__main__":
    _work(*json.loads(sys.stdin.read()))
