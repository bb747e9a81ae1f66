"""What goal-conditioned methods share: which goals they are trained on, and how a policy pi(a | x, g) is extracted.

L    = L_geometry + L_pi                                       no gradient flows from L_pi to the geometry
L_pi = -E[q] / E|q| - alpha E[log N(a; mu(x, g), 1)]           `ddpg_bc`: q is what a critic says of mu(x, g)
L_pi = -E[min(exp(alpha A), 100) log N(a; mu(x, g), 1)]        `awr`: A is how much better than usual a was
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, GoalSampler, Relabelled, relabel
from iel.data.trajectories import Trajectories
from iel.distances import Quasimetric
from iel.errors import ConfigError
from iel.learner import SPATIAL, Distances, Learner, Loss, Method, Params, Spec, Trained, adam, total, with_parts
from iel.losses import awr_loss, ddpg_bc_loss
from iel.model import Network
from iel.nn import MLP, GaussianPolicy, ensemble, frozen, frozen_policy
from iel.quasimetrics import Head, check_groups, distance, groups_of, pairwise
from iel.typed import Amount, Count, Fraction, Index, Share

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class OwnPolicy(Method):
    """A method with a policy of its own: what every such policy can be given. The defaults are as published."""

    policy_parts: ClassVar[tuple[str, ...]] = ("policy",)
    """Which of the learner's networks are policies."""

    policy_norm: bool = False
    """LayerNorm in the hidden layers of the method's own policy."""
    policy_learning_rate: Amount = 0.0
    """Adam's step size for the method's own policy (0: `learning_rate`)."""
    policy_decay: bool = False
    """Let that step size follow half a cosine down to 0."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam, with a step size of the policy's own where one is set."""
        return self.apart(adam(self.learning_rate), self.steps)

    def policy_adam(self, steps: int) -> optax.GradientTransformation:
        """Adam as the policy's settings say; a falling step size reaches 0 after `steps`."""
        return adam(self.policy_learning_rate or self.learning_rate, max(steps, 1) if self.policy_decay else 0)

    def apart(self, networks: optax.GradientTransformation, steps: int) -> optax.GradientTransformation:
        """The optimiser of all other networks, and the policy's."""
        own = self.policy_learning_rate or self.policy_decay
        return with_parts(networks, self.policy_adam(steps), self.policy_parts) if own else networks

    def new_policy(
        self, kind: Callable[..., P], key: jax.Array, spec: Spec, *inputs: str | int, outputs: int = 0, **more: Any
    ) -> P:
        """A fresh policy network of the class `kind` that sees these inputs (the parts of `Spec.lens`)."""
        shape = spec.width(*inputs), self.policy_widths, outputs or spec.action_size
        return kind(key, *shape, layer_norm=self.policy_norm, lens=spec.lens(*inputs, policy=True), **more)


@dataclass(frozen=True, kw_only=True)
class GoalInputs(OwnPolicy):
    """A method with networks that are given goals as states."""

    goal_columns: tuple[Index, ...] | Literal["all", "position"] = "all"
    """Columns of a goal that networks see: `all` (OGBench), the `position` columns that `iel data info` names, or the
    columns listed. States are seen whole; distances of embeddings compare states and are not changed."""

    def seen_of_goals(self, data: Trajectories) -> tuple[int, ...]:
        if self.goal_columns == "all":
            return ()
        if self.goal_columns == "position":
            return tuple(data.require_position())
        columns = tuple(int(column) for column in self.goal_columns)
        if not columns or len(set(columns)) != len(columns) or max(columns) >= data.observation_size:
            last = data.observation_size - 1
            raise ConfigError(f"goal_columns are {columns}, but must name different columns from 0 to {last}.")
        return tuple(sorted(columns))

    def new_values(self, key: jax.Array, heads: int, spec: Spec, *inputs: str | int) -> MLP:
        """Fresh networks of these inputs with one output: a value, a critic or a classifier."""
        return ensemble(key, heads, spec.width(*inputs), self.hidden, 1, lens=spec.lens(*inputs))

    def goal_policy(self, key: jax.Array, spec: Spec) -> GaussianPolicy:
        """A fresh pi(a | x, g)."""
        return self.new_policy(GaussianPolicy, key, spec, "observation", "goal", gelu=True)

    def actor(self, trained: Trained) -> dict[str, Network]:
        """The method's own policy, at whose action a critic is evaluated where another policy acts."""
        policy = trained["train"].policy
        return {} if self.policy is None else {"actor": frozen_policy(policy, "observation", "goal")}


@dataclass(frozen=True, kw_only=True)
class GoalConditioned(GoalInputs, Learner):
    """A method with a policy pi(a | x, g) that is trained in the same steps as its geometry, on goals of its own."""

    actor_p_trajectory: Share = 1.0
    """Share of the actor's goals from the same trajectory (uniform): 1 for navigate, 0.5 stitch, 0 explore data."""
    actor_steps: Index = 0
    """Most steps that these lie ahead (0: up to the end of the trajectory, as published)."""

    @property
    def discount(self) -> float:
        """gamma; a setting of most methods."""
        return 0.99

    @property
    def goals(self) -> GoalSampler:
        """Goals of the geometry: later states of the same trajectory, geometric in the discount."""
        return GoalSampler(self.discount, 1.0, 0.0)

    @property
    def actor_goals(self) -> GoalSampler:
        """Goals of the policy."""
        return actor_goals(self.actor_p_trajectory, self.actor_steps)

    def own_policy(self, key: jax.Array, spec: Spec) -> GaussianPolicy | None:
        """A fresh pi(a | x, g); None where another policy acts."""
        return self.goal_policy(key, spec) if self.policy is None else None

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Relabelled:
        """Transitions with a goal for the geometry and another for the actor."""
        return relabel(key, data, self.goals, self.actor_goals, self.batch_size)

    @abstractmethod
    def geometry_loss(self, networks: Params, target: Params, batch: Relabelled) -> Loss:
        """The loss of everything but the policy."""

    @abstractmethod
    def actor_loss(self, networks: Params, batch: Relabelled) -> Loss:
        """The loss of the policy; all other networks are only looked at."""

    def loss(self, networks: Params, target: Params, batch: Relabelled, key: jax.Array) -> Loss:
        """The sum; no gradient flows from the actor's loss to the geometry."""
        geometry = self.geometry_loss(networks, target, batch)
        return total(geometry) if networks.policy is None else total(geometry, self.actor_loss(networks, batch))


@dataclass(frozen=True, kw_only=True)
class Valued(GoalInputs, Learner):
    """A method that learns values by temporal differences: some of their goals are reached already."""

    discount: Fraction = 0.99
    """gamma, for values and goals."""
    target_rate: float = 0.005
    """Polyak rate of the target copy."""
    p_current: Share = 0.2
    """Share of the value's goals that are the state itself."""
    p_trajectory: Share = 0.5
    """Share of the value's goals from the same trajectory (geometric in the discount); the rest are random states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.goals  # refuses impossible goal probabilities now rather than in the first step

    @property
    def goals(self) -> GoalSampler:
        """Goals of the value."""
        p_random = 1.0 - self.p_trajectory - self.p_current
        return GoalSampler(self.discount, self.p_trajectory, p_random, p_current=self.p_current)


@dataclass(frozen=True, kw_only=True)
class QuasimetricMethod(GoalConditioned):
    """A method whose distances are a quasimetric of embeddings; `networks.mix_logit` is learned with them."""

    head: Head = "mrn"
    """The quasimetric: `mrn` (a norm and a one-sided maximum) or `iqe` (unions of intervals, slower)."""
    dimension: Count = 512
    """Size of the embeddings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups(self.head, self.dimension, self.groups)

    @abstractmethod
    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        """What the quasimetric reads."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Groups of coordinates that the head reads."""

    def distance(self, networks: Params, source: jax.Array, target: jax.Array) -> jax.Array:
        """d between embeddings, row by row."""
        return distance(self.head, source, target, self.groups, jax.nn.sigmoid(networks.mix_logit))

    def pairwise(self, networks: Params, sources: jax.Array, targets: jax.Array) -> jax.Array:
        """d between all pairs of embeddings, (..., sources, targets)."""
        return pairwise(self.head, sources, targets, self.groups, jax.nn.sigmoid(networks.mix_logit))

    def quasimetric(self, trained: Trained, spec: Spec, scale: float = 1.0, discount: float | None = 1.0) -> Distances:
        """The embedding and its quasimetric times `scale`: in steps, unless `discount` is None."""
        mix = float(jax.nn.sigmoid(trained["train"].mix_logit))
        metric = Quasimetric(self.head, self.groups, mix, scale=scale, discount=discount)
        networks = {"embedding": frozen(self.embedding(trained, spec), "observation")}
        return Distances(networks, discount=discount, metric=metric)


@dataclass(frozen=True, kw_only=True)
class Contrastive(QuasimetricMethod):
    """A quasimetric that is learned by telling later states from those of other rows: what CMD and TMD share."""

    planners = SPATIAL

    components: Count = 8
    """Groups of `mrn`, or coordinates per group of `iqe`."""
    discount: Fraction = 0.99
    """gamma: of the goals, and of the steps that distances stand for."""
    bc_weight: Amount = 0.1
    """alpha of DDPG+BC."""

    @property
    def groups(self) -> int:
        return groups_of(self.dimension, self.components) if self.head == "iqe" else self.components


def actor_goals(p_trajectory: float, furthest: int) -> GoalSampler:
    """Goals of a policy: uniform among the later states of the trajectory, the rest anywhere."""
    return GoalSampler(p_trajectory=p_trajectory, p_random=1.0 - p_trajectory, future="uniform", furthest=furthest)


def ddpg_bc(
    policy: GaussianPolicy, batch: Relabelled, critic: Callable[[jax.Array], jax.Array], bc_weight: float
) -> Loss:
    """Climb what the critic says of the policy's actions at the actor's goals, and clone the data's."""
    pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
    q = critic(jnp.clip(policy(pair), -1.0, 1.0))
    loss = ddpg_bc_loss(q, policy.unit_log_prob(pair, batch.action), bc_weight)
    return loss, {"train/actor": loss, "train/actor_q": q.mean()}


def awr(policy: GaussianPolicy, batch: Relabelled, advantage: jax.Array, temperature: float) -> Loss:
    """Clone the data's actions at the actor's goals, the better ones more."""
    pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
    loss = awr_loss(policy.unit_log_prob(pair, batch.action), advantage, temperature)
    return loss, {"train/actor": loss, "train/advantage": advantage.mean()}
