"""Goal-conditioned behavioural cloning (GCBC), top to bottom: settings, the loss, the update, the model.

here           what it is
policy         pi(a | x, g): what was done in x on the way to g
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, GoalSampler, draw_states
from iel.methods.contract import JOINTS, Method, Metrics, Spec
from iel.model import GoalState, Model
from iel.nn import GaussianPolicy, descend, frozen_policy

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # As many updates of the policy as in 42,000 steps of IEL.
    "laptop": {"steps": 21_000, "batch_size": 256, "hidden": (128, 128, 128)},
    "laptop-body": {"steps": 24_000, **JOINTS},
    "smoke": {"steps": 1_500, "batch_size": 128, "hidden": (64, 64), "learning_rate": 1e-3},
}


@dataclass(frozen=True, kw_only=True)
class GCBC(Method):
    """Goal-conditioned behavioural cloning: imitate whatever the data did on its way to a later state.

        L = -E[log N(a; mu(x, g), 1)],  g uniform among the later states of the same trajectory

    Nothing is valued and nothing is stitched; every other method has to beat it.

    Presets: `paper` (the defaults below), `laptop` (minutes on two cores), `laptop-body` (for
    robots with joints), `smoke` (seconds, for tests).
    """

    name = "gcbc"
    presets = PRESETS

    p_trajectory: float = 1.0
    """Share of goals from the same trajectory; the rest are random states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.goals  # refuses impossible goal probabilities now rather than in the first step

    @property
    def goals(self) -> GoalSampler:
        return GoalSampler(p_trajectory=self.p_trajectory, p_random=1.0 - self.p_trajectory, future="uniform")

    def init(self, key: jax.Array, spec: Spec) -> State:
        """A fresh policy."""
        policy = GaussianPolicy(key, 2 * spec.observation_size, self.policy_widths, spec.action_size, gelu=True)
        return State(policy, self.optimiser.init(policy))

    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: None) -> Batch:
        """Transitions and a goal each."""
        state_key, goal_key = jax.random.split(key)
        rows = draw_states(state_key, data, self.batch_size)
        goals = self.goals.goals(goal_key, data, rows)
        return Batch(data.observations[rows], data.actions[rows], data.observations[goals])

    def loss(self, policy: GaussianPolicy, batch: Batch) -> tuple[jax.Array, Metrics]:
        """-E[log N(a; mu(x, g), 1)], up to a constant half the squared error."""
        inputs = jnp.concatenate([batch.state, batch.goal], -1)
        loss = -policy.unit_log_prob(inputs, batch.action).mean()
        return loss, {"train/loss": loss, "train/squared_error": jnp.square(policy(inputs) - batch.action).mean()}

    def update(self, phase: str, state: State, batch: Batch, key: jax.Array) -> tuple[State, Metrics]:
        """One gradient step."""
        policy, moments, metrics = descend(self.optimiser, self.loss, state.policy, state.moments, batch)
        return State(policy, moments), metrics

    def model(self, state: State, spec: Spec) -> Model:
        """The policy; there is no value and hence no distance."""
        networks = {"policy": frozen_policy(state.policy, "observation", "command")}
        return Model(self.name, spec.observation_size, spec.action_size, networks, GoalState())


class State(NamedTuple):
    """Everything training changes."""

    policy: GaussianPolicy
    moments: optax.OptState


class Batch(NamedTuple):
    """(x, a, g)."""

    state: jax.Array
    action: jax.Array
    goal: jax.Array
