"""What a method is: a frozen configuration with a handful of pure functions.

    phases()                              -> the named phases of training and their lengths
    init(key, spec)                       -> state, one pytree with everything training changes
    tables(phase, state, data)            -> what is frozen during the phase, computed once for every state of the data
    sample(phase, key, data, tables)      -> batch
    update(phase, state, batch, key)      -> (state, metrics); one metric of a phase is called `PHASE/loss`
    model(state, spec)                    -> the frozen Model that is shipped

The training loop, checkpoints, evaluation, planners and commands work with anything that keeps this contract;
`check_algo` proves that a method does.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from iel.data.goals import DeviceData
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, unknown_name
from iel.model import Model

State = Any
Batch = Any
Tables = Any
Metrics = dict[str, jax.Array]

JOINTS: dict[str, Any] = {
    "batch_size": 256,
    "hidden": (256, 256, 256),
    "learning_rate": 1e-3,
    "standardise": True,
    "cut_jumps": True,
    "cut_rests": True,
}
"""Part of every preset `laptop-body`: columns of very different spreads, worlds that teleport, bodies that wait. With
half the width QRL does not find the maze (docs/lab-notes.md)."""


class Examples(NamedTuple):
    """Transitions of the data in random order, for what is calibrated on it: (n, observation size) each."""

    state: NDArray[np.float32]
    next_state: NDArray[np.float32]


class Spec(NamedTuple):
    """What networks need to know about the data."""

    observation_size: int
    action_size: int
    place: tuple[int, ...] = ()
    """Columns that tell the place, for methods that ask for them (`Method.place_of`)."""
    reach: float = 0.0
    """How far away the waypoints of a policy that is steered by them are in training, on average."""
    examples: Examples | None = None
    """Some transitions, for methods that ask for them (`Method.examples`)."""


class Phase(NamedTuple):
    """A stretch of training with one loss."""

    name: str
    steps: int


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The contract; see the head of this file. A method is a frozen dataclass one level below it.

    `IEL(beta=0.3)` are the paper's settings but for one; `IEL.preset("laptop", beta=0.3)` those of a preset. Editors
    and type checkers see through `dataclasses.replace(IEL.preset("laptop"), beta=0.3)` as well.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Named sets of settings; `paper` is empty, as it is the defaults."""
    examples: ClassVar[int] = 0
    """How many transitions of the data its model is calibrated on."""

    steps: int = 1_000_000
    """Gradient steps of all phases together."""
    batch_size: int = 1024
    """Transitions per step."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    hidden: tuple[int, ...] = (512, 512, 512)
    """Widths of the hidden layers of every network."""
    policy_hidden: tuple[int, ...] = ()
    """Widths of the policy's networks where they differ from `hidden` (published: they do not)."""
    standardise: bool = False
    """Train on observations with mean 0 and spread 1 in every column (published: as they are)."""

    cut_jumps: bool = False
    """Cut trajectories where they jump (teleports; see `iel data info`), so that nobody believes in a lucky exit."""
    cut_rests: bool = False
    """Leave out rests (an ant that waits at its goal; see `iel data info`) where they are most of the data, long ones
    or else short ones: they say nothing about directions."""

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch_size", "learning_rate", "hidden", "policy_hidden")

    @classmethod
    def preset(cls, name: str = "paper", **settings: Any) -> Self:
        """The settings of a preset, with what is said explicitly on top."""
        if name not in cls.presets:
            raise unknown_name("preset", name, cls.presets)
        known = [field.name for field in dataclasses.fields(cls)]
        for setting in settings:
            if setting not in known:
                raise unknown_name(f"setting of {cls.__name__}", setting, known)
        return cls(**{**cls.presets[name], **settings})

    def place_of(self, data: Trajectories) -> tuple[int, ...]:
        """The columns of the data that tell the place; none, unless a method steers by them."""
        return ()

    @property
    def policy_widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers of a policy."""
        return self.policy_hidden or self.hidden

    @property
    def waypoint_steps(self) -> int:
        """How many steps ahead a policy that is steered by places looks in training; 0 if its way is no future."""
        return 0

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam, for every network."""
        return optax.adam(self.learning_rate)

    def phases(self) -> tuple[Phase, ...]:
        """One phase, unless a method has several."""
        return (Phase("train", self.steps),)

    def tables(self, phase: str, state: State, data: DeviceData) -> Tables:
        """Nothing is frozen, unless a method says otherwise."""
        return None

    @abstractmethod
    def init(self, key: jax.Array, spec: Spec) -> State: ...

    @abstractmethod
    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: Tables) -> Batch: ...

    @abstractmethod
    def update(self, phase: str, state: State, batch: Batch, key: jax.Array) -> tuple[State, Metrics]: ...

    @abstractmethod
    def model(self, state: State, spec: Spec) -> Model: ...


def config_dict(algo: Method) -> dict[str, Any]:
    """A method's settings as JSON-safe values."""
    return json.loads(json.dumps(dataclasses.asdict(algo)))


def config_from_dict(cls: type[Method], settings: Mapping[str, Any]) -> Method:
    """The inverse of `config_dict`: lists become the tuples the configuration holds. Unknown names are refused."""
    values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in settings.items()}
    preset = values.pop("preset", "paper")  # grids name one, and early runs recorded it
    return cls.preset(preset, **values)


def require_positive(algo: Any, *names: str) -> None:
    """Refuse settings that must be positive and are not."""
    for name in names:
        values = getattr(algo, name)
        if any(not value > 0 for value in (values if isinstance(values, tuple) else (values,))):
            raise ConfigError(f"{name} must be positive, but is {values}.")


def require_fraction(algo: Any, *names: str) -> None:
    """Refuse settings that must lie strictly between 0 and 1 and do not."""
    for name in names:
        if not 0.0 < getattr(algo, name) < 1.0:
            raise ConfigError(f"{name} must lie strictly between 0 and 1, but is {getattr(algo, name)}.")


def require_share(algo: Any, *names: str) -> None:
    """Refuse settings that must lie between 0 and 1, ends included, and do not."""
    for name in names:
        if not 0.0 <= getattr(algo, name) <= 1.0:
            raise ConfigError(f"{name} is a share and must lie between 0 and 1, but is {getattr(algo, name)}.")
