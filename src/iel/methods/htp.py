"""Hitting-time programming (HTP), top to bottom: settings, the batch, the programme, the policy, the model.

paper          here                       what it is
phi            first half of `network`    state -> R^d
omega_g        second half                goal -> R^d, of any length
u, H(u)        later, steps               a state H steps ahead on the same trajectory
lambda         exp(log_multiplier)        the price of steps that are longer than one
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from iel.data.goals import DeviceData, draw_states, geometric
from iel.data.slowness import place_columns
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError
from iel.methods.contract import Examples, Method, Metrics, Phase, Spec, require_positive, require_share
from iel.methods.skills import (
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
from iel.metrics import SupportFunction
from iel.model import Model, Network
from iel.nn import MLP, descend, frozen, in_blocks

SHORT: dict[str, Any] = {"batch_size": 256, "hidden": (128, 128), "cut_jumps": True, "cut_rests": True}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The geometry takes half a minute on one core; the policy of a point needs little.
    "laptop": {"steps": 18_000, **SHORT, "policy_hidden": (128, 128, 128)},
    "laptop-body": {"steps": 36_000, "geometry_share": 1 / 3, **SHORT, "policy_hidden": (256, 256, 256)},
    "laptop-arm": {
        "steps": 30_000,
        "geometry_share": 0.4,
        **SHORT,
        "push_offset": 150.0,
        "p_ahead": 0.6,
        "max_steps": 20,
        "steering": "direction",
        "future_steps": 50,
        "policy_hidden": (256, 256, 256),
        "policy_heads": 5,
    },
    "smoke": {
        "steps": 2_000,
        "batch_size": 128,
        "hidden": (64, 64),
        "dimension": 16,
        "landmarks": 64,
        "push_offset": 50.0,
        "p_behind": 0.0,
    },
}
CLONING = SkillSettings(0.99, 0.9, 1.0, future_share=1.0, learner="cloning")
"""The policy clones what the data did on the way it went; the first three numbers are for IQL and play no part."""


@dataclass(frozen=True, kw_only=True)
class HTP(Method):
    """Hitting-time programming: V(x, g) = <phi(g) - phi(x), omega_g>, learned as the programme that defines it.

    Shortest hitting times of a deterministic world are as large as possible while no transition makes more than one
    step of progress towards any goal:

        max E[V(x, g)]   subject to   V(x, g) - V(x', g) = <phi(x') - phi(x), omega_g> <= 1   for all g

    V(g, g) = 0 holds by construction. For all goals at once the constraint bounds a support function, and so it does
    for a state u that lies H steps ahead (implied by single steps, but learned faster):

        d(x, y) = max_g <phi(y) - phi(x), omega_g>            d(x, x') <= 1,   d(x, u) <= H

    With the goals of a batch for g, and dual ascent on log lambda:

        L        = E[s softplus((o - V(x, g)) / s)] + lambda c             o, s: nearly -V up to about o steps
        c        = E[(d(x, x') - 1)_+^2] + E[(d(x, u) - H)_+^2 / H],       H uniform on 1..H_max
        L_lambda = lambda (epsilon - c)                                    lambda rises while steps are too long

    There is no target network, no bootstrapping, no expectile and no discount. What is exported is d over `landmarks`
    states of the data, divided by its median over the data's transitions: a directed metric in steps, with the triangle
    inequality, the same for every goal (`iel.metrics.SupportFunction`). Coordinates are chosen so that the landmarks'
    omega have the identity as second moment: the length of a displacement is its root mean square over goals.

    A policy is cloned from the directions that trajectories took, in the position columns or in phi (`steering`).

    The constraint is per sampled transition: where the same action may lead to several places, it believes in the
    luckiest.

    Presets: `paper` (the defaults below), `laptop` (a minute on two cores), `laptop-body` (for robots with joints),
    `laptop-arm` (for arms, where nothing separates position from pose), `smoke` (seconds, for tests).
    """

    name = "htp"
    presets = PRESETS
    examples = 4096

    learning_rate: float = 2e-3
    """Adam's step size of the geometry."""
    clip_norm: float = 100.0
    """Largest norm of the geometry's gradient."""
    geometry_share: float = 2 / 3
    """Share of the steps given to phase `geometry`; the policy gets the rest."""
    dimension: int = 32
    """Size d of the latent space."""
    landmarks: int = 256
    """States of the data over which the exported distance is a maximum."""
    max_steps: int = 10
    """H_max: how far ahead on the trajectory the state u of the constraint may lie."""
    push_offset: float = 100.0
    """o: pairs further apart than about so many steps are hardly pushed any more."""
    push_scale: float = 0.2
    """s as a share of o: how gradually that sets in."""
    epsilon: float = 0.05
    """c that is allowed."""
    dual_learning_rate: float = 0.01
    """Adam's step size for log lambda."""
    discount: float = 0.99
    """Goals ahead are k steps ahead with P(k) = (1 - discount) discount^(k - 1)."""
    p_ahead: float = 0.3
    """Share of goals ahead on the same trajectory."""
    p_behind: float = 0.2
    """Share of goals that the trajectory has just left, which is what makes one-way doors sharp; the rest are random
    states."""
    behind_steps: int = 40
    """How many steps behind such a goal may lie."""
    steering: Steered = "waypoint"
    """`waypoint`: the policy follows directions of the position columns; `direction`: directions of phi."""
    place: tuple[int, ...] = ()
    """Position columns, for waypoints; by default those that `iel data info` names."""
    future_steps: int = 20
    """How many steps ahead the directions look that the policy is trained on."""
    policy_learning_rate: float = 1e-3
    """Adam's step size of the policy at first; it follows half a cosine down to 0."""
    policy_heads: int = 1
    """Policies cloned side by side, whose mean acts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "dimension", "landmarks", "max_steps", "push_offset", "push_scale", "epsilon")
        require_positive(self, "dual_learning_rate", "behind_steps", "future_steps", "policy_learning_rate")
        require_positive(self, "policy_heads", "clip_norm")
        require_share(self, "geometry_share", "p_ahead", "p_behind")
        if self.p_ahead + self.p_behind > 1.0:
            raise ConfigError(f"p_ahead {self.p_ahead} and p_behind {self.p_behind} may sum to at most 1.")
        if self.place and self.steering == "direction":
            raise ConfigError("place is for steering by waypoints; choose steering waypoint.")

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on clipped gradients: a rare transition that is far too long must not undo the geometry."""
        return optax.chain(optax.clip_by_global_norm(self.clip_norm), optax.adam(self.learning_rate))

    @property
    def dual_optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.dual_learning_rate)

    @property
    def policy_optimiser(self) -> optax.GradientTransformation:
        return policy_optimiser(self.policy_learning_rate, self.phases()[-1].steps, decay=True)

    @property
    def waypoint_steps(self) -> int:
        """As far as directions look."""
        return self.future_steps

    def place_of(self, data: Trajectories) -> tuple[int, ...]:
        """The position columns given, or those that are clearly slower than all others."""
        if self.steering == "direction":
            return ()
        return checked_place(self.place, data) or tuple(place_columns(data))

    def phases(self) -> tuple[Phase, ...]:
        """The geometry, then the policy."""
        geometry = round(self.steps * self.geometry_share)
        return Phase("geometry", geometry), Phase("policy", self.steps - geometry)

    def init(self, key: jax.Array, spec: Spec) -> State:
        """Fresh networks; lambda starts at 1: states spread out first and are then drawn together."""
        keys = jax.random.split(key, 4)
        network = MLP(keys[0], spec.observation_size, self.hidden, 2 * self.dimension)
        shape = *skill_shape(spec, self.dimension), spec.action_size, self.policy_widths
        skills = new_skills(keys[1:], *shape, policy_norm=True, learner="cloning", policy_heads=self.policy_heads)
        log_multiplier = jnp.zeros(())
        moments = Optimisers(
            self.optimiser.init(network), self.dual_optimiser.init(log_multiplier), self.policy_optimiser.init(skills)
        )
        return State(network, log_multiplier, skills, moments)

    # ---------------------------------------------------------------- batches

    def tables(self, phase: str, state: State, data: DeviceData) -> jax.Array | None:
        """In phase `policy` the coordinates of every state: its position columns, or phi."""
        if phase == "geometry":
            return None
        return place_table(data, lambda: in_blocks(lambda x: self.split(state.network(x))[0], data.observations))

    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: jax.Array | None) -> Any:
        """The batch of one step."""
        if phase == "policy":
            assert tables is not None
            return draw_skill_batch(key, data, tables, self.batch_size, self.future_steps)
        state_key, kind_key, ahead_key, behind_key, random_key, steps_key = jax.random.split(key, 6)
        drawn, size = draw_states(state_key, data, self.batch_size), (self.batch_size,)
        final = data.final[drawn]
        kind = jax.random.uniform(kind_key, size)
        # A goal behind is drawn the other way round: the row drawn is the goal, and the state comes after it.
        behind = (kind >= self.p_ahead) & (kind < self.p_ahead + self.p_behind)
        after = drawn + jax.random.randint(behind_key, size, 1, self.behind_steps + 1)
        state = jnp.where(behind, jnp.minimum(after, final - 1), drawn)
        later = jnp.minimum(drawn + geometric(ahead_key, self.discount, self.batch_size), final)
        anywhere = jax.random.randint(random_key, size, 0, len(data.observations))
        goal = jnp.where(kind < self.p_ahead, later, jnp.where(behind, drawn, anywhere))
        steps = 1 + jax.random.randint(steps_key, size, 0, jnp.minimum(self.max_steps, final - state))
        rows = jnp.concatenate([state, state + 1, state + steps, goal])
        return Batch(data.observations[rows], steps.astype(jnp.float32))

    # ---------------------------------------------------------------- the programme

    def split(self, output: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(phi, omega) of the network's output."""
        return output[..., : self.dimension], output[..., self.dimension :]

    def geometry_loss(self, network: MLP, log_multiplier: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Push goals away while no step is longer than one, towards any goal of the batch."""
        phi, omega = self.split(network(batch.rows))
        state, after, later, goal = jnp.split(phi, 4)
        toward = jnp.split(omega, 4)[3]
        value = ((goal - state) * toward).sum(-1)
        offset, scale = self.push_offset, self.push_offset * self.push_scale
        push = (scale * jax.nn.softplus((offset - value) / scale)).mean()
        step = support(after - state, toward)
        several = support(later - state, toward)
        excess = jnp.square(jax.nn.relu(step - 1.0)).mean()
        excess += (jnp.square(jax.nn.relu(several - batch.steps)) / batch.steps).mean()
        multiplier = jnp.exp(jax.lax.stop_gradient(log_multiplier))
        loss = push + multiplier * excess
        return loss, {
            "geometry/loss": loss,
            "geometry/push": push,
            "geometry/excess": excess,
            "geometry/step": step.mean(),
            "geometry/value": value.mean(),
            "geometry/multiplier": multiplier,
        }

    def dual_loss(self, log_multiplier: jax.Array, excess: jax.Array) -> tuple[jax.Array, Metrics]:
        """lambda (epsilon - c): downhill, lambda rises where c > epsilon."""
        return jnp.exp(log_multiplier) * (self.epsilon - jax.lax.stop_gradient(excess)), {}

    # ---------------------------------------------------------------- updates

    def update(self, phase: str, state: State, batch: Any, key: jax.Array) -> tuple[State, Metrics]:
        """One gradient step of a phase; what the phase does not train is returned untouched, bit for bit."""
        moments = state.moments
        if phase == "policy":
            loss = lambda skills, batch: skill_loss(skills, None, batch, key, CLONING)  # noqa: E731
            skills, policy, metrics = descend(self.policy_optimiser, loss, state.skills, moments.policy, batch)
            return state._replace(skills=skills, moments=moments._replace(policy=policy)), metrics
        before = state.network, moments.network
        network, own, metrics = descend(self.optimiser, self.geometry_loss, *before, state.log_multiplier, batch)
        multiplier = state.log_multiplier, moments.multiplier
        log_multiplier, dual, _ = descend(self.dual_optimiser, self.dual_loss, *multiplier, metrics["geometry/excess"])
        moments = moments._replace(network=own, multiplier=dual)
        return state._replace(network=network, log_multiplier=log_multiplier, moments=moments), metrics

    # ---------------------------------------------------------------- what is exported

    def model(self, state: State, spec: Spec) -> Model:
        """phi, omega, the support function over landmarks, and the policy."""
        assert spec.examples is not None
        embedding, omega, directions = canonical(frozen(state.network, "observation"), spec.examples, self.landmarks)
        networks = {
            "embedding": embedding,
            "omega": omega,
            "policy": shipped_policy(state.skills.policy, self.steering),
        }
        sizes = spec.observation_size, spec.action_size
        steering = skill_steering(spec, self.steering)
        return Model(self.name, *sizes, networks, steering, metric=SupportFunction(directions))


def support(displacement: jax.Array, directions: jax.Array) -> jax.Array:
    """max_j <displacement_i, directions_j>, (n,)."""
    return (displacement @ directions.T).max(-1)


def canonical(network: Network, examples: Examples, landmarks: int) -> tuple[Network, Network, np.ndarray]:
    """phi and omega as two networks, and the landmarks' omega, in coordinates that the data alone determines.

    phi -> M phi, omega -> M^-T omega changes no V. With S = mean over landmarks of omega omega^T = U D U^T take
    M = D^1/2 U^T / s: then the landmarks' omega have second moment 1, lengths of displacements are root mean squares of
    steps over goals, and dividing by s, the median of d(x, x') over the data's transitions, makes them steps.
    """
    size = network.sizes[-1] // 2
    # The first states are the landmarks: the examples are in random order.
    omega = network(examples.state[:landmarks])[:, size:].astype(np.float64)
    moved = (network(examples.next_state) - network(examples.state))[:, :size].astype(np.float64)
    typical = float(np.median((moved @ omega.T).max(axis=1)))
    scale = typical if typical > 1e-6 else 1.0
    values, vectors = np.linalg.eigh(omega.T @ omega / len(omega))
    roots = np.sqrt(np.maximum(values, SMALLEST * values.max()))
    to_phi, to_omega = vectors * roots / scale, vectors / roots
    head = network.heads[0]
    networks = []
    for part, change in ((slice(0, size), to_phi), (slice(size, None), to_omega)):
        kernel, bias = head.kernels[-1][:, part] @ change, head.biases[-1][part] @ change
        last = replace(
            head,
            kernels=(*head.kernels[:-1], kernel.astype(np.float32)),
            biases=(*head.biases[:-1], bias.astype(np.float32)),
        )
        networks.append(replace(network, heads=(last,)))
    directions = networks[1](examples.state[:landmarks])
    return networks[0], networks[1], directions


SMALLEST = 1e-6
"""Directions that landmarks hardly have are not stretched beyond this share of the largest second moment."""


class Batch(NamedTuple):
    """Rows [x; x'; u; g] and H(u)."""

    rows: jax.Array
    steps: jax.Array


class Optimisers(NamedTuple):
    """Adam's moments: of the network, of log lambda and of the policy."""

    network: optax.OptState
    multiplier: optax.OptState
    policy: optax.OptState


class State(NamedTuple):
    """Everything training changes."""

    network: MLP
    log_multiplier: jax.Array
    skills: Skills
    moments: Optimisers
