"""The contract of methods. A learner is one loss over one set of networks; a method is a geometry with a policy.

A learner has four pure functions, and the state of training is one pytree for all (`TrainState`):

    init(key, spec)                      -> params, the networks
    tables(trained, data, spec)          -> what earlier learners know about every state of the data, computed once
    sample(key, data, tables)            -> batch
    loss(params, target, batch, key)     -> (loss, metrics); one metric is called `PHASE/loss`

The update is written once:

    params <- params - optimiser(gradient of the loss)
    target <- rate * target_of(params before) + (1 - rate) * target

A geometry is one or several learners and what they export: `Distances`, networks and a metric. A policy is a learner
and what it exports: `Controls`, a network and how a planner's target conditions it. A method with a policy of its own
(`policy=None`) trains it together with its geometry, in one file.

    IEL(beta=0.3)                                     the paper's settings but for one
    IEL.preset("laptop", beta=0.3)                    those of a preset
    QRL.preset("laptop", policy=Waypoints())          another policy on the same geometry

The training loop, checkpoints, evaluation, planners and commands work with anything that keeps this contract;
`check_algo` proves that a method does.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from iel.data.goals import DeviceData
from iel.data.scaling import Scaling, scaling_of
from iel.data.trajectories import Trajectories
from iel.distances import Quasimetric, SupportFunction
from iel.errors import ConfigError, unknown_name
from iel.model import Conditioning, GoalState, Measure, Model, Network
from iel.nn import Lens, frozen_policy
from iel.typed import Amount, Count, Index, Positive, check_settings

Params = Any
Batch = Any
Tables = Any
Metrics = dict[str, jax.Array]
Loss = tuple[jax.Array, Metrics]
"""A loss, and scalars to watch."""
Trained = Mapping[str, Params]
"""The networks of all learners, by their `slot`."""
Settings = Mapping[str, Any]
"""Some of a method's settings, by name."""


class Examples(NamedTuple):
    """Transitions of the data in random order, for what is calibrated on it: (n, observation size) each."""

    state: NDArray[np.float32]
    next_state: NDArray[np.float32]
    later: NDArray[np.float32]
    """A state that the policy was sent to from here in training: 1 to `Policy.future_steps` steps ahead."""


class Outcomes(NamedTuple):
    """Teleports of the data: the states before and after each, (m, observation size), and for each the rows of those
    with the same entrance, (m, k)."""

    before: jax.Array
    after: jax.Array
    alike: jax.Array


class Spec(NamedTuple):
    """What networks need to know about the data."""

    observation_size: int
    action_size: int
    position: tuple[int, ...] = ()
    """Position columns, for a waypoint policy."""
    reach: float = 0.0
    """Mean distance of a waypoint in training, in units of the position columns."""
    examples: Examples | None = None
    """Some transitions, for methods and policies that need them (`examples`)."""
    columns: Scaling | None = None
    """Mean and standard deviation of the columns, as training sees them, for policies that standardise."""
    teleports: Outcomes | None = None
    """Where teleports lead, for methods that bound them in expectation."""
    policy_columns: Scaling | None = None
    """By which policies standardise the columns they see, where nothing else does."""
    goal: tuple[int, ...] = ()
    """Columns of a goal that networks see (empty: all)."""

    def width(self, *parts: str | int) -> int:
        """Size of these inputs side by side, before any column is hidden; parts are those of `lens`."""
        return sum(part if isinstance(part, int) else self.observation_size for part in parts)

    def lens(self, *parts: str | int, policy: bool = False) -> Lens | None:
        """A network's inputs, side by side: `observation`, `without_position`, `goal`, or a number of others."""
        whole = tuple(range(self.observation_size))
        others = tuple(column for column in whole if column not in self.position)
        known = {"observation": whole, "goal": whole, "without_position": others}
        scaling, chosen, start = self.policy_columns if policy else None, [], 0
        for part in parts:
            columns = known[part] if isinstance(part, str) else (-1,) * part
            hidden = set(whole).difference(self.goal) if part == "goal" and self.goal else set()
            chosen += [(start + index, column) for index, column in enumerate(columns) if column not in hidden]
            start += len(columns)
        if scaling is None and len(chosen) == start:
            return None
        scaling = scaling or Scaling(np.zeros(self.observation_size), np.ones(self.observation_size))
        mean = tuple(0.0 if column < 0 else float(scaling.mean[column]) for _, column in chosen)
        deviation = tuple(1.0 if column < 0 else float(scaling.std[column]) for _, column in chosen)
        return Lens(tuple(index for index, _ in chosen), mean, deviation)


class TrainState(NamedTuple):
    """Everything that training one learner changes."""

    params: Params
    target: Params
    """Polyak copy of `target_of(params)`; None where there is none."""
    moments: optax.OptState


# ---------------------------------------------------------------- learners


class Learner(ABC):
    """One loss; see the head of this file. Learners are frozen dataclasses of settings."""

    phase: ClassVar[str] = "train"
    """Name of its stretch of training, and prefix of its metrics."""
    slot: ClassVar[str] = ""
    """Whose state it trains; by default its own. Learners with one slot continue each other's training."""
    caps: ClassVar[Mapping[str, float]] = {}
    """Metrics that are multipliers, and the largest value of each: training prints a notice when it is reached."""
    target_rate: float = 0.0
    """Polyak rate of the target copy."""

    @property
    @abstractmethod
    def optimiser(self) -> optax.GradientTransformation:
        """The optimiser of all its networks."""

    @abstractmethod
    def init(self, key: jax.Array, spec: Spec) -> Params:
        """Fresh networks. Every learner of a run is given the same key and takes its own part of it."""

    def target_of(self, params: Params) -> Params:
        """The part of the networks that has a target copy; None for no copy."""
        return None

    def tables(self, trained: Trained, data: DeviceData, spec: Spec) -> Tables:
        """What `sample` looks up for rows of the data; networks of earlier learners are frozen by now."""
        return None

    @abstractmethod
    def sample(self, key: jax.Array, data: DeviceData, tables: Tables) -> Batch:
        """The batch of one step."""

    @abstractmethod
    def loss(self, params: Params, target: Params, batch: Batch, key: jax.Array) -> Loss:
        """The loss, and scalars to watch."""

    def start(self, key: jax.Array, spec: Spec) -> TrainState:
        """The state before the first step; target copies are equal to their networks."""
        params = self.init(key, spec)
        return TrainState(params, self.target_of(params), self.optimiser.init(params))

    def update(self, state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
        """One gradient step; the target follows the networks before it."""
        params, target, moments = state
        gradient, metrics = jax.grad(self.loss, has_aux=True)(params, target, batch, key)
        change, moments = self.optimiser.update(gradient, moments, params)
        if target is not None:
            target = optax.incremental_update(self.target_of(params), target, self.target_rate)
        return TrainState(optax.apply_updates(params, change), target, moments), metrics


class Phase(NamedTuple):
    """A stretch of training."""

    learner: Learner
    steps: int

    @property
    def name(self) -> str:
        return self.learner.phase

    @property
    def slot(self) -> str:
        return self.learner.slot or self.learner.phase


def total(first: Loss, *others: Loss, phase: str = "train") -> Loss:
    """The sum of losses, and all their metrics."""
    loss, metrics = first
    for part, more in others:
        loss, metrics = loss + part, {**metrics, **more}
    return loss, {f"{phase}/loss": loss, **metrics}


def refuse_unknown(kind: type, settings: Settings, what: str) -> None:
    """Refuse settings that a method or a policy does not have, with the nearest name."""
    known = [field.name for field in dataclasses.fields(kind)]
    for setting in settings:
        if setting not in known:
            raise unknown_name(what, setting, known)


def adam(learning_rate: float, decay_steps: int = 0) -> optax.GradientTransformation:
    """Adam; with `decay_steps` its step size follows half a cosine down to 0 over that many steps."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, decay_steps) if decay_steps else learning_rate)


def dual_loss(log_multiplier: jax.Array, excess: jax.Array, epsilon: float) -> jax.Array:
    """lambda (epsilon - c): downhill, lambda = exp(log_multiplier) rises while c > epsilon. c carries no gradient."""
    return jnp.exp(log_multiplier) * (epsilon - jax.lax.stop_gradient(excess))


def with_parts(
    optimiser: optax.GradientTransformation, other: optax.GradientTransformation, parts: Collection[str]
) -> optax.GradientTransformation:
    """`optimiser` for all fields of a named tuple of networks but these parts, which `other` moves."""

    def labels(params: Params) -> Params:
        return params._replace(**{name: "parts" if name in parts else "networks" for name in params._fields})

    return optax.multi_transform({"networks": optimiser, "parts": other}, labels)


def with_multiplier(optimiser: optax.GradientTransformation, rate: float) -> optax.GradientTransformation:
    """`optimiser` for all networks, and Adam with its own step size for the leaf `log_multiplier`."""
    return with_parts(optimiser, adam(rate), ("log_multiplier",))


# ---------------------------------------------------------------- policies


class Controls(NamedTuple):
    """What acts: the network `policy` (and others it needs), and how a planner's target conditions it."""

    networks: dict[str, Network]
    conditioning: Conditioning


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A policy that is trained in a phase of its own (`iel.policies`)."""

    kind: ClassVar[str]
    first: ClassVar[bool] = False
    """Whether it needs nothing of the geometry and is trained before it: then its bits do not depend on it."""
    examples: ClassVar[int] = 0
    """How many transitions of the data its export is calibrated on."""

    steps: Index = 0
    """Gradient steps of the policy (0: as many as the geometry's)."""
    learning_rate: Amount = 0.0
    """Adam's step size (0: the geometry's)."""
    decay: bool = False
    """Let the step size follow half a cosine down to 0."""
    heads: Count = 1
    """Policies cloned side by side, whose mean acts."""
    future_steps: Count = 20
    """How many steps ahead on the trajectory the directions look in training."""

    def __post_init__(self) -> None:
        check_settings(self)

    def position(self, data: Trajectories, scaling: Scaling | None) -> tuple[tuple[int, ...], float]:
        """Position columns of the data and the mean distance of a waypoint, if the policy needs them."""
        return (), 0.0

    @abstractmethod
    def learner(self, method: Method) -> Learner:
        """What trains it on top of a method's geometry."""

    @abstractmethod
    def controls(self, method: Method, trained: Trained, spec: Spec) -> Controls:
        """What is exported of its learner's networks, `trained["policy"]`."""


# ---------------------------------------------------------------- methods

SPATIAL = ("direct", "rec-mid", "sym-graph", "asym-graph", "gas-graph")
"""Planners of an embedding in which Euclidean distances mean something."""


class Facts(NamedTuple):
    """A row of the paper's comparison of methods."""

    family: str
    distils: str
    distance: str
    directional: bool = False
    triangle_inequality: bool = False
    temporal_difference: bool = False
    goal_agnostic_policy: bool = False


class Distances(NamedTuple):
    """What a geometry exports: networks, and the metric they make (implied by them unless it is given)."""

    networks: dict[str, Network]
    beta: float | None = None
    discount: float | None = None
    metric: Quasimetric | SupportFunction | Measure | None = None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A geometry with a policy; see the head of this file. A method is a frozen dataclass of settings.

    One whose geometry is a single loss is its own learner: `class NAME(Method, Learner)`.
    """

    name: ClassVar[str]
    facts: ClassVar[Facts]
    presets: ClassVar[Mapping[str, Settings]]
    """Named sets of settings; `paper` is empty, as it is the defaults."""
    planners: ClassVar[tuple[str, ...]] = ("direct", "sym-graph", "asym-graph")
    """Planners that its models allow (`iel.planning.planners_for`)."""
    examples: ClassVar[int] = 0
    """How many transitions of the data its model is calibrated on."""

    steps: Count = 1_000_000
    """Gradient steps of the geometry, and of a policy that is trained with it."""
    batch_size: Count = 1024
    """Transitions per step."""
    learning_rate: Positive = 3e-4
    """Adam's step size."""
    hidden: tuple[Count, ...] = (512, 512, 512)
    """Widths of the hidden layers of every network."""
    policy_hidden: tuple[Count, ...] = ()
    """Widths of the policy's networks where they differ from `hidden` (published: they do not)."""
    policy: Policy | None = None
    """The policy, if it is not the method's own: `directions` of the embedding, or `waypoints`."""
    standardise: Literal["none", "policy", "all"] = "none"
    """Which networks see columns with mean 0 and standard deviation 1: `none` (published), only the `policy`, so that
    the geometry keeps the columns' own sizes, or `all`."""
    cut_jumps: bool = False
    """Cut trajectories where they teleport (see `iel data info`), so that a lucky exit is not treated as reachable."""
    cut_rests: bool = False
    """Remove idle segments (an ant that waits at its goal; see `iel data info`) where they are most of the data."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def preset(cls, name: str = "paper", **settings: Any) -> Self:
        """Preset settings, overridden by keyword arguments."""
        if name not in cls.presets:
            raise unknown_name("preset", name, cls.presets)
        refuse_unknown(cls, settings, f"setting of {cls.__name__}")
        return cls(**{**cls.presets[name], **settings})

    @property
    def policy_widths(self) -> tuple[int, ...]:
        return self.policy_hidden or self.hidden

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam, for every network."""
        return adam(self.learning_rate)

    def geometry(self) -> tuple[Phase, ...]:
        """The learners of the geometry, and of a policy of its own, in order."""
        assert isinstance(self, Learner), "a method that is not a learner overrides geometry()"
        return (Phase(self, self.steps),)

    def phases(self) -> tuple[Phase, ...]:
        """All of training. A policy that needs nothing of the geometry comes first."""
        own = self.geometry()
        if self.policy is None:
            return own
        policy = Phase(self.policy.learner(self), self.policy.steps or self.steps)
        return (policy, *own) if self.policy.first else (*own, policy)

    def spec(self, data: Trajectories, scaling: Scaling | None = None, uncut: Trajectories | None = None) -> Spec:
        """What networks need to know about data that will be standardised so; `uncut` still has its teleports."""
        policy_columns = scaling_of(data) if self.standardise == "policy" else None
        position = ((), 0.0) if self.policy is None else self.policy.position(data, scaling or policy_columns)
        shape, seen = (data.observation_size, data.action_size, *position), self.seen_of_goals(data)
        count = max(self.examples, 0 if self.policy is None else self.policy.examples)
        if not count:
            return Spec(*shape, policy_columns=policy_columns, goal=seen)
        generator = np.random.default_rng(0)  # always the same ones
        rows = generator.permutation(data.transitions)[:count]
        ahead = generator.integers(1, 1 + (1 if self.policy is None else self.policy.future_steps), len(rows))
        last = data.offsets[np.searchsorted(data.offsets, rows, side="right")] - 1
        states = (data.observations[chosen] for chosen in (rows, rows + 1, np.minimum(rows + ahead, last)))
        examples = Examples(*(part if scaling is None else scaling(part) for part in states))
        columns = scaling_of(data)
        if scaling is not None:
            columns = Scaling((columns.mean - scaling.mean) / scaling.std, columns.std / scaling.std)
        return Spec(*shape, examples, columns, policy_columns=policy_columns, goal=seen)

    def seen_of_goals(self, data: Trajectories) -> tuple[int, ...]:
        """Columns of a goal that networks see; empty: all."""
        return ()

    # What is exported.

    @property
    def dimension(self) -> int:
        """Size of the embedding; 0 where there is none."""
        return 0

    def embedding(self, trained: Trained, spec: Spec) -> Callable[[jax.Array], jax.Array]:
        """phi, in the coordinates that are exported."""
        raise ConfigError(f"{self.name} learns no embedding to take directions of; choose the policy waypoints.")

    @abstractmethod
    def distances(self, trained: Trained, spec: Spec) -> Distances:
        """What planners need; no networks where a method has no distances."""

    def controls(self, trained: Trained, spec: Spec) -> Controls:
        """The method's own policy: by default the network `policy` of its learner, conditioned on a target's state."""
        return Controls({"policy": frozen_policy(trained["train"].policy, "observation", "command")}, GoalState())

    def model(self, trained: Trained, spec: Spec) -> Model:
        """The distances and the policy, frozen."""
        networks, beta, discount, metric = self.distances(trained, spec)
        policy = self.policy
        controls = self.controls(trained, spec) if policy is None else policy.controls(self, trained, spec)
        networks, sizes = {**networks, **controls.networks}, (spec.observation_size, spec.action_size)
        return Model(self.name, *sizes, networks, controls.conditioning, beta=beta, discount=discount, metric=metric)


@dataclass(frozen=True)
class Part(Learner):
    """A learner that is one of several of a method; its settings are the method's."""

    method: Any

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return self.method.optimiser

    @property
    def target_rate(self) -> float:  # type: ignore[override]
        return self.method.target_rate
