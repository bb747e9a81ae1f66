"""Forward-backward representations (FB), top to bottom: settings, batches, the losses, the update, the model.

paper          here                     what it is
F              forward (two heads)      (x, a, z) -> R^d: where pi(., z) goes from x after a
B              backward                 y -> R^d, length sqrt(d): what it is to be at y
z              task vector              length sqrt(d): a reward, or a goal; what the policy is told
pi             policy                   (x, z) -> tanh of a Gaussian

The losses of F and of the policy are in measures.py, shared with PSM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData
from iel.learner import Controls, Distances, Facts, Learner, Loss, Spec, Trained
from iel.losses import orthonormality_loss
from iel.methods.measures import (
    MAZES,
    Tasked,
    Tasks,
    Transitions,
    actor_loss,
    draw_rows,
    draw_tasks,
    forward_loss,
    noisy,
    on_sphere,
    task_controls,
    task_distances,
)
from iel.methods.presets import LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, POLICY_SCALE, ensemble
from iel.typed import Count


@dataclass(frozen=True, kw_only=True)
class FB(Tasked, Learner):
    """Forward-backward representations: the successor measures of all optimal policies at once, by rank d.

    For a task vector z, pi(., z) is greedy for the reward y -> B(y)^T z, and F(x, a, z)^T B(y) is its successor
    measure relative to the data. With i, j rows of a batch, F', B' Polyak copies and k the heads,

        M_k,ij = F_k(x_i, a_i, z_i)^T B(x'_j),   M'_ij = min_k F'_k(x'_i, pi(x'_i, z_i), z_i)^T B'(x'_j)
        L = sum_k [mean_{i != j} (M_k,ij - gamma M'_ij)^2 / 2 - mean_i M_k,ii]
            + lambda [mean_{i != j} (B_i^T B_j)^2 - 2 mean_i ||B_i||^2]
        L_pi = -E[min_k F_k(x, pi(x, z), z)^T z]

    It is prompted by a goal, z = B(g), or by a reward, z = E[r B], both scaled to length sqrt(d).
    """

    name = "fb"
    facts = Facts(
        "successor measure", "successor measure", "bilinear projection", directional=True, temporal_difference=True
    )
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "learning_rate": 3e-4, "cut_jumps": True, "standardise": True, **MAZES},
        "laptop-body": {**LEGGED, **MAZES},
        "smoke": {**SMOKE, "dimension": 16, "target_rate": 0.05, "discount": 0.9},
    }

    dimension: Count = 50
    """Size d of task vectors, F and B: the rank of the measures."""
    orthonormality: float = 1.0
    """lambda: how strongly E[B B^T] is held at the identity."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks."""
        forward_key, backward_key, policy_key = jax.random.split(key, 3)
        told = spec.observation_size + self.dimension
        return Networks(
            ensemble(forward_key, 2, told + spec.action_size, self.hidden, self.dimension),
            MLP(backward_key, spec.observation_size, self.hidden, self.dimension),
            MLP(policy_key, told, self.policy_widths, spec.action_size, layer_norm=False, last_scale=POLICY_SCALE),
        )

    def target_of(self, networks: Networks) -> Targets:
        """F and B."""
        return Targets(networks.forward, networks.backward)

    # ---------------------------------------------------------------- batches

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Transitions:
        """Transitions, with a later state where the policy learns from those."""
        rows, ahead = draw_rows(key, data, self.batch_size, self.discount)
        later = data.observations[ahead] if self.future_share > 0 else None
        return Transitions(data.observations[rows], data.actions[rows], data.observations[rows + 1], later)

    # ---------------------------------------------------------------- losses

    def tasks(self, backward: MLP, batch: Transitions, key: jax.Array) -> Tasks:
        """What the policy is asked for in this batch; no gradient flows from here to B."""
        point = lambda x: jax.lax.stop_gradient(on_sphere(backward(x)))  # noqa: E731
        future = None if batch.future is None else point(batch.future)
        return draw_tasks(key, point(batch.state), self.state_share, future, self.future_share)

    def measure_loss(
        self, networks: Networks, target: Targets, z: jax.Array, batch: Transitions, key: jax.Array
    ) -> Loss:
        """TD of the measures, and B kept orthonormal."""
        mean = networks.policy(jnp.concatenate([batch.next_state, z], -1))
        next_action = jax.lax.stop_gradient(noisy(key, mean, self))
        points = on_sphere(networks.backward(batch.next_state))
        columns = points, on_sphere(target.backward(batch.next_state))
        loss, measures = forward_loss(networks.forward, target.forward, next_action, z, columns, batch, self)
        apart = orthonormality_loss(points)
        visits = jnp.diagonal(measures, axis1=1, axis2=2).mean()
        metrics = {"train/measure": loss, "train/orthonormality": apart, "train/visits": visits}
        return loss + self.orthonormality * apart, metrics

    def loss(self, networks: Networks, target: Targets, batch: Transitions, key: jax.Array) -> Loss:
        """The sum; no gradient flows from the policy's loss to F, nor from the measures' to the policy."""
        task_key, next_key, actor_key = jax.random.split(key, 3)
        tasks = self.tasks(networks.backward, batch, task_key)
        measure, metrics = self.measure_loss(networks, target, tasks.z, batch, next_key)
        actor, more = actor_loss(actor_key, networks.policy, networks.forward, tasks, batch, self)
        metrics |= {"train/actor": actor, "train/actor_q": more["actor_q"]}
        return measure + actor, {"train/loss": measure + actor, **metrics}

    # ---------------------------------------------------------------- what is exported

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """F, whose product with B of a target says how near it is."""
        own = trained["train"]
        return task_distances(self, own.forward, own.backward, own.policy)

    def controls(self, trained: Trained, spec: Spec) -> Controls:
        """The policy, conditioned on B of its target."""
        return task_controls(self, trained["train"].policy)


class Networks(NamedTuple):
    """What the optimiser moves."""

    forward: MLP
    backward: MLP
    policy: MLP


class Targets(NamedTuple):
    """Polyak copies."""

    forward: MLP
    backward: MLP
