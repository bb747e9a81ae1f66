"""Goal-conditioned implicit V-learning (GCIVL), top to bottom: settings, the losses, the model.

here           what it is
value          V(x, g), two heads: minus the discounted steps from x to g
policy         pi(a | x, g), extracted by AWR
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax

from iel.data.goals import Relabelled
from iel.learner import Distances, Facts, Loss, Spec, Trained
from iel.losses import ivl_loss
from iel.methods.goal_conditioned import GoalConditioned, Valued, awr
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, GaussianPolicy, frozen, scalars
from iel.typed import Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class GCIVL(Valued, GoalConditioned):
    """Goal-conditioned implicit V-learning: a value of (x, g) from transitions alone, then advantage-weighted cloning.

        L_V = IVL(V; expectile, discount)                                with r = -1 until x is g
        L_pi = -E[min(exp(alpha A), 100) log N(a; mu(x, g), 1)],         A = mean_e V_e(x', g) - mean_e V_e(x, g)

    The value never sees an action: where an action has several outcomes, it counts the luckiest.
    """

    name = "gcivl"
    facts = Facts("goal-conditioned", "values", "negative value", directional=True, temporal_difference=True)
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "target_rate": 0.05},
        "laptop-robot": {**LEGGED, "target_rate": 0.05},
        "laptop-robot-even": {**EVEN_MAP, "awr_temperature": 1.0},
        "smoke": {**SMOKE, "target_rate": 0.05},
    }

    expectile: Fraction = 0.9
    """tau of the TD loss: near 1, short routes win."""
    awr_temperature: Positive = 10.0
    """alpha of AWR: how much better actions are preferred."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        value_key, policy_key = jax.random.split(key)
        return Networks(self.new_values(value_key, 2, spec, "observation", "goal"), self.own_policy(policy_key, spec))

    def target_of(self, networks: Networks) -> MLP:
        return networks.value

    def geometry_loss(self, networks: Networks, target: MLP, batch: Relabelled) -> Loss:
        """IVL with the target copy on the right-hand side."""
        v = scalars(networks.value, batch.state, batch.goal)
        old, old_next = scalars(target, batch.state, batch.goal), scalars(target, batch.next_state, batch.goal)
        loss = ivl_loss(v, old, old_next, batch.success, self.expectile, self.discount)
        return loss, {"train/value": loss, "train/mean_value": v.mean()}

    def actor_loss(self, networks: Networks, batch: Relabelled) -> Loss:
        """AWR with the advantage of the state that followed over the state itself."""
        assert networks.policy is not None
        states = batch.state, batch.next_state
        here, after = (scalars(networks.value, state, batch.actor_goal).mean(0) for state in states)
        return awr(networks.policy, batch, jax.lax.stop_gradient(after - here), self.awr_temperature)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """Both heads of the value, whose mean is minus the distance."""
        return Distances({"value": frozen(trained["train"].value, "observation", "goal")}, discount=self.discount)


class Networks(NamedTuple):
    value: MLP
    policy: GaussianPolicy | None
    """None where another policy acts."""
