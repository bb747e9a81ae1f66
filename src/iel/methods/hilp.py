"""Hilbert foundation policies (HILP), top to bottom: settings, the loss of the embedding, updates, the model.

paper          here                       what it is
phi            embedding (two heads)      state -> R^d; head 0 is used downstream
z              direction                  random unit vector the policy is trained on; never a goal
pi, V, Q       policy, value, critic      IQL + AWR over directions (skills.py, shared with IEL)

It is IEL with beta = 0 and without the hitting-time regression: there is no omega and distances are Euclidean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, GoalSampler
from iel.data.slowness import place_columns
from iel.data.trajectories import Trajectories
from iel.distances import euclidean
from iel.errors import ConfigError
from iel.losses import ivl_loss
from iel.methods.contract import Method, Metrics, Phase, Spec, require_fraction, require_positive, require_share
from iel.methods.skills import (
    ARM,
    BODY,
    WALKING,
    Learner,
    SkillBatch,
    Skills,
    SkillSettings,
    Steered,
    checked_place,
    draw_future,
    draw_skill_batch,
    new_skills,
    place_table,
    policy_optimiser,
    shipped_policy,
    skill_loss,
    skill_shape,
    skill_steering,
)
from iel.model import Model
from iel.nn import MLP, apply_heads, descend, ensemble, frozen, head, in_blocks, polyak

LAPTOP = {"batch_size": 256, "hidden": (128, 128, 128), "cut_jumps": True}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # A joint step trains both halves, so 21,000 of them are as many updates of each network as IEL's 42,000.
    "laptop": {"steps": 21_000, **LAPTOP},
    "laptop-phased": {"steps": 42_000, "training": "phased", **LAPTOP},
    "laptop-body": {"steps": 48_000, "training": "phased", **WALKING},
    "laptop-arm": {"steps": 36_000, "training": "phased", **ARM},
    "laptop-body-directions": {"steps": 60_000, "training": "phased", "awr_temperature": 1.0, **BODY},
    # A short training needs targets that follow quickly: what is learned spreads one target copy at a time.
    "smoke": {
        "steps": 1_500,
        "batch_size": 128,
        "hidden": (64, 64),
        "dimension": 16,
        "learning_rate": 1e-3,
        "target_rate": 0.05,
    },
}


@dataclass(frozen=True, kw_only=True)
class HILP(Method):
    """Hilbert foundation policies: a Euclidean embedding of hitting times, and one policy for every latent direction.

    The embedding is trained with V(x, g) = -||phi(x) - phi(g)||:

        L = IVL(V; expectile, discount)

    and the policy pi(a | x, z) by IQL and AWR on the reward <phi(x') - phi(x), z>, z uniform on the unit sphere. No
    gradient flows from the policy to phi. With `joint` training (as published) every step trains both, the policy on
    the embedding of the moment; `phased` training finishes the embedding first, as IEL does.

    Presets: `paper` (the defaults below), `laptop` (minutes on two cores), `laptop-phased` (the same number of updates,
    in two phases), `laptop-body` (the same for robots with joints, as IEL's), `smoke` (seconds, for tests).
    """

    name = "hilp"
    presets = PRESETS

    training: Literal["joint", "phased"] = "joint"
    """`joint`: embedding and policy in every step, as published; `phased`: one after the other, as IEL."""
    embedding_share: float = 0.5
    """Share of the steps given to the embedding in phased training; the policy gets the rest."""
    dimension: int = 32
    """Size d of the latent space."""
    discount: float = 0.99
    """gamma, for distances and goals."""
    target_rate: float = 0.005
    """Polyak rate of the target copies."""
    expectile: float = 0.95
    """tau of the TD loss: near 1, short ways win."""
    p_trajectory: float = 0.625
    """Share of goals from the same trajectory (geometric in the discount); the rest are random states."""
    policy_discount: float = 0.99
    """Discount of the policy's IQL: how far ahead progress along a direction counts."""
    policy_expectile: float = 0.9
    """Expectile of the policy's IQL."""
    awr_temperature: float = 10.0
    """alpha of AWR: how much better actions are preferred."""
    policy_norm: bool = False
    """Hidden layers Dense-GELU-LayerNorm in the policy, as in all other networks (published: Dense-ReLU)."""
    policy_heads: int = 1
    """Policies cloned side by side, whose mean acts (published: 1)."""
    future_share: float = 0.0
    """Share of the policy's directions that are where the trajectory itself went (published: none, all uniform)."""
    future_steps: int = 20
    """How many steps ahead such a direction may look."""
    steering: Steered = "direction"
    """`direction`: the policy follows directions of phi (the paper); `waypoint`: directions of the place columns."""
    place: tuple[int, ...] = ()
    """Columns that tell the place, for steering by waypoints; by default those that `iel data info` names."""
    sees_place: bool = False
    """Let a policy that is steered by waypoints see its own place, too: what it learns then holds in that place."""
    learner: Learner = "iql-awr"
    """How the policy is learned: by IQL and AWR (the paper), or by `cloning` what the data did in each direction."""
    decay: bool = False
    """Let the policy's step size follow half a cosine down to 0 (the paper: constant)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "dimension", "awr_temperature", "policy_heads")
        require_fraction(self, "discount", "expectile", "policy_discount", "policy_expectile")
        require_share(self, "embedding_share", "future_share")
        require_positive(self, "future_steps")
        if self.steering == "waypoint" and self.training == "joint":
            raise ConfigError("Steering by waypoints needs training='phased': the place is no part of the embedding.")
        if (self.place or self.sees_place) and self.steering == "direction":
            raise ConfigError("place and sees_place are for steering by waypoints; choose steering waypoint.")
        _ = self.sampler  # refuses impossible goal probabilities now rather than in the first step

    @property
    def sampler(self) -> GoalSampler:
        return GoalSampler(self.discount, self.p_trajectory, 1.0 - self.p_trajectory)

    @property
    def skills(self) -> SkillSettings:
        numbers = self.policy_discount, self.policy_expectile, self.awr_temperature, self.future_share
        return SkillSettings(*numbers, self.learner)

    @property
    def policy_optimiser(self) -> optax.GradientTransformation:
        return policy_optimiser(self.learning_rate, self.phases()[-1].steps, self.decay)

    def place_of(self, data: Trajectories) -> tuple[int, ...]:
        """The place columns given, or those that are clearly slower than all others."""
        if self.steering == "direction":
            return ()
        return checked_place(self.place, data) or tuple(place_columns(data))

    @property
    def waypoint_steps(self) -> int:
        """As far as directions of the future look; 0 if there are none."""
        return self.future_steps if self.future_share > 0 else 0

    def phases(self) -> tuple[Phase, ...]:
        """One phase `joint`, or `embedding` and `policy`."""
        if self.training == "joint":
            return (Phase("joint", self.steps),)
        embedding = round(self.steps * self.embedding_share)
        return Phase("embedding", embedding), Phase("policy", self.steps - embedding)

    def init(self, key: jax.Array, spec: Spec) -> State:
        """Fresh networks, the same as IEL's for the same key (whose first part is omega's)."""
        keys = jax.random.split(key, 5)[1:]
        embedding = ensemble(keys[0], 2, spec.observation_size, self.hidden, self.dimension)
        shape = *skill_shape(spec, self.dimension, self.sees_place), spec.action_size, self.policy_widths
        skills = new_skills(keys[1:], *shape, self.policy_norm, self.learner, self.policy_heads)
        moments = Optimisers(self.optimiser.init(embedding), self.policy_optimiser.init(skills))
        return State(embedding, embedding, skills, skills.critic, moments)

    # ---------------------------------------------------------------- batches

    def tables(self, phase: str, state: State, data: DeviceData) -> jax.Array | None:
        """phi (head 0) of every state in `policy`, where it is frozen; or the place."""
        if phase != "policy":
            return None
        return place_table(data, lambda: in_blocks(head(state.embedding, 0), data.observations))

    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: jax.Array | None) -> GoalBatch | SkillBatch:
        """The batch of one step; a joint step uses the same transitions for both losses."""
        if phase == "policy":
            assert tables is not None
            return draw_skill_batch(key, data, tables, self.batch_size, self.waypoint_steps or None, self.sees_place)
        draw = self.sampler(key, data, self.batch_size)
        ahead = self.waypoint_steps
        future = data.observations[draw_future(key, data, draw.state, ahead)] if ahead else None
        return GoalBatch(
            state=data.observations[draw.state],
            action=data.actions[draw.state],
            next_state=data.observations[draw.state + 1],
            goal=data.observations[draw.goal],
            success=(draw.goal == draw.state).astype(jnp.float32),
            future=future,
        )

    # ---------------------------------------------------------------- the loss of the embedding

    def embedding_loss(self, embedding: MLP, target: MLP, batch: Any) -> tuple[jax.Array, Metrics]:
        """TD with the Euclidean distance. The loss of the policy is `skills.skill_loss`."""
        return euclidean_td_loss(embedding, target, batch, self.expectile, self.discount)

    # ---------------------------------------------------------------- updates

    def update(self, phase: str, state: State, batch: Any, key: jax.Array) -> tuple[State, Metrics]:
        """One gradient step of a phase. Everything the phase does not train is returned untouched, bit for bit."""
        if phase == "embedding":
            return self._update_embedding(state, batch)
        if phase == "policy":
            return self._update_policy(state, batch, key)
        phi = head(state.embedding, 0)  # of the moment, before this step moves it
        here, after = jnp.split(phi(jnp.concatenate([batch.state, batch.next_state])), 2)
        future = None if batch.future is None else phi(batch.future) - here
        skill_batch = SkillBatch(batch.state, batch.action, batch.next_state, after - here, future)
        state, embedding_metrics = self._update_embedding(state, batch)
        state, metrics = self._update_policy(state, skill_batch, key)
        loss = embedding_metrics["embedding/loss"] + metrics["policy/loss"]
        return state, {"joint/loss": loss, **embedding_metrics, **metrics}

    def _update_embedding(self, state: State, batch: Any) -> tuple[State, Metrics]:
        loss = lambda embedding, *rest: self.embedding_loss(embedding, state.embedding_target, *rest)  # noqa: E731
        optimisers = state.optimisers
        embedding, moments, metrics = descend(self.optimiser, loss, state.embedding, optimisers.embedding, batch)
        target = polyak(state.embedding_target, state.embedding, self.target_rate)
        moments = optimisers._replace(embedding=moments)
        return state._replace(embedding=embedding, embedding_target=target, optimisers=moments), metrics

    def _update_policy(self, state: State, batch: SkillBatch, key: jax.Array) -> tuple[State, Metrics]:
        loss = lambda skills, batch: skill_loss(skills, state.critic_target, batch, key, self.skills)  # noqa: E731
        optimisers = state.optimisers
        skills, moments, metrics = descend(self.policy_optimiser, loss, state.skills, optimisers.skills, batch)
        target = polyak(state.critic_target, state.skills.critic, self.target_rate)
        moments = optimisers._replace(skills=moments)
        return state._replace(skills=skills, critic_target=target, optimisers=moments), metrics

    # ---------------------------------------------------------------- what is shipped

    def model(self, state: State, spec: Spec) -> Model:
        """Head 0 of phi and the policy; without omega, beta is 0."""
        networks = {
            "embedding": frozen(head(state.embedding, 0), "observation"),
            "policy": shipped_policy(state.skills.policy, self.steering, self.sees_place),
        }
        return Model(
            self.name,
            spec.observation_size,
            spec.action_size,
            networks,
            skill_steering(spec, self.steering),
            discount=self.discount,
        )


def euclidean_td_loss(
    embedding: MLP, target: MLP, batch: Any, expectile: float, discount: float
) -> tuple[jax.Array, Metrics]:
    """IVL with V(x, g) = -||phi(x) - phi(g)|| on a batch of x, x', g and whether x is g; GAS shares it."""
    state, goal = jnp.split(apply_heads(embedding, jnp.concatenate([batch.state, batch.goal])), 2, axis=1)
    three = jax.lax.stop_gradient(apply_heads(target, jnp.concatenate([batch.state, batch.goal, batch.next_state])))
    old_state, old_goal, old_next = jnp.split(three, 3, axis=1)
    cost = euclidean(state, goal)
    old_cost, next_cost = euclidean(old_state, old_goal), euclidean(old_next, old_goal)
    loss = ivl_loss(-cost, -old_cost, -next_cost, batch.success, expectile, discount)
    return loss, {"embedding/loss": loss, "embedding/distance": cost[0].mean()}


class Optimisers(NamedTuple):
    """Adam's moments. Adam works leaf by leaf, so two of them are one over all parameters."""

    embedding: optax.OptState
    skills: optax.OptState


class State(NamedTuple):
    """Everything training changes."""

    embedding: MLP
    embedding_target: MLP
    skills: Skills
    critic_target: MLP | None
    optimisers: Optimisers


class GoalBatch(NamedTuple):
    """(x, a, x', g, x = g), and a state ahead on the trajectory if directions are to be taken from there."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    goal: jax.Array
    success: jax.Array
    future: jax.Array | None = None
