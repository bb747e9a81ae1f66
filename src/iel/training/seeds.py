"""Many seeds in one process, in the way that suits the device.

- `Stacked`: the states of all seeds are stacked, and one step of all is one step of the mapped program (`vmap`). Meant
  for accelerators, which are wide enough for several small networks at a time (none was measured).
- `Separate`: one program, compiled once, is run for every seed, as many at a time as there are cores. On a CPU this was
  faster than `Stacked` and than one seed after another (docs/performance.md). As the program is that of one seed, so
  are the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from iel.cores import usable_cores


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


class Stacked:
    """Seeds along a leading axis, mapped by `vmap`: the result of a seed alone, to float tolerance."""

    def __init__(self, count: int):
        self.count = count

    def join(self, values: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)

    def part(self, joined: Any, index: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], joined)

    def unzip(self, pairs: Any) -> Any:
        return pairs

    def compile(self, function: Callable, shared: int = 0, donate: bool = False) -> Callable:
        def mapped(*args: Any) -> Any:
            axes = (0,) * (len(args) - shared) + (None,) * shared
            return jax.vmap(function, in_axes=axes, axis_size=self.count)(*args)  # what is mapped may have no arrays

        return jax.jit(mapped, donate_argnums=(0,) if donate else ())


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
        compiled: list[Callable] = []

        def run(*args: Any) -> tuple:
            split = len(args) - shared
            own, common = list(zip(*args[:split], strict=True)), args[split:]
            if not compiled:  # here, and not by several threads at once
                compiled.append(program.lower(*own[0], *common).compile())
            one: Callable = lambda mine: jax.block_until_ready(compiled[0](*mine, *common))  # noqa: E731
            if self.threads == 1:
                return tuple(map(one, own))
            with ThreadPoolExecutor(self.threads) as pool:
                return tuple(pool.map(one, own))

        return run


def seed_map(count: int) -> SeedMap:
    """How so many seeds are trained on the default backend."""
    return Separate(count) if count == 1 or jax.default_backend() == "cpu" else Stacked(count)
