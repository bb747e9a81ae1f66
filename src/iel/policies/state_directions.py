"""A policy for directions of the state, every column weighted by the steps that it is worth. No position columns.

    s_c = ( mean over x of |d phi / d x_c|^2 )^1/2             steps per unit of column c, as the geometry knows it
    z   = unit(s * (target - x))                               a direction in the state, not in the latent space
    L   = -E[log pi(a | x, unit(s * (x_{t+k} - x_t)))],        1 <= k <= `future_steps`

The geometry decides what a direction is made of: of an ant's 29 columns x and y are worth 39 and 23 steps per standard
deviation and no other more than 1, so z is the heading (docs/htp.md). A direction of phi would carry the same
information, but what it means for the legs changes over the maze, which phi unfolds. A direction of the state means the
same everywhere, so much less data teaches it.

With equal weights on the position columns and none elsewhere this is `Waypoints`. The policy is trained after the
geometry, on standardised columns, and sees all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData, draw_states
from iel.errors import ConfigError
from iel.learner import Controls, Method, Policy, Spec, Trained
from iel.model import Waypoint
from iel.model.scaling import fold_input
from iel.nn import GaussianPolicy, frozen_policy
from iel.policies.directions import draw_future
from iel.policies.waypoints import CloningLearner, WaypointBatch

POLICY_KEY = 20023
"""Folded into the key of `init`."""


@dataclass(frozen=True, kw_only=True)
class StateDirections(Policy):
    """A policy pi(a | x, z) for directions of the state, z = unit(s * (target - x)), s_c = steps per unit of column c.

    Cloned from where trajectories went. It needs an embedding, and no position columns.
    """

    kind = "state-directions"
    examples = 4096

    decay: bool = True
    """Let the step size follow half a cosine down to 0."""

    def learner(self, method: Method) -> StateDirectionLearner:
        """Over the weights that the method's embedding gives to columns."""
        if type(method).embedding is Method.embedding:
            raise ConfigError(f"{method.name} learns no embedding to weight columns by; choose the policy waypoints.")
        return StateDirectionLearner(self, method)

    def controls(self, method: Method, trained: Trained, spec: Spec) -> Controls:
        """The policy on raw columns, conditioned on a weighted direction of the state."""
        assert spec.examples is not None and spec.columns is not None
        weights = np.asarray(column_weights(method, trained, spec), np.float64)
        ahead = np.linalg.norm((spec.examples.later - spec.examples.state) * weights, axis=1)
        network = frozen_policy(trained["policy"], "observation", "command", stochastic=True)
        columns = tuple(range(spec.observation_size))
        conditioning = Waypoint(columns, tuple((1.0 / weights).tolist()), float(ahead.mean()))
        return Controls({"policy": fold_input(network, 0, np.array(columns), spec.columns)}, conditioning)


def column_weights(method: Method, trained: Trained, spec: Spec) -> jax.Array:
    """s, (observation size,): the root mean square of phi's derivative by every column, over the examples.

    No column counts less than `LEAST` of the most important one, per standard deviation.
    """
    assert spec.examples is not None and spec.columns is not None
    phi = method.embedding(trained, spec)
    slopes = jax.vmap(jax.jacrev(lambda x: phi(x[None])[0]))(jnp.asarray(spec.examples.state))
    deviation = jnp.asarray(spec.columns.std, jnp.float32)
    worth = jnp.sqrt(jnp.square(slopes).sum(1).mean(0)) * deviation
    return jnp.maximum(worth, jnp.maximum(LEAST * worth.max(), 1e-6)) / deviation


LEAST = 1e-3
"""Below this share a column's weight is rounding."""


class StateTables(NamedTuple):
    """Weighted states (n, observation size), and mean and standard deviation of every column."""

    weighted: jax.Array
    mean: jax.Array
    deviation: jax.Array


@dataclass(frozen=True)
class StateDirectionLearner(CloningLearner):
    """Clones what the data did in a weighted direction of the state, on standardised columns."""

    policy: StateDirections

    def init(self, key: jax.Array, spec: Spec) -> GaussianPolicy:
        inputs, widths = 2 * spec.observation_size, self.method.policy_widths
        key = jax.random.fold_in(key, POLICY_KEY)
        return GaussianPolicy(key, inputs, widths, spec.action_size, layer_norm=True, heads=self.policy.heads)

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> StateTables:
        assert spec.columns is not None
        weights = column_weights(self.method, trained, spec)
        scaling = jnp.asarray(spec.columns.mean, jnp.float32), jnp.asarray(spec.columns.std, jnp.float32)
        return StateTables(data.observations * weights, *scaling)

    def sample(self, key: jax.Array, data: DeviceData, tables: StateTables) -> WaypointBatch:
        rows = draw_states(key, data, self.method.batch_size)
        later = draw_future(key, data, rows, self.policy.future_steps)
        state = (data.observations[rows] - tables.mean) / tables.deviation
        return WaypointBatch(state, data.actions[rows], tables.weighted[later] - tables.weighted[rows])
