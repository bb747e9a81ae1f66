"""Temporal metric distillation (TMD), top to bottom: settings, the losses, the update, the model.

here            what it is
state_encoder   psi: state -> R^d, two heads; head 0 is used downstream
action_encoder  phi: state, action -> R^d, two heads
policy          pi(a | x, g)

Distances are d(phi(x, a), psi(g)) and d(psi(x), psi(g)) with a quasimetric head (`iel.quasimetrics`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, GoalSampler, Relabelled, relabel
from iel.learner import (
    Learner,
    Metrics,
    Spec,
    Trained,
)
from iel.losses import ddpg_bc_loss, diagonal_cross_entropy
from iel.methods.method import SPATIAL, Distances, Facts, Method
from iel.methods.presets import LAPTOP, LEGGED, SMOKE
from iel.metrics import Quasimetric
from iel.nn import MLP, GaussianPolicy, apply_heads, ensemble, frozen, head
from iel.quasimetrics import Head, check_groups, distance, groups_of, pairwise
from iel.typed import Amount, Count, Fraction, Positive, Share

# All pairs of a batch are compared in every coordinate: half the rows are a quarter of the work.
SHORT: dict[str, Any] = {"batch_size": 128, "dimension": 64, "cut_jumps": True}
# With the step size of other bodies (1e-3) the invariance pulls everything to one point before the contrast can act.
CAREFUL: dict[str, Any] = {"learning_rate": 3e-4}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {**LAPTOP, "bc_weight": 0.03, **SHORT},
    "laptop-body": {**LEGGED, **SHORT, **CAREFUL},
    "smoke": {**SMOKE, "steps": 1_000, "batch_size": 64, "dimension": 32},
}


@dataclass(frozen=True, kw_only=True)
class TMD(Method, Learner):
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
    presets = PRESETS
    planners = SPATIAL

    batch_size: Count = 512
    """Transitions per step; all their pairs are compared."""
    head: Head = "mrn"
    """The quasimetric: `mrn` (a norm and a one-sided maximum) or `iqe` (unions of intervals, slower)."""
    dimension: Count = 512
    """Size of the embeddings."""
    components: Count = 8
    """Groups of `mrn`, or coordinates per group of `iqe`."""
    discount: Fraction = 0.99
    """gamma: one step costs log(1 / gamma); also of the goals."""
    zeta: Amount = 0.05
    """Weight of the backup. The paper: 0.01 for medium mazes, 0.1 otherwise; the code: 0.05."""
    clip: Positive = 3.0
    """Where D - N exceeds this, the backup's loss is linear."""
    diagonal: Share = 0.5
    """Share of the backup's loss that is the mean over each state and its own goal."""
    bc_weight: Amount = 0.1
    """alpha of DDPG+BC."""
    actor_p_trajectory: float = 1.0
    """Share of the actor's goals from the same trajectory (uniform): 1 for navigate, 0.5 stitch, 0 explore data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups(self.head, self.dimension, self.groups)
        _ = self.actor_goals  # refuses impossible goal probabilities now

    @property
    def groups(self) -> int:
        return groups_of(self.dimension, self.components) if self.head == "iqe" else self.components

    @property
    def actor_goals(self) -> GoalSampler:
        return GoalSampler(self.discount, self.actor_p_trajectory, 1.0 - self.actor_p_trajectory, future="uniform")

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks; the mixture's odds start at 1."""
        state_key, action_key, policy_key = jax.random.split(key, 3)
        size = spec.observation_size
        policy = GaussianPolicy(policy_key, 2 * size, self.policy_widths, spec.action_size, gelu=True)
        return Networks(
            ensemble(state_key, 2, size, self.hidden, self.dimension),
            ensemble(action_key, 2, size + spec.action_size, self.hidden, self.dimension),
            jnp.zeros(()),
            policy if self.policy is None else None,
        )

    # ---------------------------------------------------------------- batches

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Relabelled:
        """Transitions with a later state, and a goal for the actor."""
        return relabel(key, data, GoalSampler(self.discount, 1.0, 0.0), self.actor_goals, self.batch_size)

    # ---------------------------------------------------------------- losses

    def distance(self, networks: Networks, source: jax.Array, target: jax.Array) -> jax.Array:
        """d between embeddings, row by row."""
        return distance(self.head, source, target, self.groups, jax.nn.sigmoid(networks.mix_logit))

    def backup(self, cost: jax.Array, next_cost: jax.Array) -> jax.Array:
        """b(D, N), element by element."""
        change = cost - next_cost
        linear = change > self.clip
        return jnp.where(linear, change, self.discount * jnp.exp(jnp.where(linear, self.clip, change)) - cost)

    def distance_loss(self, networks: Networks, batch: Relabelled) -> tuple[jax.Array, Metrics]:
        """Contrast, invariance to the action, and one-step backups; arrays are (heads, states, goals)."""
        states = jnp.concatenate([batch.state, batch.next_state, batch.goal])
        here, after, goal = jnp.split(apply_heads(networks.state_encoder, states), 3, axis=1)
        doing = apply_heads(networks.action_encoder, jnp.concatenate([batch.state, batch.action], -1))
        mix = jax.nn.sigmoid(networks.mix_logit)
        cost = pairwise(self.head, doing, goal, self.groups, mix)
        next_cost = jax.lax.stop_gradient(pairwise(self.head, *jax.lax.stop_gradient((after, goal)), self.groups, mix))
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

    def actor_loss(self, networks: Networks, batch: Relabelled) -> tuple[jax.Array, Metrics]:
        """DDPG+BC; the encoders are only looked at."""
        assert networks.policy is not None
        critic = jax.lax.stop_gradient(networks)
        pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
        action = jnp.clip(networks.policy(pair), -1.0, 1.0)
        doing = apply_heads(critic.action_encoder, jnp.concatenate([batch.state, action], -1))
        q = -self.distance(critic, doing, apply_heads(critic.state_encoder, batch.actor_goal)).max(0)
        loss = ddpg_bc_loss(q, networks.policy.unit_log_prob(pair, batch.action), self.bc_weight)
        return loss, {"train/actor": loss, "train/actor_q": q.mean()}

    def loss(self, networks: Networks, target: None, batch: Relabelled, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The sum; no gradient flows from the actor's loss to the distances."""
        loss, metrics = self.distance_loss(networks, batch)
        if self.policy is None:
            actor_loss, actor_metrics = self.actor_loss(networks, batch)
            loss, metrics = loss + actor_loss, {**metrics, **actor_metrics}
        return loss, {"train/loss": loss, **metrics}

    # ---------------------------------------------------------------- what is exported

    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        """Head 0 of psi."""
        return head(trained["train"].state_encoder, 0)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """psi and the quasimetric, in steps."""
        mix = float(jax.nn.sigmoid(trained["train"].mix_logit))
        metric = Quasimetric(self.head, self.groups, mix, scale=1.0 / math.log(1.0 / self.discount))
        networks = {"embedding": frozen(self.embedding(trained, spec), "observation")}
        return Distances(networks, discount=metric.discount, metric=metric)


class Networks(NamedTuple):
    """What the optimiser moves."""

    state_encoder: MLP
    action_encoder: MLP
    mix_logit: jax.Array
    """Log odds of IQE's mean against its maximum."""
    policy: GaussianPolicy | None
