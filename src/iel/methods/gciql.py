"""Goal-conditioned implicit Q-learning (GC-IQL), top to bottom: settings, the losses, the model.

here           what it is
value          V(x, g): minus the discounted steps from x to g
critic         Q(x, g, a), two heads
policy         pi(a | x, g), extracted by DDPG+BC or by AWR
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import Relabelled
from iel.learner import Distances, Facts, Loss, Spec, Trained
from iel.losses import goal_reward, iql_critic_loss, iql_value_loss
from iel.methods.goal_conditioned import GoalConditioned, Valued, awr, ddpg_bc
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, frozen, scalars
from iel.typed import Amount, Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class GCIQL(Valued, GoalConditioned):
    """Goal-conditioned implicit Q-learning: values of (x, g) and (x, g, a), never of unseen actions.

        L_V = E[W_tau(u) u^2],  u = min_e Q'_e(x, g, a) - V(x, g)
        L_Q = sum_e E[(Q_e(x, g, a) - (r + gamma m V(x', g)))^2],        r = -1 and m = 1 until x is g, then 0

    The policy is extracted by climbing Q while staying close to the data (`ddpg-bc`), or by weighting the data (`awr`):

        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],  q = min_e Q_e(x, g, mu(x, g))
        L_pi = -E[min(exp(alpha' A), 100) log N(a; mu, 1)],  A = min_e Q_e(x, g, a) - V(x, g)
    """

    name = "gciql"
    facts = Facts("goal-conditioned", "Q-values", "negative value", directional=True, temporal_difference=True)
    presets = {
        "paper": {},
        # The published weight of cloning for point mazes, which is what a laptop is good for; antmaze wants 0.3.
        "laptop": {**LAPTOP, "target_rate": 0.05, "bc_weight": 0.003},
        "laptop-robot": {**LEGGED, "target_rate": 0.05, "bc_weight": 0.3},
        "laptop-robot-even": {**EVEN_MAP, "bc_weight": 0.3},
        "smoke": {**SMOKE, "target_rate": 0.05, "bc_weight": 0.03},
    }

    expectile: Fraction = 0.9
    """tau of the value loss: near 1, the best action in the data decides."""
    extraction: Literal["ddpg-bc", "awr"] = "ddpg-bc"
    """How the policy is read off: by the critic's gradient with cloning, or by advantage-weighted cloning."""
    bc_weight: Amount = 0.3
    """alpha of DDPG+BC. Published: 0.003 for point mazes, 0.3 antmaze, 0.01 antmaze-explore, 0.1 humanoid."""
    awr_temperature: Positive = 3.0
    """alpha' of AWR: how much better actions are preferred."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        value_key, critic_key, policy_key = jax.random.split(key, 3)
        return Networks(
            self.new_values(value_key, 1, spec, "observation", "goal"),
            self.new_values(critic_key, 2, spec, "observation", "goal", spec.action_size),
            self.own_policy(policy_key, spec),
        )

    def target_of(self, networks: Networks) -> MLP:
        return networks.critic

    def geometry_loss(self, networks: Networks, target: MLP, batch: Relabelled) -> Loss:
        """IQL's two losses."""
        v = scalars(networks.value, batch.state, batch.goal)[0]
        next_v = scalars(networks.value, batch.next_state, batch.goal)[0]
        target_q = scalars(target, batch.state, batch.goal, batch.action)
        q = scalars(networks.critic, batch.state, batch.goal, batch.action)
        reward, mask = goal_reward(batch.success)
        value_loss = iql_value_loss(v, target_q, self.expectile)
        critic_loss = iql_critic_loss(q, reward, mask * next_v, self.discount)
        metrics = {"train/value": value_loss, "train/critic": critic_loss, "train/mean_value": v.mean()}
        return value_loss + critic_loss, metrics

    def actor_loss(self, networks: Networks, batch: Relabelled) -> Loss:
        """DDPG+BC or AWR at the actor's goals; value and critic are only looked at."""
        assert networks.policy is not None
        value, critic = jax.lax.stop_gradient((networks.value, networks.critic))
        pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
        if self.extraction == "ddpg-bc":
            return ddpg_bc(networks.policy, batch, lambda a: scalars(critic, pair, a).min(0), self.bc_weight)
        advantage = scalars(critic, pair, batch.action).min(0) - scalars(value, pair)[0]
        return awr(networks.policy, batch, advantage, self.awr_temperature)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """The value, which is minus the distance."""
        return Distances({"value": frozen(trained["train"].value, "observation", "goal")}, discount=self.discount)


class Networks(NamedTuple):
    """What the optimiser moves; the value is an ensemble of one."""

    value: MLP
    critic: MLP
    policy: GaussianPolicy | None
    """None where another policy acts."""
