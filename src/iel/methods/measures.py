"""What FB and PSM share: a successor measure as an inner product, and one policy for every task vector z.

    M(x, a, z, y) = F(x, a, z)^T B(y)         how much more often than the data pi(., z) will be at y, discounted
    Q(x, a, z)    = F(x, a, z)^T z            what that is worth under the reward y -> B(y)^T z
    L_F  = measure_loss(F(x_i, a_i, z_i)^T B(x'_j);  F'(x'_i, pi(x'_i, z_i) + noise, z_i)^T B'(x'_j))
    L_pi = -E[q] / E|q| + alpha E[own ||pi(x, z) - a||^2] / 2,    q = Q(x, pi(x, z) + noise, z), pessimistic over heads

Task vectors and B have length sqrt(d). z is uniform on that sphere, or B of some state of the data, or (a share `own`
that is 0 as published) B of a later state of the same trajectory: only there the data's own action says something
about z, so only there the policy is held close to it.

A goal is the task vector B(g); a reward the vector E[r B] (`Model.reward_command`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData, draw_states, geometric
from iel.errors import ConfigError
from iel.learner import Controls, Distances, Loss, Settings, Spec, Trained
from iel.losses import ddpg_bc_loss, measure_loss, orthonormality_loss, pessimistic
from iel.methods.goal_conditioned import GoalInputs
from iel.model import Measure, Network, Subgoal
from iel.nn import MLP, POLICY_SCALE, apply_heads, frozen, on_sphere
from iel.typed import Amount, Count, Fraction, Positive, Share

T = TypeVar("T")
Copied = tuple[T, T]
"""(networks or features, those of the Polyak copy)."""
BOUND = 1.0 - 1e-6
"""Actions in training stay below this."""
MAZES: Settings = {"discount": 0.99, "target_rate": 0.02, "future_share": 0.5, "bc_weight": 0.3}
"""For the laptop presets: long routes, few steps, and a policy that stays near the data."""


@dataclass(frozen=True, kw_only=True)
class Tasked(GoalInputs):
    """A method whose policy is conditioned on a task vector: what FB and PSM share."""

    learning_rate: Positive = 1e-4
    """Adam's step size."""
    dimension: Count = 50
    """Size d of task vectors, F and B: the rank of the measures."""
    hidden: tuple[Count, ...] = (1024, 1024)
    """Widths of the hidden layers of every network."""
    discount: Fraction = 0.98
    """gamma of the measures; 0.99 is used for mazes."""
    target_rate: float = 0.01
    """Polyak rate of all copies."""
    state_share: Share = 0.5
    """Share of the task vectors that are B of a state of the data; the rest are uniform on the sphere."""
    target_pessimism: Share = 0.5
    """Of the two heads' target measures take the mean less so much of their difference; 0.5 is the minimum."""
    actor_pessimism: Share = 0.5
    """The same for the value that the policy climbs."""
    noise: Positive = 0.2
    """Standard deviation of the policy, added to tanh(mu)."""
    noise_clip: Positive = 0.3
    """Largest noise in training."""
    future_share: Share = 0.0
    """Share of the task vectors that are B of a later state of the same trajectory (published: none)."""
    bc_weight: Amount = 0.0
    """alpha: how close the policy stays to the data's actions where z is the trajectory's own future."""
    orthonormality: float = 1.0
    """lambda: how strongly E[B B^T] is held at the identity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bc_weight > 0 and self.future_share == 0:
            raise ConfigError("bc_weight needs future_share > 0: only tasks of later states have actions to clone.")

    def draw_rows(self, key: jax.Array, data: DeviceData) -> tuple[jax.Array, jax.Array]:
        """Rows of transitions, and of a state ahead on the same trajectory, geometric in the discount."""
        row_key, ahead_key = jax.random.split(key)
        rows = draw_states(row_key, data, self.batch_size)
        return rows, jnp.minimum(rows + geometric(ahead_key, self.discount, self.batch_size), data.final[rows])

    def draw_tasks(self, key: jax.Array, states: jax.Array, future: jax.Array | None) -> Tasks:
        """z uniform on the sphere; with probability `state_share` B of another row's state; then B of its own future.

        `states` are B of the batch's states and `future` B of later ones, (n, d) each, on the sphere.
        """
        sphere_key, order_key, kind_key, own_key = jax.random.split(key, 4)
        z = on_sphere(jax.random.normal(sphere_key, states.shape))
        others = jax.random.permutation(order_key, states)
        rows = (len(states), 1)
        z = jnp.where(jax.random.uniform(kind_key, rows) < self.state_share, others, z)
        if future is None or self.future_share == 0.0:
            return Tasks(z, jnp.zeros(len(states)))
        own = jax.random.uniform(own_key, rows) < self.future_share
        return Tasks(jnp.where(own, future, z), own[:, 0].astype(jnp.float32))

    def task_policy(self, key: jax.Array, spec: Spec) -> MLP:
        """A fresh mu(x, z)."""
        return self.new_policy(MLP, key, spec, "observation", self.dimension, last_scale=POLICY_SCALE)

    def noisy(self, key: jax.Array, mean: jax.Array) -> jax.Array:
        """tanh(mu) + clipped noise, clamped to the bounds; the gradient goes through as if it were not clamped.

        So a policy that saturates keeps its smoothing, and its gradient does not end where the noise left the bounds.
        """
        noise = jnp.clip(self.noise * jax.random.normal(key, mean.shape), -self.noise_clip, self.noise_clip)
        action = jnp.tanh(mean) + noise
        return action + jax.lax.stop_gradient(jnp.clip(action, -BOUND, BOUND) - action)

    def next_action(self, key: jax.Array, policy: MLP, batch: Transitions, z: jax.Array) -> jax.Array:
        """What the policy does in x' about z, without gradient."""
        return jax.lax.stop_gradient(self.noisy(key, policy(jnp.concatenate([batch.next_state, z], -1))))

    def forward_loss(
        self,
        forward: Copied[MLP],
        next_action: jax.Array,
        task: jax.Array,
        columns: Copied[jax.Array],
        batch: Transitions,
    ) -> tuple[jax.Array, jax.Array]:
        """The measure loss, and the measures it is about (heads, n, n).

        `task` is F's last input (z, or a code); `columns` are B(x'_j), (n, d); both come with their target copies'.
        """
        after = apply_heads(forward[1], jnp.concatenate([batch.next_state, next_action, task], -1)) @ columns[1].T
        measures = apply_heads(forward[0], jnp.concatenate([batch.state, batch.action, task], -1)) @ columns[0].T
        return measure_loss(measures, pessimistic(after, self.target_pessimism), self.discount), measures

    def basis_loss(
        self,
        forward: Copied[MLP],
        backward: Copied[MLP],
        next_action: jax.Array,
        task: jax.Array,
        batch: Transitions,
        phase: str = "train",
    ) -> Loss:
        """The measure loss, and lambda times the orthonormality loss of B."""
        columns = on_sphere(backward[0](batch.next_state)), on_sphere(backward[1](batch.next_state))
        measure, measures = self.forward_loss(forward, next_action, task, columns, batch)
        apart, visits = orthonormality_loss(columns[0]), jnp.diagonal(measures, axis1=1, axis2=2).mean()
        metrics = {f"{phase}/measure": measure, f"{phase}/orthonormality": apart, f"{phase}/visits": visits}
        return measure + self.orthonormality * apart, metrics

    def actor_loss(self, key: jax.Array, policy: MLP, forward: MLP, tasks: Tasks, batch: Transitions) -> Loss:
        """Climb F^T z, close to the data's actions where z is the trajectory's own future; F is only looked at."""
        mean = policy(jnp.concatenate([batch.state, tasks.z], -1))
        action = self.noisy(key, mean)
        answers = apply_heads(jax.lax.stop_gradient(forward), jnp.concatenate([batch.state, action, tasks.z], -1))
        q = pessimistic((answers * tasks.z).sum(-1), self.actor_pessimism)
        error = jnp.square(jnp.tanh(mean) - batch.action).sum(-1)
        loss = ddpg_bc_loss(q, -0.5 * tasks.own * error, self.bc_weight)
        return loss, {"train/actor": loss, "train/actor_q": q.mean()}

    def measure_distances(self, trained: Trained, backward: MLP) -> Distances:
        """F and B; F is evaluated at the action of the method's own policy, whichever policy acts."""
        forward = frozen(trained["train"].forward, "observation", "action", "command")
        actor = {} if self.policy is None else {"actor": exported_actor(trained["train"].policy, self.noise)}
        return Distances({"high": frozen(backward, "goal"), "forward": forward, **actor}, metric=Measure(self.discount))

    def controls(self, trained: Trained, spec: Spec) -> Controls:
        """The policy, conditioned on B of its target."""
        return Controls({"policy": exported_actor(trained["train"].policy, self.noise)}, Subgoal())


def exported_actor(policy: MLP, noise: float) -> Network:
    """The policy as part of a model: a tanh of the mean, and the noise of training around it everywhere."""
    log_std = np.full(policy.layers[-1].bias.shape[-1], np.log(noise), np.float32)
    return replace(frozen(policy, "observation", "command"), squash=True, log_std=log_std)


class Transitions(NamedTuple):
    """(x, a, x'), and a later state of the same trajectory where the policy learns from those."""

    state: jax.Array
    action: jax.Array
    next_state: jax.Array
    future: jax.Array | None = None


class Tasks(NamedTuple):
    """Task vectors (n, d), and where they are the trajectory's own future, (n,)."""

    z: jax.Array
    own: jax.Array
