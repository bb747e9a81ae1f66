"""Temporal metric distillation (TMD), top to bottom: settings, the losses, the model.

here            what it is
state_encoder   psi: state -> R^d, two heads; head 0 is used downstream
action_encoder  phi: state, action -> R^d, two heads
policy          pi(a | x, g)

Distances are d(phi(x, a), psi(g)) and d(psi(x), psi(g)) with a quasimetric head (`iel.quasimetrics`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import Relabelled
from iel.learner import Distances, Facts, Loss, Settings, Spec, Trained
from iel.losses import diagonal_cross_entropy
from iel.methods.goal_conditioned import Contrastive, ddpg_bc
from iel.methods.presets import EVEN, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, apply_heads, ensemble, head
from iel.typed import Amount, Count, Positive, Share

# All pairs of a batch are compared in every coordinate: half the rows are a quarter of the work.
SHORT: Settings = {"batch_size": 128, "dimension": 64, "cut_jumps": True}


@dataclass(frozen=True, kw_only=True)
class TMD(Contrastive):
    """Temporal metric distillation: a quasimetric that is contrastive, cares for no action, and obeys one-step backups.

    With D_ij = d(phi(x_i, a_i), psi(g_j)), where g_i is a later state of x_i's trajectory (geometric), and
    N_ij = d(psi(x'_i), psi(g_j)) without gradient:

        L_nce  = mean_j CE(softmax_i(-D_ij / sqrt(dim)), i = j)                      which state did g_j come after?
        L_inv  = E[d(psi(x), phi(x, a))]                                            so d(x, g) <= d((x, a), g) for all a
        L_back = mean_ij b(D_ij, N_ij),   b = gamma e^(D - N) - D, least where e^-D = gamma E[e^-N]
                                          (D - N where that exceeds `clip`)
        L = L_nce + L_inv + zeta L_back

    so in a deterministic world one step costs log(1 / gamma), and d / log(1 / gamma) counts steps. L_back takes the
    mean over all pairs and the mean over the diagonal, `diagonal` being the share of the latter. The policy:

        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],  q = min_e -d(phi_e(x, mu(x, g)), psi_e(g))
    """

    name = "tmd"
    facts = Facts(
        "reachability",
        "time to arrival",
        "quasimetric feature",
        directional=True,
        triangle_inequality=True,
        temporal_difference=True,
    )
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "bc_weight": 0.03, **SHORT},
        # At 1e-3, as in LEGGED, the invariance pulls everything to one point before the contrast can act.
        "laptop-robot": {**LEGGED, **SHORT, "learning_rate": 3e-4},
        "laptop-robot-even": {**EVEN, **SHORT, "learning_rate": 3e-4},
        "smoke": {**SMOKE, "steps": 1_000, "batch_size": 64, "dimension": 32},
    }

    batch_size: Count = 512
    """Transitions per step; all their pairs are compared."""
    zeta: Amount = 0.05
    """Weight of the backup. The paper: 0.01 for medium mazes, 0.1 otherwise; the code: 0.05."""
    clip: Positive = 3.0
    """Where D - N exceeds this, the backup's loss is linear."""
    diagonal: Share = 0.5
    """Share of the backup's loss that is the mean over each state and its own goal."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks; the mixture's odds start at 1."""
        state_key, action_key, policy_key = jax.random.split(key, 3)
        size = spec.observation_size
        return Networks(
            ensemble(state_key, 2, size, self.hidden, self.dimension),
            ensemble(action_key, 2, size + spec.action_size, self.hidden, self.dimension),
            jnp.zeros(()),
            self.own_policy(policy_key, spec),
        )

    def backup(self, cost: jax.Array, next_cost: jax.Array) -> jax.Array:
        """b(D, N), element by element."""
        change = cost - next_cost
        linear = change > self.clip
        return jnp.where(linear, change, self.discount * jnp.exp(jnp.where(linear, self.clip, change)) - cost)

    def geometry_loss(self, networks: Networks, target: None, batch: Relabelled) -> Loss:
        """Contrast, invariance to the action, and one-step backups; arrays are (heads, states, goals)."""
        states = jnp.concatenate([batch.state, batch.next_state, batch.goal])
        here, after, goal = jnp.split(apply_heads(networks.state_encoder, states), 3, axis=1)
        doing = apply_heads(networks.action_encoder, jnp.concatenate([batch.state, batch.action], -1))
        cost = self.pairwise(networks, doing, goal)
        next_cost = jax.lax.stop_gradient(self.pairwise(networks, *jax.lax.stop_gradient((after, goal))))
        logits = -cost / math.sqrt(self.dimension)
        nce = diagonal_cross_entropy(logits.swapaxes(1, 2)).mean()
        invariance = self.distance(networks, here, doing).mean()
        each = self.backup(cost, next_cost)
        own = jnp.diagonal(each, axis1=1, axis2=2).mean()
        back = (1.0 - self.diagonal) * each.mean() + self.diagonal * own
        loss = nce + invariance + self.zeta * back
        return loss, {
            "train/contrast": nce,
            "train/invariance": invariance,
            "train/backup": back,
            "train/distance": cost.mean(),
            "train/accuracy": (logits.argmax(1) == jnp.arange(len(batch.state))).mean(),
        }

    def actor_loss(self, networks: Networks, batch: Relabelled) -> Loss:
        """DDPG+BC; the encoders are only looked at."""
        assert networks.policy is not None
        fixed = jax.lax.stop_gradient(networks)
        goal = apply_heads(fixed.state_encoder, batch.actor_goal)

        def q(action: jax.Array) -> jax.Array:
            doing = apply_heads(fixed.action_encoder, jnp.concatenate([batch.state, action], -1))
            return -self.distance(fixed, doing, goal).max(0)

        return ddpg_bc(networks.policy, batch, q, self.bc_weight)

    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        return head(trained["train"].state_encoder, 0)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """psi and the quasimetric, in steps."""
        return self.quasimetric(trained, spec, 1.0 / math.log(1.0 / self.discount))


class Networks(NamedTuple):
    state_encoder: MLP
    action_encoder: MLP
    mix_logit: jax.Array
    """Log odds of IQE's mean against its maximum."""
    policy: GaussianPolicy | None
