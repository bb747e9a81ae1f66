"""Isomorphic Embedding Learning (IEL), top to bottom: settings, the losses of its three phases, updates, the model.

paper          here                       what it is
phi            embedding (two heads)      state -> R^d; head 0 is used downstream
omega_g        omega                      goal -> unit vector of R^d
u, H(u)        intermediate, steps        a state H steps ahead on the same trajectory
z              direction                  random unit vector the policy is trained on; never a goal
pi, V, Q       policy, value, critic      IQL + AWR over directions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData, GoalSampler, ahead
from iel.data.slowness import place_columns
from iel.data.trajectories import Trajectories
from iel.distances import GROUP, directed, discounted_steps, projection
from iel.errors import ConfigError
from iel.losses import info_nce_loss, ivl_loss, regression_expectile_loss
from iel.methods.contract import Method, Metrics, Phase, Spec, require_fraction, require_positive, require_share
from iel.methods.skills import (
    ARM,
    BODY,
    WALKING,
    Learner,
    Skills,
    SkillSettings,
    Steered,
    checked_place,
    draw_skill_batch,
    new_skills,
    place_table,
    policy_optimiser,
    shipped_policy,
    skill_loss,
    skill_shape,
    skill_steering,
)
from iel.model import Model
from iel.nn import MLP, apply_heads, descend, ensemble, frozen, head, in_blocks, polyak, unit

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "laptop": {"steps": 42_000, "batch_size": 256, "hidden": (128, 128, 128), "cut_jumps": True},
    "laptop-body": {"steps": 48_000, **WALKING},
    "laptop-arm": {"steps": 36_000, **ARM},
    "laptop-body-directions": {"steps": 60_000, "awr_temperature": 1.0, **BODY},
    # A short training needs targets that follow quickly: what is learned spreads one target copy at a time.
    "smoke": {
        "steps": 3_000,
        "batch_size": 128,
        "hidden": (64, 64),
        "dimension": 16,
        "learning_rate": 1e-3,
        "target_rate": 0.05,
    },
    "official": {"beta": 0.3, "hitting_expectile": 0.25, "noise_units": "raw", "hitting_goals": "official"},
}


@dataclass(frozen=True, kw_only=True)
class IEL(Method):
    """Isomorphic Embedding Learning: learn phi and omega from trajectories, then one policy for every latent direction.

    Phase `omega` trains omega by InfoNCE between states X and noisy copies X~ (rows are unit vectors):

        L = CE(omega(X) omega(X~)^T / T, diagonal)

    Phase `embedding` trains phi with omega frozen. With D = phi(g) - phi(x) and the directed distance
    d(x, g) = ||D|| exp(beta (1 - cos(D, omega_g))):

        L = IVL(-d; expectile, discount) + kappa E[W(l) l^2]
        l = (1 - gamma^H) / (1 - gamma) - <phi(u) - phi(x), omega_g>

    Phase `policy` trains pi(a | x, z) with phi frozen, by IQL and AWR on the reward <phi(x') - phi(x), z>, z uniform on
    the unit sphere. The policy never sees a goal.

    With a `residual`, states have further coordinates psi and d(x, g) gains sum_groups max_k (psi_k(g) - psi_k(x))_+
    (`iel.distances`): the ratio of the two directions, at most e^(2 beta) otherwise, then has no bound. V along
    omega_g, the hitting-time term and the policy read phi alone, as before; planning asks for rows of costs, because
    nothing bounds d by ||D|| from above.

    Presets: `paper` (the defaults below), `laptop` (minutes on two cores), `laptop-body` (ten minutes, for robots with
    joints: several departures from the paper, see `skills.WALKING`), `laptop-arm` (for arms: directions of phi,
    several cloned policies), `laptop-body-directions` (bodies steered by directions, by IQL and AWR), `smoke` (seconds,
    for tests), and `official` (the values of the authors' code where they differ from the paper's table).
    """

    name = "iel"
    presets = PRESETS

    omega_share: float = 0.02
    """Share of the steps given to phase `omega`."""
    embedding_share: float = 0.48
    """Share of the steps given to phase `embedding`; the policy gets the rest."""
    dimension: int = 32
    """Size d of the latent space."""
    discount: float = 0.99
    """gamma, for distances and goals."""
    target_rate: float = 0.005
    """Polyak rate of the target copies."""
    expectile: float = 0.95
    """tau of the TD loss: near 1, short ways win."""
    beta: float = 0.1
    """Strength of the directional term; 0 is HILP's Euclidean distance, above 1 the triangle inequality fails."""
    residual: int = 0
    """Columns of a one-way residual on top of the displacement, in eights (the paper: none)."""
    kappa: float = 0.05
    """Weight of the hitting-time regression."""
    hitting_expectile: float = 0.5
    """tau' of the hitting-time regression: below 0.5, shorter observed times count more."""
    max_steps: int = 10
    """H_max: how far ahead on the trajectory an intermediate state may lie."""
    hitting_goals: Literal["all", "official", "ahead"] = "all"
    """Which goals the regression takes: `all` (u up to H_max ahead, also for goals elsewhere), `official` (for about
    half of those the next state, as in the authors' code), `ahead` (only goals ahead on the same trajectory)."""
    p_trajectory: float = 0.625
    """Share of goals from the same trajectory (geometric in the discount); the rest are random states."""
    temperature: float = 0.07
    """InfoNCE temperature."""
    noise: float = 0.01
    """Standard deviation of the InfoNCE augmentation."""
    noise_units: Literal["column", "raw"] = "column"
    """`column`: noise is relative to each observation column's spread; `raw`: in the observations' own units."""
    policy_discount: float = 0.99
    """Discount of the policy's IQL: how far ahead progress along a direction counts."""
    policy_expectile: float = 0.9
    """Expectile of the policy's IQL."""
    awr_temperature: float = 10.0
    """alpha of AWR: how much better actions are preferred."""
    policy_norm: bool = False
    """Hidden layers Dense-GELU-LayerNorm in the policy, as in all other networks (the paper: Dense-ReLU)."""
    policy_heads: int = 1
    """Policies cloned side by side, whose mean acts (the paper: 1)."""
    future_share: float = 0.0
    """Share of the policy's directions that are where the trajectory itself went (the paper: none, all uniform)."""
    future_steps: int = 20
    """How many steps ahead such a direction may look."""
    steering: Steered = "direction"
    """`direction`: the policy follows directions of phi (the paper); `waypoint`: directions of the place columns."""
    place: tuple[int, ...] = ()
    """Columns that tell the place, for steering by waypoints; by default those that `iel data info` names."""
    sees_place: bool = False
    """Let a policy that is steered by waypoints see its own place, too: what it learns then holds in that place."""
    learner: Learner = "iql-awr"
    """How the policy is learned: by IQL and AWR (the paper), or by `cloning` what the data did in each direction."""
    decay: bool = False
    """Let the policy's step size follow half a cosine down to 0 (the paper: constant)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "dimension", "temperature", "max_steps", "policy_heads")
        require_fraction(self, "discount", "expectile", "hitting_expectile", "policy_discount", "policy_expectile")
        require_share(self, "future_share")
        if self.future_steps < 1:
            raise ConfigError(f"future_steps must be at least 1, but is {self.future_steps}.")
        if self.standardise and self.noise_units == "raw":
            raise ConfigError("noise_units raw means nothing on standardised observations; choose column.")
        if self.residual < 0 or self.residual % GROUP:
            raise ConfigError(f"residual is {self.residual}; give 0 or a multiple of {GROUP}.")
        if self.beta < 0 or self.kappa < 0 or self.noise < 0:
            raise ConfigError(
                f"beta, kappa and noise may not be negative, but are {self.beta}, {self.kappa}, {self.noise}."
            )
        if self.omega_share < 0 or self.embedding_share < 0 or self.omega_share + self.embedding_share > 1:
            raise ConfigError(
                f"omega_share {self.omega_share} and embedding_share {self.embedding_share} must not be negative and "
                "may sum to at most 1."
            )
        if (self.place or self.sees_place) and self.steering == "direction":
            raise ConfigError("place and sees_place are for steering by waypoints; choose steering waypoint.")
        _ = self.sampler  # refuses impossible goal probabilities now rather than in the first step

    @property
    def sampler(self) -> GoalSampler:
        strays: Literal["walk", "step"] = "step" if self.hitting_goals == "official" else "walk"
        return GoalSampler(self.discount, self.p_trajectory, 1.0 - self.p_trajectory, self.max_steps, strays=strays)

    @property
    def skills(self) -> SkillSettings:
        numbers = self.policy_discount, self.policy_expectile, self.awr_temperature, self.future_share
        return SkillSettings(*numbers, self.learner)

    @property
    def policy_optimiser(self) -> optax.GradientTransformation:
        return policy_optimiser(self.learning_rate, self.phases()[-1].steps, self.decay)

    @property
    def waypoint_steps(self) -> int:
        """As far as directions of the future look; 0 if there are none."""
        return self.future_steps if self.future_share > 0 else 0

    def place_of(self, data: Trajectories) -> tuple[int, ...]:
        """The place columns given, or those that are clearly slower than all others."""
        if self.steering == "direction":
            return ()
        return checked_place(self.place, data) or tuple(place_columns(data))

    def phases(self) -> tuple[Phase, ...]:
        """2 % / 48 % / 50 % of the steps by default, whatever their number."""
        omega, embedding = round(self.steps * self.omega_share), round(self.steps * self.embedding_share)
        return Phase("omega", omega), Phase("embedding", embedding), Phase("policy", self.steps - omega - embedding)

    def init(self, key: jax.Array, spec: Spec) -> State:
        """Fresh networks, targets equal to them, and one optimiser per phase."""
        keys = jax.random.split(key, 5)
        omega = MLP(keys[0], spec.observation_size, self.hidden, self.dimension)
        embedding = ensemble(keys[1], 2, spec.observation_size, self.hidden, self.dimension + self.residual)
        shape = *skill_shape(spec, self.dimension, self.sees_place), spec.action_size, self.policy_widths
        skills = new_skills(keys[2:], *shape, self.policy_norm, self.learner, self.policy_heads)
        moments = Optimisers(
            self.optimiser.init(omega), self.optimiser.init(embedding), self.policy_optimiser.init(skills)
        )
        return State(omega, embedding, embedding, skills, skills.critic, moments)

    # ---------------------------------------------------------------- batches

    def tables(self, phase: str, state: State, data: DeviceData) -> jax.Array | None:
        """What the phase keeps frozen, once for every state: omega in `embedding`, phi or the place in `policy`."""
        if phase == "embedding":
            return in_blocks(lambda x: unit(state.omega(x)), data.observations)
        if phase == "policy":
            phi = head(state.embedding, 0)
            return place_table(data, lambda: in_blocks(lambda x: phi(x)[..., : self.dimension], data.observations))
        return None

    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: jax.Array | None) -> Any:
        """The batch of one step."""
        if phase == "policy":
            assert tables is not None
            future = self.waypoint_steps or None
            return draw_skill_batch(key, data, tables, self.batch_size, future, self.sees_place)
        draw = self.sampler(key, data, self.batch_size)
        state, goal = data.observations[draw.state], data.observations[draw.goal]
        intermediate = data.observations[draw.intermediate]
        if phase == "omega":
            scale = data.scale if self.noise_units == "column" else jnp.ones_like(data.scale)
            return NoisyBatch(jnp.concatenate([goal, intermediate, state]), self.noise * scale)
        assert tables is not None
        return GoalBatch(
            state=state,
            next_state=data.observations[draw.state + 1],
            goal=goal,
            intermediate=intermediate,
            omega=tables[draw.goal],
            steps=draw.steps.astype(jnp.float32),
            success=(draw.goal == draw.state).astype(jnp.float32),
            counted=ahead(data, draw.state, draw.goal).astype(jnp.float32) if self.hitting_goals == "ahead" else None,
        )

    # ---------------------------------------------------------------- losses

    def omega_loss(self, omega: MLP, batch: NoisyBatch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """InfoNCE between states and their noisy copies."""
        noisy = batch.states + batch.noise * jax.random.normal(key, batch.states.shape)
        anchors, positives = jnp.split(unit(omega(jnp.concatenate([batch.states, noisy]))), 2)
        loss = info_nce_loss(anchors, positives, self.temperature)
        return loss, {"omega/loss": loss, "omega/positive_cosine": (anchors * positives).sum(-1).mean()}

    def embedding_loss(self, embedding: MLP, target: MLP, batch: GoalBatch) -> tuple[jax.Array, Metrics]:
        """TD with the directed distance, plus the regression of observed hitting times."""
        three = apply_heads(embedding, jnp.concatenate([batch.state, batch.goal, batch.intermediate]))
        state, goal, intermediate = jnp.split(three, 3, axis=1)
        three = jax.lax.stop_gradient(apply_heads(target, jnp.concatenate([batch.state, batch.goal, batch.next_state])))
        old_state, old_goal, old_next = jnp.split(three, 3, axis=1)

        way = batch.omega, self.beta, self.residual
        cost = directed(state, goal, *way)
        old_cost = directed(old_state, old_goal, *way)
        next_cost = directed(old_next, old_goal, *way)
        td = ivl_loss(-cost, -old_cost, -next_cost, batch.success, self.expectile, self.discount)

        state, goal, intermediate = (part[..., : self.dimension] for part in (state, goal, intermediate))
        observed = discounted_steps(batch.steps, self.discount)
        predicted = projection(state, intermediate, batch.omega)
        hitting = regression_expectile_loss(predicted, observed, self.hitting_expectile, batch.counted)

        loss = td + self.kappa * hitting
        return loss, {
            "embedding/loss": loss,
            "embedding/td": td,
            "embedding/hitting": hitting,
            "embedding/distance": cost[0].mean(),
            "embedding/cosine": (
                projection(state, goal, batch.omega) / jnp.linalg.norm(goal - state + 1e-6, axis=-1)
            ).mean(),
        }

    # ---------------------------------------------------------------- updates

    def update(self, phase: str, state: State, batch: Any, key: jax.Array) -> tuple[State, Metrics]:
        """One gradient step of a phase. Everything the phase does not train is returned untouched, bit for bit."""
        optimisers = state.optimisers
        if phase == "omega":
            before = state.omega, optimisers.omega
            omega, moments, metrics = descend(self.optimiser, self.omega_loss, *before, batch, key)
            return state._replace(omega=omega, optimisers=optimisers._replace(omega=moments)), metrics
        if phase == "embedding":
            loss = lambda embedding, *rest: self.embedding_loss(embedding, state.embedding_target, *rest)  # noqa: E731
            embedding, moments, metrics = descend(self.optimiser, loss, state.embedding, optimisers.embedding, batch)
            target = polyak(state.embedding_target, state.embedding, self.target_rate)
            return state._replace(
                embedding=embedding, embedding_target=target, optimisers=optimisers._replace(embedding=moments)
            ), metrics
        policy_loss = lambda skills, batch: skill_loss(skills, state.critic_target, batch, key, self.skills)  # noqa: E731
        skills, moments, metrics = descend(self.policy_optimiser, policy_loss, state.skills, optimisers.skills, batch)
        target = polyak(state.critic_target, state.skills.critic, self.target_rate)
        return state._replace(
            skills=skills, critic_target=target, optimisers=optimisers._replace(skills=moments)
        ), metrics

    # ---------------------------------------------------------------- what is shipped

    def model(self, state: State, spec: Spec) -> Model:
        """Head 0 of phi, omega and the policy."""
        networks = {
            "embedding": frozen(head(state.embedding, 0), "observation"),
            "omega": frozen(state.omega, "observation"),
            "policy": shipped_policy(state.skills.policy, self.steering, self.sees_place),
        }
        return Model(
            self.name,
            spec.observation_size,
            spec.action_size,
            networks,
            skill_steering(spec, self.steering),
            beta=self.beta,
            discount=self.discount,
            residual=self.residual,
        )


class Optimisers(NamedTuple):
    """Adam's moments, one set per phase: a frozen network has nothing that could still move it."""

    omega: optax.OptState
    embedding: optax.OptState
    skills: optax.OptState


class State(NamedTuple):
    """Everything training changes."""

    omega: MLP
    embedding: MLP
    embedding_target: MLP
    skills: Skills
    critic_target: MLP | None
    optimisers: Optimisers


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
