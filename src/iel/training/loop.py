"""The training loop: all phases of a method, one or many seeds, on data that stays on the device.

Step t of a run draws its batch and its noise from fold_in(key(seed), t) and from nothing else. Steps are executed in
chunks inside one compiled loop; what happens between chunks (progress, metrics, checkpoints, being killed and resumed)
cannot change the result.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.examine import validate
from iel.data.positions import cut_at_jumps, cut_rests
from iel.data.scaling import scaling_of
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, IELError
from iel.files import locked, new_directory, notice, require_space, write_errors
from iel.learner import Method, Phase, TrainState
from iel.model import Model, save_model
from iel.model.scaling import for_raw_observations
from iel.model.support import support_of
from iel.progress import Progress
from iel.training.callbacks import Callback, Evaluator, TrainingProgress
from iel.training.checkpoint import (
    Facts,
    Resumed,
    find_checkpoint,
    prune,
    save_checkpoint,
    saved_steps,
    state_bytes,
    versions,
)
from iel.training.run import STORED_DATA, Config, Run, nothing_left, open_or_create, open_runs, run_config
from iel.training.shared import load_policy, save_policy
from iel.training.steps import Source, many_steps, over_seeds
from iel.training.trackers import CSVTracker, Tracker, get_tracker
from iel.typed import SEEDS, shown

CHUNK = 100
"""Steps between two looks at the metrics."""
RETAINED_CHECKPOINTS = 2
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

    def __repr__(self) -> str:
        location = "" if self.path is None else f", {self.path}"
        return f"Trained({self.model!r}, seeds {list(self.models)}, {self.seconds:.0f} s{location})"

    @property
    def model(self) -> Model:
        """The model of the first seed."""
        return next(iter(self.models.values()))

    @property
    def path(self) -> Path | None:
        """The directory of the first seed's run, if files were written."""
        return next(iter(self.runs.values())).path if self.runs else None


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that are not different whole numbers below 2^32."""
    whole = all(type(seed) is int and 0 <= seed < SEEDS for seed in seeds)
    if not seeds or not whole or len(set(seeds)) != len(seeds):
        raise ConfigError(f"Seeds must be different whole numbers from 0 to {SEEDS - 1}, but are {shown(list(seeds))}.")


def train(
    data: Trajectories,
    algo: Method,
    seeds: Sequence[int] = (0,),
    *,
    out: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[str | type[Tracker]] = (),
    progress: bool = True,
    data_file: Path | str | None = None,
    snapshots: int = 1,
    policy_with: Sequence[Path] = (),
) -> Trained:
    """Train `algo` on `data`, all seeds together.

        trained = iel.train(data, IEL.preset("laptop"), seeds=[0, 1], out="runs/a", trackers=["tensorboard"])

    `out`: where everything is written as it happens (OUT itself for one seed, OUT/seed_K for several): a checkpoint
    before the first step and after the last one, and between them every `checkpoint_every` steps, or about once a
    minute when that is None; also the file that the data was loaded from (or `data_file`), or the data itself, as
    OUT/data.npz, if it was built in memory.
    `resume`: continue the run that is there, to the bits it would have ended with had it never been stopped; a run with
    other settings or data is refused. Ctrl-C, SIGTERM and SIGUSR1 finish the steps under way, save a checkpoint and the
    model, then stop.
    `callbacks` are called as training goes on and may end it (`iel.training.callbacks`).
    `trackers`: where metrics also go, names of `iel.training.TRACKERS` or classes below `iel.training.Tracker`.
    `snapshots`: how many models to store, evenly spaced over the last phase: the last one in RUN/model, the others in
    RUN/models/step_N.
    `policy_with`: other runs that may train the same policy, where it needs nothing of the geometry: it is taken from
    one of them, to the same bits, or left for them (`iel.training.shared`).

    Returns the models and runs by seed. Raises `ConfigError`, `DataError` or `RunError` before anything is trained if
    an argument, the data or the run cannot be used, and `IELError` if a metric becomes infinite or NaN.
    """
    seeds = list(seeds)
    check_seeds(seeds)
    algo.phases()  # refuses a policy that the geometry does not allow, before anything is written
    validate(data)
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every must be at least 1, but is {checkpoint_every}.")
    if snapshots < 1 or (snapshots > 1 and out is None):
        raise ConfigError(f"snapshots is {snapshots}; it must be at least 1, and more than 1 needs `out`.")
    if policy_with and (len(seeds) > 1 or checkpoint_every is not None or out is None):
        raise ConfigError("policy_with needs `out`, one seed, and checkpoints by the clock.")
    if out is None and (resume or trackers):
        raise ConfigError(f"{'resume=True' if resume else 'trackers'} needs `out`, the directory of the run.")
    kinds = [get_tracker(tracker) if isinstance(tracker, str) else tracker for tracker in trackers]
    # A package that is missing is named before anything else.
    made = {seed: [kind() for kind in kinds] for seed in seeds}
    with ExitStack() as stack, deferred_signals(saves=out is not None) as stop:
        runs: dict[int, Run] = {}
        if out is not None:
            stack.enter_context(locked(Path(out)))
            config = run_config(data, algo, seeds, checkpoint_every, data_file or data.source, snapshots)
            config |= _recorded(callbacks, trackers)
            runs = open_or_create(Path(out), seeds, config, resume)
            if data_file is None and data.source is None and not (Path(out) / STORED_DATA).exists():
                data.save(Path(out) / STORED_DATA)
            if resume and nothing_left(runs):
                return Trained({seed: run.model for seed, run in runs.items()}, runs, 0.0)
        trainer = Trainer(data, algo, seeds, runs)
        trainer.snapshots = frozenset(snapshot_steps(algo, snapshots)[:-1])
        trainer.policy_with, trainer.callbacks = policy_with, callbacks
        trainer.open(stack, made)
        started = time.monotonic()
        try:
            trainer.fit(stop, checkpoint_every, progress)
        except Interrupted:
            trainer.save("interrupted")
            saved = f" at step {trainer.step}; `iel train --resume {out}` continues it."
            none = "; nothing was saved, because no `out` was given."
            raise Interrupted(f"Training was stopped{saved if runs else none}") from None
        trainer.save("finished")
    return Trained(trainer.models(), runs, time.monotonic() - started)


def _recorded(callbacks: Sequence[Callback], trackers: Sequence[str | type[Tracker]]) -> Config:
    """What config.json says of them, so that `resume` finds them again."""
    named = [tracker for tracker in trackers if isinstance(tracker, str)]
    evaluators = (callback for callback in callbacks if isinstance(callback, Evaluator))
    evaluator = next((each for each in evaluators if each == Evaluator(every=each.every, stop_at=each.stop_at)), None)
    watched = {} if evaluator is None else {"evaluate_every": evaluator.every, "stop_at": evaluator.stop_at}
    return {**watched, **({"trackers": named} if named else {})}


def resume(
    out: Path | str, data: Trajectories, *, callbacks: Sequence[Callback] | None = None, progress: bool = True
) -> Trained:
    """Continue the run (or all seeds) in `out` with the settings it was started with; a finished one stays as it is.

    Without `callbacks`, an `Evaluator` of which only `every` and `stop_at` were set is made again; give others again.
    """
    run = open_runs(out)[0]
    config = run.config
    if callbacks is None:
        every = config.get("evaluate_every")
        callbacks = [] if every is None else [Evaluator(every=every, stop_at=config.get("stop_at"))]
    return train(
        data,
        run.algo,
        config.get("seeds", [run.seed]),
        out=out,
        resume=True,
        checkpoint_every=config.get("checkpoint_every"),
        callbacks=callbacks,
        trackers=config.get("trackers", ()),
        progress=progress,
        data_file=config["data"].get("file"),
        snapshots=config.get("snapshots", 1),
    )


def snapshot_steps(algo: Method, count: int) -> list[int]:
    """At most `count` evenly spaced steps of the last phase, up to its end; the earlier ones end a chunk."""
    total, last = sum(phase.steps for phase in algo.phases()), algo.phases()[-1].steps
    spaced = (total - last + last * number / count for number in range(1, count))
    rounded = {round(step / CHUNK) * CHUNK for step in spaced}
    return [*sorted(step for step in rounded if total - last < step < total), total]


def snapshot_model(run: Path, step: int) -> Path:
    """Where the model of an earlier step is stored."""
    return run / "models" / f"step_{step}"


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal, between two chunks; its state is whole."""


@contextmanager
def deferred_signals(saves: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and SIGUSR1 (how SLURM announces the end) set; the chunk under way goes on.

    A second signal is not deferred and nothing is saved: SIGTERM and SIGUSR1 end the process at once, Ctrl-C as soon as
    Python runs again, which is after the chunk. No effect outside the main thread, which gets no signals. `saves`:
    whether the notice that the first signal prints says that the run is saved.
    """
    stop, before = threading.Event(), {}
    if threading.current_thread() is threading.main_thread():
        numbers = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGUSR1"))
        before = {number: signal.getsignal(number) for number in numbers if number is not None}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(number: int, frame: FrameType | None) -> None:
        stop.set()
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


class SaveClock:
    """When a checkpoint is due: every `every` steps, or every `SAVE_SECONDS` if that is None."""

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
        """To be called after a save, with the time it took."""
        self._last, self._wait = time.monotonic(), max(SAVE_SECONDS, seconds / SAVE_SHARE)


class Trainer:
    """The state of training between chunks. `open` begins or continues its runs, `fit` trains to the end."""

    def __init__(
        self, data: Trajectories, algo: Method, seeds: list[int], runs: dict[int, Run], stacked: bool | None = None
    ):
        """`stacked` says how several seeds are trained (`over_seeds`): by default as suits the device."""
        self.algo, self.seeds, self.runs, self.fingerprint = algo, seeds, runs, data.fingerprint
        self.data = data
        self.csv: dict[int, CSVTracker] = {}
        self.trackers: dict[int, list[Tracker]] = {}
        self.callbacks: Sequence[Callback] = ()
        self.snapshots: frozenset[int] = frozenset()
        self.policy_with: Sequence[Path] = ()
        self.stop, self.stopped = threading.Event(), False
        """Whether a signal came; whether a callback ended training."""
        self.capped: set[str] = set()
        """Multipliers that have reached their caps: the notice is printed once."""
        self.support, self.signals = support_of(data), data.signals
        uncut = data
        data = cut_at_jumps(data).data if algo.cut_jumps else data
        data = cut_rests(data) if algo.cut_rests else data
        self.scaling = scaling_of(data) if algo.standardise == "all" else None
        self.spec = algo.spec(data, self.scaling, uncut)
        self.phases = algo.phases()
        self.step, self.phase = 0, self.phases[0].name
        self.stacked = len(seeds) > 1 and jax.default_backend() != "cpu" if stacked is None else stacked
        self.source = Source(data, self.spec, self.scaling)
        keys = [jax.random.split(jax.random.key(seed)) for seed in seeds]
        self.keys = [train_key for _, train_key in keys]
        self.state = over_seeds(self.start, stacked=self.stacked)([init_key for init_key, _ in keys])
        """By seed: the state of every learner, by its slot."""

    def start(self, key: jax.Array) -> dict[str, TrainState]:
        """The state of every learner before the first step, by slot."""
        first = {phase.slot: phase.learner for phase in reversed(self.phases)}
        return {slot: learner.start(key, self.spec) for slot, learner in first.items()}

    def states(self) -> list[dict[str, TrainState]]:
        """The states of every seed, as numpy arrays."""
        return jax.tree.map(np.asarray, self.state)

    def open(self, stack: ExitStack, trackers: Mapping[int, list[Tracker]] | None = None) -> None:
        """Continue from the newest checkpoint, or save the first one; both show that the directory can be written."""
        if not self.runs:
            return
        resumed = find_checkpoint(self.runs, jax.eval_shape(self.start, jax.random.key(0)))
        fresh = resumed is None
        if fresh and self.policy_with:
            resumed = load_policy(self)
        if resumed is not None:
            self.restore(resumed)
        roots = [run.folder("checkpoints") for run in self.runs.values()]
        more = RETAINED_CHECKPOINTS + 1 - min(RETAINED_CHECKPOINTS, *(len(saved_steps(root)) for root in roots))
        require_space(roots[0], more * state_bytes(self.state), "the checkpoints of this training")
        for seed, run in self.runs.items():
            metrics = resumed.facts[seed].metrics if resumed else None
            self.csv[seed] = CSVTracker(run.path / "metrics.csv", self.step, metrics)
            stack.callback(self.csv[seed].close)
            self.trackers[seed] = (trackers or {}).get(seed, [])
            for tracker in self.trackers[seed]:
                tracker.start({**run.config, "run": str(run.path), "resumed_at": None if fresh else self.step})
                stack.enter_context(closing(tracker))
            run.update(status="running", step=self.step)
        self.stopped = bool(self.runs) and all(run.config.get("stopped_at") == self.step for run in self.runs.values())
        if fresh:
            self.checkpoint()

    def restore(self, resumed: Resumed[dict[str, TrainState]]) -> None:
        """Take over a saved state. Keys need no restoring: step t's is f(seed, t)."""
        self.step = resumed.step
        ends = np.cumsum([phase.steps for phase in self.phases])
        self.phase = self.phases[min(int(np.searchsorted(ends, self.step)), len(self.phases) - 1)].name
        self.state = jax.tree.map(jnp.asarray, resumed.states)

    def fit(self, stop: threading.Event, checkpoint_every: int | None, progress: bool) -> None:
        """Run every phase from the current step to its end, until a callback ends it or `stop` is set."""
        self.stop, clock, end = stop, SaveClock(checkpoint_every), 0
        with Progress(f"train {self.algo.name}", self.total, show=progress) as bar:
            bar.advance(self.step, usual=False)
            self._call("start", self.step)
            for phase in self.phases:
                end += phase.steps
                if self.step < end and not self.stopped:
                    self.phase = phase.name
                    self._run_phase(phase, end, clock, bar)
                if self.step == end and self.policy_with:
                    save_policy(self)
            self._call("end", self.step)

    def _run_phase(self, phase: Phase, end: int, clock: SaveClock, bar: Progress) -> None:
        advance, compiled = self.stepper(phase), False
        while self.step < end and not self.stopped:
            since, started = self.step, time.monotonic()
            count = min(end, (since // CHUNK + 1) * CHUNK, *clock.stops(since)) - since
            metrics = advance(count)
            rate = count / (time.monotonic() - started) if compiled else None  # the first chunk also compiles
            self._report(phase, metrics, rate, count, bar)
            compiled = True
            self._call("step", since, dict(zip(self.seeds, metrics, strict=True)))
            if self.step in self.snapshots:
                self._save_models(lambda run: snapshot_model(run, self.step))
            if self.runs and clock.due(self.step):
                started = time.monotonic()
                self.checkpoint()
                clock.saved(time.monotonic() - started)
            if self.stop.is_set():
                raise Interrupted

    def _call(
        self,
        event: Literal["start", "step", "end"],
        since: int,
        metrics: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        """Call every callback; a step after which one returns True is the last one, also of a run that is resumed."""
        is_last = self.step > self.total - self.phases[-1].steps
        progress = TrainingProgress(
            event, self.step, since, self.total, self.phase, is_last, metrics or {}, self.data, self.models, self.log
        )
        answers = [callback(progress) for callback in self.callbacks]  # all are called
        if event == "step" and any(answers):
            self.stopped = True
            for run in self.runs.values():
                run.update(stopped_at=self.step)

    def log(self, seed: int, metrics: Mapping[str, float]) -> None:
        """Write metrics of a seed, at this step, to metrics.csv and to every tracker."""
        if seed in self.csv:
            self.csv[seed].log(self.step, self.phase, metrics)
        for tracker in self.trackers.get(seed, ()):
            tracker.log(self.step, metrics)

    @property
    def total(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def stepper(self, phase: Phase) -> Callable[[int], list[dict[str, float]]]:
        """A function that trains a number of steps of a phase, waits for them, and returns each seed's mean metrics."""
        source, learner = self.source, phase.learner
        # What the tables are computed from is frozen in this phase, so a resumed run computes the same ones.
        others = [{slot: own.params for slot, own in state.items() if slot != phase.slot} for state in self.state]
        prepare = over_seeds(
            lambda trained, data: source.prepare(learner, trained, data), shared=1, stacked=self.stacked
        )
        prepared = jax.block_until_ready(prepare(others, source.data))
        chunk = over_seeds(many_steps(learner, source), shared=3, stacked=self.stacked, donate=True)

        def advance(count: int) -> list[dict[str, float]]:
            own = [state[phase.slot] for state in self.state]
            found = chunk(own, self.keys, prepared, source.data, np.int32(self.step), np.int32(count))
            for state, (after, _) in zip(self.state, found, strict=True):
                state[phase.slot] = after
            self.step += count
            return [{name: float(value) for name, value in metrics.items()} for _, metrics in found]

        return advance

    def _report(
        self, phase: Phase, metrics: list[dict[str, float]], rate: float | None, count: int, bar: Progress
    ) -> None:
        for seed, values in zip(self.seeds, metrics, strict=True):
            self.log(seed, values)
            if broken := [name for name, value in values.items() if not np.isfinite(value)]:
                raise IELError(
                    f"Training diverged: {broken[0]} is not finite at step {self.step} of phase {phase.name}, "
                    f"seed {seed}; lower learning_rate, or check the scale of the observations."
                )
            for name, cap in phase.learner.caps.items():
                if values[name] >= (1.0 - 1e-5) * cap and name not in self.capped:
                    self.capped.add(name)
                    notice(
                        f"{name} reached its cap of {cap:g} by step {self.step} (seed {seed}): its constraint cannot "
                        f"be met and outweighs all else; docs/{self.algo.name}.md says which settings can meet it."
                    )
        speed = "" if rate is None else f"  {rate:.0f} steps/s"
        loss = np.mean([values[f"{phase.name}/loss"] for values in metrics])
        bar.advance(count, f"{phase.name}  loss {loss:.4g}{speed}", usual=rate is not None)

    def models(self) -> dict[int, Model]:
        """The frozen model of every seed, as of now; it takes observations as they are in the data."""
        models = {}
        for seed, state in zip(self.seeds, self.states(), strict=True):
            model = self.algo.model({slot: own.params for slot, own in state.items()}, self.spec)
            models[seed] = model if self.scaling is None else for_raw_observations(model, self.scaling)
            models[seed].support, models[seed].signals = self.support, self.signals
        return models

    def checkpoint(self) -> None:
        """Save the state of every run. Older checkpoints are removed when all runs have the new one."""
        for (seed, run), state in zip(self.runs.items(), self.states(), strict=True):
            self.csv[seed].sync()
            facts = Facts(self.step, self.phase, seed, self.csv[seed].facts)
            save_checkpoint(run.folder("checkpoints"), state, run.config, facts)
        for run in self.runs.values():
            prune(run.folder("checkpoints"), RETAINED_CHECKPOINTS)

    def save(self, status: str) -> None:
        """Checkpoint, model and status: after this a run directory can be evaluated."""
        if not self.runs:
            return
        self.checkpoint()
        self._save_models(lambda run: run / "model")
        for run in self.runs.values():
            run.update(status=status, step=self.step)

    def _save_models(self, location: Callable[[Path], Path]) -> None:
        """Write the model of every run, whole or not at all."""
        for seed, model in self.models().items():
            final = location(self.runs[seed].path)
            with write_errors("The model", final), new_directory(final) as partial:
                save_model(model, partial, versions())
