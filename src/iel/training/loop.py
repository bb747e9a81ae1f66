"""The training loop: all phases of a method, one or many seeds, on data that stays on the device.

Step t of a run draws its batch and its noise from fold_in(key(seed), t) and from nothing else. Steps are executed in
chunks inside one compiled loop; what happens between chunks (progress, metrics, checkpoints, being killed and resumed)
cannot change the result.
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

from iel.data.examine import judge
from iel.data.jumps import cut_at_jumps
from iel.data.rests import cut_rests
from iel.data.scaling import scaling_of
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, IELError
from iel.files import locked, new_directory, require_space, seal, write_error
from iel.learner import Learner, Metrics, Phase, TrainState
from iel.methods.method import Method, config_dict
from iel.model import Model, save_model
from iel.model.files import MANIFEST_FORMAT
from iel.model.scaling import for_raw_observations
from iel.model.support import support_of
from iel.progress import Progress
from iel.training.checkpoint import prune, save_checkpoint, saved_steps, state_bytes, versions
from iel.training.feed import CHUNK, Source, source_of, step_keys
from iel.training.interrupt import Interrupted, StopRequest, deferred_signals
from iel.training.resume import Resumed, find_checkpoint, nothing_left, open_or_create
from iel.training.run import KEPT_DATA, Run, open_runs
from iel.training.seeds import SeedMap, seed_map
from iel.training.trackers import CSVTracker, TensorBoardTracker, Tracker
from iel.typed import check_seeds, check_settings

KEPT_CHECKPOINTS = 2
SAVE_SECONDS = 60.0
"""By default, a checkpoint is saved whenever so much time has passed since the last one..."""
SAVE_SHARE = 0.01
"""...but saving may take no more than this share of the time: a slow disk is written to less often."""


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
    algo: Method,
    seeds: Sequence[int] = (0,),
    *,
    out: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    tensorboard: bool = False,
    progress: bool = True,
    data_file: Path | str | None = None,
    snapshots: int = 1,
) -> Trained:
    """Train `algo` on `data`, all seeds together.

    With `out`, everything is written there as it happens (OUT itself for one seed, OUT/seed_K for several): a
    checkpoint before the first step and after the last one, and between them every `checkpoint_every` steps, or about
    once a minute when that is None. With `resume`, a run that is there already is continued, to the
    bits it would have ended with had it never been stopped; a run with other settings or data is refused. Ctrl-C,
    SIGTERM and SIGUSR1 finish the steps under way, save a checkpoint and the model, then stop. The file that the data
    was loaded from (or `data_file`) is noted, and data that was built in memory is kept in OUT/data.npz. With
    `snapshots` above 1 so many models are kept, evenly spaced over the last phase: the last one in RUN/model, the
    others in RUN/models/step_N.
    """
    seeds = list(seeds)
    check_seeds(seeds)
    check_settings(algo)
    algo.phases()  # refuses a policy that the geometry does not allow, before anything is written
    judge(data)
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every must be at least 1, but is {checkpoint_every}.")
    if snapshots < 1 or (snapshots > 1 and out is None):
        raise ConfigError(f"snapshots is {snapshots}; it must be at least 1, and more than 1 needs `out`.")
    if resume and out is None:
        raise ConfigError("resume=True needs `out`, the directory of the run to continue.")
    with ExitStack() as stack, deferred_signals(saves=out is not None) as stop:
        runs: dict[int, Run] = {}
        if out is not None:
            stack.enter_context(locked(Path(out)))
            config = run_config(data, algo, seeds, checkpoint_every, data_file or data.source, snapshots)
            runs = open_or_create(Path(out), seeds, config, resume)
            if data_file is None and data.source is None and not (Path(out) / KEPT_DATA).exists():
                data.save(Path(out) / KEPT_DATA)
            if resume and nothing_left(runs):
                return Trained({seed: run.model for seed, run in runs.items()}, runs, 0.0)
        trainer = Trainer(data, algo, seeds, runs)
        trainer.snapshots = frozenset(snapshot_steps(algo, snapshots)[:-1])
        trainer.open(stack, tensorboard)
        started = time.monotonic()
        try:
            trainer.fit(stop, checkpoint_every, progress)
        except Interrupted:
            trainer.save("interrupted")
            if not runs:
                raise Interrupted("Training was stopped; nothing was saved, because no `out` was given.") from None
            raise Interrupted(
                f"Training was stopped at step {trainer.step}; `iel train --resume {out}` continues it."
            ) from None
        trainer.save("finished")
    return Trained(trainer.models(), runs, time.monotonic() - started)


def resume(out: Path | str, data: Trajectories, *, progress: bool = True) -> Trained:
    """Continue the run (or all seeds) in `out` with the settings it was started with; a finished one stays as it is."""
    run = open_runs(out)[0]
    return train(
        data,
        run.algo,
        run.config.get("seeds", [run.seed]),
        out=out,
        resume=True,
        checkpoint_every=run.config.get("checkpoint_every"),
        tensorboard=(run.path / "tensorboard").is_dir(),
        progress=progress,
        data_file=run.config["data"].get("file"),
        snapshots=run.config.get("snapshots", 1),
    )


def snapshot_steps(algo: Method, count: int) -> list[int]:
    """At most `count` evenly spaced steps of the last phase, up to its end; the earlier ones end a chunk."""
    total, last = sum(phase.steps for phase in algo.phases()), algo.phases()[-1].steps
    spaced = (total - last + last * number / count for number in range(1, count))
    rounded = {round(step / CHUNK) * CHUNK for step in spaced}
    return [*sorted(step for step in rounded if total - last < step < total), total]


def snapshot_model(run: Path, step: int) -> Path:
    """Where the model of an earlier step is kept."""
    return run / "models" / f"step_{step}"


class SaveClock:
    """When a checkpoint is due: every so many steps, or by default every so many seconds."""

    def __init__(self, every: int | None):
        self.every, self._last, self._wait = every, time.monotonic(), SAVE_SECONDS

    def stops(self, step: int) -> list[int]:
        """The next step at which steps must pause for a save. Saves by the clock wait for the end of a chunk, so that
        the clock cannot change how metrics are averaged."""
        return [(step // self.every + 1) * self.every] if self.every else []

    def due(self, step: int) -> bool:
        if self.every:
            return step % self.every == 0
        return time.monotonic() - self._last >= self._wait

    def saved(self, seconds: float) -> None:
        """A save has just ended, and took so long."""
        self._last, self._wait = time.monotonic(), max(SAVE_SECONDS, seconds / SAVE_SHARE)


class Trainer:
    """The state of training between chunks. `open` begins or continues its runs, `fit` trains to the end."""

    def __init__(
        self, data: Trajectories, algo: Method, seeds: list[int], runs: dict[int, Run], each: SeedMap | None = None
    ):
        self.algo, self.seeds, self.runs = algo, seeds, runs
        self.trackers: dict[int, list[Tracker]] = {}
        self.snapshots: frozenset[int] = frozenset()
        self.support = support_of(data)
        data = cut_at_jumps(data).data if algo.cut_jumps else data
        data = cut_rests(data) if algo.cut_rests else data
        self.scaling = scaling_of(data) if algo.standardise else None
        self.spec = algo.spec(data, self.scaling)
        self.phases = algo.phases()
        self.step, self.phase = 0, self.phases[0].name
        self.each = each or seed_map(len(seeds))
        self.source = source_of(data, self.spec, self.scaling)
        keys = [jax.random.split(jax.random.key(seed)) for seed in seeds]
        self.keys = self.each.join([train_key for _, train_key in keys])
        started = self.each.compile(self.start)(self.each.join([init_key for init_key, _ in keys]))
        self.take([self.each.part(started, index) for index in range(len(seeds))])

    def start(self, key: jax.Array) -> dict[str, TrainState]:
        """The state of every learner before the first step, by slot."""
        first = {phase.slot: phase.learner for phase in reversed(self.phases)}
        return {slot: learner.start(key, self.spec) for slot, learner in first.items()}

    def take(self, states: Sequence[dict[str, TrainState]]) -> None:
        """Go on from these states, one per seed."""
        self.state = {slot: self.each.join([state[slot] for state in states]) for slot in states[0]}

    def states(self) -> list[dict[str, TrainState]]:
        """The states of every seed, as numpy arrays."""
        state = jax.tree.map(np.asarray, self.state)
        return [{slot: self.each.part(own, index) for slot, own in state.items()} for index in range(len(self.seeds))]

    def open(self, stack: ExitStack, tensorboard: bool) -> None:
        """Continue from the newest checkpoint, or save the first one; both show that the directory can be written."""
        if not self.runs:
            return
        like = jax.eval_shape(self.start, jax.random.key(0))
        resumed = find_checkpoint(self.runs, like)
        if resumed is not None:
            self.restore(resumed)
        roots = [run.folder("checkpoints") for run in self.runs.values()]
        more = KEPT_CHECKPOINTS + 1 - min(KEPT_CHECKPOINTS, *(len(saved_steps(root)) for root in roots))
        require_space(roots[0], more * state_bytes(self.state), "the checkpoints of this training")
        for seed, run in self.runs.items():
            facts = resumed.facts[seed] if resumed else None
            self.trackers[seed] = _open_trackers(run, tensorboard, facts, stack)
            run.update(status="running", step=self.step)
        if resumed is None:
            self.checkpoint()

    def restore(self, resumed: Resumed) -> None:
        """Take over a saved state. Keys need no restoring: step t's is f(seed, t)."""
        self.step = resumed.step
        self.take([jax.tree.map(jnp.asarray, state) for state in resumed.states])

    def fit(self, stop: StopRequest, checkpoint_every: int | None, progress: bool) -> None:
        """Run every phase from the current step to its end, or until `stop` is requested."""
        total = sum(phase.steps for phase in self.phases)
        clock = SaveClock(checkpoint_every)
        with Progress(f"train {self.algo.name}", total, show=progress) as bar:
            bar.advance(self.step, usual=False)
            end = 0
            for phase in self.phases:
                end += phase.steps
                if self.step < end:
                    self.phase = phase.name
                    self._run_phase(phase, end, stop, clock, bar)

    def _run_phase(self, phase: Phase, end: int, stop: StopRequest, clock: SaveClock, bar: Progress) -> None:
        advance = self.stepper(phase)
        mark, compiled = time.monotonic(), False
        while self.step < end:
            count = min(end, (self.step // CHUNK + 1) * CHUNK, *clock.stops(self.step)) - self.step
            metrics = advance(count)
            now = time.monotonic()
            self._report(phase.name, metrics, count / (now - mark) if compiled else None, count, bar)
            mark, compiled = now, True
            if self.step in self.snapshots:
                self._save_models(lambda run: snapshot_model(run, self.step))
                mark = now = time.monotonic()
            if self.runs and clock.due(self.step):
                self.checkpoint()
                mark = time.monotonic()
                clock.saved(mark - now)
            stop.check()

    def stepper(self, phase: Phase) -> Callable[[int], dict[str, np.ndarray]]:
        """A function that trains so many steps of a phase, waits for them, and returns their mean metrics by seed."""
        source, learner = self.source, phase.learner
        # What the tables are computed from is frozen in this phase, so a resumed run computes the same ones.
        others = [
            {slot: self.each.part(own, index).params for slot, own in self.state.items() if slot != phase.slot}
            for index in range(len(self.seeds))
        ]
        prepare = self.each.compile(lambda trained, data: source.prepare(learner, trained, data), shared=1)
        prepared = jax.block_until_ready(prepare(self.each.join(others), source.data))
        chunk = self.each.compile(many_steps(learner, source), shared=3, donate=True)

        def advance(count: int) -> dict[str, np.ndarray]:
            span = np.int32(self.step), np.int32(count)
            answers = chunk(self.state[phase.slot], self.keys, prepared, source.data, *span)
            self.state[phase.slot], metrics = self.each.unzip(answers)
            metrics = jax.tree.map(np.asarray, metrics)
            by_seed = [self.each.part(metrics, index) for index in range(len(self.seeds))]
            self.step += count
            return {name: np.array([own[name] for own in by_seed]) for name in by_seed[0]}

        return advance

    def _report(
        self, phase: str, metrics: dict[str, np.ndarray], rate: float | None, count: int, bar: Progress
    ) -> None:
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
        speed = "" if rate is None else f"  {rate:.0f} steps/s"  # the first chunk also compiled
        bar.advance(count, f"{phase}  loss {metrics[f'{phase}/loss'].mean():.4g}{speed}", usual=rate is not None)

    def models(self) -> dict[int, Model]:
        """The frozen model of every seed, as of now; it takes observations as they are in the data."""
        models = {}
        for seed, state in zip(self.seeds, self.states(), strict=True):
            models[seed] = self.algo.model({slot: own.params for slot, own in state.items()}, self.spec)
        if self.scaling is not None:
            models = {seed: for_raw_observations(model, self.scaling) for seed, model in models.items()}
        for model in models.values():
            model.support = self.support
        return models

    def checkpoint(self) -> None:
        """Save the state of every run. Older checkpoints are removed when all runs have the new one."""
        for (seed, run), state in zip(self.runs.items(), self.states(), strict=True):
            facts: dict[str, Any] = {"phase": self.phase, "seed": seed}
            for tracker in self.trackers[seed]:
                facts |= tracker.sync()
            save_checkpoint(run.folder("checkpoints"), self.step, state, run.config, facts)
        for run in self.runs.values():
            prune(run.folder("checkpoints"), KEPT_CHECKPOINTS)

    def save(self, status: str) -> None:
        """Checkpoint, model and status: after this a run directory can be evaluated."""
        if not self.runs:
            return
        self.checkpoint()
        self._save_models(lambda run: run / "model")
        for run in self.runs.values():
            run.update(status=status, step=self.step)

    def _save_models(self, place: Callable[[Path], Path]) -> None:
        """Write the model of every run, whole or not at all."""
        for seed, model in self.models().items():
            final = place(self.runs[seed].path)
            try:
                with new_directory(final) as partial:
                    save_model(model, partial)
                    seal(partial, MANIFEST_FORMAT, versions())
            except OSError as error:
                raise write_error("The model", final, error) from error


def many_steps(learner: Learner, source: Source) -> Callable:
    """(state, key, prepared, data, first step, count) -> (state, mean metrics) of one seed.

    The loop is `lax.fori_loop` with a traced number of steps: the same machine code as a scan, but a phase that ends in
    the middle of a chunk, or a checkpoint off the beat, does not compile it anew.
    """

    def steps(
        state: TrainState, key: jax.Array, prepared: Any, data: Any, first: jax.Array, count: jax.Array
    ) -> tuple[TrainState, Metrics]:
        def one_step(state: TrainState, offset: jax.Array) -> tuple[TrainState, Metrics]:
            sample_key, update_key = step_keys(key, first + offset)
            batch = learner.sample(sample_key, *source.seen(learner, prepared, data))
            return learner.update(state, batch, update_key)

        shapes = jax.eval_shape(one_step, state, first)[1]
        zeros = jax.tree.map(lambda metric: jnp.zeros(metric.shape, metric.dtype), shapes)

        def body(offset: jax.Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, sums = carry
            state, metrics = one_step(state, offset)
            return state, jax.tree.map(jnp.add, sums, metrics)

        state, sums = jax.lax.fori_loop(0, count, body, (state, zeros))
        return state, jax.tree.map(lambda total: total / count, sums)

    return steps


def run_config(
    data: Trajectories,
    algo: Method,
    seeds: list[int],
    checkpoint_every: int | None,
    data_file: Path | str | None = None,
    snapshots: int = 1,
) -> dict[str, Any]:
    """What a run's config.json holds when it begins, its seed aside."""
    facts = {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "episodes": len(data),
        "transitions": data.num_transitions,
    }
    if data_file is not None:
        facts["file"] = str(Path(data_file).absolute())
    return {
        "env": data.name,
        "algo": algo.name,
        "settings": config_dict(algo),
        "data": facts,
        "seeds": seeds,
        "checkpoint_every": checkpoint_every,
        "snapshots": snapshots,
        "status": "running",
    }


def _open_trackers(run: Run, tensorboard: bool, resumed: dict[str, Any] | None, stack: ExitStack) -> list[Tracker]:
    trackers: list[Tracker] = [CSVTracker(run.path / "metrics.csv", resumed)]
    if tensorboard:
        trackers.append(TensorBoardTracker(run.folder("tensorboard"), resumed))
    for tracker in trackers:
        stack.callback(tracker.close)
    return trackers
