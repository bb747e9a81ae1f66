"""Hilbert foundation policies (HILP), top to bottom: settings, the loss of the embedding, the model.

paper          here                       what it is
phi            embedding (two heads)      state -> R^d; head 0 is used downstream
z              direction                  random unit vector the policy is trained on; never a goal
pi, V, Q       policy, value, critic      IQL + AWR over directions (policies/directions.py, shared with IEL)

It is IEL with beta = 0, without omega and the hitting-time regression: distances are Euclidean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, Draw
from iel.distances import euclidean
from iel.learner import Facts, Loss, Part, Phase, Policy, Spec, Trained
from iel.methods.iel import Embedded, TwoHeads
from iel.methods.presets import ARM_DIRECTIONS, LAPTOP, LEGGED_DIRECTIONS, MAP, SMOKE, WALKING
from iel.model import Model
from iel.nn import MLP, apply_heads, head
from iel.policies import Directions
from iel.policies.directions import DirectionBatch, DirectionLearner, DirectionParams, draw_future


@dataclass(frozen=True, kw_only=True)
class HILP(Embedded):
    """Hilbert foundation policies: a Euclidean embedding of hitting times, and one policy for every latent direction.

    The embedding is trained with V(x, g) = -||phi(x) - phi(g)||:

        L = IVL(V; expectile, discount)

    and the policy pi(a | x, z) by IQL and AWR on the reward <phi(x') - phi(x), z>, z uniform on the unit sphere. No
    gradient flows from the policy to phi. With `joint` training (as published) every step trains both, the policy on
    the embedding of the moment; `phased` training finishes the embedding first, as IEL does.
    """

    name = "hilp"
    facts = Facts(
        "hitting time",
        "hitting time",
        "Euclidean feature",
        triangle_inequality=True,
        temporal_difference=True,
        goal_agnostic_policy=True,
    )
    presets = {
        "paper": {},
        # A joint step trains both halves: as many updates of each network as in IEL's preset.
        "laptop": {**LAPTOP, "cut_jumps": True},
        "laptop-phased": {**LAPTOP, "cut_jumps": True, "training": "phased"},
        "laptop-robot": {**WALKING, "training": "phased"},
        "laptop-robot-even": {**WALKING, "training": "phased", "standardise": "policy"},
        "laptop-arm": {**MAP, "steps": 18_000, "training": "phased", "policy": ARM_DIRECTIONS},
        "laptop-robot-directions": {**MAP, "steps": 30_000, "training": "phased", "policy": LEGGED_DIRECTIONS},
        "smoke": {**SMOKE, "dimension": 16, "target_rate": 0.05, "policy": Directions(target_rate=0.05)},
    }

    policy: Policy | None = Directions()
    """The policy: `directions` of the embedding (published), or `waypoints`."""
    training: Literal["joint", "phased"] = "joint"
    """`joint`: embedding and policy in every step, as published, where the policy is `directions` without decay;
    `phased`: one after the other, as IEL."""

    def geometry(self) -> tuple[Phase, ...]:
        return (Phase(EuclideanLearner(self), self.steps),)

    @property
    def joint(self) -> bool:
        """Whether a step trains both embedding and policy."""
        return self.training == "joint" and isinstance(self.policy, Directions) and not self.policy.decay

    def phases(self) -> tuple[Phase, ...]:
        """One phase `joint`, or `embedding` and `policy`."""
        return (Phase(JointLearner(self), self.steps),) if self.joint else super().phases()

    def model(self, trained: Trained, spec: Spec) -> Model:
        if self.joint:
            trained = {"embedding": trained["joint"].embedding, "policy": trained["joint"].policy_params}
        return super().model(trained, spec)


@dataclass(frozen=True)
class EuclideanLearner(TwoHeads):
    """Phase `embedding`: IVL with the Euclidean distance."""

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> GoalBatch:
        return self.batch(data, self.method.sampler(key, data, self.method.batch_size))

    def batch(self, data: DeviceData, draw: Draw) -> GoalBatch:
        """The rows that were drawn."""
        state, next_state, goal = (data.observations[rows] for rows in (draw.state, draw.state + 1, draw.goal))
        return GoalBatch(state, next_state, goal, (draw.goal == draw.state).astype(jnp.float32))

    def loss(self, embedding: MLP, target: MLP, batch: GoalBatch, key: jax.Array) -> Loss:
        """IVL with V(x, g) = -||phi(x) - phi(g)||."""
        state, goal = jnp.split(apply_heads(embedding, jnp.concatenate([batch.state, batch.goal])), 2, axis=1)
        loss, cost = self.td(target, batch, (state, goal), euclidean)
        return loss, {"embedding/loss": loss, "embedding/distance": cost[0].mean()}


@dataclass(frozen=True)
class JointLearner(Part):
    """Phase `joint`: the embedding, and the policy on the embedding of the moment, on the same transitions."""

    method: HILP

    phase = "joint"

    @property
    def space_learner(self) -> EuclideanLearner:
        return EuclideanLearner(self.method)

    @property
    def policy_learner(self) -> DirectionLearner:
        assert isinstance(self.method.policy, Directions)
        return self.method.policy.learner(self.method)

    def init(self, key: jax.Array, spec: Spec) -> Joint:
        """Both, each from its own part of the key."""
        return Joint(self.space_learner.init(key, spec), self.policy_learner.init(key, spec))

    def target_of(self, params: Joint) -> tuple[MLP, MLP | None]:
        return params.embedding, params.policy_params.critic

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> JointBatch:
        """Transitions with goals, and a state ahead if directions are taken from there."""
        draw, policy = self.method.sampler(key, data, self.method.batch_size), self.policy_learner.policy
        future = None
        if policy.future_share > 0.0:
            future = data.observations[draw_future(key, data, draw.state, policy.future_steps)]
        return JointBatch(self.space_learner.batch(data, draw), data.actions[draw.state], future)

    def loss(self, params: Joint, target: tuple[MLP, MLP | None], batch: JointBatch, key: jax.Array) -> Loss:
        """The sum; no gradient flows from the policy to phi."""
        goals = batch.goals
        loss, metrics = self.space_learner.loss(params.embedding, target[0], goals, key)
        phi = jax.lax.stop_gradient(head(params.embedding, 0))
        here, after = jnp.split(phi(jnp.concatenate([goals.state, goals.next_state])), 2)
        future = None if batch.future is None else phi(batch.future) - here
        moves = DirectionBatch(goals.state, batch.action, goals.next_state, after - here, future)
        more, policy_metrics = self.policy_learner.loss(params.policy_params, target[1], moves, key)
        return loss + more, {"joint/loss": loss + more, **metrics, **policy_metrics}


class Joint(NamedTuple):
    """What a joint step trains."""

    embedding: MLP
    policy_params: DirectionParams


class GoalBatch(NamedTuple):
    """(x, x', g, x = g)."""

    state: jax.Array
    next_state: jax.Array
    goal: jax.Array
    success: jax.Array


class JointBatch(NamedTuple):
    """(x, x', g, x = g), a, and a state ahead on the trajectory if directions are to be taken from there."""

    goals: GoalBatch
    action: jax.Array
    future: jax.Array | None
