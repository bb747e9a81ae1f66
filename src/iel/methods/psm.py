"""Proto successor measures (PSM), top to bottom: settings, codes, batches, the losses, the model.

paper              here                    what it is
phi                basis                   y -> R^d, length sqrt(d): learned from random policies, then frozen
code               code                    16 bits that name one fixed, pseudo-random policy
psi (of a code)    proto (two heads)       (x, a, code) -> R^d: where that policy goes
psi (of a task)    forward (two heads)     (x, a, z) -> R^d: where pi(., z) goes
pi                 policy                  (x, z) -> tanh of a Gaussian

This is the practical form (successor features on the learned basis); its second phase is FB with a frozen B
(measures.py). The affine form with its linear programme per goal is not here: docs/psm.md says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from iel.data.goals import DeviceData
from iel.learner import Distances, Facts, Loss, Part, Phase, Settings, Spec, Trained, adam, total
from iel.methods.measures import MAZES, Tasked, Transitions
from iel.methods.presets import EVEN_MAP, LAPTOP, LEGGED, SMOKE
from iel.nn import MLP, ensemble, in_blocks, on_sphere
from iel.typed import Count, Share

CODE_BITS = 16
# The basis is frozen after its phase: its copies must have seen the horizon by then.
SHORT: Settings = {"basis_share": 0.5, "dimension": 50, **MAZES}


@dataclass(frozen=True, kw_only=True)
class PSM(Tasked):
    """Proto successor measures: a basis for the measures of all policies, learned from random ones, then one policy.

    Phase `basis`: a code c of 16 bits names a policy mu_c that acts at random, but always the same way in a state. With
    rows i, j of a batch, a'_i = mu_{c_i}(x'_i), primes for Polyak copies and k the heads,

        M_k,ij = psi_k(x_i, a_i, c_i)^T phi(x'_j),   M'_ij = mean_k psi'_k(x'_i, a'_i, c_i)^T phi'(x'_j)
        L = sum_k [mean_{i != j} (M_k,ij - gamma M'_ij)^2 / 2 - mean_i M_k,ii]
            + lambda [mean_{i != j} (phi_i^T phi_j)^2 - 2 mean_i ||phi_i||^2]

    Phase `train`: phi is frozen; F and the policy are learned as FB's, with B = phi. It is prompted as FB is.
    """

    name = "psm"
    facts = Facts(
        "successor measure", "successor measure", "bilinear projection", directional=True, temporal_difference=True
    )
    presets = {
        "paper": {},
        "laptop": {**LAPTOP, "steps": 28_000, **SHORT, "learning_rate": 3e-4, "cut_jumps": True, "standardise": "all"},
        "laptop-robot": {**LEGGED, "steps": 32_000, **SHORT},
        "laptop-robot-even": {
            **EVEN_MAP,
            "steps": 32_000,
            **SHORT,
            "learning_rate": 3e-4,
            "goal_columns": "position",
        },
        "smoke": {**SMOKE, "steps": 2_000, "dimension": 16, "target_rate": 0.05, "discount": 0.9},
    }

    basis_share: Share = 0.25
    """Share of the steps (without the waypoint policy's) that learn the basis; F and the policy get the rest."""
    dimension: Count = 128
    """Size d of the basis and of task vectors."""
    orthonormality: float = 0.5
    """lambda: how strongly E[phi phi^T] is held at the identity (1 in the published scaling, which is half of FB's)."""
    target_pessimism: Share = 0.0
    """Of the two heads' target measures take the mean less so much of their difference; 0.5 is the minimum."""

    def geometry(self) -> tuple[Phase, ...]:
        basis = round(self.steps * self.basis_share)
        return Phase(BasisLearner(self), basis), Phase(TaskLearner(self), self.steps - basis)

    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """F, whose product with phi of a target says how near it is."""
        return self.measure_distances(trained, trained["basis"].basis)


@dataclass(frozen=True)
class BasisLearner(Part):
    """Phase `basis`: the measures of policies that act at random."""

    method: PSM

    phase = "basis"

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return adam(self.method.learning_rate)

    def init(self, key: jax.Array, spec: Spec) -> Proto:
        method, keys = self.method, jax.random.split(key, 4)
        acting = spec.observation_size + spec.action_size
        return Proto(
            ensemble(keys[0], 2, acting + CODE_BITS, method.hidden, method.dimension),
            MLP(keys[1], spec.observation_size, method.hidden, method.dimension, lens=spec.lens("goal")),
        )

    def target_of(self, params: Proto) -> Proto:
        return params

    def sample(self, key: jax.Array, data: DeviceData, tables: None) -> Transitions:
        rows, _ = self.method.draw_rows(key, data)
        return Transitions(data.observations[rows], data.actions[rows], data.observations[rows + 1])

    def loss(self, proto: Proto, target: Proto, batch: Transitions, key: jax.Array) -> Loss:
        """The loss of codes that are drawn, one per row."""
        code = jax.random.randint(key, (self.method.batch_size,), 0, 2**CODE_BITS)
        return self.coded_loss(proto, target, code, batch)

    def coded_loss(self, proto: Proto, target: Proto, code: jax.Array, batch: Transitions) -> Loss:
        """TD of the coded policies' measures, and the basis' orthonormality loss; `code` are whole numbers (n,)."""
        next_action = code_actions(code, batch.next_state, batch.action.shape[1])
        forward, basis = (proto.forward, target.forward), (proto.basis, target.basis)
        loss = self.method.basis_loss(forward, basis, next_action, code_bits(code), batch, self.phase)
        return total(loss, phase=self.phase)


@dataclass(frozen=True)
class TaskLearner(Part):
    """Phase `train`: F and the policy of task vectors, over a frozen basis."""

    method: PSM

    def init(self, key: jax.Array, spec: Spec) -> DirectionParams:
        method, keys = self.method, jax.random.split(key, 4)
        inputs = spec.width("observation", method.dimension, spec.action_size)
        forward = ensemble(keys[2], 2, inputs, method.hidden, method.dimension)
        return DirectionParams(forward, method.task_policy(keys[3], spec))

    def target_of(self, params: DirectionParams) -> MLP:
        return params.forward

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return self.method.apart(adam(self.method.learning_rate), self.method.geometry()[1].steps)

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> jax.Array:
        return in_blocks(lambda x: on_sphere(trained["basis"].basis(x)), data.observations)

    def sample(self, key: jax.Array, data: DeviceData, tables: jax.Array) -> Batch:
        """Transitions with phi of the next and of a later state."""
        rows, ahead = self.method.draw_rows(key, data)
        moves = Transitions(data.observations[rows], data.actions[rows], data.observations[rows + 1])
        return Batch(moves, tables[rows + 1], tables[ahead] if self.method.future_share > 0 else None)

    def loss(self, direction_params: DirectionParams, target: MLP, batch: Batch, key: jax.Array) -> Loss:
        """FB's losses with B = phi, which is data here; no gradient flows between F and the policy."""
        method, moves, columns = self.method, batch.moves, (batch.points, batch.points)
        task_key, next_key, actor_key = jax.random.split(key, 3)
        tasks = method.draw_tasks(task_key, batch.points, batch.future)
        next_action = method.next_action(next_key, direction_params.policy, moves, tasks.z)
        measure, _ = method.forward_loss((direction_params.forward, target), next_action, tasks.z, columns, moves)
        actor = method.actor_loss(actor_key, direction_params.policy, direction_params.forward, tasks, moves)
        return total((measure, {"train/measure": measure}), actor)


# ---------------------------------------------------------------- codes


def code_bits(code: jax.Array) -> jax.Array:
    """(n,) -> (n, 16): the bits of a code, which are the network's input."""
    return ((code[:, None] >> jnp.arange(CODE_BITS)) & 1).astype(jnp.float32)


def code_actions(code: jax.Array, states: jax.Array, size: int) -> jax.Array:
    """mu_c(x): uniform in [-1, 1)^size over codes and states, and always the same for the same code and state.

    A counter-based generator: the bits of the state, the code and the number of the action are mixed.
    """
    bits = jax.lax.bitcast_convert_type(states.astype(jnp.float32) + 0.0, jnp.uint32)  # -0 is 0
    columns = jnp.arange(bits.shape[1], dtype=jnp.uint32)
    slot = mixed(bits + mixed(columns + 1)).sum(1, dtype=jnp.uint32)
    actions = mixed(jnp.arange(size, dtype=jnp.uint32) + 0x5BD1E995)
    drawn = mixed(mixed(slot + code.astype(jnp.uint32))[:, None] + actions)
    return (drawn >> 8).astype(jnp.float32) * 2.0**-23 - 1.0


def mixed(x: jax.Array) -> jax.Array:
    """A one-to-one map of 32 bits onto themselves in which every bit of x moves about half of the result's."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


class Proto(NamedTuple):
    """psi of codes, and the basis phi."""

    forward: MLP
    basis: MLP


class DirectionParams(NamedTuple):
    """F and pi of task vectors."""

    forward: MLP
    policy: MLP


class Batch(NamedTuple):
    """Transitions, phi of the next states, and phi of later ones."""

    moves: Transitions
    points: jax.Array
    future: jax.Array | None = None
