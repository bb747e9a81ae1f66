"""Goal-conditioned implicit Q-learning (GC-IQL), top to bottom: settings, the losses, the update, the model.

here           what it is
value          V(x, g): minus the discounted steps from x to g
critic         Q(x, g, a), two heads
policy         pi(a | x, g), extracted by DDPG+BC or by AWR
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, GoalSampler, Relabelled, relabel
from iel.learner import Learner, Metrics, Spec, Trained
from iel.losses import awr_loss, ddpg_bc_loss, goal_reward, iql_critic_loss, iql_value_loss
from iel.methods.method import Distances, Facts, Method
from iel.methods.presets import LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, ensemble, frozen, scalars
from iel.typed import Amount, Fraction, Positive

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The published weight of cloning for point mazes, which is what a laptop is good for; antmaze wants 0.3.
    "laptop": {**LAPTOP, "target_rate": 0.05, "bc_weight": 0.003},
    "laptop-body": {**LEGGED, "target_rate": 0.05, "bc_weight": 0.3},
    "smoke": {**SMOKE, "target_rate": 0.05, "bc_weight": 0.03},
}


@dataclass(frozen=True, kw_only=True)
class GCIQL(Method, Learner):
    """Goal-conditioned implicit Q-learning: values of (x, g) and (x, g, a) that never ask about unseen actions.

        L_V = E[W_tau(u) u^2],  u = min_e Q'_e(x, g, a) - V(x, g)
        L_Q = sum_e E[(Q_e(x, g, a) - (r + gamma m V(x', g)))^2],        r = -1 and m = 1 until x is g, then 0

    The policy is extracted by climbing Q while staying close to the data (`ddpg-bc`), or by weighting the data (`awr`):

        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],  q = min_e Q_e(x, g, mu(x, g))
        L_pi = -E[min(exp(alpha' A), 100) log N(a; mu, 1)],  A = min_e Q_e(x, g, a) - V(x, g)
    """

    name = "gciql"
    facts = Facts("goal-conditioned", "Q-values", "negative value", directional=True, temporal_difference=True)
    presets = PRESETS

    discount: Fraction = 0.99
    """gamma, for values and goals."""
    target_rate: float = 0.005
    """Polyak rate of the critic's target copy."""
    expectile: Fraction = 0.9
    """tau of the value loss: near 1, the best action in the data decides."""
    extraction: Literal["ddpg-bc", "awr"] = "ddpg-bc"
    """How the policy is read off: by the critic's gradient with cloning, or by advantage-weighted cloning."""
    bc_weight: Amount = 0.3
    """alpha of DDPG+BC. Published: 0.003 for point mazes, 0.3 antmaze, 0.01 antmaze-explore, 0.1 humanoid."""
    awr_temperature: Positive = 3.0
    """alpha' of AWR: how much better actions are preferred."""
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
        value_key, critic_key, policy_key = jax.random.split(key, 3)
        pair = 2 * spec.observation_size
        policy = GaussianPolicy(policy_key, pair, self.policy_widths, spec.action_size, gelu=True)
        return Networks(
            ensemble(value_key, 1, pair, self.hidden, 1),
            ensemble(critic_key, 2, pair + spec.action_size, self.hidden, 1),
            policy if self.policy is None else None,
        )

    def target_of(self, networks: Networks) -> MLP:
        """The critic."""
        return networks.critic

    # ---------------------------------------------------------------- batches

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Relabelled:
        """Transitions with a goal for the values and another for the actor."""
        return relabel(key, data, self.value_goals, self.actor_goals, self.batch_size)

    # ---------------------------------------------------------------- losses

    def value_loss(self, value: MLP, critic: MLP, target: MLP, batch: Relabelled) -> tuple[jax.Array, Metrics]:
        """IQL's two losses."""
        v = scalars(value, batch.state, batch.goal)[0]
        next_v = scalars(value, batch.next_state, batch.goal)[0]
        target_q = scalars(target, batch.state, batch.goal, batch.action)
        q = scalars(critic, batch.state, batch.goal, batch.action)
        reward, mask = goal_reward(batch.success)
        value_loss = iql_value_loss(v, target_q, self.expectile)
        critic_loss = iql_critic_loss(q, reward, mask * next_v, self.discount)
        metrics = {"train/value": value_loss, "train/critic": critic_loss, "train/mean_value": v.mean()}
        return value_loss + critic_loss, metrics

    def actor_loss(
        self, policy: GaussianPolicy, value: MLP, critic: MLP, batch: Relabelled
    ) -> tuple[jax.Array, Metrics]:
        """DDPG+BC or AWR at the actor's goals; value and critic are only looked at."""
        value, critic = jax.lax.stop_gradient((value, critic))
        pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
        log_prob = policy.unit_log_prob(pair, batch.action)
        if self.extraction == "ddpg-bc":
            q = scalars(critic, pair, jnp.clip(policy(pair), -1.0, 1.0)).min(0)
            loss = ddpg_bc_loss(q, log_prob, self.bc_weight)
            return loss, {"train/actor": loss, "train/actor_q": q.mean()}
        advantage = scalars(critic, pair, batch.action).min(0) - scalars(value, pair)[0]
        loss = awr_loss(log_prob, advantage, self.awr_temperature)
        return loss, {"train/actor": loss, "train/advantage": advantage.mean()}

    def loss(self, networks: Networks, target: MLP, batch: Relabelled, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The sum; no gradient flows from the actor's loss to value and critic."""
        value_loss, value_metrics = self.value_loss(networks.value, networks.critic, target, batch)
        if networks.policy is None:
            return value_loss, {"train/loss": value_loss, **value_metrics}
        actor_loss, actor_metrics = self.actor_loss(networks.policy, networks.value, networks.critic, batch)
        return value_loss + actor_loss, {"train/loss": value_loss + actor_loss, **value_metrics, **actor_metrics}

    # ---------------------------------------------------------------- what is exported

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """The value, which is minus the distance."""
        return Distances({"value": frozen(trained["train"].value, "observation", "goal")}, discount=self.discount)


class Networks(NamedTuple):
    """What the optimiser moves; the value is an ensemble of one."""

    value: MLP
    critic: MLP
    policy: GaussianPolicy | None
    """None where another policy acts."""
