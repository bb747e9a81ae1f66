"""One policy for every direction of a space: the last phase of IEL and of HILP, over any frozen coordinates p.

    r = <p(x') - p(x), z>,  z uniform on the unit sphere, never terminal
    L = IQL(V, Q; r) + AWR(pi; min_e Q'_e - V)                      `iql-awr`, as published
    L = -E[log pi(a | x, z)]                                        `cloning`

A share of the directions may instead be where the trajectory itself went, z = unit(p(x_{t+k}) - p(x_t)) with
1 <= k <= `future_steps`: a body that needs many steps to turn says little about a direction chosen at random.

The coordinates are p = phi (steering by `direction`, as published), or the columns of the observation that tell the
place (steering by `waypoint`). A waypoint policy does not see those columns of its own state, so what it learns in one
place holds in every other: an ant's phi changes more with its pose than with a metre of way (docs/results.md).

No goal is ever shown to the policy; a goal becomes a direction when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, draw_states
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError
from iel.losses import awr_loss, iql_critic_loss, iql_value_loss
from iel.methods.contract import JOINTS, Metrics, Spec
from iel.model import Direction, Network, Steering, Waypoint
from iel.nn import MLP, GaussianPolicy, apply_heads, ensemble, frozen_policy, unit

Learner = Literal["iql-awr", "cloning"]
Steered = Literal["direction", "waypoint"]

BODY: dict[str, Any] = {**JOINTS, "target_rate": 0.02, "policy_norm": True, "future_share": 1.0}
"""For robots with joints, whose gait hides the direction (docs/results.md)."""
WALKING: dict[str, Any] = {
    **BODY,
    "hidden": (128, 128, 128),
    "policy_hidden": (256, 256, 256),
    "steering": "waypoint",
    "learner": "cloning",
    "decay": True,
}
"""The same, steered by the place of the next node. The map of a maze asks for narrower networks than the legs do."""
ARM: dict[str, Any] = {
    **BODY,
    "future_steps": 50,
    "policy_heads": 5,
    "learner": "cloning",
    "decay": True,
    "embedding_share": 0.5,
}
"""For arms, where nothing tells place from pose: directions of phi, and the mean of several cloned policies."""


class Skills(NamedTuple):
    """V(x, z), Q(x, z, a) with two heads (none where the policy is cloned), pi(a | x, z)."""

    value: MLP | None
    critic: MLP | None
    policy: GaussianPolicy


class SkillSettings(NamedTuple):
    """Discount and expectile of IQL, temperature of AWR."""

    discount: float
    expectile: float
    temperature: float
    future_share: float = 0.0
    """Share of directions taken from the trajectory's own future."""
    learner: Learner = "iql-awr"


class SkillBatch(NamedTuple):
    """(x, a, x', p(x') - p(x), p(x_{t+k}) - p(x_t)); the states as the policy sees them."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    displacement: jax.Array
    future: jax.Array | None = None
    """Where the trajectory went, if directions are to be taken from it."""


def checked_place(place: tuple[int, ...], data: Trajectories) -> tuple[int, ...]:
    """Place columns that were given, or a sentence about those that do not exist."""
    if len(set(place)) != len(place) or any(not 0 <= column < data.observation_size for column in place):
        raise ConfigError(f"place is {place}, but must name different columns from 0 to {data.observation_size - 1}.")
    return place


def skill_shape(spec: Spec, dimension: int, sees_place: bool = False) -> tuple[int, int]:
    """(columns of its state that the policy sees, size of a direction)."""
    return spec.observation_size - (0 if sees_place else len(spec.place)), len(spec.place) or dimension


def new_skills(
    keys: Sequence[jax.Array] | jax.Array,
    seen: int,
    directions: int,
    actions: int,
    hidden: tuple[int, ...],
    policy_norm: bool = False,
    learner: Learner = "iql-awr",
    policy_heads: int = 1,
) -> Skills:
    """Fresh networks from three keys; values have LayerNorm, the policy has it if asked to."""
    inputs = seen + directions
    return Skills(
        MLP(keys[0], inputs, hidden, 1) if learner == "iql-awr" else None,
        ensemble(keys[1], 2, inputs + actions, hidden, 1) if learner == "iql-awr" else None,
        GaussianPolicy(keys[2], inputs, hidden, actions, layer_norm=policy_norm, heads=policy_heads),
    )


def skill_steering(spec: Spec, steering: Steered) -> Steering:
    """How a target becomes the policy's command."""
    return Waypoint(spec.place, (1.0,) * len(spec.place), spec.reach) if steering == "waypoint" else Direction()


def shipped_policy(policy: GaussianPolicy, steering: Steered, sees_place: bool = False) -> Network:
    """The policy as part of a model."""
    blind = steering == "waypoint" and not sees_place
    return frozen_policy(policy, "blind" if blind else "observation", "command", spread=True)


def policy_optimiser(learning_rate: float, steps: int, decay: bool) -> optax.GradientTransformation:
    """Adam; with `decay` its step size follows half a cosine down to 0 over so many steps."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, max(steps, 1)) if decay else learning_rate)


def place_table(data: DeviceData, phi: Callable[[], jax.Array]) -> jax.Array:
    """The coordinates p of every state of the data: its place columns, or phi where there are none."""
    return data.observations[:, data.place] if len(data.place) else phi()


def draw_skill_batch(
    key: jax.Array,
    data: DeviceData,
    place: jax.Array,
    size: int,
    future_steps: int | None = None,
    sees_place: bool = False,
) -> SkillBatch:
    """Uniform transitions; `place` are the coordinates p of every state of the data."""
    rows = draw_states(key, data, size)
    displacement, future = place[rows + 1] - place[rows], None
    if future_steps is not None:
        future = place[draw_future(key, data, rows, future_steps)] - place[rows]
    show = (lambda states: states) if sees_place else (lambda states: visible(data, states))
    here, after = show(data.observations[rows]), show(data.observations[rows + 1])
    return SkillBatch(here, data.actions[rows], after, displacement, future)


def visible(data: DeviceData, observations: jax.Array) -> jax.Array:
    """What the policy sees of its states: all but their place, where it is steered by it."""
    return observations[:, data.elsewhere] if len(data.place) else observations


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
    skills: Skills, target_critic: MLP | None, batch: SkillBatch, key: jax.Array, settings: SkillSettings
) -> tuple[jax.Array, Metrics]:
    """IQL and AWR on directions: reward <p(x') - p(x), z>, never terminal. Or plain cloning."""
    z = draw_directions(key, batch, settings.future_share)
    here = jnp.concatenate([batch.state, z], -1)
    if skills.value is None or skills.critic is None or target_critic is None:
        loss = -skills.policy.log_prob(here, batch.action).mean()
        error = jnp.square(skills.policy(here) - batch.action).mean()
        return loss, {"policy/loss": loss, "policy/squared_error": error}
    reward = (batch.displacement * z).sum(-1)
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
