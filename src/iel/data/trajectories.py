"""The store of logged trajectories: flat arrays and explicit episode offsets.

Layout, for two episodes with three and two transitions (T transitions have T + 1 states):

    row            0    1    2    3  |  4    5    6
    observations   s0   s1   s2   s3 |  s0'  s1'  s2'
    actions        a0   a1   a2   0  |  a0'  a1'  0        the last row of an episode holds no action
    offsets        0                    4                  7      episode e = rows offsets[e] .. offsets[e + 1] - 1

Row i and row i + 1 are a transition unless i is the last row of its episode. Boundaries are given by whoever
builds the store and are never guessed from the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.check import check_arrays, short_episodes
from iel.errors import DataError

FloatArray = NDArray[np.float32]


class Episode(NamedTuple):
    """One episode: T + 1 observations and T actions, as views into the store."""

    observations: FloatArray
    actions: FloatArray


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Immutable logged trajectories. Build one with `from_episodes` or `from_flat`."""

    observations: FloatArray
    """(states, observation size), all episodes one after another."""
    actions: FloatArray
    """(states, action size); rows at episode ends are zero and never read."""
    offsets: NDArray[np.int64]
    """(episodes + 1,) first row of every episode, and the number of rows."""
    name: str = field(default="data")
    """What error messages, tables and pictures call this data set."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", _frozen(self.observations, np.float32))
        object.__setattr__(self, "actions", _frozen(self.actions, np.float32))
        object.__setattr__(self, "offsets", _frozen(self.offsets, np.int64))
        check_arrays(self.observations, self.actions, self.offsets, self.name)

    # ---------------------------------------------------------------- building

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[tuple[ArrayLike, ArrayLike]],
        name: str = "data",
        short: Literal["refuse", "drop"] = "refuse",
    ) -> Trajectories:
        """From a list of (T + 1 observations, T actions); `short="drop"` skips episodes of fewer than two steps."""
        if len(episodes) == 0:
            raise DataError(f"{name} has no episodes; give at least one with two or more steps.")
        observations: list[FloatArray] = []
        actions: list[FloatArray] = []
        lengths: list[int] = []
        for e, (states, controls) in enumerate(episodes):
            states, controls = np.asarray(states, np.float32), np.asarray(controls, np.float32)
            if states.ndim != 2 or controls.ndim != 2:
                raise DataError(
                    f"{name}, episode {e}: observations and actions must be tables (steps, columns), "
                    f"but have shapes {states.shape} and {controls.shape}; reshape them."
                )
            if len(states) != len(controls) + 1:
                raise DataError(
                    f"{name}, episode {e}: {len(states)} observations do not fit {len(controls)} actions; "
                    "an episode of T actions has T + 1 observations."
                )
            if e and (states.shape[1] != observations[0].shape[1] or controls.shape[1] != actions[0].shape[1]):
                raise DataError(
                    f"{name}, episode {e}: {states.shape[1]} observation and {controls.shape[1]} action columns, but "
                    f"episode 0 has {observations[0].shape[1]} and {actions[0].shape[1]}; all episodes must agree."
                )
            observations.append(states)
            actions.append(np.concatenate([controls, np.zeros((1, controls.shape[1]), np.float32)]))
            lengths.append(len(states))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if short == "drop":
            keep = np.setdiff1d(np.arange(len(lengths)), short_episodes(offsets))
            if len(keep) < len(lengths):
                return cls.from_episodes([episodes[e] for e in keep], name)
        return cls(np.concatenate(observations), np.concatenate(actions), offsets, name)

    @classmethod
    def from_flat(
        cls, observations: ArrayLike, actions: ArrayLike, terminals: ArrayLike, name: str = "data"
    ) -> Trajectories:
        """From flat arrays with T + 1 rows an episode, `terminals` true on the last row of each (OGBench's layout)."""
        ends = np.flatnonzero(np.asarray(terminals))
        rows = len(np.asarray(observations))
        if len(np.asarray(terminals)) != rows or len(np.asarray(actions)) != rows:
            raise DataError(
                f"{name}: observations, actions and terminals have {rows}, {len(np.asarray(actions))} and "
                f"{len(np.asarray(terminals))} rows; they must have equally many."
            )
        if rows and (len(ends) == 0 or ends[-1] != rows - 1):
            raise DataError(
                f"{name}: the last row is not marked terminal, so the file is cut off or has no boundaries."
            )
        actions = np.array(actions, np.float32)
        actions[ends] = 0.0
        return cls(np.asarray(observations, np.float32), actions, np.concatenate([[0], ends + 1]), name)

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(e) for e in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"Trajectories({self.name}: {len(self)} episodes, {self.num_transitions} transitions, "
            f"{self.observation_size} observation and {self.action_size} action columns)"
        )

    def episode(self, index: int) -> Episode:
        """Episode `index` as views: nothing is copied."""
        first, last = self.offsets[index], self.offsets[index + 1]
        return Episode(self.observations[first:last], self.actions[first : last - 1])

    def select(self, episodes: ArrayLike, name: str | None = None) -> Trajectories:
        """A new store with only these episodes, in the given order."""
        chosen = [self.episode(int(e)) for e in np.atleast_1d(episodes)]
        return Trajectories.from_episodes(chosen, name or self.name)

    def cut(self, rows: ArrayLike) -> Trajectories:
        """A new store without the transitions that leave these rows; pieces of fewer than two steps are left out."""
        cuts = np.setdiff1d(np.asarray(rows, np.int64), self.offsets[1:] - 1)
        if len(cuts) == 0:
            return self
        bounds = np.union1d(self.offsets, cuts + 1)
        keep = np.setdiff1d(np.arange(len(bounds) - 1), short_episodes(bounds))
        if len(keep) == 0:
            raise DataError(f"{self.name}: cut at {len(cuts)} transitions, no piece has two steps; cut less.")
        spans = [(bounds[piece], bounds[piece + 1]) for piece in keep]
        pieces = [(self.observations[first:end], self.actions[first : end - 1]) for first, end in spans]
        return Trajectories.from_episodes(pieces, self.name)

    @property
    def observation_size(self) -> int:
        return self.observations.shape[1]

    @property
    def action_size(self) -> int:
        return self.actions.shape[1]

    @property
    def num_states(self) -> int:
        return len(self.observations)

    @property
    def num_transitions(self) -> int:
        return len(self.observations) - len(self)

    @cached_property
    def final(self) -> NDArray[np.int64]:
        """(states,) the last row of each state's own episode."""
        return np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))

    @cached_property
    def transitions(self) -> NDArray[np.int64]:
        """(transitions,) the rows that have an action and a next row."""
        rows = np.arange(self.num_states)
        return rows[rows != self.final]

    @cached_property
    def scale(self) -> FloatArray:
        """(observation size,) standard deviation of every column, 1 where a column is constant."""
        spread = self.observations.std(axis=0, dtype=np.float64)
        return np.where(spread > 1e-8, spread, 1.0).astype(np.float32)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over shapes and contents: two stores with one fingerprint train the same model."""
        digest = hashlib.sha256()
        for array in (self.observations, self.actions, self.offsets):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _frozen(array: ArrayLike, dtype: type) -> NDArray:
    """A read-only array of this type; the caller's own array is never made read-only."""
    with np.errstate(over="ignore"):  # a number too large for the type becomes infinite, which the checks refuse
        view: NDArray = np.asarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view
