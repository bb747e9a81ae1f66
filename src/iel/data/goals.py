"""Samplers on the device: batch = f(data, key), so the batch of step t needs nothing but the seed and t.

    states of an episode     x_i  x_{i+1} ... x_{i+H_max} ........ x_final(i)
    next state                    ^ x'
    intermediate u                ^----------^   uniform, 1 <= H <= min(H_max, final(i) - i, goal - i if g is ahead)
    trajectory goal               ^------------------------------^   i + k, P(k) = (1 - gamma) gamma^(k - 1), clipped,
                                                                     or uniform
    own state as goal        ^   the only goal that is reached already
    random goal              any state of the data set

Nothing drawn for x_i ever leaves the episode of x_i, except a random goal, which is meant to.

Data that stays on the disk are tables that return rows by number. `DeviceData` made of them has what a method's
`sample` and `tables` use: lengths, rows by number, chosen columns, and `nn.in_blocks`. Where a state's episode ends,
and which rows have a next one, follows from the offsets alone:

    final(i)       = offsets[e + 1] - 1,     e the last episode with offsets[e] <= i
    transitions(k) = k + e,                  e the last episode with offsets[e] - e <= k
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, ContractError


class DeviceData(NamedTuple):
    """The arrays of a `Trajectories` store on the accelerator (or in the CPU memory JAX uses)."""

    observations: jax.Array
    actions: jax.Array
    final: jax.Array
    transitions: jax.Array
    scale: jax.Array
    position: jax.Array
    """Position columns, where the policy is a waypoint policy."""
    others: jax.Array
    """All other columns."""


class Draw(NamedTuple):
    """Row numbers of one batch, and H = intermediate - state in steps."""

    state: jax.Array
    goal: jax.Array
    intermediate: jax.Array
    steps: jax.Array


class Relabelled(NamedTuple):
    """Transitions with goals: (x, a, x', g, x = g), and a goal for the actor that is drawn on its own."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    goal: jax.Array
    success: jax.Array
    actor_goal: jax.Array


BEHIND = 40
"""How many steps behind the state such goals may lie."""


@dataclass(frozen=True)
class GoalSampler:
    """Which goals and intermediate states accompany a state."""

    discount: float = 0.99
    p_trajectory: float = 0.625
    p_random: float = 0.375
    max_steps: int = 10
    p_current: float = 0.0
    future: Literal["geometric", "uniform"] = "geometric"
    furthest: int = 0
    """Largest number of steps to uniform goals ahead (0: up to the end of the trajectory)."""
    strays: Literal["walk", "step"] = "walk"
    """The intermediate state of a goal that is not ahead on the same episode: any of the next `max_steps` states, or,
    as in the authors' code, the next one where the goal's row number is lower."""
    p_behind: float = 0.0
    """Share of goals, of any kind, that are replaced by one of the `BEHIND` states that the episode just left: such
    pairs are hardly ever drawn otherwise, and they make one-way doors sharp."""

    def __post_init__(self) -> None:
        shares = (self.p_trajectory, self.p_random, self.p_current)
        if abs(sum(shares) - 1.0) > 1e-6 or min(shares) < -1e-9:
            raise ConfigError(
                f"Goal probabilities must be non-negative and sum to 1, but are {self.p_trajectory:g} (trajectory), "
                f"{self.p_random:g} (random) and {self.p_current:g} (the state itself)."
            )
        if not 0.0 < self.discount < 1.0:
            raise ConfigError(f"The discount must lie strictly between 0 and 1, but is {self.discount}.")
        if self.max_steps < 1:
            raise ConfigError(f"Intermediate states need at least one step, but max_steps is {self.max_steps}.")

    def __call__(self, key: jax.Array, data: DeviceData, size: int) -> Draw:
        """Draw `size` independent rows."""
        state_key, kind_key, ahead_key, random_key, between_key = jax.random.split(key, 5)
        state = draw_states(state_key, data, size)
        last = data.final[state]
        goal = self._goals(kind_key, ahead_key, random_key, data, state)

        # Where the goal is ahead on the same episode, an intermediate state never lies beyond it.
        if self.strays == "walk":
            furthest = jnp.minimum(jnp.where(ahead(data, state, goal), goal, last), state + self.max_steps)
        else:  # row numbers are compared whatever the episode, and the goal and the last state are left out
            furthest = jnp.maximum(jnp.minimum(jnp.minimum(goal, last) - 1, state + self.max_steps), state + 1)
        steps = 1 + jax.random.randint(between_key, (size,), 0, furthest - state)
        return Draw(state, goal, state + steps, steps)

    def goals(self, key: jax.Array, data: DeviceData, state: jax.Array) -> jax.Array:
        """A goal row for every state row."""
        kind_key, ahead_key, random_key = jax.random.split(key, 3)
        return self._goals(kind_key, ahead_key, random_key, data, state)

    def _goals(
        self, kind_key: jax.Array, ahead_key: jax.Array, random_key: jax.Array, data: DeviceData, state: jax.Array
    ) -> jax.Array:
        size, last = len(state), data.final[state]
        if self.future == "geometric":
            later = jnp.minimum(state + geometric(ahead_key, self.discount, size), last)
        else:
            later = state + 1 + jax.random.randint(ahead_key, (size,), 0, self._within_reach(last - state))
        anywhere = jax.random.randint(random_key, (size,), 0, len(data.observations))
        kind = jax.random.uniform(kind_key, (size,))
        goal = jnp.where(kind < self.p_trajectory, later, anywhere)
        goal = jnp.where(kind >= 1.0 - self.p_current, state, goal) if self.p_current > 0 else goal
        return self._behind(kind_key, data, state, goal) if self.p_behind > 0 else goal

    def _behind(self, key: jax.Array, data: DeviceData, state: jax.Array, goal: jax.Array) -> jax.Array:
        """Some of the goals replaced by states that the same episode just left, where it did."""
        steps_key, chosen_key = jax.random.split(jax.random.fold_in(key, BEHIND))
        left = jnp.maximum(state - jax.random.randint(steps_key, state.shape, 1, BEHIND + 1), 0)
        own = data.final[left] == data.final[state]
        return jnp.where(own & (jax.random.uniform(chosen_key, state.shape) < self.p_behind), left, goal)

    def _within_reach(self, steps: jax.Array) -> jax.Array:
        return jnp.minimum(steps, self.furthest) if self.furthest else steps


def ahead(data: DeviceData, state: jax.Array, goal: jax.Array) -> jax.Array:
    """Whether a goal lies ahead on the episode of its state."""
    return (goal > state) & (goal <= data.final[state])


def draw_states(key: jax.Array, data: DeviceData, size: int) -> jax.Array:
    """Uniform over all rows that have a next state."""
    return data.transitions[jax.random.randint(key, (size,), 0, len(data.transitions))]


def relabel(
    key: jax.Array, data: DeviceData, value_goals: GoalSampler, actor_goals: GoalSampler, size: int
) -> Relabelled:
    """`size` transitions, each with a goal for the value and another for the actor; success is equality of rows."""
    state_key, value_key, actor_key = jax.random.split(key, 3)
    state = draw_states(state_key, data, size)
    goal, actor_goal = value_goals.goals(value_key, data, state), actor_goals.goals(actor_key, data, state)
    return Relabelled(
        data.observations[state],
        data.actions[state],
        data.observations[state + 1],
        data.observations[goal],
        (goal == state).astype(jnp.float32),
        data.observations[actor_goal],
    )


def geometric(key: jax.Array, discount: float, size: int) -> jax.Array:
    """k >= 1 with P(k) = (1 - gamma) gamma^(k - 1), by inversion: k = 1 + floor(log u / log gamma), u in (0, 1]."""
    u = 1.0 - jax.random.uniform(key, (size,))
    return 1 + jnp.floor(jnp.log(u) / jnp.log(discount)).astype(jnp.int32)


def to_device(data: Trajectories, position: Sequence[int] = ()) -> DeviceData:
    """Copy a store to JAX's default device once; every batch is then drawn there."""
    columns = np.arange(data.observation_size)
    return DeviceData(
        jnp.asarray(data.observations),
        jnp.asarray(data.actions),
        jnp.asarray(data.final, jnp.int32),
        jnp.asarray(data.transitions, jnp.int32),
        jnp.asarray(data.scale),
        jnp.asarray(np.array(position, np.int32)),
        jnp.asarray(np.setdiff1d(columns, np.array(position, int)), jnp.int32),
    )


# --------------------------------------------------------------------------------------------------- data on the disk


class Table:
    """A table on the disk: `table[rows]` calls the function it was made with."""

    ndim = 2

    def __init__(self, shape: tuple[int, ...], answer: Callable[[jax.Array], jax.Array]):
        self.shape, self._answer = shape, answer

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None):
            return self.through(lambda rows: rows[..., index[1]])
        if not jnp.issubdtype(getattr(index, "dtype", np.float32), jnp.integer):
            raise ContractError("Of data on the disk, sample() reads rows by an array of row numbers only; pass one.")
        return self._answer(index)

    def through(self, function: Callable[[jax.Array], jax.Array]) -> Table:
        """The table of function(row), computed for the rows that are read."""
        one = jax.eval_shape(function, jax.ShapeDtypeStruct((1, *self.shape[1:]), jnp.float32))
        return Table((len(self), *one.shape[1:]), lambda rows: function(self[rows]))


class Facts(NamedTuple):
    """Arrays on the device for data on the disk."""

    offsets: jax.Array
    scale: jax.Array
    position: jax.Array
    others: jax.Array


def seen_from_disk(data: Trajectories, facts: Facts, answer: Callable[[str, jax.Array], jax.Array]) -> DeviceData:
    """The data as methods see it, with fixed sizes; `answer` returns rows of `observations` or `actions`."""
    episode = partial(jnp.searchsorted, side="right")
    starts = facts.offsets[:-1]
    before = starts - jnp.arange(len(data), dtype=starts.dtype)  # transitions before each episode
    tables = (
        Table(data.observations.shape, partial(answer, "observations")),
        Table(data.actions.shape, partial(answer, "actions")),
        Table((data.num_states,), lambda rows: facts.offsets[episode(starts, rows)] - 1),
        Table((data.num_transitions,), lambda numbers: numbers + episode(before, numbers) - 1),
    )
    return DeviceData(*tables, facts.scale, facts.position, facts.others)  # type: ignore[arg-type]
