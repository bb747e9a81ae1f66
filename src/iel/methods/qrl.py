"""Quasimetric reinforcement learning (QRL), top to bottom: settings, the losses, the model.

here            what it is
encoder         phi: state -> R^d; distances are d(phi(x), phi(g)) with a quasimetric head (`iel.quasimetrics`)
multiplier      lambda = exp(log_multiplier), the price of steps that are longer than 1
dynamics        T(phi(x), a), predicts phi(x') - phi(x); what the policy is improved through
policy          pi(a | x, g)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import GoalSampler, Relabelled
from iel.learner import Distances, Facts, Loss, Settings, Spec, Trained, adam, dual_loss, with_multiplier
from iel.methods.goal_conditioned import QuasimetricMethod, awr, ddpg_bc
from iel.methods.presets import EVEN, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy
from iel.quasimetrics import Head, groups_of
from iel.typed import Amount, Count, Positive, Share

# The multiplier has its own step size, as in the authors' code: with the networks' it would still rise at the end.
SHORT: Settings = {"dimension": 64, "dual_learning_rate": 1e-2, "cut_jumps": True}


@dataclass(frozen=True, kw_only=True)
class QRL(QuasimetricMethod):
    """Quasimetric RL: push all states apart while no single step may be longer than 1.

        max E[d(x, g)]  subject to  c = E[(d(x, x') - 1)_+^2] <= epsilon                    g any state of the data

    A quasimetric obeys the triangle inequality, so no distance can exceed the length of a route in the data; pushed up
    to that bound it is the length of the shortest route, in steps. By dual ascent on lambda:

        L_d = E[s softplus((o - d(x, g)) / s)] + lambda c          s = 100, o = 500: nearly -d up to about o
        L_lambda = lambda (epsilon - c)                            lambda rises while steps are too long

    The policy climbs the distance through a latent model (`ddpg-bc`), or weighs the data (`awr`):

        L_T  = E[d(phi', phi^) + d(phi^, phi')] / 2,  phi^ = phi(x) + T(phi(x), a)
        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],  q = -d(phi(x) + T(phi(x), mu), phi(g))
        L_pi = -E[min(exp(alpha' A), 100) log N(a; mu, 1)],  A = d(x, g) - d(x', g)
    """

    name = "qrl"
    facts = Facts("reachability", "Q-values", "implicit Q-distance", directional=True, triangle_inequality=True)
    presets = {
        "paper": {},
        # The published weight of cloning for point mazes; a step trains distances and policy.
        "laptop": {**LAPTOP, "bc_weight": 3e-4, **SHORT},
        "laptop-robot": {**SHORT, **LEGGED},
        "laptop-robot-even": {**SHORT, **EVEN},
        "smoke": {**SMOKE, "dimension": 32, "dual_learning_rate": 2e-2, "push_offset": 50.0, "push_scale": 10.0},
    }

    head: Head = "iqe"
    """The quasimetric: `iqe` (unions of intervals) or `mrn` (a norm and a one-sided maximum)."""
    dimension: Count = 512
    """Size of the embedding."""
    component: Count = 8
    """Coordinates per component of `iqe`; `mrn` has one component."""
    epsilon: Positive = 0.05
    """Mean squared excess of single steps that is allowed."""
    push_offset: Positive = 500.0
    """o, in steps: pairs further apart than about o are no longer pushed; above most true distances."""
    push_scale: Positive = 100.0
    """s: how gradually that sets in."""
    dual_learning_rate: Positive = 3e-4
    """Adam's step size for log lambda."""
    p_behind: Share = 0.0
    """Share of goals that the trajectory has just left (not published: sharpens one-way doors)."""
    extraction: Literal["ddpg-bc", "awr"] = "ddpg-bc"
    """How the policy is read off: through the latent model with cloning, or by advantage-weighted cloning."""
    bc_weight: Amount = 0.003
    """alpha of DDPG+BC. Published: 0.0003 for point mazes, 0.003 antmaze, 0.001 antmaze-explore and humanoid."""
    awr_temperature: Positive = 3.0
    """alpha' of AWR: how much better actions are preferred."""

    @property
    def groups(self) -> int:
        return groups_of(self.dimension, self.component) if self.head == "iqe" else 1

    @property
    def goals(self) -> GoalSampler:
        """Any state of the data, and some that were just left."""
        return GoalSampler(self.discount, 0.0, 1.0, p_behind=self.p_behind)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam; log lambda has a step size of its own."""
        return self.apart(with_multiplier(adam(self.learning_rate), self.dual_learning_rate), self.steps)

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks; lambda and the mixture's odds start at 1."""
        encoder_key, dynamics_key, policy_key = jax.random.split(key, 3)
        return Networks(
            MLP(encoder_key, spec.observation_size, self.hidden, self.dimension),
            jnp.zeros(()),
            MLP(dynamics_key, self.dimension + spec.action_size, self.hidden, self.dimension),
            self.own_policy(policy_key, spec),
            jnp.zeros(()),
        )

    def geometry_loss(self, networks: Networks, target: None, batch: Relabelled) -> Loss:
        """Push random pairs apart, hold single steps together, and predict embeddings."""
        rows = jnp.concatenate([batch.state, batch.next_state, batch.goal])
        here, after, goal = jnp.split(networks.encoder(rows), 3)
        far, step = self.distance(networks, here, goal), self.distance(networks, here, after)
        push = (self.push_scale * jax.nn.softplus((self.push_offset - far) / self.push_scale)).mean()
        excess = jnp.square(jax.nn.relu(step - 1.0)).mean()
        multiplier = jnp.exp(jax.lax.stop_gradient(networks.log_multiplier))
        loss, metrics = push + multiplier * excess, {"train/push": push, "train/excess": excess}
        if self.extraction == "ddpg-bc":
            guess = here + networks.dynamics(jnp.concatenate([here, batch.action], -1))
            dynamics = (self.distance(networks, after, guess) + self.distance(networks, guess, after)).mean() / 2.0
            loss, metrics = loss + dynamics, {**metrics, "train/dynamics": dynamics}
        facts = {"train/step": step.mean(), "train/distance": far.mean(), "train/multiplier": multiplier}
        return loss, {**metrics, **facts}

    def actor_loss(self, networks: Networks, batch: Relabelled) -> Loss:
        """DDPG+BC through the latent model, or AWR; all but the policy is only looked at."""
        assert networks.policy is not None
        fixed = jax.lax.stop_gradient(networks)
        rows = jnp.concatenate([batch.state, batch.actor_goal, batch.next_state])
        here, goal, after = jnp.split(fixed.encoder(rows), 3)
        if self.extraction == "ddpg-bc":

            def q(action: jax.Array) -> jax.Array:
                guess = here + fixed.dynamics(jnp.concatenate([here, action], -1))
                return -self.distance(fixed, guess, goal)

            return ddpg_bc(networks.policy, batch, q, self.bc_weight)
        advantage = self.distance(fixed, here, goal) - self.distance(fixed, after, goal)
        return awr(networks.policy, batch, advantage, self.awr_temperature)

    def loss(self, networks: Networks, target: None, batch: Relabelled, key: jax.Array) -> Loss:
        """The sum, and the dual loss of lambda."""
        loss, metrics = super().loss(networks, target, batch, key)
        return loss + dual_loss(networks.log_multiplier, metrics["train/excess"], self.epsilon), metrics

    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        return trained["train"].encoder

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """phi and the quasimetric, in steps."""
        return self.quasimetric(trained, spec)


class Networks(NamedTuple):
    encoder: MLP
    mix_logit: jax.Array
    """Log odds of IQE's mean against its maximum."""
    dynamics: MLP
    policy: GaussianPolicy | None
    log_multiplier: jax.Array
