"""Learners: one loss over one set of networks, trained step by step. What a geometry and a policy are made of.

    init(key, spec)                      -> params, the networks
    tables(trained, data, spec)          -> what earlier learners know about every state of the data, computed once
    sample(key, data, tables)            -> batch
    loss(params, target, batch, key)     -> (loss, metrics); one metric is called `PHASE/loss`

All are pure functions, and the state of training is one pytree for all (`TrainState`). The update is written once:

    params <- params - optimiser(gradient of the loss)
    target <- rate * target_of(params before) + (1 - rate) * target
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from iel.data.goals import DeviceData
from iel.nn import descend, polyak

Params = Any
Batch = Any
Tables = Any
Metrics = dict[str, jax.Array]
Trained = Mapping[str, Params]
"""The networks of all learners, by their `slot`."""


class Examples(NamedTuple):
    """Transitions of the data in random order, for what is calibrated on it: (n, observation size) each."""

    state: NDArray[np.float32]
    next_state: NDArray[np.float32]


class Spec(NamedTuple):
    """What networks need to know about the data."""

    observation_size: int
    action_size: int
    position: tuple[int, ...] = ()
    """Position columns, for a waypoint policy."""
    reach: float = 0.0
    """Mean distance of a waypoint in training, in units of the position columns."""
    examples: Examples | None = None
    """Some transitions, for methods that ask for them (`Method.examples`)."""


class TrainState(NamedTuple):
    """Everything that training one learner changes."""

    params: Params
    target: Any
    """Polyak copy of `target_of(params)`; None where there is none."""
    moments: optax.OptState


class Learner(ABC):
    """One loss; see the head of this file. Learners are frozen dataclasses of settings."""

    phase: ClassVar[str] = "train"
    """Name of its stretch of training, and prefix of its metrics."""
    slot: ClassVar[str] = ""
    """Whose state it trains; by default its own. Learners with one slot continue each other's training."""
    target_rate: float = 0.0
    """Polyak rate of the target copy."""

    @property
    @abstractmethod
    def optimiser(self) -> optax.GradientTransformation:
        """The optimiser of all its networks."""

    @abstractmethod
    def init(self, key: jax.Array, spec: Spec) -> Params:
        """Fresh networks. Every learner of a run is given the same key and takes its own part of it."""

    def target_of(self, params: Params) -> Any:
        """The part of the networks that has a target copy; None for no copy."""
        return None

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> Tables:
        """What `sample` looks up for rows of the data; networks of earlier learners are frozen by now."""
        return None

    @abstractmethod
    def sample(self, key: jax.Array, data: DeviceData, tables: Tables) -> Batch:
        """The batch of one step."""

    @abstractmethod
    def loss(self, params: Params, target: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The loss, and scalars to watch."""

    def start(self, key: jax.Array, spec: Spec) -> TrainState:
        """The state before the first step; target copies are equal to their networks."""
        params = self.init(key, spec)
        return TrainState(params, self.target_of(params), self.optimiser.init(params))

    def update(self, state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
        """One gradient step; the target follows the networks before it."""
        before, target, moments = state
        params, moments, metrics = descend(self.optimiser, self.loss, before, moments, target, batch, key)
        if target is not None:
            target = polyak(target, self.target_of(before), self.target_rate)
        return TrainState(params, target, moments), metrics


class Phase(NamedTuple):
    """A stretch of training."""

    learner: Learner
    steps: int

    @property
    def name(self) -> str:
        """Prefix of its metrics."""
        return self.learner.phase

    @property
    def slot(self) -> str:
        """Whose state it trains."""
        return self.learner.slot or self.learner.phase


def adam(learning_rate: float, decay_steps: int = 0) -> optax.GradientTransformation:
    """Adam; with `decay_steps` its step size follows half a cosine down to 0 over that many steps."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, decay_steps) if decay_steps else learning_rate)


# ---------------------------------------------------------------- constraints by dual ascent


def dual_loss(log_multiplier: jax.Array, excess: jax.Array, epsilon: float) -> jax.Array:
    """lambda (epsilon - c): downhill, lambda = exp(log_multiplier) rises while c > epsilon. c carries no gradient."""
    return jnp.exp(log_multiplier) * (epsilon - jax.lax.stop_gradient(excess))


def with_multiplier(optimiser: optax.GradientTransformation, rate: float) -> optax.GradientTransformation:
    """`optimiser` for all networks, and Adam with its own step size for the leaf `log_multiplier`."""

    def labels(params: Any) -> Any:
        return params._replace(
            **{name: "multiplier" if name == "log_multiplier" else "networks" for name in params._fields}
        )

    return optax.multi_transform({"networks": optimiser, "multiplier": adam(rate)}, labels)
