"""The training loop: all phases of a method, one or many seeds, on data that stays on the device.

Step t of a run draws its batch and its noise from fold_in(key(seed), t) and from nothing else. Steps are executed in
chunks inside one compiled loop; what happens between chunks (progress, metrics, checkpoints) cannot change the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iel.algos.contract import Metrics, Spec, State, Tables, config_dict
from iel.algos.model import Model
from iel.data.goals import DeviceData, to_device
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, IELError
from iel.progress import Progress
from iel.training.checkpoint import prune, save_checkpoint
from iel.training.interrupt import Interrupted, StopRequest, deferred_signals
from iel.training.run import Run, create_run
from iel.training.trackers import CSVTracker, TensorBoardTracker, Tracker

CHUNK = 100
"""Steps between two looks at the metrics."""
KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Trained:
    """What `train` returns: a model a seed and, when a directory was given, its runs."""

    models: dict[int, Model]
    runs: dict[int, Run]
    seconds: float

    @property
    def model(self) -> Model:
        """The model of the first seed."""
        return next(iter(self.models.values()))

    @property
    def path(self) -> Path | None:
        """The directory of the first seed's run, if files were written."""
        return next(iter(self.runs.values())).path if self.runs else None


def train(
    data: Trajectories,
    algo: Any,
    seeds: Sequence[int] = (0,),
    *,
    out: Path | str | None = None,
    checkpoint_every: int | None = None,
    tensorboard: bool = False,
    progress: bool = True,
) -> Trained:
    """Train `algo` on `data`, all seeds at once.

    With `out`, everything is written there as it happens (OUT itself for one seed, OUT/seed_K for several).
    `checkpoint_every` is in steps; the last state is always saved. Ctrl-C (or
    SIGTERM) finishes the steps under way, saves a checkpoint and the model, then stops.
    """
    seeds = list(seeds)
    if not seeds or len(set(seeds)) != len(seeds) or any(seed < 0 for seed in seeds):
        raise ConfigError(f"Seeds must be different non-negative integers, but are {seeds}.")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every must be at least 1, but is {checkpoint_every}.")
    runs = _create_runs(Path(out), data, algo, seeds) if out is not None else {}
    with ExitStack() as stack, deferred_signals() as stop:
        trackers = {seed: _open_trackers(run, tensorboard, stack) for seed, run in runs.items()}
        trainer = Trainer(data, algo, seeds, runs, trackers)
        started = time.monotonic()
        try:
            trainer.fit(stop, checkpoint_every, progress)
        except Interrupted:
            trainer.save("interrupted")
            raise
        trainer.save("finished")
    return Trained(trainer.models(), runs, time.monotonic() - started)


class Trainer:
    """The state of training between chunks. `fit` runs it to the end."""

    def __init__(
        self,
        data: Trajectories,
        algo: Any,
        seeds: list[int],
        runs: dict[int, Run],
        trackers: dict[int, list[Tracker]],
    ):
        self.algo, self.seeds, self.runs, self.trackers = algo, seeds, runs, trackers
        self.spec = Spec(data.observation_size, data.action_size)
        self.data = to_device(data)
        self.step, self.phase = 0, algo.phases()[0].name
        keys = [jax.random.split(jax.random.key(seed)) for seed in seeds]
        self.keys = self._join([train_key for _, train_key in keys])
        initialise = self._each(lambda key: algo.init(key, self.spec))
        self.state: State = jax.jit(initialise)(self._join([init_key for init_key, _ in keys]))

    # One seed trains without a mapped axis: the same arithmetic, and nothing to slice.
    def _each(self, function: Callable, shared: int = 0) -> Callable:
        """`function` for every seed; the last `shared` arguments are the same for all of them."""
        if len(self.seeds) == 1:
            return function
        return lambda *args: jax.vmap(function, in_axes=(0,) * (len(args) - shared) + (None,) * shared)(*args)

    def _join(self, values: list) -> Any:
        return values[0] if len(self.seeds) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)

    def _part(self, tree: Any, index: int) -> Any:
        return tree if len(self.seeds) == 1 else jax.tree.map(lambda leaf: leaf[index], tree)

    def fit(self, stop: StopRequest, checkpoint_every: int | None, progress: bool) -> None:
        """Run every phase to its end, or until `stop` is requested."""
        phases = self.algo.phases()
        total = sum(phase.steps for phase in phases)
        with Progress(f"train {self.algo.name}", total, show=progress) as bar:
            end = 0
            for phase in phases:
                end += phase.steps
                if phase.steps == 0:
                    continue
                self.phase = phase.name
                self._run_phase(phase.name, end, stop, checkpoint_every, bar)

    def _run_phase(self, phase: str, end: int, stop: StopRequest, checkpoint_every: int | None, bar: Progress) -> None:
        make_tables = self._each(lambda state, data: self.algo.tables(phase, state, data), shared=1)
        tables = jax.block_until_ready(jax.jit(make_tables)(self.state, self.data))
        chunk = compile_chunk(self.algo, phase, self._each)
        mark = time.monotonic()
        while self.step < end:
            stops = [end, (self.step // CHUNK + 1) * CHUNK]
            if checkpoint_every:
                stops.append((self.step // checkpoint_every + 1) * checkpoint_every)
            count = min(stops) - self.step
            state, metrics = chunk(self.state, self.keys, tables, self.data, self.step, count)
            metrics = {name: np.atleast_1d(np.asarray(value)) for name, value in metrics.items()}
            self.state, self.step = state, self.step + count
            now = time.monotonic()
            self._report(phase, metrics, count / (now - mark), count, bar)
            mark = now
            if checkpoint_every and self.step % checkpoint_every == 0:
                self.checkpoint()
            stop.check()

    def _report(self, phase: str, metrics: dict[str, np.ndarray], rate: float, count: int, bar: Progress) -> None:
        for index, seed in enumerate(self.seeds):
            values = {name: float(value[index]) for name, value in metrics.items()}
            for tracker in self.trackers.get(seed, ()):
                tracker.log(self.step, phase, values)
            broken = [name for name, value in values.items() if not np.isfinite(value)]
            if broken:
                raise IELError(
                    f"Training diverged: {broken[0]} is not finite at step {self.step} of phase {phase}, seed {seed}; "
                    "lower learning_rate, or check the scale of the observations."
                )
        loss = metrics[f"{phase}/loss"].mean() if f"{phase}/loss" in metrics else float("nan")
        bar.advance(count, f"{phase}  loss {loss:.4g}  {rate:.0f} steps/s")

    def models(self) -> dict[int, Model]:
        """The frozen model of every seed, as of now."""
        return {
            seed: self.algo.model(jax.tree.map(np.asarray, self._part(self.state, i)), self.spec)
            for i, seed in enumerate(self.seeds)
        }

    def checkpoint(self) -> None:
        """Save the state of every run."""
        for index, seed in enumerate(self.seeds):
            if run := self.runs.get(seed):
                root = run.folder("checkpoints")
                facts = {"phase": self.phase, "seed": seed}
                save_checkpoint(root, self.step, self._part(self.state, index), run.config, facts)
                prune(root, KEPT_CHECKPOINTS)

    def save(self, status: str) -> None:
        """Checkpoint, model and status: after this a run directory can be evaluated."""
        if not self.runs:
            return
        self.checkpoint()
        for seed, model in self.models().items():
            model.save(self.runs[seed].path / "model")
            self.runs[seed].update(status=status, step=self.step)


def compile_chunk(algo: Any, phase: str, each: Callable) -> Callable:
    """(state, keys, tables, data, first step, count) -> (state, mean metrics), compiled once for every count.

    The loop is `lax.fori_loop` with a traced number of steps: the same machine code as a scan, but a phase that ends in
    the middle of a chunk, or a checkpoint off the beat, does not compile it anew.
    """

    def one_step(
        state: State, key: jax.Array, tables: Tables, data: DeviceData, step: jax.Array
    ) -> tuple[State, Metrics]:
        sample_key, update_key = jax.random.split(jax.random.fold_in(key, step))
        batch = algo.sample(phase, sample_key, data, tables)
        return algo.update(phase, state, batch, update_key)

    def many_steps(state: State, key: jax.Array, tables: Tables, data: DeviceData, first: jax.Array, count: jax.Array):
        shapes = jax.eval_shape(one_step, state, key, tables, data, first)[1]
        zeros = jax.tree.map(lambda metric: jnp.zeros(metric.shape, metric.dtype), shapes)

        def body(offset: jax.Array, carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
            state, sums = carry
            state, metrics = one_step(state, key, tables, data, first + offset)
            return state, jax.tree.map(jnp.add, sums, metrics)

        state, sums = jax.lax.fori_loop(0, count, body, (state, zeros))
        return state, jax.tree.map(lambda total: total / count, sums)

    return jax.jit(each(many_steps, shared=3), donate_argnums=0)


def _create_runs(out: Path, data: Trajectories, algo: Any, seeds: list[int]) -> dict[int, Run]:
    config = {
        "env": data.name,
        "algo": algo.name,
        "settings": config_dict(algo),
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "episodes": len(data),
            "transitions": data.num_transitions,
        },
        "status": "running",
    }
    paths = {seed: out if len(seeds) == 1 else out / f"seed_{seed}" for seed in seeds}
    return {seed: create_run(path, {**config, "seed": seed}) for seed, path in paths.items()}


def _open_trackers(run: Run, tensorboard: bool, stack: ExitStack) -> list[Tracker]:
    trackers: list[Tracker] = [CSVTracker(run.path / "metrics.csv")]
    if tensorboard:
        trackers.append(TensorBoardTracker(run.folder("tensorboard")))
    for tracker in trackers:
        stack.callback(tracker.close)
    return trackers
