"""What a method is: a geometry with a policy. What `iel.train` takes, what files describe and what commands name.

    IEL(beta=0.3)                                     the paper's settings but for one
    IEL.preset("laptop", beta=0.3)                    those of a preset
    QRL.preset("laptop", policy=Waypoints())          another policy on the same geometry

A geometry is one or several learners (`iel.learner`) and what they export: distances, as networks and a metric. A
policy is a learner and what it exports: controls, as a network and how a planner's target conditions it. A method with
a policy of its own (`policy=None`) trains it together with its geometry, in one file.

The training loop, checkpoints, evaluation, planners and commands work with anything that keeps this contract;
`check_algo` proves that a method does.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np
import optax

from iel.data.scaling import Scaling
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, unknown_name
from iel.learner import Examples, Learner, Phase, Spec, Trained, adam
from iel.metrics import Quasimetric, SupportFunction
from iel.model import GoalState, Measure, Model, Network
from iel.nn import frozen_policy
from iel.policies import Controls, Policy, get_policy
from iel.typed import Count, Positive, check_settings

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
    """The contract; see the head of this file. A method is a frozen dataclass one level below it.

    One whose geometry is a single loss is its own learner: `class NAME(Method, Learner)`.
    """

    name: ClassVar[str]
    facts: ClassVar[Facts]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
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
    standardise: bool = False
    """Train on observations with mean 0 and standard deviation 1 in every column (published: as they are)."""
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
        known = [field.name for field in dataclasses.fields(cls)]
        for setting in settings:
            if setting not in known:
                raise unknown_name(f"setting of {cls.__name__}", setting, known)
        return cls(**{**cls.presets[name], **settings})

    @property
    def policy_widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers of a policy."""
        return self.policy_hidden or self.hidden

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam, for every network."""
        return adam(self.learning_rate)

    # ---------------------------------------------------------------- training

    def geometry(self) -> tuple[Phase, ...]:
        """The learners of the geometry, and of a policy of its own, in order."""
        assert isinstance(self, Learner), "a method that is no learner says what its learners are"
        return (Phase(self, self.steps),)

    def phases(self) -> tuple[Phase, ...]:
        """All of training. A policy that needs nothing of the geometry comes first."""
        own = self.geometry()
        if self.policy is None:
            return own
        policy = Phase(self.policy.learner(self), self.policy.steps or self.steps)
        return (policy, *own) if self.policy.first else (*own, policy)

    def spec(self, data: Trajectories, scaling: Scaling | None = None) -> Spec:
        """What networks need to know about data that will be standardised so."""
        sizes = data.observation_size, data.action_size
        examples = draw_examples(data, self.examples, scaling) if self.examples else None
        if self.policy is None:
            return Spec(*sizes, examples=examples)
        return Spec(*sizes, *self.policy.position(data, scaling), examples)

    # ---------------------------------------------------------------- what is exported

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
        distances = self.distances(trained, spec)
        policy = self.policy
        controls = self.controls(trained, spec) if policy is None else policy.controls(trained["policy"], spec)
        networks, sizes = {**distances.networks, **controls.networks}, (spec.observation_size, spec.action_size)
        unit: dict[str, Any] = {"beta": distances.beta, "discount": distances.discount, "metric": distances.metric}
        return Model(self.name, *sizes, networks, controls.steering, **unit)


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


def draw_examples(data: Trajectories, count: int, scaling: Scaling | None) -> Examples:
    """`count` transitions, or all there are, as training sees them; always the same ones."""
    rows = np.random.default_rng(0).permutation(data.transitions)[:count]
    pair = data.observations[rows], data.observations[rows + 1]
    return Examples(*(pair if scaling is None else (scaling(part) for part in pair)))


def config_dict(algo: Method) -> dict[str, Any]:
    """A method's settings as JSON-safe values; a policy is described by its `kind` and settings."""
    settings = dataclasses.asdict(algo)
    if algo.policy is not None:
        settings["policy"] = {"kind": algo.policy.kind, **settings["policy"]}
    return json.loads(json.dumps(settings))


def config_from_dict(cls: type[Method], settings: Mapping[str, Any]) -> Method:
    """The inverse of `config_dict`; a `preset` may be named, a policy by its kind alone. Unknown names are refused."""
    values = {name: _tuples(value) for name, value in settings.items()}
    if values.get("policy") is not None:
        values["policy"] = policy_from(values["policy"])
    return cls.preset(values.pop("preset", "paper"), **values)


def policy_from(given: str | Mapping[str, Any]) -> Policy | None:
    """A policy from its name (`own` is the method's own: None), or from its kind and settings."""
    if isinstance(given, str):
        return None if given == "own" else get_policy(given)()
    kind = get_policy(str(given.get("kind")))
    settings = {name: _tuples(value) for name, value in given.items() if name != "kind"}
    known = [field.name for field in dataclasses.fields(kind)]
    for setting in settings:
        if setting not in known:
            raise unknown_name(f"setting of the policy {kind.kind}", setting, known)
    return kind(**settings)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
