"""Steps of training as compiled programs: where a batch comes from, many steps in one loop, and many seeds.

Data in memory goes to the device as a whole, and so do the tables of a phase; batches are drawn there, inside of the
compiled loop. Data on the disk stays there: the same loop calls back for the rows of a batch (`iel.data.goals`), and
what a phase knows about every state (`tables`) is computed for those rows alone, which agrees to float tolerance.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from iel.cores import usable_cores
from iel.data.goals import DeviceData, Facts, seen_from_disk, to_device
from iel.data.scaling import Scaling, standardised
from iel.data.store import FILES, RowReader
from iel.data.trajectories import Trajectories
from iel.errors import DataError
from iel.learner import Learner, Metrics, Spec, Tables, Trained, TrainState

T = TypeVar("T")


class Source:
    """Where rows come from. `data` is what the device keeps: all rows, or of data on the disk what is known of them."""

    data: DeviceData | Facts

    def __init__(self, data: Trajectories, spec: Spec, scaling: Scaling | None):
        self.spec, self.scaling = spec, scaling
        if data.stored is None:
            self.data = to_device(data if scaling is None else standardised(data, scaling), spec.position)
            return
        if data.num_states >= 2**31:
            raise DataError(f"{data.name} has {data.num_states:,} states; row numbers here go up to 2^31.")
        self.stored = data
        widths = {"observations": data.observation_size, "actions": data.action_size}
        self.readers = {name: RowReader(data.stored / FILES[name], width) for name, width in widths.items()}
        others = np.setdiff1d(np.arange(data.observation_size), np.array(spec.position, int))
        scale = data.scale if scaling is None else np.ones_like(data.scale)
        facts = data.offsets.astype(np.int32), scale, np.array(spec.position, np.int32), others.astype(np.int32)
        self.data = Facts(*map(jnp.asarray, facts))

    def prepare(self, learner: Learner, trained: Trained, data: DeviceData | Facts) -> Tables | Trained:
        """What `seen` needs of a seed's own, computed once at the beginning of a phase: tables, or of data on the disk
        the networks that they are computed from row by row."""
        return learner.tables(trained, data, self.spec) if isinstance(data, DeviceData) else trained

    def seen(self, learner: Learner, prepared: Tables, data: DeviceData | Facts) -> tuple[DeviceData, Tables]:
        """The data and the tables that `sample` sees."""
        if isinstance(data, DeviceData):
            return data, prepared
        rows = seen_from_disk(self.stored, data, self._read)
        return rows, learner.tables(prepared, rows, self.spec)

    def _read(self, name: str, rows: jax.Array) -> jax.Array:
        def read(numbers: jax.Array) -> np.ndarray:
            found = self.readers[name](np.asarray(numbers))
            return self.scaling(found) if name == "observations" and self.scaling is not None else found

        shape = jax.ShapeDtypeStruct((*rows.shape, self.readers[name].columns), jnp.float32)
        return jax.pure_callback(read, shape, rows, vmap_method="expand_dims")


def step_keys(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """The keys of a step's batch and of its noise: f(seed, step)."""
    sample_key, update_key = jax.random.split(jax.random.fold_in(key, step))
    return sample_key, update_key


def many_steps(learner: Learner, source: Source) -> Callable[..., tuple[TrainState, Metrics]]:
    """(state, key, prepared, data, first step, count) -> (state, mean metrics) of one seed.

    The loop is `lax.fori_loop` with a traced number of steps: the same machine code as a scan, but a phase that ends in
    the middle of a chunk, or a checkpoint off the beat, does not compile it anew.
    """

    def steps(
        state: TrainState,
        key: jax.Array,
        prepared: Tables,
        data: DeviceData | Facts,
        first: jax.Array,
        count: jax.Array,
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


def over_seeds(
    function: Callable[..., T], shared: int = 0, *, stacked: bool, donate: bool = False
) -> Callable[..., list[T]]:
    """`function` for every seed: it takes lists with an entry per seed, and last `shared` arguments common to all.

    `stacked`: one step of all seeds is one step of the mapped program (`vmap`), to float tolerance the result of a seed
    alone. Meant for accelerators, which are wide enough for several small networks at a time (none was measured).
    Otherwise one program, compiled once, is run for every seed, as many at a time as there are cores. On a CPU this was
    faster (docs/performance.md), and as the program is that of one seed, so are the bits. With `donate`, the memory of
    the first argument is reused.
    """
    donated = (0,) if donate else ()

    def mapped(*args: Any) -> list[T]:
        own, common, count = args[: len(args) - shared], args[len(args) - shared :], len(args[0])
        joined = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *values) for values in own]
        axes = (0,) * len(own) + (None,) * shared
        found = jax.vmap(function, axes, axis_size=count)(*joined, *common)  # what is mapped may have no arrays
        return [jax.tree.map(lambda leaf, index=index: leaf[index], found) for index in range(count)]

    if stacked:
        return jax.jit(mapped, donate_argnums=donated)
    program = jax.jit(function, donate_argnums=donated)
    compiled: list[Callable[..., T]] = []

    def separate(*args: Any) -> list[T]:
        own, common = list(zip(*args[: len(args) - shared], strict=True)), args[len(args) - shared :]
        if not compiled:  # here, and not by several threads at once
            compiled.append(program.lower(*own[0], *common).compile())

        def one(mine: tuple[Any, ...]) -> T:
            return jax.block_until_ready(compiled[0](*mine, *common))

        if len(own) == 1:
            return [one(own[0])]
        with ThreadPoolExecutor(min(len(own), len(usable_cores()))) as pool:
            return list(pool.map(one, own))

    return separate
