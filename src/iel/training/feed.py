"""Where the rows of a batch come from: the device's memory, or a store on the disk.

`Resident` keeps all data and the tables of a phase on the device, and batches are drawn inside of the compiled loop.

`Fed` is for data that stays on the disk. A method's `sample` chooses rows by numbers that follow from its key, so it is
run twice for a chunk of steps:

    ask     sample(key_t) with tables that note the numbers and answer nothing      on the device
    read    those rows                                                              on the host, for the next chunk
    give    sample(key_t) again, with tables that answer with what was read         in the compiled loop

So step t sees the rows it would see in memory. What a phase keeps frozen (`tables`) is computed for the rows of the
batch instead of once for all rows, which agrees to float tolerance. Memory: two chunks of rows for each seed, whatever
the size of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData, to_device
from iel.data.remote import Facts, Shape
from iel.data.store import FILES, RowReader
from iel.data.trajectories import Trajectories
from iel.errors import ContractError, DataError
from iel.methods.contract import Method, Spec, State, Tables
from iel.methods.scaling import Scaling, scaled, standardised
from iel.training.seeds import SeedMap

CHUNK = 100
"""Steps between two looks at the metrics."""


Look = Callable[[State, Any, Any, jax.Array], tuple[DeviceData, Tables]]
"""(state, given, data, step of the chunk) -> the data and tables that `sample` sees."""


def step_keys(key: jax.Array, step: Any) -> tuple[jax.Array, jax.Array]:
    """The keys of a step's batch and of its noise: f(seed, step)."""
    sample_key, update_key = jax.random.split(jax.random.fold_in(key, step))
    return sample_key, update_key


class Source(Protocol):
    """What the loop asks of its data."""

    data: Any
    """The same for all seeds."""

    def look(self, state: State, given: Any, data: Any, offset: jax.Array) -> tuple[DeviceData, Tables]:
        """The data and tables that `sample` sees in step `offset` of a chunk."""
        ...

    def begin(self, phase: str, state: Any, keys: Any) -> None:
        """A phase begins, with the joined states and keys of all seeds."""
        ...

    def give(self, first: int, count: int) -> Any:
        """What the next chunk needs of each seed's own, joined."""
        ...


def source_of(data: Trajectories, algo: Method, spec: Spec, scaling: Scaling | None, each: SeedMap) -> Source:
    """Data in memory goes to the device, data on the disk stays there."""
    if data.stored is None:
        return Resident(data if scaling is None else standardised(data, scaling), algo, spec, each)
    return Fed(data, algo, spec, scaling, each)


class Resident:
    """All rows, and the tables of the phase, on the device."""

    def __init__(self, data: Trajectories, algo: Method, spec: Spec, each: SeedMap):
        self.algo, self.each = algo, each
        self.data = to_device(data, spec.place)
        self.tables: Any = None

    def look(self, state: State, given: Any, data: DeviceData, offset: jax.Array) -> tuple[DeviceData, Tables]:
        return data, given

    def begin(self, phase: str, state: Any, keys: Any) -> None:
        # What the tables are computed from is frozen in this phase, so a resumed run computes the same ones.
        make_tables = self.each.compile(lambda state, data: self.algo.tables(phase, state, data), shared=1)
        self.tables = jax.block_until_ready(make_tables(state, self.data))

    def give(self, first: int, count: int) -> Any:
        return self.tables


class Fed:
    """Rows are read from the disk for a chunk of steps while the chunk before is being trained."""

    def __init__(self, data: Trajectories, algo: Method, spec: Spec, scaling: Scaling | None, each: SeedMap):
        assert data.stored is not None
        if data.num_states >= 2**31:
            raise DataError(f"{data.name} has {data.num_states:,} states; row numbers here go up to 2^31.")
        self.algo, self.each, self.scaling, self.shape = algo, each, scaling, Shape.of(data)
        widths = {"observations": data.observation_size, "actions": data.action_size}
        self.readers = {name: RowReader(data.stored.path / FILES[name], width) for name, width in widths.items()}
        self.like = jax.eval_shape(lambda key: algo.init(key, spec), jax.random.key(0))
        elsewhere = np.setdiff1d(np.arange(data.observation_size), np.array(spec.place, int))
        scale = data.scale if scaling is None else np.ones_like(data.scale)
        facts = data.offsets.astype(np.int32), scale, np.array(spec.place, np.int32), elsewhere.astype(np.int32)
        self.data = Facts(*map(jnp.asarray, facts))
        self._worker = ThreadPoolExecutor(1)
        self._next: tuple[int, int, Future] | None = None

    def look(self, state: State, given: list[jax.Array], data: Facts, offset: jax.Array) -> tuple[DeviceData, Tables]:
        remaining = iter(given)
        seen = self.shape.seen(data, lambda name, rows: next(remaining)[offset])
        return seen, self.algo.tables(self.phase, state, seen)

    def begin(self, phase: str, state: Any, keys: Any) -> None:
        self.phase, self.keys, self.names = phase, keys, list[str]()
        self._next = None
        self._program = self.each.compile(self._asking(), shared=3)
        if not _same(self.ask(0), self.ask(0, filler=1.0)):
            raise ContractError(
                f"{self.algo.name}, phase {phase}: sample() chooses rows by what is in other rows, which data on the "
                "disk cannot do; load it into memory."
            )

    def ask(self, first: int, filler: float = 0.0) -> Any:
        """The row numbers that CHUNK steps from `first` on ask for, request by request, joined over the seeds."""
        return self._program(self.keys, self.data, np.int32(first), np.float32(filler))

    def _asking(self) -> Callable:
        """`ask` of one seed: (key, facts, first step, what the rows are filled with) -> row numbers."""

        def ask(key: jax.Array, facts: Facts, first: jax.Array, filler: jax.Array) -> list[jax.Array]:
            state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.like)
            sizes = {"observations": self.shape.observation_size, "actions": self.shape.action_size}

            def one(step: jax.Array) -> list[jax.Array]:
                asked: list[jax.Array] = []
                self.names = []

                def answer(name: str, rows: jax.Array) -> jax.Array:
                    asked.append(rows)
                    self.names.append(name)
                    return jnp.full((*rows.shape, sizes[name]), filler)

                seen = self.shape.seen(facts, answer)
                tables = self.algo.tables(self.phase, state, seen)
                self.algo.sample(self.phase, step_keys(key, step)[0], seen, tables)
                return asked

            return jax.lax.map(one, first + jnp.arange(CHUNK))

        return ask

    def give(self, first: int, count: int) -> Any:
        """Rows of steps first .. first + count - 1, and the next ones are read from now on."""
        ready = self._next
        if ready is None or ready[0] != first or ready[1] < count:
            ready = self._submit(first, count)
        given = ready[2].result()
        after = first + count
        self._next = self._submit(after, CHUNK - after % CHUNK)
        return given

    def _submit(self, first: int, count: int) -> tuple[int, int, Future]:
        return first, count, self._worker.submit(self._read, first, count)

    def _read(self, first: int, count: int) -> Any:
        asked = self.ask(first)
        return self.each.join([self._rows(self.each.part(asked, index), count) for index in range(len(self.keys))])

    def _rows(self, asked: list[jax.Array], count: int) -> list[jax.Array]:
        """What one seed asked for in `count` steps; the requests of a table are read together."""
        numbers = [np.asarray(rows)[:count] for rows in asked]
        given: list[Any] = [None] * len(numbers)
        for name, reader in self.readers.items():
            mine = [index for index, table in enumerate(self.names) if table == name]
            if not mine:
                continue
            rows = reader(np.concatenate([numbers[index].reshape(count, -1) for index in mine], axis=1))
            if name == "observations" and self.scaling is not None:
                rows = scaled(rows, self.scaling)
            start = 0
            for index in mine:
                shape = numbers[index].shape
                width = int(np.prod(shape[1:]))
                block = np.zeros((CHUNK, *shape[1:], rows.shape[-1]), np.float32)
                block[:count] = rows[:, start : start + width].reshape(*shape, -1)
                given[index], start = jnp.asarray(block), start + width
        return given


def _same(one: Any, other: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), one, other)))
