"""Contrastive metric distillation (CMD), top to bottom: settings, the losses, the model.

here            what it is
encoder         phi: state, action -> R^d, two heads, for both ends of a route; head 0 is used downstream
potential       c(g), two heads: what a goal's own density adds to its logits
policy          pi(a | x, g)

Distances are d(phi(x, a), phi(g, a')) with a quasimetric head (`iel.quasimetrics`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from iel.data.goals import Relabelled
from iel.learner import Distances, Facts, Loss, Settings, Spec, Trained
from iel.losses import contrastive_loss, diagonal_cross_entropy
from iel.methods.goal_conditioned import Contrastive, ddpg_bc
from iel.methods.presets import EVEN, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, apply_heads, ensemble, head, scalars
from iel.typed import Share

# All pairs of a batch are compared in every coordinate: half the rows are a quarter of the work.
SHORT: Settings = {"batch_size": 128, "dimension": 64, "state_share": 0.5, "cut_jumps": True}


@dataclass(frozen=True, kw_only=True)
class CMD(Contrastive):
    """Contrastive metric distillation in one step (CMD-1): a density ratio that is a quasimetric.

    Let p(g | x, a) be the discounted density of the states that follow. The successor distance

        d(x, a, g) = log p(g | g) - log p(g | x, a) = -log E[gamma^H],           H steps until g is first reached

    obeys the triangle inequality, so a quasimetric can be it: with g_i a later state of x_i (geometric) and

        l_ij = (c(g_j) - d(phi(x_i, a_i), phi(g_j, a'_j))) / sqrt(dim),          a' an action of another row
        L    = (CE of rows + CE of columns) / 2, the diagonal being right        `symmetric`
        L    = mean binary cross-entropy of l_ij against i = j                   `binary`

    d / sqrt(dim) becomes that distance (c takes what belongs to the goal alone); divided by log(1 / gamma) it counts
    the steps whose discount is the expected one. The policy:

        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],  q = min_e -d(phi_e(x, mu(x, g)), phi_e(g, a'))

    Planners use distances between states, without actions: those of phi(x, 0). `state_share` of the rows are
    trained without their actions, so that phi(x, 0) means x whatever is done there.
    """

    name = "cmd"
    facts = Facts(
        "successor measure", "successor features", "log density ratio", directional=True, triangle_inequality=True
    )
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "bc_weight": 0.03, **SHORT},
        "laptop-robot": {**LEGGED, **SHORT},
        "laptop-robot-even": {**EVEN, **SHORT},
        "smoke": {**SMOKE, "steps": 1_000, "batch_size": 64, "dimension": 32, "state_share": 0.5},
        "ogbench": {"contrast": "binary", "potential": False},
    }

    contrast: Literal["symmetric", "binary"] = "symmetric"
    """Which goal is mine and whose goal is this (the paper), or one yes-or-no question per pair (`binary`)."""
    potential: bool = True
    """Learn c(g); without it, distances must say how common a goal is."""
    state_share: Share = 0.0
    """Share of the rows whose actions are left out (0), at both ends; published: none."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks; the mixture's odds start at 1."""
        encoder_key, potential_key, policy_key = jax.random.split(key, 3)
        size = spec.observation_size
        return Networks(
            ensemble(encoder_key, 2, size + spec.action_size, self.hidden, self.dimension),
            ensemble(potential_key, 2, size, self.hidden, 1) if self.potential else None,
            jnp.zeros(()),
            self.own_policy(policy_key, spec),
        )

    def ends(
        self, networks: Networks, state: jax.Array, action: jax.Array, goal: jax.Array, others: jax.Array
    ) -> tuple[jax.Array, ...]:
        """phi(x, a) and phi(g, a'), (heads, batch, dim)."""
        rows = jnp.concatenate([state, goal]), jnp.concatenate([action, others])
        return tuple(jnp.split(apply_heads(networks.encoder, jnp.concatenate(rows, -1)), 2, axis=1))

    def left_out(self) -> tuple[jax.Array, jax.Array]:
        """Rows and goals, (batch, 1) each, whose actions are left out: the first ones, and as many at even
        intervals, so that the absence of an action does not tell whose goal it is.
        """
        rows, without = jnp.arange(self.batch_size)[:, None], round(self.state_share * self.batch_size)
        return rows < without, rows * without % self.batch_size < without

    def geometry_loss(self, networks: Networks, target: None, batch: Relabelled) -> Loss:
        """Contrast of later states with those of other rows; arrays are (heads, states, goals)."""
        here_out, there_out = self.left_out()
        action = jnp.where(here_out, 0.0, batch.action)
        others = jnp.where(there_out, 0.0, jnp.roll(batch.action, 1, axis=0))
        here, there = self.ends(networks, batch.state, action, batch.goal, others)
        cost = self.pairwise(networks, here, there)
        potential = 0.0 if networks.potential is None else scalars(networks.potential, batch.goal)[:, None, :]
        logits = (potential - cost) / math.sqrt(self.dimension)
        if self.contrast == "symmetric":
            loss = (diagonal_cross_entropy(logits) + diagonal_cross_entropy(logits.swapaxes(1, 2))).mean() / 2.0
        else:
            loss = contrastive_loss(logits)
        return loss, {
            "train/contrast": loss,
            "train/distance": cost.mean(),
            "train/own_distance": jnp.diagonal(cost, axis1=1, axis2=2).mean(),
            "train/accuracy": (logits.argmax(2) == jnp.arange(len(batch.state))).mean(),
        }

    def actor_loss(self, networks: Networks, batch: Relabelled) -> Loss:
        """DDPG+BC; the encoder is only looked at."""
        assert networks.policy is not None
        fixed, others = jax.lax.stop_gradient(networks), jnp.roll(batch.action, 1, axis=0)

        def q(action: jax.Array) -> jax.Array:
            return -self.distance(fixed, *self.ends(fixed, batch.state, action, batch.actor_goal, others)).max(0)

        return ddpg_bc(networks.policy, batch, q, self.bc_weight)

    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        """phi(x, 0) of head 0: its first layer without the rows of the action."""
        encoder = head(trained["train"].encoder, 0)
        kernel = encoder.layers[0].kernel[: spec.observation_size]
        return eqx.tree_at(lambda mlp: mlp.layers[0].kernel, encoder, kernel)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """phi(x, 0) and the quasimetric, in steps if it says nothing else."""
        unit = math.sqrt(self.dimension) * math.log(1.0 / self.discount)
        # Yes-or-no questions without c leave log(batch - 1) and how common a goal is in the distance: no steps.
        counts = self.contrast == "symmetric" and self.potential
        return self.quasimetric(trained, spec, 1.0 / unit, 1.0 if counts else None)


class Networks(NamedTuple):
    encoder: MLP
    potential: MLP | None
    mix_logit: jax.Array
    """Log odds of IQE's mean against its maximum."""
    policy: GaussianPolicy | None
