"""Goal-conditioned implicit V-learning (GCIVL), top to bottom: settings, the losses, the update, the model.

here           what it is
value          V(x, g), two heads: minus the discounted steps from x to g
policy         pi(a | x, g), extracted by AWR
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, GoalSampler, Relabelled, relabel
from iel.learner import Learner, Metrics, Spec, Trained
from iel.losses import awr_loss, ivl_loss
from iel.methods.method import Distances, Facts, Method
from iel.methods.presets import LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, ensemble, frozen, scalars
from iel.typed import Fraction, Positive

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {**LAPTOP, "target_rate": 0.05},
    "laptop-body": {**LEGGED, "target_rate": 0.05},
    "smoke": {**SMOKE, "target_rate": 0.05},
}


@dataclass(frozen=True, kw_only=True)
class GCIVL(Method, Learner):
    """Goal-conditioned implicit V-learning: a value of (x, g) from transitions alone, then advantage-weighted cloning.

        L_V = IVL(V; expectile, discount)                                with r = -1 until x is g
        L_pi = -E[min(exp(alpha A), 100) log N(a; mu(x, g), 1)],         A = mean_e V_e(x', g) - mean_e V_e(x, g)

    The value never sees an action: where the same action may lead to several places, it believes in the luckiest.
    """

    name = "gcivl"
    facts = Facts("goal-conditioned", "values", "negative value", directional=True, temporal_difference=True)
    presets = PRESETS

    discount: Fraction = 0.99
    """gamma, for values and goals."""
    target_rate: float = 0.005
    """Polyak rate of the target copy."""
    expectile: Fraction = 0.9
    """tau of the TD loss: near 1, short ways win."""
    awr_temperature: Positive = 10.0
    """alpha of AWR: how much better actions are preferred."""
    p_current: float = 0.2
    """Share of the value's goals that are the state itself."""
    p_trajectory: float = 0.5
    """Share of the value's goals from the same trajectory (geometric in the discount); the rest are random states."""
    actor_p_trajectory: float = 1.0
    """Share of the actor's goals from the same trajectory (uniform): 1 for navigate, 0.5 stitch, 0 explore data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.value_goals, self.actor_goals  # refuses impossible goal probabilities now

    @property
    def value_goals(self) -> GoalSampler:
        p_random = 1.0 - self.p_trajectory - self.p_current
        return GoalSampler(self.discount, self.p_trajectory, p_random, p_current=self.p_current)

    @property
    def actor_goals(self) -> GoalSampler:
        return GoalSampler(self.discount, self.actor_p_trajectory, 1.0 - self.actor_p_trajectory, future="uniform")

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks."""
        value_key, policy_key = jax.random.split(key)
        pair = 2 * spec.observation_size
        policy = GaussianPolicy(policy_key, pair, self.policy_widths, spec.action_size, gelu=True)
        return Networks(ensemble(value_key, 2, pair, self.hidden, 1), policy if self.policy is None else None)

    def target_of(self, networks: Networks) -> MLP:
        """The value."""
        return networks.value

    # ---------------------------------------------------------------- batches

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Relabelled:
        """Transitions with a goal for the value and another for the actor."""
        return relabel(key, data, self.value_goals, self.actor_goals, self.batch_size)

    # ---------------------------------------------------------------- losses

    def value_loss(self, value: MLP, target: MLP, batch: Relabelled) -> tuple[jax.Array, Metrics]:
        """IVL with the target copy on the right-hand side."""
        v = scalars(value, batch.state, batch.goal)
        old, old_next = scalars(target, batch.state, batch.goal), scalars(target, batch.next_state, batch.goal)
        loss = ivl_loss(v, old, old_next, batch.success, self.expectile, self.discount)
        return loss, {"train/value": loss, "train/mean_value": v.mean()}

    def actor_loss(self, policy: GaussianPolicy, value: MLP, batch: Relabelled) -> tuple[jax.Array, Metrics]:
        """AWR with the advantage of the state that followed over the state itself."""
        after = scalars(value, batch.next_state, batch.actor_goal).mean(0)
        advantage = jax.lax.stop_gradient(after - scalars(value, batch.state, batch.actor_goal).mean(0))
        inputs = jnp.concatenate([batch.state, batch.actor_goal], -1)
        loss = awr_loss(policy.unit_log_prob(inputs, batch.action), advantage, self.awr_temperature)
        return loss, {"train/actor": loss, "train/advantage": advantage.mean()}

    def loss(self, networks: Networks, target: MLP, batch: Relabelled, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The sum; no gradient flows from the actor's loss to the value."""
        value_loss, value_metrics = self.value_loss(networks.value, target, batch)
        if networks.policy is None:
            return value_loss, {"train/loss": value_loss, **value_metrics}
        actor_loss, actor_metrics = self.actor_loss(networks.policy, networks.value, batch)
        return value_loss + actor_loss, {"train/loss": value_loss + actor_loss, **value_metrics, **actor_metrics}

    # ---------------------------------------------------------------- what is exported

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """Both heads of the value, whose mean is minus the distance."""
        return Distances({"value": frozen(trained["train"].value, "observation", "goal")}, discount=self.discount)


class Networks(NamedTuple):
    """What the optimiser moves."""

    value: MLP
    policy: GaussianPolicy | None
    """None where another policy acts."""
