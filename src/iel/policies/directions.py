"""One policy for every direction of an embedding: the last phase of IEL and of HILP, over any frozen coordinates p.

    r = <p(x') - p(x), z>,  z uniform on the unit sphere, never terminal
    L = IQL(V, Q; r) + AWR(pi; min_e Q'_e - V)                      `iql-awr`, as published
    L = -E[log pi(a | x, z)]                                        `cloning`

A share of the directions may instead be where the trajectory itself went, z = unit(p(x_{t+k}) - p(x_t)) with
1 <= k <= `future_steps`: a robot that needs many steps to turn says little about a direction chosen at random.

No goal is ever shown to the policy; a goal becomes a direction when it is acted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, draw_states
from iel.errors import ConfigError
from iel.learner import Controls, Learner, Loss, Method, Policy, Spec, Trained, adam, total
from iel.losses import awr_loss, iql_critic_loss, iql_value_loss
from iel.model import Direction
from iel.nn import MLP, GaussianPolicy, ensemble, frozen_policy, in_blocks, scalars, unit
from iel.typed import Fraction, Positive, Share


@dataclass(frozen=True, kw_only=True)
class Directions(Policy):
    """A policy pi(a | x, z) for latent directions z = unit(phi(target) - phi(x)): the paper's.

    The defaults are the paper's. Cloning with `future_share` 1 suits robots whose pose hides the direction.
    """

    kind = "directions"

    extraction: Literal["iql-awr", "cloning"] = "iql-awr"
    """By IQL and AWR (the paper), or by `cloning` what the data did in each direction."""
    discount: Fraction = 0.99
    """Discount of IQL: how far ahead progress along a direction counts."""
    expectile: Fraction = 0.9
    """Expectile of IQL."""
    temperature: Positive = 10.0
    """alpha of AWR: how much better actions are preferred."""
    target_rate: float = 0.005
    """Polyak rate of the critic's target copy."""
    norm: bool = False
    """Hidden layers Dense-GELU-LayerNorm, as in all other networks (the paper: Dense-ReLU)."""
    future_share: Share = 0.0
    """Share of the directions that are where the trajectory itself went (the paper: none, all uniform)."""

    def learner(self, method: Method) -> DirectionLearner:
        """Over the method's embedding."""
        if type(method).embedding is Method.embedding:
            raise ConfigError(f"{method.name} learns no embedding to take directions of; choose the policy waypoints.")
        return DirectionLearner(self, method)

    def controls(self, method: Method, trained: Trained, spec: Spec) -> Controls:
        """The policy, conditioned on a direction."""
        policy = frozen_policy(trained["policy"].policy, "observation", "command", stochastic=True)
        return Controls({"policy": policy}, Direction())


class DirectionParams(NamedTuple):
    """V(x, z), Q(x, z, a) with two heads (none where the policy is cloned), pi(a | x, z)."""

    value: MLP | None
    critic: MLP | None
    policy: GaussianPolicy


class DirectionBatch(NamedTuple):
    """(x, a, x', p(x') - p(x), p(x_{t+k}) - p(x_t)); the states as the policy sees them."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    displacement: jax.Array
    future: jax.Array | None = None
    """Where the trajectory went, if directions are to be taken from it."""


@dataclass(frozen=True)
class PolicyLearner(Learner):
    """Trains a policy beside a method's geometry."""

    policy: Policy
    method: Method

    phase = "policy"

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam as the policy's settings say; where they say nothing, as the method's."""
        steps = self.policy.steps or self.method.steps
        rate = self.policy.learning_rate or self.method.learning_rate
        return adam(rate, max(steps, 1) if self.policy.decay else 0)


@dataclass(frozen=True)
class DirectionLearner(PolicyLearner):
    """Trains a `Directions` policy on a method's embedding."""

    policy: Directions

    @property
    def target_rate(self) -> float:  # type: ignore[override]
        return self.policy.target_rate

    def init(self, key: jax.Array, spec: Spec) -> DirectionParams:
        """Fresh networks; values have LayerNorm, the policy has it on request."""
        keys, parts = jax.random.split(key, 5)[2:], ("observation", self.method.dimension)
        policy, widths, actions = self.policy, self.method.policy_widths, spec.action_size
        inputs, valued, lens = spec.width(*parts), policy.extraction == "iql-awr", spec.lens(*parts, policy=True)
        return DirectionParams(
            MLP(keys[0], inputs, widths, 1) if valued else None,
            ensemble(keys[1], 2, inputs + actions, widths, 1) if valued else None,
            GaussianPolicy(keys[2], inputs, widths, actions, layer_norm=policy.norm, heads=policy.heads, lens=lens),
        )

    def target_of(self, params: DirectionParams) -> MLP | None:
        return params.critic

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> jax.Array:
        return in_blocks(self.method.embedding(trained, spec), data.observations)

    def sample(self, key: jax.Array, data: DeviceData, tables: jax.Array) -> DirectionBatch:
        rows = draw_states(key, data, self.method.batch_size)
        future = None
        if self.policy.future_share > 0.0:
            future = tables[draw_future(key, data, rows, self.policy.future_steps)] - tables[rows]
        moves = data.observations[rows], data.actions[rows], data.observations[rows + 1]
        return DirectionBatch(*moves, tables[rows + 1] - tables[rows], future)

    def loss(self, params: DirectionParams, target: MLP | None, batch: DirectionBatch, key: jax.Array) -> Loss:
        """IQL and AWR on directions: reward <p(x') - p(x), z>, never terminal. Or plain cloning."""
        settings = self.policy
        z = draw_directions(key, batch, settings.future_share)
        here = jnp.concatenate([batch.state, z], -1)
        if params.value is None or params.critic is None or target is None:
            return cloning_loss(params.policy, here, batch.action)
        value, next_value = params.value(here)[:, 0], params.value(jnp.concatenate([batch.next_state, z], -1))[:, 0]
        target_q, q = (scalars(critic, here, batch.action) for critic in (target, params.critic))
        advantage = target_q.min(0) - value
        critics = direction_iql(batch, z, (value, next_value), (q, target_q), settings.expectile, settings.discount)
        actor = awr_loss(params.policy.log_prob(here, batch.action), advantage, settings.temperature)
        return total(critics, (actor, {"policy/actor": actor, "policy/advantage": advantage.mean()}), phase=self.phase)


def direction_iql(
    batch: DirectionBatch,
    z: jax.Array,
    values: tuple[jax.Array, jax.Array],
    qs: tuple[jax.Array, jax.Array],
    expectile: float,
    discount: float,
) -> Loss:
    """IQL's two losses on r = <p(x') - p(x), z>, of (V(x, z), V(x', z)) and (Q(x, z, a), Q'(x, z, a))."""
    reward = (batch.displacement * z).sum(-1)
    value_loss = iql_value_loss(values[0], qs[1], expectile)
    critic_loss = iql_critic_loss(qs[0], reward, values[1], discount)
    metrics = {"policy/value": value_loss, "policy/critic": critic_loss, "policy/reward": jnp.abs(reward).mean()}
    return value_loss + critic_loss, metrics


def draw_future(key: jax.Array, data: DeviceData, rows: jax.Array, future_steps: int) -> jax.Array:
    """Rows 1 to `future_steps` ahead on the same trajectory, its last state at most."""
    # Not fold_in(key, 1): jax.random.split(key) may hand out the same keys, and a sampler splits this one in five.
    ahead = jax.random.randint(jax.random.fold_in(key, 99), rows.shape, 1, future_steps + 1)
    return jnp.minimum(rows + ahead, data.final[rows])


def draw_directions(key: jax.Array, batch: DirectionBatch, share: float) -> jax.Array:
    """Unit vectors z: uniform, and with probability `share` the trajectory's own."""
    z = unit(jax.random.normal(key, batch.displacement.shape))
    if batch.future is None or share == 0.0:
        return z
    own = jax.random.uniform(jax.random.fold_in(key, 1), (len(z), 1)) < share
    return jnp.where(own, unit(batch.future), z)


def cloning_loss(policy: GaussianPolicy, inputs: jax.Array, action: jax.Array) -> Loss:
    """-E[log pi(a | x, z)]."""
    loss = -policy.log_prob(inputs, action).mean()
    return loss, {"policy/loss": loss, "policy/squared_error": jnp.square(policy(inputs) - action).mean()}
