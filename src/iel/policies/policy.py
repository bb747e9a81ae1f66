"""What a policy is: settings, a learner, and what it exports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from iel.data.scaling import Scaling
from iel.data.trajectories import Trajectories
from iel.learner import Learner, Params, Spec
from iel.model import Network, Steering
from iel.typed import Amount, Count, Index, check_settings

if TYPE_CHECKING:
    from iel.methods.method import Method


class Controls(NamedTuple):
    """What acts: the network `policy` (and others it needs), and how a planner's target conditions it."""

    networks: dict[str, Network]
    steering: Steering


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A policy that is trained in a phase of its own."""

    kind: ClassVar[str]
    first: ClassVar[bool] = False
    """Whether it needs nothing of the geometry and is trained before it: then its bits do not depend on it."""

    steps: Index = 0
    """Gradient steps of the policy (0: as many as the geometry's)."""
    learning_rate: Amount = 0.0
    """Adam's step size (0: the geometry's)."""
    decay: bool = False
    """Let the step size follow half a cosine down to 0."""
    heads: Count = 1
    """Policies cloned side by side, whose mean acts."""

    def __post_init__(self) -> None:
        check_settings(self)

    def position(self, data: Trajectories, scaling: Scaling | None) -> tuple[tuple[int, ...], float]:
        """Position columns of the data and the mean distance of a waypoint, if the policy needs them."""
        return (), 0.0

    @abstractmethod
    def learner(self, method: Method) -> Learner:
        """What trains it on top of a method's geometry."""

    @abstractmethod
    def controls(self, params: Params, spec: Spec) -> Controls:
        """What is exported of its learner's networks."""
