"""Forward-backward representations (FB), top to bottom: settings, batches, the losses, the model.

paper          here                     what it is
F              forward (two heads)      (x, a, z) -> R^d: where pi(., z) goes from x after a
B              backward                 y -> R^d, length sqrt(d): what it is to be at y
z              task vector              length sqrt(d): a reward, or a goal; the input of the policy
pi             policy                   (x, z) -> tanh of a Gaussian

The losses of F and of the policy, and most settings, are in measures.py, shared with PSM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax

from iel.data.goals import DeviceData
from iel.learner import Distances, Facts, Learner, Loss, Spec, Trained, total
from iel.methods.measures import MAZES, Tasked, Transitions
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, ensemble, on_sphere


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
        "laptop": {**LAPTOP, "learning_rate": 3e-4, "cut_jumps": True, "standardise": "all", **MAZES},
        "laptop-robot": {**LEGGED, **MAZES},
        "laptop-robot-even": {**EVEN_MAP, **MAZES, "learning_rate": 3e-4, "goal_columns": "position"},
        "smoke": {**SMOKE, "dimension": 16, "target_rate": 0.05, "discount": 0.9},
    }

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        forward_key, backward_key, policy_key = jax.random.split(key, 3)
        condition = spec.observation_size + self.dimension
        return Networks(
            ensemble(forward_key, 2, condition + spec.action_size, self.hidden, self.dimension),
            MLP(backward_key, spec.observation_size, self.hidden, self.dimension, lens=spec.lens("goal")),
            self.task_policy(policy_key, spec),
        )

    def target_of(self, networks: Networks) -> Targets:
        return Targets(networks.forward, networks.backward)

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Transitions:
        """Transitions, with a later state where the policy learns from those."""
        rows, ahead = self.draw_rows(key, data)
        later = data.observations[ahead] if self.future_share > 0 else None
        return Transitions(data.observations[rows], data.actions[rows], data.observations[rows + 1], later)

    def measure_loss(
        self, networks: Networks, target: Targets, z: jax.Array, batch: Transitions, key: jax.Array
    ) -> Loss:
        """TD of the measures, and the orthonormality loss of B."""
        forward, backward = (networks.forward, target.forward), (networks.backward, target.backward)
        return self.basis_loss(forward, backward, self.next_action(key, networks.policy, batch, z), z, batch)

    def loss(self, networks: Networks, target: Targets, batch: Transitions, key: jax.Array) -> Loss:
        """The sum; no gradient flows from the policy's loss to F, nor from the measures' to the policy, nor from task
        vectors to B."""
        task_key, next_key, actor_key = jax.random.split(key, 3)
        backward = jax.lax.stop_gradient(networks.backward)
        future = None if batch.future is None else on_sphere(backward(batch.future))
        tasks = self.draw_tasks(task_key, on_sphere(backward(batch.state)), future)
        return total(
            self.measure_loss(networks, target, tasks.z, batch, next_key),
            self.actor_loss(actor_key, networks.policy, networks.forward, tasks, batch),
        )

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """F, whose product with B of a target says how near it is."""
        return self.measure_distances(trained, trained["train"].backward)


class Networks(NamedTuple):
    forward: MLP
    backward: MLP
    policy: MLP


class Targets(NamedTuple):
    """Polyak copies."""

    forward: MLP
    backward: MLP
