"""Data that stays on the disk, as a sampler sees it: tables that are asked for rows by number.

`DeviceData` made of them has what a method's `sample` and `tables` use: lengths, rows by number, chosen columns, and
`nn.in_blocks`. Where a state's episode ends, and which rows have a next one, follows from the offsets alone:

    final(i)       = offsets[e + 1] - 1,     e the last episode with offsets[e] <= i
    transitions(k) = k + e,                  e the last episode with offsets[e] - e <= k
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData
from iel.data.trajectories import Trajectories
from iel.errors import ContractError

Answer = Callable[[str, jax.Array], jax.Array]
"""(`observations` or `actions`, row numbers) -> those rows."""


class Table:
    """A table that is not there: `table[rows]` asks for rows, and whoever made it answers."""

    ndim = 2

    def __init__(self, shape: tuple[int, ...], answer: Callable[[jax.Array], jax.Array]):
        self.shape, self._answer = shape, answer

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None):
            return self.through(lambda rows: rows[..., index[1]])
        if not jnp.issubdtype(getattr(index, "dtype", np.float32), jnp.integer):
            raise ContractError("Of data on the disk, sample() can ask for rows by an array of row numbers only.")
        return self._answer(index)

    def through(self, function: Callable[[jax.Array], jax.Array]) -> Table:
        """The table of function(row), computed for those rows that are asked for."""
        one = jax.eval_shape(function, jax.ShapeDtypeStruct((1, *self.shape[1:]), jnp.float32))
        return Table((len(self), *one.shape[1:]), lambda rows: function(self[rows]))


class Facts(NamedTuple):
    """What the device keeps of data on the disk."""

    offsets: jax.Array
    scale: jax.Array
    position: jax.Array
    others: jax.Array


class Shape(NamedTuple):
    """Sizes of the data, known when a program is compiled."""

    states: int
    episodes: int
    observation_size: int
    action_size: int

    @classmethod
    def of(cls, data: Trajectories) -> Shape:
        return cls(data.num_states, len(data), data.observation_size, data.action_size)

    def seen(self, facts: Facts, answer: Answer) -> DeviceData:
        """The data as methods see it; `answer` is asked for rows."""
        episode = partial(jnp.searchsorted, side="right")
        starts = facts.offsets[:-1]
        before = starts - jnp.arange(self.episodes, dtype=starts.dtype)  # transitions before each episode
        tables = (
            Table((self.states, self.observation_size), partial(answer, "observations")),
            Table((self.states, self.action_size), partial(answer, "actions")),
            Table((self.states,), lambda rows: facts.offsets[episode(starts, rows)] - 1),
            Table((self.states - self.episodes,), lambda numbers: numbers + episode(before, numbers) - 1),
        )
        return DeviceData(*tables, facts.scale, facts.position, facts.others)  # type: ignore[arg-type]
