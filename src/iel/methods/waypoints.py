"""Steer any method by waypoints: one cloned policy for every geometry.

Distances between states and the policy that acts are two things. This is a policy that needs nothing of the distances:
it is told the way to the next waypoint, in the columns p that tell the place, and does not see where it is (`skills`).
It clones what the data did on the way it went,

    L = -E[log pi(a | x without p(x), unit(p(x_{t+k}) - p(x_t)))],     1 <= k <= `future_steps`

in a phase of its own, *before* the method's own phases. Batch t follows from the seed and t, so with the same data,
seed, widths and length of that phase every method ends up with the same policy, bit for bit: what is then compared is
the geometry alone.

A method takes part by being `class NAME(Steerable, Method)`, whose state has a field `walker`:

    init      State(..., walker=self.new_walker(key, spec))
    phases, tables, place_of    those of Steerable: `policy` if there is a walker, then `train`
    sample    if phase == "policy": return self.draw_walk(key, data, tables)
    update    if phase == "policy": return self.walk(state, batch, key)
    model     policy, steering = self.steered(own policy, state.walker, spec)

and by leaving out what only its own policy needs where `steering` is `waypoint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import optax

from iel.data.goals import DeviceData
from iel.data.slowness import place_columns
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError
from iel.methods.contract import JOINTS, Metrics, Phase, Spec, require_fraction, require_positive
from iel.methods.skills import (
    SkillBatch,
    Skills,
    SkillSettings,
    checked_place,
    draw_skill_batch,
    new_skills,
    policy_optimiser,
    shipped_policy,
    skill_loss,
    skill_shape,
    skill_steering,
)
from iel.model import GoalState, Network, Steering
from iel.nn import GaussianPolicy, TanhGaussianPolicy, descend, frozen_policy

CLONING = SkillSettings(0.99, 0.9, 1.0, future_share=1.0, learner="cloning")
"""Every direction is one the trajectory took; the first three numbers are for IQL and play no part."""
WAYPOINTS: dict[str, Any] = {"steps": 48_000, **JOINTS, "steering": "waypoint"}
"""Of the presets `laptop-body-waypoints`: the walker is trained as that of IEL's and HILP's `laptop-body`."""
WALKER_KEY = 20011
"""Folded into the key of `init`: the walker's weights follow from the seed alone."""


class Walker(NamedTuple):
    """The cloned policy and its moments."""

    skills: Skills
    moments: optax.OptState


@dataclass(frozen=True, kw_only=True)
class Steerable:
    """Settings and parts of a method that can also be steered by waypoints; see the head of this file."""

    steering: Literal["goal", "waypoint"] = "goal"
    """`goal`: the method's own policy, told the target's state; `waypoint`: a cloned one, told the way in the place
    columns, the same for every method."""
    place: tuple[int, ...] = ()
    """Columns that tell the place, for steering by waypoints; by default those that `iel data info` names."""
    policy_share: float = 0.5
    """Share of the steps that the waypoint policy gets, first; the rest is for the distances."""
    future_steps: int = 20
    """How many steps ahead the waypoint policy's directions look while it is trained."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        require_positive(self, "future_steps")
        require_fraction(self, "policy_share")
        if self.place and not self.walks:
            raise ConfigError("place is for steering by waypoints; leave it out, or choose steering waypoint.")

    @property
    def walks(self) -> bool:
        """Whether there is a waypoint policy."""
        return self.steering == "waypoint"

    @property
    def waypoint_steps(self) -> int:
        """As far as its directions look."""
        return self.future_steps

    def place_of(self, data: Trajectories) -> tuple[int, ...]:
        """The place columns given, or those that are clearly slower than all others."""
        return (checked_place(self.place, data) or tuple(place_columns(data))) if self.walks else ()

    def phases(self: Any) -> tuple[Phase, ...]:
        """`train`, and before it `policy` if there is a waypoint policy."""
        policy = round(self.steps * self.policy_share) if self.walks else 0
        own = Phase("train", self.steps - policy)
        return (Phase("policy", policy), own) if self.walks else (own,)

    def _walker_optimiser(self: Any) -> optax.GradientTransformation:
        return policy_optimiser(self.learning_rate, self.phases()[0].steps, decay=True)

    def new_walker(self: Any, key: jax.Array, spec: Spec) -> Walker | None:
        """A fresh waypoint policy, if there is to be one."""
        if not self.walks:
            return None
        keys = jax.random.split(jax.random.fold_in(key, WALKER_KEY), 3)
        shape = *skill_shape(spec, 0), spec.action_size, self.policy_widths
        skills = new_skills(keys, *shape, policy_norm=True, learner="cloning")
        return Walker(skills, self._walker_optimiser().init(skills))

    def tables(self, phase: str, state: Any, data: DeviceData) -> jax.Array | None:
        """The place of every state, in phase `policy`."""
        return data.observations[:, data.place] if phase == "policy" else None

    def draw_walk(self: Any, key: jax.Array, data: DeviceData, place: jax.Array | None) -> SkillBatch:
        """A batch of phase `policy`."""
        assert place is not None
        return draw_skill_batch(key, data, place, self.batch_size, self.future_steps)

    def walk(self: Any, state: Any, batch: SkillBatch, key: jax.Array) -> tuple[Any, Metrics]:
        """One step of phase `policy`: all but `state.walker` is returned untouched."""
        loss = lambda skills, batch: skill_loss(skills, None, batch, key, CLONING)  # noqa: E731
        skills, moments, metrics = descend(self._walker_optimiser(), loss, *state.walker, batch)
        return state._replace(walker=Walker(skills, moments)), metrics

    def steered(
        self, own: GaussianPolicy | TanhGaussianPolicy | None, walker: Walker | None, spec: Spec
    ) -> tuple[Network, Steering]:
        """The policy to ship and what it is told: the walker where there is one, else the method's own."""
        if walker is not None:
            return shipped_policy(walker.skills.policy, "waypoint"), skill_steering(spec, "waypoint")
        assert own is not None
        return frozen_policy(own, "observation", "command"), GoalState()
