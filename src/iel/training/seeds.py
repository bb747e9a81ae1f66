"""Many seeds in one process, in the way that suits the device.

- `Stacked`: the states of all seeds are stacked, and one step of all is one step of the mapped program (`vmap`). Meant
  for accelerators, which are wide enough for several small networks at a time (none was measured).
- `Separate`: one program, compiled once, is run for every seed, as many at a time as there are cores. On a CPU this was
  faster than `Stacked` and than one seed after another (docs/performance.md). As the program is that of one seed, so
  are the bits.
- `Spread`: the same over several devices, seed i on device i modulo their number: the bits of one device again.
- `Split`: one seed on several devices. Every device has the state and the data; the rows of a batch are divided among
  them, and what is summed over rows is summed across devices, so results agree to float tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from iel.cores import usable_cores
from iel.errors import ConfigError


class SeedMap(Protocol):
    """How values of several seeds are kept together, and how a function is run for all of them."""

    def join(self, values: Sequence[Any]) -> Any:
        """All seeds' values (pytrees of the same shape) as one pytree."""
        ...

    def part(self, joined: Any, index: int) -> Any:
        """The value of one seed."""
        ...

    def unzip(self, pairs: Any) -> Any:
        """The joined first and the joined second halves of joined pairs."""
        ...

    def compile(self, function: Callable, shared: int = 0, donate: bool = False) -> Callable:
        """`function` for every seed; its last `shared` arguments are the same for all. With `donate`, the first
        argument's memory is reused."""
        ...

    def spread(self, batch: Any) -> Any:
        """A step's batch, divided among devices if need be."""
        ...


class Stacked:
    """Seeds along a leading axis, mapped by `vmap`: the result of a seed alone, to float tolerance."""

    def join(self, values: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)

    def part(self, joined: Any, index: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], joined)

    def unzip(self, pairs: Any) -> Any:
        return pairs

    def compile(self, function: Callable, shared: int = 0, donate: bool = False) -> Callable:
        def mapped(*args: Any) -> Any:
            return jax.vmap(function, in_axes=(0,) * (len(args) - shared) + (None,) * shared)(*args)

        return jax.jit(mapped, donate_argnums=(0,) if donate else ())

    def spread(self, batch: Any) -> Any:
        return batch


class Separate:
    """Seeds in a tuple, each through the same compiled program: the result of a seed alone, to the bit."""

    def __init__(self, count: int):
        self.threads = min(count, len(usable_cores()))

    def join(self, values: Sequence[Any]) -> Any:
        return tuple(values)

    def part(self, joined: Any, index: int) -> Any:
        return joined[index]

    def unzip(self, pairs: Any) -> Any:
        return tuple(zip(*pairs, strict=True))

    def compile(self, function: Callable, shared: int = 0, donate: bool = False) -> Callable:
        program = jax.jit(function, donate_argnums=(0,) if donate else ())
        compiled: dict[Any, Callable] = {}

        def run(*args: Any) -> tuple:
            split = len(args) - shared
            own = [self.placed(values, index) for index, values in enumerate(zip(*args[:split], strict=True))]
            homes = [self.home(index) for index in range(len(own))]
            common = {home: self.common(args[split:], home) for home in dict.fromkeys(homes)}
            for home, values in zip(homes, own, strict=True):  # here, and not by several threads at once
                if home not in compiled:
                    compiled[home] = program.lower(*values, *common[home]).compile()
            one: Callable = lambda mine, home: jax.block_until_ready(compiled[home](*mine, *common[home]))  # noqa: E731
            if self.threads == 1:
                return tuple(map(one, own, homes))
            with ThreadPoolExecutor(self.threads) as pool:
                return tuple(pool.map(one, own, homes))

        return run

    def home(self, index: int) -> Any:
        """The device of a seed; None is JAX's own choice."""
        return None

    def placed(self, values: Any, index: int) -> Any:
        """A seed's values on its device."""
        return values

    def common(self, values: tuple, home: Any) -> tuple:
        """What all seeds share, on a device."""
        return values

    def spread(self, batch: Any) -> Any:
        return batch


class Spread(Separate):
    """Seeds on several devices, each with the program, and the bits, of one."""

    def __init__(self, count: int, devices: Sequence[Any]):
        super().__init__(count)
        self.devices, self.threads = list(devices), min(count, len(devices))
        self._copies: dict[Any, dict[int, tuple[Any, Any]]] = {device: {} for device in devices}

    def home(self, index: int) -> Any:
        return self.devices[index % len(self.devices)]

    def placed(self, values: Any, index: int) -> Any:
        return jax.device_put(values, self.home(index))

    def common(self, values: tuple, home: Any) -> tuple:
        """Copied once to every device: the data stays the same for thousands of calls."""
        copies = self._copies[home]
        for place, value in enumerate(values):
            if place not in copies or copies[place][0] is not value:
                copies[place] = value, jax.device_put(value, home)
        return tuple(copies[place][1] for place in range(len(values)))


class Split(Separate):
    """One seed whose batches are divided among devices."""

    def __init__(self, devices: Sequence[Any], rows: int):
        super().__init__(1)
        self.count, self.rows = len(devices), rows
        if rows % self.count:
            raise ConfigError(f"batch_size {rows} cannot be divided among {self.count} devices; change one of them.")
        mesh = Mesh(np.array(devices), ("rows",))
        self.whole, self.divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("rows"))

    def placed(self, values: Any, index: int) -> Any:
        return jax.device_put(values, self.whole)

    def common(self, values: tuple, home: Any) -> tuple:
        return jax.device_put(values, self.whole)

    def spread(self, batch: Any) -> Any:
        """Arrays with a row for each transition (or several) are divided, others are whole everywhere."""

        def place(leaf: jax.Array) -> jax.Array:
            rows = leaf.shape[0] if leaf.ndim else 0
            return jax.lax.with_sharding_constraint(
                leaf, self.divided if rows and rows % self.rows == 0 else self.whole
            )

        return jax.tree.map(place, batch)


def seed_map(count: int, devices: int = 1, batch_size: int = 1) -> SeedMap:
    """How so many seeds are trained on so many devices of the default backend."""
    if devices == 1:
        return Separate(count) if count == 1 or jax.default_backend() == "cpu" else Stacked()
    there = jax.devices()
    if not 1 <= devices <= len(there):
        raise ConfigError(f"devices is {devices}, but there are {len(there)} here; choose 1 to {len(there)}.")
    return Split(there[:devices], batch_size) if count == 1 else Spread(count, there[:devices])
