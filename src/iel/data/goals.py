"""Samplers on the device: batch = f(data, key), so the batch of step t needs nothing but the seed and t.

    states of an episode     x_i  x_{i+1} ... x_{i+H_max} ........ x_final(i)
    next state                    ^ x'
    intermediate u                ^----------^   uniform, 1 <= H <= min(H_max, final(i) - i, goal - i if g is ahead)
    trajectory goal               ^------------------------------^   i + k, P(k) = (1 - gamma) gamma^(k - 1), clipped
    random goal              any state of the data set

Nothing drawn for x_i ever leaves the episode of x_i, except a random goal, which is meant to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from iel.data.trajectories import Trajectories
from iel.errors import ConfigError


class DeviceData(NamedTuple):
    """The arrays of a `Trajectories` store on the accelerator (or in the CPU memory JAX uses)."""

    observations: jax.Array
    actions: jax.Array
    final: jax.Array
    transitions: jax.Array
    scale: jax.Array


class Draw(NamedTuple):
    """Row numbers of one batch, and H = intermediate - state in steps."""

    state: jax.Array
    goal: jax.Array
    intermediate: jax.Array
    steps: jax.Array


@dataclass(frozen=True)
class GoalSampler:
    """Which goals and intermediate states accompany a state."""

    discount: float = 0.99
    p_trajectory: float = 0.625
    p_random: float = 0.375
    max_steps: int = 10

    def __post_init__(self) -> None:
        if abs(self.p_trajectory + self.p_random - 1.0) > 1e-6 or min(self.p_trajectory, self.p_random) < 0:
            raise ConfigError(
                f"Goal probabilities must be non-negative and sum to 1, but are {self.p_trajectory} (trajectory) "
                f"and {self.p_random} (random)."
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

        ahead = jnp.minimum(state + geometric(ahead_key, self.discount, size), last)
        anywhere = jax.random.randint(random_key, (size,), 0, len(data.observations))
        goal = jnp.where(jax.random.uniform(kind_key, (size,)) < self.p_trajectory, ahead, anywhere)

        # An intermediate state lies on the way: when the goal is ahead on the same episode, never beyond it.
        on_the_way = (goal > state) & (goal <= last)
        furthest = jnp.minimum(jnp.where(on_the_way, goal, last), state + self.max_steps)
        steps = 1 + jax.random.randint(between_key, (size,), 0, furthest - state)
        return Draw(state, goal, state + steps, steps)


def draw_states(key: jax.Array, data: DeviceData, size: int) -> jax.Array:
    """Uniform over all rows that have a next state."""
    return data.transitions[jax.random.randint(key, (size,), 0, len(data.transitions))]


def geometric(key: jax.Array, discount: float, size: int) -> jax.Array:
    """k >= 1 with P(k) = (1 - gamma) gamma^(k - 1), by inversion: k = 1 + floor(log u / log gamma), u in (0, 1]."""
    u = 1.0 - jax.random.uniform(key, (size,))
    return 1 + jnp.floor(jnp.log(u) / jnp.log(discount)).astype(jnp.int32)


def to_device(data: Trajectories) -> DeviceData:
    """Copy a store to JAX's default device once; every batch is then drawn there."""
    return DeviceData(
        jnp.asarray(data.observations),
        jnp.asarray(data.actions),
        jnp.asarray(data.final, jnp.int32),
        jnp.asarray(data.transitions, jnp.int32),
        jnp.asarray(data.scale),
    )
