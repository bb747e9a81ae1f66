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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.spatial import cKDTree

from iel.data.goals import DeviceData, draw_states, geometric
from iel.data.positions import same_entrance
from iel.data.scaling import Scaling
from iel.data.trajectories import Trajectories
from iel.distances import SupportFunction
from iel.errors import ConfigError
from iel.learner import (
    SPATIAL,
    Distances,
    Examples,
    Facts,
    Learner,
    Method,
    Metrics,
    Outcomes,
    Policy,
    Spec,
    Trained,
    adam,
    dual_loss,
    with_multiplier,
)
from iel.methods.presets import ARM_DIRECTIONS
from iel.nn import MLP, frozen
from iel.policies import Waypoints
from iel.typed import Count, Positive, Share

SHORT: dict[str, Any] = {"steps": 12_000, "batch_size": 256, "hidden": (128, 128), "cut_jumps": True, "cut_rests": True}
ROBOT: dict[str, Any] = {
    **SHORT,
    "policy_hidden": (256, 256, 256),
    "policy": Waypoints(steps=24_000, learning_rate=1e-3),
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The geometry takes half a minute on one core; the policy of a point needs little. Detours around doors are long,
    # and pairs that are hardly pushed any more are blurred: through the closed door of a large maze.
    "laptop": {
        **SHORT,
        "push_offset": 300.0,
        "policy_hidden": (128, 128, 128),
        "policy": Waypoints(steps=6_000, learning_rate=1e-3),
    },
    "laptop-robot": ROBOT,
    "laptop-robot-even": {**ROBOT, "standardise": "policy"},
    "laptop-arm": {
        **ROBOT,
        "push_offset": 150.0,
        "p_ahead": 0.6,
        "p_behind": 0.0,  # nothing is undone there: pushing away what was just left is all that phi would learn
        "max_steps": 20,
        "policy": replace(ARM_DIRECTIONS, steps=18_000, learning_rate=1e-3),
    },
    "smoke": {
        "steps": 1_500,
        "batch_size": 128,
        "hidden": (64, 64),
        "dimension": 16,
        "landmarks": 64,
        "push_offset": 50.0,
        "p_behind": 0.0,
        "policy": Waypoints(steps=500, learning_rate=1e-3),
    },
}


@dataclass(frozen=True, kw_only=True)
class HTP(Method, Learner):
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

    It needs neither target network, bootstrapping, expectile nor discount. What is exported is d over `landmarks`
    states of the data, divided by its median over the data's transitions: a directed metric in steps, with the triangle
    inequality, the same for every goal (`iel.distances.SupportFunction`). Coordinates are chosen so that the landmarks'
    omega have the identity as second moment: the length of a displacement is its root mean square over goals.

    A sampled constraint believes in luck: where a transition has several outcomes, the best of them counts. But V is
    linear in phi(x'), so an expectation goes inside. Teleports of the data are bounded so, over all outcomes of those
    with the same entrance (`expect_jumps`):

        <E[phi(x')] - phi(x), omega_g> <= 1                                the Bellman inequality of a random world
    """

    name = "htp"
    facts = Facts(
        "hitting time",
        "hitting time",
        "support function",
        directional=True,
        triangle_inequality=True,
        goal_agnostic_policy=True,
    )
    presets = PRESETS
    planners = (*SPATIAL, "greedy")
    examples = 4096
    phase = "geometry"

    policy: Policy | None = Waypoints(learning_rate=1e-3)
    """The policy: `waypoints`, or `directions` of the embedding."""
    learning_rate: Positive = 2e-3
    """Adam's step size."""
    clip_norm: Positive = 100.0
    """Largest norm of a gradient: a rare transition that is far too long must not undo the geometry."""
    dimension: Count = 32
    """Size d of the latent space."""
    landmarks: Count = 256
    """States of the data over which the exported distance is a maximum."""
    max_steps: Count = 10
    """H_max: how far ahead on the trajectory the state u of the constraint may lie."""
    push_offset: Positive = 100.0
    """o, in steps: pairs further apart than about o are hardly pushed any more."""
    push_scale: Positive = 0.2
    """s as a share of o: how gradually that sets in."""
    epsilon: Positive = 0.05
    """c that is allowed."""
    dual_learning_rate: Positive = 0.01
    """Adam's step size for log lambda."""
    discount: float = 0.99
    """Goals ahead are k steps ahead with P(k) = (1 - discount) discount^(k - 1)."""
    p_ahead: Share = 0.3
    """Share of goals ahead on the same trajectory."""
    p_behind: Share = 0.2
    """Share of goals that the trajectory has just left, which is what makes one-way doors sharp; the rest are random
    states."""
    behind_steps: Count = 40
    """How many steps behind such a goal may lie."""
    expect_jumps: bool = False
    """Bound teleports by where they lead on average (with `cut_jumps`, which leaves out the single ones): distances are
    then expected steps, through teleports where that pays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy is None:
            raise ConfigError("HTP has no policy of its own; choose directions or waypoints.")
        if self.p_ahead + self.p_behind > 1.0:
            raise ConfigError(f"p_ahead {self.p_ahead} and p_behind {self.p_behind} may sum to at most 1.")

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on clipped gradients; log lambda has a step size of its own."""
        clipped = optax.chain(optax.clip_by_global_norm(self.clip_norm), adam(self.learning_rate))
        return with_multiplier(clipped, self.dual_learning_rate)

    def init(self, key: jax.Array, spec: Spec) -> Networks:
        """A fresh network; lambda starts at 1: states move apart first and are then drawn together."""
        return Networks(MLP(key, spec.observation_size, self.hidden, 2 * self.dimension), jnp.zeros(()))

    def spec(self, data: Trajectories, scaling: Scaling | None = None, uncut: Trajectories | None = None) -> Spec:
        """Also where teleports lead, if they were cut out."""
        spec = super().spec(data, scaling)
        if not (self.expect_jumps and self.cut_jumps) or uncut is None or uncut.stored or len(uncut.jumps) < FEWEST:
            return spec
        return spec._replace(teleports=outcomes(uncut, scaling))

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> Outcomes | None:
        return spec.teleports

    def sample(self, key: jax.Array, data: DeviceData, tables: Outcomes | None) -> Batch:
        """States with the next one, one up to H_max ahead, and a goal; some teleports, if there are any."""
        state_key, kind_key, ahead_key, behind_key, random_key, steps_key = jax.random.split(key, 6)
        drawn, size = draw_states(state_key, data, self.batch_size), (self.batch_size,)
        final = data.final[drawn]
        kind = jax.random.uniform(kind_key, size)
        # A goal behind is drawn in reverse: the row drawn is the goal, and the state comes after it.
        behind = (kind >= self.p_ahead) & (kind < self.p_ahead + self.p_behind)
        after = drawn + jax.random.randint(behind_key, size, 1, self.behind_steps + 1)
        state = jnp.where(behind, jnp.minimum(after, final - 1), drawn)
        later = jnp.minimum(drawn + geometric(ahead_key, self.discount, self.batch_size), final)
        anywhere = jax.random.randint(random_key, size, 0, len(data.observations))
        goal = jnp.where(kind < self.p_ahead, later, jnp.where(behind, drawn, anywhere))
        steps = 1 + jax.random.randint(steps_key, size, 0, jnp.minimum(self.max_steps, final - state))
        rows = jnp.concatenate([state, state + 1, state + steps, goal])
        batch = Batch(data.observations[rows], steps.astype(jnp.float32))
        if tables is None:
            return batch
        entered = jax.random.randint(jax.random.fold_in(key, JUMP_KEY), (ENTERED,), 0, len(tables.before))
        return batch._replace(entered=tables.before[entered], left=tables.after[tables.alike[entered]])

    # ---------------------------------------------------------------- the programme

    def split(self, output: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(phi, omega) of the network's output."""
        return output[..., : self.dimension], output[..., self.dimension :]

    def loss(self, networks: Networks, target: None, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Push goals away while no step is longer than one, towards any goal of the batch."""
        phi, omega = self.split(networks.network(batch.rows))
        state, after, later, goal = jnp.split(phi, 4)
        toward = jnp.split(omega, 4)[3]
        value = ((goal - state) * toward).sum(-1)
        offset, scale = self.push_offset, self.push_offset * self.push_scale
        push = (scale * jax.nn.softplus((offset - value) / scale)).mean()
        step, several = support(after - state, toward), support(later - state, toward)
        excess = jnp.square(jax.nn.relu(step - 1.0)).mean()
        excess += (jnp.square(jax.nn.relu(several - batch.steps)) / batch.steps).mean()
        if batch.entered is not None and batch.left is not None:
            entered, left = (self.split(networks.network(part))[0] for part in (batch.entered, batch.left))
            excess += jnp.square(jax.nn.relu(support(left.mean(1) - entered, toward) - 1.0)).mean()
        multiplier = jnp.exp(jax.lax.stop_gradient(networks.log_multiplier))
        loss = push + multiplier * excess
        return loss + dual_loss(networks.log_multiplier, excess, self.epsilon), {
            "geometry/loss": loss,
            "geometry/push": push,
            "geometry/excess": excess,
            "geometry/step": step.mean(),
            "geometry/value": value.mean(),
            "geometry/multiplier": multiplier,
        }

    # ---------------------------------------------------------------- what is exported

    def embedding(self, trained: Trained, spec: Spec) -> MLP:
        assert spec.examples is not None
        return canonical(trained["geometry"].network, spec.examples, self.landmarks)[0]

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """phi, omega and the support function over landmarks, in canonical coordinates."""
        assert spec.examples is not None
        phi, omega = canonical(trained["geometry"].network, spec.examples, self.landmarks)
        networks = {"embedding": frozen(phi, "observation"), "omega": frozen(omega, "observation")}
        directions = networks["omega"](spec.examples.state[: self.landmarks])
        return Distances(networks, metric=SupportFunction(directions))


def support(displacement: jax.Array, directions: jax.Array) -> jax.Array:
    """max_j <displacement_i, directions_j>, (n,)."""
    return (displacement @ directions.T).max(-1)


def canonical(network: MLP, examples: Examples, landmarks: int) -> tuple[MLP, MLP]:
    """phi and omega as two networks, in coordinates that the data alone determines, and in steps.

    phi -> M phi, omega -> M^-T omega changes no V. With S = mean over landmarks of omega omega^T = U D U^T take
    M = U D^1/2 U^T / s: then the landmarks' omega have second moment 1, lengths of displacements are root mean squares
    of steps over goals, and dividing by s, the median of d(x, x') over the data's transitions, makes them steps. The
    symmetric root is unique: the signs of U, which rounding decides, would differ between training and export.
    """
    size = network.layers[-1].bias.shape[0] // 2
    # The first states are the landmarks: the examples are in random order.
    omega = network(jnp.asarray(examples.state[:landmarks]))[:, size:]
    moved = (network(jnp.asarray(examples.next_state)) - network(jnp.asarray(examples.state)))[:, :size]
    typical = jnp.median(support(moved, omega))
    scale = jnp.where(typical > 1e-6, typical, 1.0)
    values, vectors = jnp.linalg.eigh(omega.T @ omega / len(omega))
    roots = jnp.sqrt(jnp.maximum(values, SMALLEST * values.max()))

    def changed(part: slice, matrix: jax.Array) -> MLP:
        last = network.layers[-1]
        parts = (last.kernel[:, part] @ matrix, last.bias[part] @ matrix)
        return eqx.tree_at(lambda mlp: (mlp.layers[-1].kernel, mlp.layers[-1].bias), network, parts)

    root, inverse = (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T
    return changed(slice(0, size), root / scale), changed(slice(size, None), inverse)


ENTERED, LED = 4, 128
"""Teleports of a batch, and outcomes of each: the mean over few of them would still believe in luck."""
FEWEST = 10
"""Fewer jumps may be a log that was put together wrongly."""
JUMP_KEY = 40009
"""Folded into the key of a batch, which then has the same states with and without teleports."""


def outcomes(data: Trajectories, scaling: Scaling | None) -> Outcomes:
    """The data's teleports, each with the `LED` nearest ones of the same entrance, repeated where there are fewer."""
    rows, columns = data.jumps, list(data.position_columns)
    before, after = (data.observations[rows + step] for step in (0, 1))
    positions = data.observations[:, columns].astype(np.float64) / data.scale[columns]
    usual = float(np.quantile(np.linalg.norm(np.diff(positions, axis=0), axis=1), 0.9))
    entrances = positions[rows]
    labels = same_entrance(entrances, 3.0 * usual)  # what a few steps join is one entrance
    alike = np.empty((len(rows), LED), np.int64)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        near = cKDTree(entrances[own]).query(entrances[own], k=np.arange(1, 1 + min(LED, len(own))))[1]
        alike[own] = own[near[:, np.arange(LED) % near.shape[1]]]
    if scaling is not None:
        before, after = scaling(before), scaling(after)
    return Outcomes(jnp.asarray(before), jnp.asarray(after), jnp.asarray(alike))


SMALLEST = 1e-6
"""Directions that landmarks hardly have are not stretched beyond this share of the largest second moment."""


class Batch(NamedTuple):
    """Rows [x; x'; u; g] and H(u); states that teleports were entered from (n, o), and where they led (n, k, o)."""

    rows: jax.Array
    steps: jax.Array
    entered: jax.Array | None = None
    left: jax.Array | None = None


class Networks(NamedTuple):
    network: MLP
    log_multiplier: jax.Array
