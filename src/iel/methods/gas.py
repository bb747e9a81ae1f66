"""Graph-assisted stitching (GAS), top to bottom: settings, the losses, subgoals, the model.

paper              here                       what it is
psi (TDR)          embedding (two heads)      state -> R^d, the temporal-distance space; head 0 is used downstream
z                  direction                  random unit vector (critic), direction of a subgoal (policy)
V, Q, pi           value, critic, policy      IQL over directions; DDPG+BC towards subgoals
H_TD               reach                      how far ahead a subgoal is, in psi

Its graph (efficient states, clustered) is the planner `gas-graph` (planning/clusters.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, Table, draw_states, geometric
from iel.learner import Controls, Facts, Loss, Part, Phase, Spec, Trained, adam, total
from iel.losses import ddpg_bc_loss
from iel.methods.goal_conditioned import OwnPolicy
from iel.methods.hilp import EuclideanLearner
from iel.methods.iel import Embedded
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.model import Direction
from iel.nn import MLP, GaussianPolicy, ensemble, frozen_policy, in_blocks, scalars, unit
from iel.policies.directions import DirectionBatch, direction_iql
from iel.typed import Amount, Fraction, Positive


@dataclass(frozen=True, kw_only=True)
class GAS(Embedded, OwnPolicy):
    """Graph-assisted stitching: a Euclidean space of temporal distances, a graph in it, a policy towards its nodes.

    Phase `embedding`: with V(x, g) = -||psi(x) - psi(g)||,

        L = IVL(V; expectile, discount)

    Phase `policy`: psi is frozen. The critic is trained on directions z drawn uniformly, the policy on directions of
    later states of the same trajectory, at most as far as its first state at distance H or more:

        L_Q, L_V = IQL on r = <psi(x') - psi(x), z>, never terminal
        L_pi = -E[q] / E|q| - alpha E[log N(a; mu, 1)],   q = min_e Q_e(x, z, mu(x, z)),  z = unit(psi(x_s) - psi(x))
    """

    name = "gas"
    facts = Facts(
        "hitting time", "hitting time", "Euclidean feature", triangle_inequality=True, temporal_difference=True
    )
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "target_rate": 0.02, "expectile": 0.95, "cut_jumps": True},
        "laptop-robot": {**LEGGED, "target_rate": 0.02, "expectile": 0.95},
        "laptop-robot-even": {**EVEN_MAP, "expectile": 0.95},
        "smoke": {**SMOKE, "steps": 1_000, "dimension": 16, "target_rate": 0.05, "expectile": 0.95, "reach": 4.0},
    }

    expectile: Fraction = 0.999
    """tau of the TD loss: near 1, short routes win. Published: 0.95 for humanoids, kitchens and pixels."""
    reach: Positive = 8.0
    """H: how far ahead of a state its subgoals are at most. Published: 8 ants, 32 humanoids, 48 kitchens."""
    policy_expectile: Fraction = 0.7
    """Expectile of the policy's IQL."""
    bc_weight: Amount = 1.0
    """alpha of DDPG+BC. Published: 1 navigate and stitch, 0.01 explore, 0.1 humanoid, 10 kitchen."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return adam(self.learning_rate)

    def geometry(self) -> tuple[Phase, ...]:
        """The space, then a policy in it, for as many steps."""
        space = Phase(SpaceLearner(self), self.steps)
        return (space, Phase(SubgoalLearner(self), self.steps)) if self.policy is None else (space,)

    def controls(self, trained: Trained, spec: Spec) -> Controls:
        """The policy that follows directions of psi, to targets as far as H."""
        policy = frozen_policy(trained["policy"].policy, "observation", "command")
        return Controls({"policy": policy}, Direction(self.reach))


@dataclass(frozen=True)
class SpaceLearner(EuclideanLearner):
    """Phase `embedding`: TD with the Euclidean distance, as HILP's."""

    def init(self, key: jax.Array, spec: Spec) -> MLP:
        method = self.method
        return ensemble(jax.random.split(key, 4)[0], 2, spec.observation_size, method.hidden, method.dimension)


@dataclass(frozen=True)
class SubgoalLearner(Part):
    """Phase `policy`: a critic of directions, and a policy towards later states of the trajectory."""

    method: GAS

    phase = "policy"

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return self.method.apart(adam(self.method.learning_rate), self.method.steps)

    def init(self, key: jax.Array, spec: Spec) -> DirectionParams:
        method, keys = self.method, jax.random.split(key, 4)
        inputs = "observation", method.dimension
        return DirectionParams(
            ensemble(keys[1], 1, spec.width(*inputs), method.hidden, 1),
            ensemble(keys[2], 2, spec.width(*inputs, spec.action_size), method.hidden, 1),
            method.new_policy(GaussianPolicy, keys[3], spec, *inputs, gelu=True),
        )

    def target_of(self, params: DirectionParams) -> MLP:
        return params.critic

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> Tables:
        """psi (head 0) of every state, and the furthest subgoal of each."""
        points = in_blocks(self.method.embedding(trained, spec), data.observations)
        return Tables(points, first_beyond(points, data.final, self.method.reach))

    def sample(self, key: jax.Array, data: DeviceData, tables: Tables) -> DirectionBatch:
        """Transitions with the displacement to a subgoal."""
        row_key, ahead_key = jax.random.split(key)
        rows = draw_states(row_key, data, self.method.batch_size)
        ahead = geometric(ahead_key, self.method.discount, self.method.batch_size)
        subgoals = jnp.minimum(rows + ahead, tables.furthest[rows])
        here = tables.points[rows]
        states = data.observations[rows], data.actions[rows], data.observations[rows + 1]
        return DirectionBatch(*states, tables.points[rows + 1] - here, tables.points[subgoals] - here)

    def critic_loss(self, params: DirectionParams, target: MLP, batch: DirectionBatch, key: jax.Array) -> Loss:
        """IQL's two losses on directions drawn uniformly."""
        z = unit(jax.random.normal(key, batch.displacement.shape))
        values = scalars(params.value, batch.state, z)[0], scalars(params.value, batch.next_state, z)[0]
        q, target_q = (scalars(critic, batch.state, z, batch.action) for critic in (params.critic, target))
        return direction_iql(batch, z, values, (q, target_q), self.method.policy_expectile, self.method.discount)

    def actor_loss(self, policy: GaussianPolicy, critic: MLP, batch: DirectionBatch) -> Loss:
        """DDPG+BC in the direction of the subgoal; no gradient flows to the critic."""
        assert batch.future is not None, "the displacement to the subgoal"
        condition = jnp.concatenate([batch.state, unit(batch.future)], -1)
        q = scalars(jax.lax.stop_gradient(critic), condition, jnp.clip(policy(condition), -1.0, 1.0)).min(0)
        loss = ddpg_bc_loss(q, policy.unit_log_prob(condition, batch.action), self.method.bc_weight)
        return loss, {"policy/actor": loss, "policy/actor_q": q.mean()}

    def loss(self, params: DirectionParams, target: MLP, batch: DirectionBatch, key: jax.Array) -> Loss:
        critic = self.critic_loss(params, target, batch, key)
        return total(critic, self.actor_loss(params.policy, params.critic, batch), phase=self.phase)


def first_beyond(points: jax.Array, final: jax.Array, reach: float, block: int = 8192) -> jax.Array:
    """For every row the first later row of its trajectory at least `reach` away; the trajectory's last if none is.

    `planning.clusters.first_beyond` on the device: a block of rows looks ahead until all have found one. Of points that
    are computed from the disk, only the requested rows look ahead.
    """

    def search(rows: jax.Array) -> jax.Array:
        here, last = points[rows], final[rows]

        def look(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            steps, found = carry
            ahead = jnp.minimum(rows + steps, last)
            far = jnp.square(points[ahead] - here).sum(-1) >= reach**2
            return steps + 1, jnp.where((found < 0) & (far | (ahead == last)), ahead, found)

        return jax.lax.while_loop(lambda carry: (carry[1] < 0).any(), look, (jnp.array(1), jnp.full_like(rows, -1)))[1]

    if isinstance(points, Table):
        return Table((len(points),), search)  # type: ignore[return-value]
    return in_blocks(lambda rows: search(rows[:, 0])[:, None], jnp.arange(len(points))[:, None], block)[:, 0]


class Tables(NamedTuple):
    """psi of every state of the data, and the row of its furthest subgoal."""

    points: jax.Array
    furthest: jax.Array


class DirectionParams(NamedTuple):
    """Networks of the phase `policy`; the value is an ensemble of one."""

    value: MLP
    critic: MLP
    policy: GaussianPolicy
