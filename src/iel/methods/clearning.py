"""C-Learning, top to bottom: settings, the losses, the model.

here           what it is
classifier     C(x, g, a) = sigmoid(f), two heads: is g a later state of (x, a) under pi, or any state of the data?
policy         pi(a | x, g), a tanh-Gaussian that climbs the classifier and clones the data
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, GoalSampler, draw_states
from iel.learner import Distances, Facts, Learner, Loss, Spec, Trained, total
from iel.losses import ddpg_bc_loss, recursive_classification_loss
from iel.methods.goal_conditioned import GoalInputs, actor_goals
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, TanhGaussianPolicy, frozen, scalars
from iel.typed import Amount, Count, Fraction, Index, Share


@dataclass(frozen=True, kw_only=True)
class CLearning(GoalInputs, Learner):
    """C-Learning: a classifier of the policy's future, trained by its own recursion on single transitions.

        C = sigmoid(f),  C / (1 - C) = p(g | x, a) / p(g),                p(. | x, a) = discounted later states under pi
        w    = min(min_e C'_e / (1 - C'_e), 1 / (1 - gamma)) at (x', a', g),  a' ~ pi(. | x', g),  g a random state
        L_C  = mean_e E[-(1 - gamma) log C_e(x, a, x') - gamma w log C_e(x, a, g) - log(1 - C_e(x, a, g))]
        L_pi = -E[q] / E|q| - alpha E[log pi(a | x, g)],                  q = min_e log C_e(x, b, g),  b ~ pi(. | x, g)

    C' is the target copy. The next state counts 1 - gamma, because so much of the future is there; the rest is the
    future of x', which w brings in. The term with alpha keeps an offline policy near its data; the authors, who
    collected data as they learned, have none.
    """

    name = "clearning"
    facts = Facts("successor measure", "reachability", "classifier logit", directional=True, temporal_difference=True)
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "target_rate": 0.05, "bc_weight": 0.03},
        "laptop-robot": {**LEGGED, "target_rate": 0.05},
        "laptop-robot-even": {**EVEN_MAP, "learning_rate": 3e-4, "goal_columns": "position"},
        "smoke": {**SMOKE, "target_rate": 0.05},
    }

    batch_size: Count = 256
    """Transitions per step."""
    hidden: tuple[Count, ...] = (256, 256)
    """Widths of the hidden layers of every network."""
    discount: Fraction = 0.99
    """gamma: how far ahead the future reaches."""
    target_rate: float = 0.005
    """Polyak rate of the classifier's target copy."""
    monte_carlo_share: Share = 0.0
    """lambda: weight of -log C(x, a, x_{t+k}) - log(1 - C(x, a, g)), the classifier of the data's own future (0 is the
    published loss; it learns faster and stitches less)."""
    bc_weight: Amount = 0.1
    """alpha of cloning; 0 is the published actor, which is for data that the policy itself collects."""
    actor_p_trajectory: Share = 0.5
    """Share of the actor's goals from the same trajectory (uniform); the others are random states, at which the
    recursion evaluates the policy."""
    actor_steps: Index = 0
    """Most steps that the former lie ahead (0: up to the end of the trajectory)."""

    @property
    def actor_goals(self) -> GoalSampler:
        return actor_goals(self.actor_p_trajectory, self.actor_steps)

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        classifier_key, policy_key = jax.random.split(key)
        return Networks(
            self.new_values(classifier_key, 2, spec, "observation", "goal", spec.action_size),
            self.new_policy(TanhGaussianPolicy, policy_key, spec, "observation", "goal"),
        )

    def target_of(self, networks: Networks) -> MLP:
        return networks.classifier

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Batch:
        """Transitions with a random state, a later state, and a goal for the actor."""
        state_key, random_key, later_key, actor_key = jax.random.split(key, 4)
        rows = draw_states(state_key, data, self.batch_size)
        anywhere = jax.random.randint(random_key, (self.batch_size,), 0, len(data.observations))
        later = GoalSampler(self.discount, 1.0, 0.0).goals(later_key, data, rows)
        wanted = self.actor_goals.goals(actor_key, data, rows)
        drawn = (data.observations[index] for index in (rows, rows + 1, anywhere, later, wanted))
        return Batch(data.actions[rows], *drawn)

    def classifier_loss(
        self, classifier: MLP, target: MLP, policy: TanhGaussianPolicy, batch: Batch, key: jax.Array
    ) -> Loss:
        """The recursion; with `monte_carlo_share`, partly the classifier of the data's own future."""
        after = jnp.concatenate([batch.next_state, batch.random], -1)
        action, _ = policy.sample(key, after, 1)
        ahead = scalars(target, after, action[0]).min(0)
        ratio = jax.lax.stop_gradient(jnp.minimum(jnp.exp(ahead), 1.0 / (1.0 - self.discount)))
        rate = lambda goal: scalars(classifier, batch.state, goal, batch.action)  # noqa: E731
        positive, negative = rate(batch.next_state), rate(batch.random)
        loss = recursive_classification_loss(positive, negative, ratio, self.discount)
        if self.monte_carlo_share > 0.0:
            # The future is all positives: the recursion without the share that comes later.
            own = recursive_classification_loss(rate(batch.later), negative, jnp.zeros_like(ratio), 0.0)
            loss = (1.0 - self.monte_carlo_share) * loss + self.monte_carlo_share * own
        metrics = {"train/classifier": loss, "train/ratio": ratio.mean(), "train/next_logit": positive.mean()}
        return loss, metrics

    def actor_loss(self, policy: TanhGaussianPolicy, classifier: MLP, batch: Batch, key: jax.Array) -> Loss:
        """Climb log C at the actor's goals and stay near the data; the classifier is only looked at."""
        pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
        action, _ = policy.sample(key, pair, 1)
        q = jax.nn.log_sigmoid(scalars(jax.lax.stop_gradient(classifier), pair, action[0]).min(0))
        loss = ddpg_bc_loss(q, policy.log_prob(pair, batch.action), self.bc_weight)
        return loss, {"train/actor": loss, "train/actor_log_c": q.mean()}

    def loss(self, networks: Networks, target: MLP, batch: Batch, key: jax.Array) -> Loss:
        """The sum; no gradient flows from the actor's loss to the classifier, or back through w."""
        next_key, actor_key = jax.random.split(key)
        return total(
            self.classifier_loss(networks.classifier, target, networks.policy, batch, next_key),
            self.actor_loss(networks.policy, networks.classifier, batch, actor_key),
        )

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """The classifier's log-odds at the action of the method's own policy, whichever policy acts."""
        classifier = frozen(trained["train"].classifier, "observation", "goal", "action", logit=True)
        return Distances({"value": classifier, **self.actor(trained)})


class Batch(NamedTuple):
    """(a, x, x'), a random state, a later one of the same trajectory, and the actor's goal."""

    action: jax.Array
    state: jax.Array
    next_state: jax.Array
    random: jax.Array
    later: jax.Array
    actor_goal: jax.Array


class Networks(NamedTuple):
    classifier: MLP
    policy: TanhGaussianPolicy
