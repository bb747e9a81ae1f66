"""Goal-conditioned conservative Q-learning (GC-CQL), top to bottom: settings, the losses, the model.

here           what it is
critic         Q(x, g, a), two heads, pressed down where the data has no actions
policy         pi(a | x, g), a tanh-Gaussian that climbs Q and keeps some entropy
entropy        log alpha_e: the price of entropy, moved so that pi has -|A| nats
caution        log alpha': the price of rating other actions above the data's by more than `gap` (with Lagrange)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, Relabelled, relabel
from iel.learner import Distances, Facts, Loss, Phase, Settings, Spec, Trained, adam, total
from iel.losses import conservative_gap, goal_reward, iql_critic_loss
from iel.methods.goal_conditioned import Valued
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, TanhGaussianPolicy, frozen, scalars
from iel.typed import Amount, Count, Positive, Share

LARGEST_CAUTION = 1e6

# With the networks' step size the logarithm of a price could not move by more than 6 in a short training.
# And their gap is out of reach on noisy data, so caution has a fixed price (docs/gccql.md).
SHORT: Settings = {
    "lagrange": False,
    "policy_learning_rate": 3e-4,
    "price_learning_rate": 3e-3,
    "action_samples": 2,
    "target_rate": 0.05,
}


@dataclass(frozen=True, kw_only=True)
class GCCQL(Valued):
    """Goal-conditioned conservative Q-learning: off-policy TD, with actions the data does not show rated down.

        y    = r + gamma m max_j min_e Q'_e(x', g, a'_j),  a'_j ~ pi(x', g),  r = -1 and m = 1 until x is g, then 0
        D_e  = T log sum_j exp((c Q_e(x, g, a_j) - log mu(a_j)) / T) - c Q_e(x, g, a),  a_j uniform, of pi(x'), of pi(x)
        L_Q  = sum_e E[(Q_e(x, g, a) - y)^2] + w E[D_e] / c^2,            with Lagrange + alpha' w (E[D_e] - gap) / c^2
        L_pi = E[alpha_e log pi - c min_e Q_e(x, g, a_pi)],               in the warm-up - log pi(a | x, g) for - c Q

    where alpha' is raised while D exceeds `gap` (Lagrange). Q counts steps; c is a step's reward in the units in which
    caution and entropy are priced, so this is CQL on the reward c r. The policy is trained on the critic's goals.
    """

    name = "gccql"
    facts = Facts("goal-conditioned", "Q-values", "negative Q-value", directional=True, temporal_difference=True)
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, **SHORT},
        "laptop-robot": {**LEGGED, **SHORT},
        "laptop-robot-even": {**SHORT, **EVEN_MAP},
        "smoke": {**SMOKE, **SHORT, "policy_learning_rate": 1e-3, "price_learning_rate": 3e-4},
    }

    caps = {"critic/caution_price": LARGEST_CAUTION}
    clone: ClassVar[bool] = False
    """Whether the policy clones the data instead of climbing Q."""

    warmup_share: Share = 0.04
    """Share of the steps in which the policy clones the data while the critic already learns; 0 for none."""
    policy_learning_rate: Amount = 1e-4
    """Adam's step size for the policy (0: `learning_rate`)."""
    price_learning_rate: Positive = 3e-4
    """Adam's step size for the logarithms of both prices."""
    reward_scale: Positive = 5.1
    """c: how much a step costs in the units of caution and entropy; the smaller, the more pessimistic."""
    conservative_weight: Amount = 5.0
    """w: how strongly unseen actions are rated down."""
    lagrange: bool = True
    """Move the price alpha' of caution so that D stays near `gap`; without it the price is 1."""
    gap: float = 0.2
    """What D may be before its price rises (with Lagrange); 0.2 to 0.8 were used for antmaze."""
    conservative_temperature: Positive = 1.0
    """T of the soft maximum over sampled actions."""
    conservative_floor: float = -200.0
    """D is not driven below this."""
    action_samples: Count = 10
    """Actions drawn from each of the three proposals, and for the backup."""
    max_backup: bool = True
    """Back up the best of the drawn next actions instead of one."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        own = adam(self.learning_rate), self.policy_adam(self.steps), adam(self.price_learning_rate)
        parts = Networks._fields
        return optax.multi_transform(dict(zip(parts, own, strict=True)), Networks(*parts))  # type: ignore[arg-type]

    def geometry(self) -> tuple[Phase, ...]:
        """4 % of cloning by default, then the policy climbs Q."""
        warmup = round(self.steps * self.warmup_share)
        return Phase(Warmup(**vars(self)), warmup), Phase(self, self.steps - warmup)

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """Fresh networks, and both prices at 1."""
        critic_key, policy_key = jax.random.split(key)
        critic = self.new_values(critic_key, 2, spec, "observation", "goal", spec.action_size)
        policy = self.new_policy(TanhGaussianPolicy, policy_key, spec, "observation", "goal")
        return Networks(critic, policy, Prices(jnp.zeros(()), jnp.zeros(())))

    def target_of(self, networks: Networks) -> MLP:
        return networks.critic

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Relabelled:
        """Transitions with goals; the actor's own goals are not used."""
        return relabel(key, data, self.goals, self.goals, self.batch_size)

    def critic_loss(self, networks: Networks, target: MLP, batch: Relabelled, key: jax.Array) -> Loss:
        """TD plus the conservative term; actions, their densities and the price carry no gradient."""
        critic, policy, prices = networks.critic, *jax.lax.stop_gradient((networks.policy, networks.prices))
        here = jnp.concatenate([batch.state, batch.goal], -1)
        after = jnp.concatenate([batch.next_state, batch.goal], -1)
        uniform_key, here_key, after_key = jax.random.split(key, 3)
        here_actions, here_log = policy.sample(here_key, here, self.action_samples)
        after_actions, after_log = policy.sample(after_key, after, self.action_samples)

        tried = after_actions if self.max_backup else after_actions[:1]
        next_q = _rate(target, after, tried).min(0).max(0)
        reward, mask = goal_reward(batch.success)
        q = scalars(critic, here, batch.action)
        td = iql_critic_loss(q, reward, mask * next_q, self.discount)

        anything = jax.random.uniform(uniform_key, here_actions.shape, minval=-1.0, maxval=1.0)
        anything_log = jnp.full(here_log.shape, -anything.shape[-1] * jnp.log(2.0))
        actions = jax.lax.stop_gradient(jnp.concatenate([anything, after_actions, here_actions]))
        log_density = jax.lax.stop_gradient(jnp.concatenate([anything_log, after_log, here_log]))
        sampled, own = self.reward_scale * _rate(critic, here, actions), self.reward_scale * q
        limits = self.conservative_temperature, self.conservative_floor
        excess = conservative_gap(sampled, log_density, own, *limits)
        weight = self.conservative_weight / self.reward_scale**2
        penalty = weight * (_price(prices.caution) * (excess - self.gap) if self.lagrange else excess).sum()
        loss = td + penalty
        return loss, {"critic/loss": loss, "critic/td": td, "critic/excess": excess.mean(), "critic/q": q.mean()}

    def actor_loss(self, networks: Networks, batch: Relabelled, key: jax.Array) -> Loss:
        """Climb Q (or clone the data) and keep entropy at its price; both are only looked at."""
        policy, (critic, prices) = networks.policy, jax.lax.stop_gradient((networks.critic, networks.prices))
        here = jnp.concatenate([batch.state, batch.goal], -1)
        action, log_prob = policy.sample(key, here, 1)
        q = self.reward_scale * scalars(critic, here, action[0]).min(0)
        worth = policy.log_prob(here, batch.action) if self.clone else q
        loss = (jnp.exp(prices.entropy) * log_prob[0] - worth).mean()
        return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}

    def price_loss(self, prices: Prices, log_prob: jax.Array, excess: jax.Array, actions: int) -> Loss:
        """The price of entropy rises while there is less than -|A| of it, that of caution while D exceeds the gap."""
        entropy = -prices.entropy * (log_prob - actions)
        caution = -_price(prices.caution) * self.conservative_weight * (excess - self.gap) if self.lagrange else 0.0
        metrics = {"actor/entropy_price": jnp.exp(prices.entropy), "critic/caution_price": _price(prices.caution)}
        return entropy + caution, metrics

    def loss(self, networks: Networks, target: MLP, batch: Relabelled, key: jax.Array) -> Loss:
        """The sum of all three; each part moves by its own loss alone."""
        critic_key, actor_key = jax.random.split(key)
        critic = self.critic_loss(networks, target, batch, critic_key)
        loss, metrics = total(critic, self.actor_loss(networks, batch, actor_key), phase=self.phase)
        surplus = jax.lax.stop_gradient((-metrics["actor/entropy"], metrics["critic/excess"]))
        price, more = self.price_loss(networks.prices, *surplus, batch.action.shape[-1])
        return loss + price, {**metrics, **more}

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """The critic, whose smaller head at the policy's action is minus the distance."""
        critic = frozen(trained["train"].critic, "observation", "goal", "action")
        return Distances({"value": critic, **self.actor(trained)}, discount=self.discount)


@dataclass(frozen=True, kw_only=True)
class Warmup(GCCQL):
    """Phase `warmup`: the policy clones the data while the critic already learns."""

    phase = "warmup"
    slot = "train"
    clone = True


class Prices(NamedTuple):
    """log alpha_e of the entropy and log alpha' of caution."""

    entropy: jax.Array
    caution: jax.Array


class Networks(NamedTuple):
    critic: MLP
    policy: TanhGaussianPolicy
    prices: Prices


def _price(logarithm: jax.Array) -> jax.Array:
    return jnp.clip(jnp.exp(logarithm), 0.0, LARGEST_CAUTION)


def _rate(critic: MLP, pair: jax.Array, actions: jax.Array) -> jax.Array:
    """Q of several actions (samples, batch, actions) for every row: (heads, samples, batch)."""
    samples, batch = actions.shape[:2]
    rows = jnp.tile(pair, (samples, 1))
    return scalars(critic, rows, actions.reshape(samples * batch, -1)).reshape(-1, samples, batch)
