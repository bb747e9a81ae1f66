"""One policy for every latent direction: the last phase of IEL and of HILP, over any frozen embedding phi.

    r = <phi(x') - phi(x), z>,  z uniform on the unit sphere, never terminal
    L = IQL(V, Q; r) + AWR(pi; min_e Q'_e - V)

A share of the directions may instead be where the trajectory itself went, z = unit(phi(x_{t+k}) - phi(x_t)) with
1 <= k <= `future_steps`: a body that needs many steps to turn says little about a direction chosen at random.

No goal is ever shown to the policy; a goal becomes a direction when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from iel.algos.contract import Metrics, Spec
from iel.data.goals import DeviceData, draw_states
from iel.losses import awr_loss, iql_critic_loss, iql_value_loss
from iel.nn import MLP, GaussianPolicy, apply_heads, ensemble, unit

FOR_BODIES: dict[str, Any] = {
    "hidden": (256, 256, 256),
    "learning_rate": 1e-3,
    "target_rate": 0.02,
    "awr_temperature": 1.0,
    "policy_norm": True,
    "future_share": 1.0,
    "standardise": True,
}
"""What let an ant learn within an hour on a laptop (docs/results.md): its columns have very different spreads, its gait
hides the direction, and an advantage that is still noise must not choose the samples."""


class Skills(NamedTuple):
    """V(x, z), Q(x, z, a) with two heads, pi(a | x, z)."""

    value: MLP
    critic: MLP
    policy: GaussianPolicy


class SkillSettings(NamedTuple):
    """Discount and expectile of IQL, temperature of AWR."""

    discount: float
    expectile: float
    temperature: float
    future_share: float = 0.0
    """Share of directions taken from the trajectory's own future."""


class SkillBatch(NamedTuple):
    """(x, a, x', phi(x') - phi(x), phi(x_{t+k}) - phi(x_t))."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    displacement: jax.Array
    future: jax.Array | None = None
    """Where the trajectory went, if directions are to be taken from it."""


def new_skills(
    keys: Sequence[jax.Array] | jax.Array,
    spec: Spec,
    dimension: int,
    hidden: tuple[int, ...],
    policy_norm: bool = False,
) -> Skills:
    """Fresh networks from three keys; values have LayerNorm, the policy has it if asked to."""
    inputs = spec.observation_size + dimension
    return Skills(
        MLP(keys[0], inputs, hidden, 1),
        ensemble(keys[1], 2, inputs + spec.action_size, hidden, 1),
        GaussianPolicy(keys[2], inputs, hidden, spec.action_size, layer_norm=policy_norm),
    )


def draw_skill_batch(
    key: jax.Array, data: DeviceData, phi: jax.Array, size: int, future_steps: int | None = None
) -> SkillBatch:
    """Uniform transitions; `phi` is the embedding of every state of the data."""
    rows = draw_states(key, data, size)
    displacement, future = phi[rows + 1] - phi[rows], None
    if future_steps is not None:
        future = phi[draw_future(key, data, rows, future_steps)] - phi[rows]
    return SkillBatch(data.observations[rows], data.actions[rows], data.observations[rows + 1], displacement, future)


def draw_future(key: jax.Array, data: DeviceData, rows: jax.Array, future_steps: int) -> jax.Array:
    """Rows 1 to `future_steps` ahead on the same trajectory, its last state at most."""
    # Not fold_in(key, 1): jax.random.split(key) may hand out the same keys, and a sampler splits this one in five.
    ahead = jax.random.randint(jax.random.fold_in(key, 99), rows.shape, 1, future_steps + 1)
    return jnp.minimum(rows + ahead, data.final[rows])


def draw_directions(key: jax.Array, batch: SkillBatch, share: float) -> jax.Array:
    """Unit vectors z: uniform, and with probability `share` the trajectory's own."""
    z = unit(jax.random.normal(key, batch.displacement.shape))
    if batch.future is None or share == 0.0:
        return z
    own = jax.random.uniform(jax.random.fold_in(key, 1), (len(z), 1)) < share
    return jnp.where(own, unit(batch.future), z)


def skill_loss(
    skills: Skills, target_critic: MLP, batch: SkillBatch, key: jax.Array, settings: SkillSettings
) -> tuple[jax.Array, Metrics]:
    """IQL and AWR on random directions: reward <phi(x') - phi(x), z>, never terminal."""
    z = draw_directions(key, batch, settings.future_share)
    reward = (batch.displacement * z).sum(-1)
    here = jnp.concatenate([batch.state, z], -1)
    after = jnp.concatenate([batch.next_state, z], -1)
    with_action = jnp.concatenate([here, batch.action], -1)

    value = skills.value(here)[:, 0]
    next_value = jax.lax.stop_gradient(skills.value(after)[:, 0])
    target_q = jax.lax.stop_gradient(apply_heads(target_critic, with_action)[..., 0])
    q = apply_heads(skills.critic, with_action)[..., 0]
    advantage = target_q.min(0) - value

    value_loss = iql_value_loss(value, target_q, settings.expectile)
    critic_loss = iql_critic_loss(q, reward, next_value, settings.discount)
    actor_loss = awr_loss(skills.policy.log_prob(here, batch.action), advantage, settings.temperature)
    loss = value_loss + critic_loss + actor_loss
    return loss, {
        "policy/loss": loss,
        "policy/value": value_loss,
        "policy/critic": critic_loss,
        "policy/actor": actor_loss,
        "policy/advantage": advantage.mean(),
        "policy/reward": jnp.abs(reward).mean(),
    }
