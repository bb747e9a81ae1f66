"""A policy for waypoints: it follows directions of the position columns p and needs nothing of the geometry.

    L = -E[log pi(a | x without p(x), unit(p(x_{t+k}) - p(x_t)))],     1 <= k <= `future_steps`

It does not see its own position, so what it learns at one position holds at every other: an ant's phi changes more
with its pose than with a metre of path (docs/results.md). It is trained before the geometry. Batch t follows from the
seed and t, so with the same data, seed and settings it has the same bits under every geometry: geometries can be
compared under one policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, draw_states
from iel.data.positions import typical_reach
from iel.data.scaling import Scaling
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError
from iel.learner import Controls, Loss, Method, Policy, Spec, Trained
from iel.model import Waypoint
from iel.nn import GaussianPolicy, frozen_policy, unit
from iel.policies.directions import PolicyLearner, cloning_loss, draw_future

POLICY_KEY = 20011
"""Folded into the key of `init`: the policy's weights follow from the seed alone."""


@dataclass(frozen=True, kw_only=True)
class Waypoints(Policy):
    """A policy pi(a | x, z) for directions z of the position columns, cloned from where trajectories went."""

    kind = "waypoints"
    first = True

    decay: bool = True
    """Let the step size follow half a cosine down to 0."""
    columns: tuple[int, ...] = ()
    """Position columns (default: those that `iel data info` names)."""

    def position(self, data: Trajectories, scaling: Scaling | None) -> tuple[tuple[int, ...], float]:
        """The columns given, or those that are clearly slower than all others; and how far waypoints are."""
        columns = self.columns
        if len(set(columns)) != len(columns) or any(not 0 <= column < data.observation_size for column in columns):
            last = data.observation_size - 1
            raise ConfigError(f"columns are {columns}, but must name different columns from 0 to {last}.")
        columns = columns or data.require_position()
        scale = 1.0 if scaling is None else scaling.std[list(columns)]
        return columns, typical_reach(data, list(columns), self.future_steps, scale)

    def learner(self, method: Method) -> WaypointLearner:
        """The same for every method with the same batch size, step size and widths."""
        return WaypointLearner(self, method)

    def controls(self, method: Method, trained: Trained, spec: Spec) -> Controls:
        """The policy, blind to the position columns, conditioned on a direction in them."""
        policy = frozen_policy(trained["policy"], "without_position", "command", stochastic=True)
        return Controls({"policy": policy}, Waypoint(spec.position, units(spec), spec.reach))


def units(spec: Spec) -> tuple[float, ...]:
    """What the position columns are divided by before a direction is taken: their deviation, where policies
    standardise."""
    scaling = spec.policy_columns
    return tuple(1.0 if scaling is None else float(scaling.std[column]) for column in spec.position)


class WaypointBatch(NamedTuple):
    """(x as the policy sees it, a, p(x_{t+k}) - p(x_t))."""

    state: jax.Array
    action: jax.Array
    future: jax.Array


@dataclass(frozen=True)
class CloningLearner(PolicyLearner):
    """Clones what the data did in the direction that its trajectory took."""

    def loss(self, params: GaussianPolicy, target: None, batch: WaypointBatch, key: jax.Array) -> Loss:
        return cloning_loss(params, jnp.concatenate([batch.state, unit(batch.future)], -1), batch.action)


@dataclass(frozen=True)
class WaypointLearner(CloningLearner):
    """Clones what the data did in each direction of the position columns."""

    policy: Waypoints

    def init(self, key: jax.Array, spec: Spec) -> GaussianPolicy:
        key = jax.random.split(jax.random.fold_in(key, POLICY_KEY), 3)[2]
        lens, heads = spec.lens("without_position", len(spec.position), policy=True), self.policy.heads
        shape = spec.observation_size, self.method.policy_widths, spec.action_size
        return GaussianPolicy(key, *shape, layer_norm=True, heads=heads, lens=lens)

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> jax.Array:
        """The position of every state of the data."""
        position = data.observations[:, data.position]
        return position if spec.policy_columns is None else position / jnp.array(units(spec), jnp.float32)

    def sample(self, key: jax.Array, data: DeviceData, tables: jax.Array) -> WaypointBatch:
        rows = draw_states(key, data, self.method.batch_size)
        future = tables[draw_future(key, data, rows, self.policy.future_steps)] - tables[rows]
        return WaypointBatch(data.observations[rows][:, data.others], data.actions[rows], future)
