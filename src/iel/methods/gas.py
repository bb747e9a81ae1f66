"""Graph-assisted stitching (GAS), top to bottom: settings, the way ahead, batches, the losses, updates, the model.

paper              here                       what it is
psi (TDR)          embedding (two heads)      state -> R^d, the temporal-distance space; head 0 is used downstream
z                  direction                  a random unit vector for the critic; the way to a subgoal for the policy
V, Q, pi           value, critic, policy      IQL over directions; DDPG+BC towards subgoals
H_TD               reach                      how far ahead a subgoal is, in psi

Its graph (efficient states, clustered) is the planner `gas-graph` (planning/clusters.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, GoalSampler, draw_states, geometric
from iel.errors import ConfigError
from iel.losses import ddpg_bc_loss, iql_critic_loss, iql_value_loss
from iel.methods.contract import JOINTS, Method, Metrics, Phase, Spec, require_fraction, require_positive, require_share
from iel.methods.hilp import euclidean_td_loss
from iel.methods.skills import SkillBatch as WalkBatch
from iel.methods.waypoints import WAYPOINTS, Steerable, Walker
from iel.model import Direction, Model, Steering
from iel.nn import (
    MLP,
    GaussianPolicy,
    descend,
    ensemble,
    frozen,
    frozen_policy,
    head,
    in_blocks,
    polyak,
    scalars,
    unit,
)

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {
        "steps": 42_000,
        "batch_size": 256,
        "hidden": (128, 128, 128),
        "target_rate": 0.02,
        "expectile": 0.95,
        "cut_jumps": True,
    },
    "laptop-body": {"steps": 48_000, **JOINTS, "target_rate": 0.02, "expectile": 0.95},
    "laptop-body-waypoints": {**WAYPOINTS, "target_rate": 0.02, "expectile": 0.95},
    # A short training needs targets that follow quickly: what is learned spreads one target copy at a time.
    "smoke": {
        "steps": 2_000,
        "batch_size": 128,
        "hidden": (64, 64),
        "dimension": 16,
        "learning_rate": 1e-3,
        "target_rate": 0.05,
        "expectile": 0.95,
        "reach": 4.0,
    },
}


@dataclass(frozen=True, kw_only=True)
class GAS(Steerable, Method):
    """Graph-assisted stitching: a Euclidean space of temporal distances, a graph in it, a policy towards its nodes.

    Phase `embedding`: with V(x, g) = -||psi(x) - psi(g)||,

        L = IVL(V; expectile, discount)

    Phase `skills`: psi is frozen. The critic is trained on directions z drawn uniformly, the policy on the way to a
    later state of the same trajectory, at most as far as its first state at distance H or more:

        L_Q, L_V = IQL on r = <psi(x') - psi(x), z>, never terminal
        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],   q = min_e Q_e(x, z, mu(x, z)),  z = unit(psi(x_s) - psi(x))

    Presets: `paper` (the defaults below), `laptop` (minutes on two cores), `laptop-body` (for robots with joints),
    `laptop-body-waypoints` (the same, steered by waypoints), `smoke` (seconds, for tests).
    """

    name = "gas"
    presets = PRESETS

    steps: int = 2_000_000
    """Gradient steps of both phases together."""
    embedding_share: float = 0.5
    """Share of the steps given to the embedding; its policy gets the rest."""
    dimension: int = 32
    """Size d of the temporal-distance space."""
    discount: float = 0.99
    """gamma, for distances, goals and the policy."""
    target_rate: float = 0.005
    """Polyak rate of the target copies."""
    expectile: float = 0.999
    """tau of the TD loss: near 1, short ways win. Published: 0.95 for humanoids, kitchens and pixels."""
    p_trajectory: float = 0.625
    """Share of goals from the same trajectory (geometric in the discount); the rest are random states."""
    reach: float = 8.0
    """H: how far ahead of a state its subgoals are at most. Published: 8 ants, 32 humanoids, 48 kitchens."""
    policy_expectile: float = 0.7
    """Expectile of the policy's IQL."""
    bc_weight: float = 1.0
    """alpha of DDPG+BC. Published: 1 navigate and stitch, 0.01 explore, 0.1 humanoid, 10 kitchen."""

    steering: Literal["direction", "waypoint"] = "direction"  # type: ignore[assignment]
    """`direction`: the method's own policy, told the way to the target in psi; `waypoint`: a cloned one, told the way
    in the place columns, the same for every method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "dimension", "reach")
        require_fraction(self, "discount", "expectile", "policy_expectile")
        require_share(self, "embedding_share")
        if self.bc_weight < 0:
            raise ConfigError(f"bc_weight may not be negative, but is {self.bc_weight}.")
        _ = self.sampler  # refuses impossible goal probabilities now rather than in the first step

    @property
    def sampler(self) -> GoalSampler:
        return GoalSampler(self.discount, self.p_trajectory, 1.0 - self.p_trajectory)

    def phases(self) -> tuple[Phase, ...]:
        """The space, then its policy; or the waypoint policy, then the space."""
        *walk, own = super().phases()
        if walk:
            return *walk, Phase("embedding", own.steps)
        embedding = round(self.steps * self.embedding_share)
        return Phase("embedding", embedding), Phase("skills", self.steps - embedding)

    def init(self, key: jax.Array, spec: Spec) -> State:
        """Fresh networks, and copies equal to them."""
        keys = jax.random.split(key, 4)
        embedding = ensemble(keys[0], 2, spec.observation_size, self.hidden, self.dimension)
        told = spec.observation_size + self.dimension
        skills = (
            None
            if self.walks
            else Skills(
                ensemble(keys[1], 1, told, self.hidden, 1),
                ensemble(keys[2], 2, told + spec.action_size, self.hidden, 1),
                GaussianPolicy(keys[3], told, self.policy_widths, spec.action_size, gelu=True),
            )
        )
        moments = Optimisers(self.optimiser.init(embedding), self.optimiser.init(skills))
        copy = None if skills is None else skills.critic
        return State(embedding, embedding, skills, copy, moments, self.new_walker(key, spec))

    # ---------------------------------------------------------------- batches

    def tables(self, phase: str, state: State, data: DeviceData) -> Any:
        """psi (head 0) of every state in `skills`, where it is frozen, and the furthest subgoal of each."""
        if phase != "skills":
            return super().tables(phase, state, data)
        points = in_blocks(head(state.embedding, 0), data.observations)
        return Tables(points, first_beyond(points, data.final, self.reach))

    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: Any) -> GoalBatch | SkillBatch | WalkBatch:
        """States with goals, or transitions with the way to a subgoal."""
        if phase == "policy":
            return self.draw_walk(key, data, tables)
        if phase == "embedding":
            draw = self.sampler(key, data, self.batch_size)
            return GoalBatch(
                state=data.observations[draw.state],
                next_state=data.observations[draw.state + 1],
                goal=data.observations[draw.goal],
                success=(draw.goal == draw.state).astype(jnp.float32),
            )
        row_key, ahead_key = jax.random.split(key)
        rows = draw_states(row_key, data, self.batch_size)
        subgoals = jnp.minimum(rows + geometric(ahead_key, self.discount, self.batch_size), tables.furthest[rows])
        here = tables.points[rows]
        states = data.observations[rows], data.actions[rows], data.observations[rows + 1]
        return SkillBatch(*states, tables.points[rows + 1] - here, tables.points[subgoals] - here)

    # ---------------------------------------------------------------- losses

    def embedding_loss(self, embedding: MLP, target: MLP, batch: GoalBatch) -> tuple[jax.Array, Metrics]:
        """TD with the Euclidean distance, as HILP's."""
        return euclidean_td_loss(embedding, target, batch, self.expectile, self.discount)

    def critic_loss(self, skills: Skills, target: MLP, batch: SkillBatch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """IQL's two losses on directions drawn uniformly."""
        z = unit(jax.random.normal(key, batch.displacement.shape))
        reward = (batch.displacement * z).sum(-1)
        value = scalars(skills.value, batch.state, z)[0]
        next_value = scalars(skills.value, batch.next_state, z)[0]
        value_loss = iql_value_loss(value, scalars(target, batch.state, z, batch.action), self.policy_expectile)
        q = scalars(skills.critic, batch.state, z, batch.action)
        critic_loss = iql_critic_loss(q, reward, next_value, self.discount)
        metrics = {"skills/value": value_loss, "skills/critic": critic_loss, "skills/reward": jnp.abs(reward).mean()}
        return value_loss + critic_loss, metrics

    def actor_loss(self, policy: GaussianPolicy, critic: MLP, batch: SkillBatch) -> tuple[jax.Array, Metrics]:
        """DDPG+BC on the way to the subgoal; the critic is only looked at."""
        told = jnp.concatenate([batch.state, unit(batch.subgoal)], -1)
        q = scalars(jax.lax.stop_gradient(critic), told, jnp.clip(policy(told), -1.0, 1.0)).min(0)
        loss = ddpg_bc_loss(q, policy.unit_log_prob(told, batch.action), self.bc_weight)
        return loss, {"skills/actor": loss, "skills/actor_q": q.mean()}

    def skills_loss(self, skills: Skills, target: MLP, batch: SkillBatch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The sum; no gradient flows from the actor's loss to the critic."""
        critic, metrics = self.critic_loss(skills, target, batch, key)
        actor, more = self.actor_loss(skills.policy, skills.critic, batch)
        return critic + actor, {"skills/loss": critic + actor, **metrics, **more}

    # ---------------------------------------------------------------- updates

    def update(self, phase: str, state: State, batch: Any, key: jax.Array) -> tuple[State, Metrics]:
        """One gradient step of a phase; the copies follow the parameters before it."""
        if phase == "policy":
            return self.walk(state, batch, key)
        optimisers = state.optimisers
        if phase == "embedding":
            learn = lambda embedding, batch: self.embedding_loss(embedding, state.embedding_target, batch)  # noqa: E731
            embedding, moments, metrics = descend(self.optimiser, learn, state.embedding, optimisers.embedding, batch)
            target = polyak(state.embedding_target, state.embedding, self.target_rate)
            optimisers = optimisers._replace(embedding=moments)
            return state._replace(embedding=embedding, embedding_target=target, optimisers=optimisers), metrics
        skills, target = state.skills, state.critic_target
        assert skills is not None and target is not None
        loss = lambda skills, batch: self.skills_loss(skills, target, batch, key)  # noqa: E731
        copy = polyak(target, skills.critic, self.target_rate)
        skills, moments, metrics = descend(self.optimiser, loss, skills, optimisers.skills, batch)
        optimisers = optimisers._replace(skills=moments)
        return state._replace(skills=skills, critic_target=copy, optimisers=optimisers), metrics

    # ---------------------------------------------------------------- what is shipped

    def model(self, state: State, spec: Spec) -> Model:
        """Head 0 of psi, and the policy that follows its directions, or the waypoint policy."""
        steering: Steering = Direction(self.reach)
        if state.skills is not None:
            policy = frozen_policy(state.skills.policy, "observation", "command")
        else:
            policy, steering = self.steered(None, state.walker, spec)
        networks = {"embedding": frozen(head(state.embedding, 0), "observation"), "policy": policy}
        return Model(self.name, spec.observation_size, spec.action_size, networks, steering, discount=self.discount)


def first_beyond(points: jax.Array, final: jax.Array, reach: float, block: int = 8192) -> jax.Array:
    """For every row the first later row of its trajectory at least `reach` away; the trajectory's last if none is.

    The same as `planning.clusters.first_beyond`, on the device: a block of rows looks ahead until all have found one.
    """
    block = min(block, len(points))
    rows = jnp.arange(len(points) + -len(points) % block)
    rows = jnp.minimum(rows, len(points) - 1).reshape(-1, block)

    def search(rows: jax.Array) -> jax.Array:
        here, last = points[rows], final[rows]

        def look(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            steps, found = carry
            ahead = jnp.minimum(rows + steps, last)
            far = jnp.square(points[ahead] - here).sum(-1) >= reach**2
            return steps + 1, jnp.where((found < 0) & (far | (ahead == last)), ahead, found)

        return jax.lax.while_loop(lambda carry: (carry[1] < 0).any(), look, (jnp.array(1), jnp.full_like(rows, -1)))[1]

    return jax.lax.map(search, rows).ravel()[: len(points)]


class Tables(NamedTuple):
    """psi of every state of the data, and the row of its furthest subgoal."""

    points: jax.Array
    furthest: jax.Array


class Skills(NamedTuple):
    """What the phase `skills` trains; the value is an ensemble of one."""

    value: MLP
    critic: MLP
    policy: GaussianPolicy


class Optimisers(NamedTuple):
    """Adam's moments, a set per phase."""

    embedding: optax.OptState
    skills: optax.OptState


class State(NamedTuple):
    """Everything training changes."""

    embedding: MLP
    embedding_target: MLP
    skills: Skills | None
    """None where the policy is steered by waypoints."""
    critic_target: MLP | None
    optimisers: Optimisers
    walker: Walker | None = None


class GoalBatch(NamedTuple):
    """(x, x', g, x = g)."""

    state: jax.Array
    next_state: jax.Array
    goal: jax.Array
    success: jax.Array


class SkillBatch(NamedTuple):
    """(x, a, x', psi(x') - psi(x), psi(x_s) - psi(x))."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    displacement: jax.Array
    subgoal: jax.Array
