"""Goal-conditioned behavioural cloning (GCBC), top to bottom: settings, the loss, the model.

here           what it is
policy         pi(a | x, g): what was done in x before g was reached
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, GoalSampler, draw_states
from iel.learner import Controls, Distances, Facts, Learner, Loss, Spec, Trained
from iel.methods.goal_conditioned import GoalInputs, actor_goals
from iel.methods.presets import EVEN, LAPTOP, LEGGED, SMOKE
from iel.model import GoalState
from iel.nn import GaussianPolicy, frozen_policy
from iel.typed import Index, Share


@dataclass(frozen=True, kw_only=True)
class GCBC(GoalInputs, Learner):
    """Goal-conditioned behavioural cloning: imitate what the data did before it reached a later state.

        L = -E[log N(a; mu(x, g), 1)],  g uniform among the later states of the same trajectory

    Nothing is valued and nothing is stitched; every other method has to beat it.
    """

    name = "gcbc"
    facts = Facts("goal-conditioned", "actions", "none")
    presets = {"paper": {}, "laptop": LAPTOP, "laptop-robot": LEGGED, "laptop-robot-even": EVEN, "smoke": SMOKE}
    planners = ("direct",)

    p_trajectory: Share = 1.0
    """Share of goals from the same trajectory; the rest are random states."""
    actor_steps: Index = 0
    """Most steps that these lie ahead (0: up to the end of the trajectory, as published)."""

    @property
    def goals(self) -> GoalSampler:
        return actor_goals(self.p_trajectory, self.actor_steps)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return self.policy_adam(self.steps)

    def init(self, key: jax.Array, spec: Spec) -> GaussianPolicy:
        return self.goal_policy(key, spec)

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Batch:
        state_key, goal_key = jax.random.split(key)
        rows = draw_states(state_key, data, self.batch_size)
        goals = self.goals.goals(goal_key, data, rows)
        return Batch(data.observations[rows], data.actions[rows], data.observations[goals])

    def loss(self, policy: GaussianPolicy, target: None, batch: Batch, key: jax.Array) -> Loss:
        """-E[log N(a; mu(x, g), 1)], up to a constant half the squared error."""
        inputs = jnp.concatenate([batch.state, batch.goal], -1)
        loss = -policy.unit_log_prob(inputs, batch.action).mean()
        return loss, {"train/loss": loss, "train/squared_error": jnp.square(policy(inputs) - batch.action).mean()}

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        return Distances({})

    def controls(self, trained: Trained, spec: Spec) -> Controls:
        return Controls({"policy": frozen_policy(trained["train"], "observation", "command")}, GoalState())


class Batch(NamedTuple):
    """(x, a, g)."""

    state: jax.Array
    action: jax.Array
    goal: jax.Array
