"""Isomorphic Embedding Learning (IEL), top to bottom: settings, the losses of its three phases, the model.

paper          here                       what it is
phi            embedding (two heads)      state -> R^d; head 0 is used downstream
omega_g        omega                      goal -> unit vector of R^d
u, H(u)        intermediate, steps        a state H steps ahead on the same trajectory
z              direction                  random unit vector the policy is trained on; never a goal
pi, V, Q       policy, value, critic      IQL + AWR over directions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from iel.data.goals import DeviceData, GoalSampler, ahead
from iel.distances import directed, discounted_steps, projection
from iel.errors import ConfigError
from iel.learner import SPATIAL, Batch, Distances, Facts, Loss, Method, Part, Phase, Policy, Spec, Trained
from iel.losses import info_nce_loss, ivl_loss, regression_expectile_loss
from iel.methods.presets import ARM_DIRECTIONS, LAPTOP, LEGGED_DIRECTIONS, MAP, SMOKE, WALKING
from iel.nn import MLP, apply_heads, ensemble, frozen, head, in_blocks, unit
from iel.policies import Directions
from iel.typed import Amount, Count, Fraction, Positive, Share


@dataclass(frozen=True, kw_only=True)
class Embedded(Method):
    """A method whose distances are those of an embedding phi with two heads: what IEL, HILP and GAS share."""

    planners = SPATIAL

    dimension: Count = 32
    """Size d of the latent space."""
    discount: Fraction = 0.99
    """gamma, for distances and goals."""
    target_rate: float = 0.005
    """Polyak rate of the target copies."""
    expectile: Fraction = 0.95
    """tau of the TD loss: near 1, short paths win."""
    p_trajectory: Share = 0.625
    """Share of goals from the same trajectory (geometric in the discount); the rest are random states."""
    p_behind: Share = 0.0
    """Share of goals that the trajectory has just left (not published: sharpens one-way doors)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy is None and type(self).controls is Method.controls:
            raise ConfigError(f"{self.name.upper()} has no policy of its own; choose directions or waypoints.")

    @property
    def sampler(self) -> GoalSampler:
        return GoalSampler(self.discount, self.p_trajectory, 1.0 - self.p_trajectory, p_behind=self.p_behind)

    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        return head(trained["embedding"], 0)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """phi, whose Euclidean distances are discounted steps."""
        networks = {"embedding": frozen(self.embedding(trained, spec), "observation")}
        return Distances(networks, discount=self.discount)


@dataclass(frozen=True)
class TwoHeads(Part):
    """Phase `embedding`: phi, and a target copy of it."""

    method: Embedded

    phase = "embedding"

    def init(self, key: jax.Array, spec: Spec) -> MLP:
        """Two heads; the first part of the key is omega's."""
        method = self.method
        return ensemble(jax.random.split(key, 5)[1], 2, spec.observation_size, method.hidden, method.dimension)

    def target_of(self, params: MLP) -> MLP:
        return params

    def td(
        self, target: MLP, batch: Batch, ends: tuple[jax.Array, jax.Array], distance: Callable[..., jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """(IVL of -d, d) for embeddings of states and goals, (heads, batch, d) each; d(x, g) is `distance`."""
        states = jnp.concatenate([batch.state, batch.goal, batch.next_state])
        old, old_goal, old_next = jnp.split(jax.lax.stop_gradient(apply_heads(target, states)), 3, axis=1)
        cost, rates = distance(*ends), (self.method.expectile, self.method.discount)
        return ivl_loss(-cost, -distance(old, old_goal), -distance(old_next, old_goal), batch.success, *rates), cost


@dataclass(frozen=True, kw_only=True)
class IEL(Embedded):
    """Isomorphic Embedding Learning: learn phi and omega from trajectories, then one policy for every latent direction.

    Phase `omega` trains omega by InfoNCE between states X and noisy copies X~ (rows are unit vectors):

        L = CE(omega(X) omega(X~)^T / T, diagonal)

    Phase `embedding` trains phi with omega frozen. With D = phi(g) - phi(x) and the directed distance
    d(x, g) = ||D|| exp(beta (1 - cos(D, omega_g))):

        L = IVL(-d; expectile, discount) + kappa E[W(l) l^2]
        l = (1 - gamma^H) / (1 - gamma) - <phi(u) - phi(x), omega_g>

    Phase `policy` trains pi(a | x, z) with phi frozen, by IQL and AWR on the reward <phi(x') - phi(x), z>, z uniform on
    the unit sphere. The policy never sees a goal.
    """

    name = "iel"
    facts = Facts(
        "hitting time",
        "hitting time",
        "directed displacement",
        directional=True,
        triangle_inequality=True,
        temporal_difference=True,
        goal_agnostic_policy=True,
    )
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "cut_jumps": True},
        "laptop-robot": WALKING,
        "laptop-robot-even": {**WALKING, "standardise": "policy"},
        "laptop-arm": {**MAP, "steps": 18_000, "policy": ARM_DIRECTIONS},
        "laptop-robot-directions": {**MAP, "steps": 30_000, "policy": LEGGED_DIRECTIONS},
        "smoke": {**SMOKE, "dimension": 16, "target_rate": 0.05, "policy": Directions(target_rate=0.05)},
        "official": {"beta": 0.3, "hitting_expectile": 0.25, "noise_units": "raw", "hitting_goals": "official"},
    }

    steps: Count = 500_000
    """Gradient steps of omega and embedding together; the policy has as many."""
    policy: Policy | None = Directions()
    """The policy: `directions` of the embedding (the paper), or `waypoints`."""
    omega_share: Share = 0.04
    """Share of the steps given to phase `omega`; the embedding gets the rest."""
    beta: Amount = 0.1
    """Strength of the directional term; 0 is HILP's Euclidean distance, above 1 the triangle inequality fails."""
    kappa: Amount = 0.05
    """Weight of the hitting-time regression."""
    hitting_expectile: Fraction = 0.5
    """tau' of the hitting-time regression: below 0.5, shorter observed times count more."""
    max_steps: Count = 10
    """H_max: how far ahead on the trajectory an intermediate state may lie."""
    hitting_goals: Literal["all", "official", "ahead"] = "all"
    """Which goals the regression takes: `all` (u up to H_max ahead, also for goals elsewhere), `official` (for about
    half of those the next state, as in the authors' code), `ahead` (only goals ahead on the same trajectory)."""
    temperature: Positive = 0.07
    """InfoNCE temperature."""
    noise: Amount = 0.01
    """Standard deviation of the InfoNCE augmentation."""
    noise_units: Literal["column", "raw"] = "column"
    """`column`: noise is a share of each column's standard deviation; `raw`: in the columns' own units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.standardise == "all" and self.noise_units == "raw":
            raise ConfigError("noise_units raw means nothing on standardised observations; choose column.")

    @property
    def sampler(self) -> GoalSampler:
        strays: Literal["walk", "step"] = "step" if self.hitting_goals == "official" else "walk"
        return replace(super().sampler, max_steps=self.max_steps, strays=strays)

    def geometry(self) -> tuple[Phase, ...]:
        """omega, then phi: 2 % and 48 % of all steps by default, whatever their number."""
        omega = round(self.steps * self.omega_share)
        return Phase(OmegaLearner(self), omega), Phase(EmbeddingLearner(self), self.steps - omega)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        networks = {**super().distances(trained, spec).networks, "omega": frozen(trained["omega"], "observation")}
        return Distances(networks, beta=self.beta, discount=self.discount)


@dataclass(frozen=True)
class OmegaLearner(Part):
    """Phase `omega`: InfoNCE between states and their noisy copies."""

    method: IEL

    phase = "omega"

    def init(self, key: jax.Array, spec: Spec) -> MLP:
        return MLP(jax.random.split(key, 5)[0], spec.observation_size, self.method.hidden, self.method.dimension)

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> NoisyBatch:
        """States, goals and intermediates alike, and the size of their noise."""
        method = self.method
        draw = method.sampler(key, data, method.batch_size)
        states = (data.observations[rows] for rows in (draw.goal, draw.intermediate, draw.state))
        scale = data.scale if method.noise_units == "column" else jnp.ones_like(data.scale)
        return NoisyBatch(jnp.concatenate(list(states)), method.noise * scale)

    def loss(self, omega: MLP, target: None, batch: NoisyBatch, key: jax.Array) -> Loss:
        noisy = batch.states + batch.noise * jax.random.normal(key, batch.states.shape)
        anchors, positives = jnp.split(unit(omega(jnp.concatenate([batch.states, noisy]))), 2)
        loss = info_nce_loss(anchors, positives, self.method.temperature)
        return loss, {"omega/loss": loss, "omega/positive_cosine": (anchors * positives).sum(-1).mean()}


@dataclass(frozen=True)
class EmbeddingLearner(TwoHeads):
    """Phase `embedding`: TD with the directed distance, plus the regression of observed hitting times."""

    method: IEL

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> jax.Array:
        """omega of every state of the data."""
        return in_blocks(lambda x: unit(trained["omega"](x)), data.observations)

    def sample(self, key: jax.Array, data: DeviceData, tables: jax.Array) -> GoalBatch:
        """Transitions with a goal and an intermediate state."""
        method = self.method
        draw = method.sampler(key, data, method.batch_size)
        counted = ahead(data, draw.state, draw.goal).astype(jnp.float32) if method.hitting_goals == "ahead" else None
        return GoalBatch(
            state=data.observations[draw.state],
            next_state=data.observations[draw.state + 1],
            goal=data.observations[draw.goal],
            intermediate=data.observations[draw.intermediate],
            omega=tables[draw.goal],
            steps=draw.steps.astype(jnp.float32),
            success=(draw.goal == draw.state).astype(jnp.float32),
            counted=counted,
        )

    def loss(self, embedding: MLP, target: MLP, batch: GoalBatch, key: jax.Array) -> Loss:
        """IVL of the directed distance, and kappa times the squared error of hitting times along omega."""
        method = self.method
        three = apply_heads(embedding, jnp.concatenate([batch.state, batch.goal, batch.intermediate]))
        state, goal, intermediate = jnp.split(three, 3, axis=1)
        distance = partial(directed, omega=batch.omega, beta=method.beta)
        td, cost = self.td(target, batch, (state, goal), distance)

        observed = discounted_steps(batch.steps, method.discount)
        predicted = projection(state, intermediate, batch.omega)
        hitting = regression_expectile_loss(predicted, observed, method.hitting_expectile, batch.counted)

        loss = td + method.kappa * hitting
        lengths = jnp.linalg.norm(goal - state + 1e-6, axis=-1)
        return loss, {
            "embedding/loss": loss,
            "embedding/td": td,
            "embedding/hitting": hitting,
            "embedding/distance": cost[0].mean(),
            "embedding/cosine": (projection(state, goal, batch.omega) / lengths).mean(),
        }


class NoisyBatch(NamedTuple):
    """[goals; intermediates; states], and the size of the noise in every column."""

    states: jax.Array
    noise: jax.Array


class GoalBatch(NamedTuple):
    """(x, x', g, u, omega_g, H(u), x = g)."""

    state: jax.Array
    next_state: jax.Array
    goal: jax.Array
    intermediate: jax.Array
    omega: jax.Array
    steps: jax.Array
    success: jax.Array
    counted: jax.Array | None = None
    """Whose hitting times count; None: all."""
