"""Contrastive RL (CRL), top to bottom: settings, the losses, the model.

here           what it is
critic         f(x, a, g) = <phi(x, a), psi(g)> / sqrt(d), two heads: how much likelier g is after (x, a) than anywhere
policy         pi(a | x, g), extracted by DDPG+BC
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import Relabelled
from iel.errors import ConfigError
from iel.learner import Distances, Facts, Loss, Spec, Trained
from iel.losses import contrastive_loss
from iel.methods.goal_conditioned import GoalConditioned, ddpg_bc
from iel.methods.presets import EVEN, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, apply_heads, ensemble, frozen, with_constants
from iel.typed import Amount, Count, Fraction


@dataclass(frozen=True, kw_only=True)
class CRL(GoalConditioned):
    """Contrastive RL: a critic that tells the future of a state from the future of others, and a policy that climbs it.

        f_e(x, a, g) = <phi_e(x, a), psi_e(g)> / sqrt(d)
        L_f  = mean_e mean_ij BCE(f_e(x_i, a_i, g_j), 1[i = j]),         g_i = x_{t+k}, P(k) = (1 - gamma) gamma^(k - 1)
        L_pi = -E[q] / E|q| - alpha E[log N(a; mu(x, g), 1)],            q = min_e f_e(x, mu(x, g), g)

    With B pairs a batch the best critic is f = log p(g | x, a) / p(g) - log(B - 1), where p(. | x, a) are the
    discounted later states of the data: no bootstrapping, no target copy, and no stitching of trajectories.
    """

    name = "crl"
    facts = Facts("successor measure", "density ratio", "inner product", directional=True)
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "learning_rate": 1e-3, "bc_weight": 0.03},
        "laptop-robot": LEGGED,
        "laptop-robot-even": {**EVEN, "goal_columns": "position"},
        "smoke": {**SMOKE, "latent": 16},
    }

    latent: Count = 512
    """d: how many features phi and psi have."""
    discount: Fraction = 0.99
    """gamma: later states are drawn with P(k) = (1 - gamma) gamma^(k - 1)."""
    bc_weight: Amount = 0.1
    """alpha of DDPG+BC. Published: 0.03 for point mazes, 0.1 ant and humanoid mazes, 0.003 explore data, 0.3 soccer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise ConfigError("batch_size must be at least 2: a contrast needs another goal to compare with.")

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        phi_key, psi_key, policy_key = jax.random.split(key, 3)
        size = spec.observation_size
        return Networks(
            ensemble(phi_key, 2, size + spec.action_size, self.hidden, self.latent),
            ensemble(psi_key, 2, size, self.hidden, self.latent, lens=spec.lens("goal")),
            self.goal_policy(policy_key, spec),
        )

    def features(self, networks: Networks, pair: tuple[jax.Array, jax.Array], goal: jax.Array) -> tuple[jax.Array, ...]:
        """phi(x, a) and psi(g) / sqrt(d), (heads, batch, d) each."""
        phi = apply_heads(networks.phi, jnp.concatenate(pair, -1))
        return phi, apply_heads(networks.psi, goal) / jnp.sqrt(self.latent)

    def geometry_loss(self, networks: Networks, target: None, batch: Relabelled) -> Loss:
        """Which of the batch's goals came after which state and action?"""
        phi, psi = self.features(networks, (batch.state, batch.action), batch.goal)
        logits = jnp.einsum("eik,ejk->eij", phi, psi)
        loss, own = contrastive_loss(logits), jnp.diagonal(logits, axis1=1, axis2=2)
        right = (logits.mean(0).argmax(-1) == jnp.arange(len(batch.goal))).mean()
        return loss, {"train/critic": loss, "train/own_logit": own.mean(), "train/recognised": right}

    def actor_loss(self, networks: Networks, batch: Relabelled) -> Loss:
        """DDPG+BC at the actor's goals; the critic is only looked at."""
        fixed = jax.lax.stop_gradient(networks)

        def q(action: jax.Array) -> jax.Array:
            phi, psi = self.features(fixed, (batch.state, action), batch.actor_goal)
            return (phi * psi).sum(-1).min(0)

        loss, metrics = ddpg_bc(networks.policy, batch, q, self.bc_weight)
        return loss, {"train/actor": loss, "train/actor_logit": metrics["train/actor_q"]}

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """The critic as log p(g | x, a) / p(g): a last feature adds the log(B - 1) of its negatives.

        It is evaluated at the action of the method's own policy, whichever policy acts.
        """
        own = trained["train"]
        phi, psi = frozen(own.phi, "observation", "action", logit=True), frozen(own.psi, "goal")
        goals = with_constants(psi, [np.log(self.batch_size - 1)], 1.0 / np.sqrt(self.latent))
        return Distances({"value": with_constants(phi, [1.0]), "goal_features": goals, **self.actor(trained)})


class Networks(NamedTuple):
    """What the optimiser moves; phi and psi are ensembles of two."""

    phi: MLP
    psi: MLP
    policy: GaussianPolicy
