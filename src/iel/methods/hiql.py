"""Hierarchical implicit Q-learning (HIQL), top to bottom: settings, the losses, the model.

here             what it is
representation   rho(x, g) of length sqrt(c): what of g matters from x
value            V(x, rho(x, g)), two heads: minus the discounted steps from x to g
high             pi_h(rho | x, g): the representation of a state k steps ahead
low              pi_l(a | x, rho): the action
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, GoalSampler, draw_states
from iel.learner import Controls, Distances, Facts, Loss, Spec, Trained, total
from iel.losses import awr_loss, ivl_loss
from iel.methods.goal_conditioned import Valued
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.model import Subgoal
from iel.nn import MLP, GaussianPolicy, frozen, frozen_policy, on_sphere, scalars
from iel.typed import Count, Fraction, Positive, Share


@dataclass(frozen=True, kw_only=True)
class HIQL(Valued):
    """Hierarchical implicit Q-learning: one value, and two policies read off it, one for subgoals and one for actions.

        L_V = IVL(V(x, rho(x, g)); expectile, discount)                   with r = -1 until x is g; trains rho, too
        L_h = -E[min(exp(alpha_h A_h), 100) log N(rho(x, s); mu_h(x, g), 1)],      A_h = V(s, g) - V(x, g)
        L_l = -E[min(exp(alpha_l A_l), 100) log N(a; mu_l(x, rho(x, s)), 1)],      A_l = V(x', s) - V(x, s)

    with s the state k steps ahead on the trajectory (never beyond the high level's goal), V in both advantages the mean
    over its heads. rho is trained by the value alone. It is scaled to length sqrt(c), and so is mu_h before it
    conditions the low level.
    """

    name = "hiql"
    facts = Facts("reachability", "multi-step reachability", "value gap", directional=True, temporal_difference=True)
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "target_rate": 0.05},
        "laptop-robot": {**LEGGED, "target_rate": 0.05},
        "laptop-robot-even": {**EVEN_MAP, "high_temperature": 1.0, "low_temperature": 1.0},
        "smoke": {**SMOKE, "target_rate": 0.05},
    }

    policy_parts = ("high", "low")

    expectile: Fraction = 0.7
    """tau of the TD loss: near 1, short routes win."""
    subgoal_steps: Count = 25
    """k: how far ahead subgoals lie. Published: 25, 100 for humanoids, 50 for the original's antmaze-ultra."""
    representation: Count = 10
    """c: size of rho."""
    high_temperature: Positive = 3.0
    """alpha_h of the high level's AWR. Published: 3, 10 for explore data."""
    low_temperature: Positive = 3.0
    """alpha_l of the low level's AWR. Published: 3, 10 for explore data."""
    actor_p_trajectory: Share = 1.0
    """Share of the high level's goals from the same trajectory (uniform): 1 for navigate, 0.5 stitch, 0 explore."""

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        keys = jax.random.split(key, 4)
        pair, size = ("observation", "goal"), self.representation
        representation = MLP(keys[0], spec.width(*pair), self.hidden, size, lens=spec.lens(*pair))
        value = self.new_values(keys[1], 2, spec, "observation", size)
        if self.policy is not None:
            return Networks(representation, value, None, None)
        high = self.new_policy(GaussianPolicy, keys[2], spec, *pair, outputs=size, gelu=True)
        low = self.new_policy(GaussianPolicy, keys[3], spec, "observation", size, gelu=True)
        return Networks(representation, value, high, low)

    def target_of(self, networks: Networks) -> MLP:
        """The value; the representation has no copy."""
        return networks.value

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Batch:
        """Transitions with a goal for the value, a goal and a subgoal for the high level, a subgoal for the low one."""
        state_key, value_key, later_key, random_key, kind_key = jax.random.split(key, 5)
        rows = draw_states(state_key, data, self.batch_size)
        goal = self.goals.goals(value_key, data, rows)
        ahead = jnp.minimum(rows + self.subgoal_steps, data.final[rows])
        later = GoalSampler(self.discount, 1.0, 0.0, future="uniform").goals(later_key, data, rows)
        anywhere = jax.random.randint(random_key, rows.shape, 0, len(data.observations))
        own = jax.random.uniform(kind_key, rows.shape) < self.actor_p_trajectory
        high_goal, high_subgoal = jnp.where(own, later, anywhere), jnp.where(own, jnp.minimum(ahead, later), ahead)
        drawn = (data.observations[index] for index in (rows, rows + 1, goal, high_goal, high_subgoal, ahead))
        return Batch(data.actions[rows], (goal == rows).astype(jnp.float32), *drawn)

    def value_loss(self, networks: Networks, target: MLP, batch: Batch) -> Loss:
        """IVL with the target copy, and the representation as it is, on the right-hand side."""
        v = networks.values(batch.state, batch.goal)
        copy = networks._replace(value=target)
        old, after = (copy.values(state, batch.goal) for state in (batch.state, batch.next_state))
        loss = ivl_loss(v, old, after, batch.success, self.expectile, self.discount)
        return loss, {"train/value": loss, "train/mean_value": v.mean()}

    def gain(self, networks: Networks, before: jax.Array, after: jax.Array, goal: jax.Array) -> jax.Array:
        """mean_e V_e(after, g) - mean_e V_e(before, g), without gradient."""
        fixed = jax.lax.stop_gradient(networks)
        return fixed.values(after, goal).mean(0) - fixed.values(before, goal).mean(0)

    def high_loss(self, networks: Networks, batch: Batch) -> Loss:
        """Weighted regression on where the trajectory was k steps later, as seen from x."""
        assert networks.high is not None
        gain = self.gain(networks, batch.state, batch.high_subgoal, batch.high_goal)
        wanted = jax.lax.stop_gradient(networks.represent(batch.state, batch.high_subgoal))
        pair = jnp.concatenate([batch.state, batch.high_goal], -1)
        loss = awr_loss(networks.high.unit_log_prob(pair, wanted), gain, self.high_temperature)
        return loss, {"train/high": loss, "train/high_gain": gain.mean()}

    def low_loss(self, networks: Networks, batch: Batch) -> Loss:
        """Weighted cloning of the actions that led to the subgoal."""
        assert networks.low is not None
        gain = self.gain(networks, batch.state, batch.next_state, batch.low_subgoal)
        condition = jax.lax.stop_gradient(networks.represent(batch.state, batch.low_subgoal))
        log_prob = networks.low.unit_log_prob(jnp.concatenate([batch.state, condition], -1), batch.action)
        loss = awr_loss(log_prob, gain, self.low_temperature)
        return loss, {"train/low": loss, "train/low_gain": gain.mean()}

    def loss(self, networks: Networks, target: MLP, batch: Batch, key: jax.Array) -> Loss:
        """The sum; no gradient flows from the policies' losses to value and representation."""
        value = self.value_loss(networks, target, batch)
        if self.policy is not None:
            return total(value)
        return total(value, self.high_loss(networks, batch), self.low_loss(networks, batch))

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """Both heads of the value, whose mean is minus the distance, and the representation they are given."""
        own = trained["train"]
        value = frozen(own.value, "observation", "representation")
        networks = {"representation": frozen(own.representation, "observation", "goal"), "value": value}
        return Distances(networks, discount=self.discount)

    def controls(self, trained: Trained, spec: Spec) -> Controls:
        """Both policies; the high level makes the low level's command of the target."""
        own = trained["train"]
        high = frozen_policy(own.high, "observation", "goal")
        return Controls({"policy": frozen_policy(own.low, "observation", "command"), "high": high}, Subgoal())


class Batch(NamedTuple):
    """(a, x = g, x, x', g), the high level's goal and subgoal, the low level's subgoal."""

    action: jax.Array
    success: jax.Array
    state: jax.Array
    next_state: jax.Array
    goal: jax.Array
    high_goal: jax.Array
    high_subgoal: jax.Array
    low_subgoal: jax.Array


class Networks(NamedTuple):
    """Both policies are None where another policy acts."""

    representation: MLP
    value: MLP
    high: GaussianPolicy | None
    low: GaussianPolicy | None

    def represent(self, state: jax.Array, goal: jax.Array) -> jax.Array:
        """rho(x, g), of length sqrt(c)."""
        return on_sphere(self.representation(jnp.concatenate([state, goal], -1)))

    def values(self, state: jax.Array, goal: jax.Array) -> jax.Array:
        """V(x, rho(x, g)), (heads, batch)."""
        return scalars(self.value, state, self.represent(state, goal))
