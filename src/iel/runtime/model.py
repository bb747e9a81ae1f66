"""The frozen model in numpy: the contract of `iel.algos.model.Model`, without JAX.

phi = embed(x)          omega_g = task(g)          a = act(x, z)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from iel.errors import ConfigError, GeometryError, RunError
from iel.runtime import networks
from iel.runtime.networks import FloatArray, Perceptron

if TYPE_CHECKING:
    from iel.planning import Planner

BLOCK = 8192
"""Rows a network sees at once: bounds memory."""


@dataclass(frozen=True)
class RuntimeConfig:
    """What config.json of a model says; the fields and defaults of `iel.algos.model.ModelConfig`."""

    algo: str
    observation_size: int
    action_size: int
    dimension: int
    hidden: tuple[int, ...]
    beta: float
    discount: float
    directed: bool = True
    conditioning: str = "direction"
    value: str = "none"
    heads: int = 2
    squashed: bool = False
    policy_norm: bool = False


class Parts(NamedTuple):
    """The networks of a model; which of them there are follows from its configuration."""

    policy: Perceptron
    embedding: Perceptron | None = None
    task: Perceptron | None = None
    value: tuple[Perceptron, ...] = ()


@dataclass(frozen=True)
class Pack:
    """States a planner may use as nodes, taken along because the training data stays behind."""

    observations: FloatArray
    """(nodes, observation size)."""
    embeddings: FloatArray
    """phi of the observations as computed at export, (nodes, dimension)."""


class Runtime:
    """A frozen model that acts, measures and plans with numpy alone."""

    def __init__(self, config: RuntimeConfig, parts: Parts, pack: Pack | None = None):
        self.config, self.parts, self.pack = config, parts, pack

    @property
    def has_geometry(self) -> bool:
        """Whether embeddings are points between which planners can measure and search."""
        return self.config.conditioning == "direction"

    @property
    def has_distance(self) -> bool:
        """Whether `distance` and `hitting_time` can be asked."""
        return self.has_geometry or self.config.value != "none"

    @property
    def beta(self) -> float:
        """Strength of the directional term; planners read it."""
        return self.config.beta

    @property
    def discount(self) -> float:
        """gamma, which relates `distance` to `hitting_time`."""
        return self.config.discount

    def embed(self, observations: ArrayLike) -> FloatArray:
        """phi(x): (n, observation size) -> (n, dimension)."""
        return _in_blocks(self._embed, "embeddings", self._rows(observations, "observations"))

    def task(self, goals: ArrayLike) -> FloatArray:
        """omega_g, a unit vector: (n, observation size) -> (n, dimension)."""
        return _in_blocks(self._task, "goal directions", self._rows(goals, "goals"))

    def act(self, observations: ArrayLike, directions: ArrayLike) -> FloatArray:
        """The policy's mean action for latent directions z (n, dimension), within [-1, 1]: (n, action size)."""
        rows = self._rows(observations, "observations")
        latent = np.asarray(directions, np.float32)
        if latent.shape != (len(rows), self.config.dimension):
            raise ConfigError(
                f"Directions have shape {latent.shape}, but {len(rows)} observations need "
                f"({len(rows)}, {self.config.dimension})."
            )
        if not np.isfinite(latent).all():
            raise GeometryError("The directions hold a number that is not finite; act needs finite directions.")
        return _in_blocks(self._act, "actions", rows, latent)

    def distance(self, sources: ArrayLike, targets: ArrayLike, goals: ArrayLike) -> FloatArray:
        """d(s, t; g), row by row: the learned, discounted cost of going from s to t on the way to g."""
        return networks.directed(self.embed(sources), self.embed(targets), self.task(goals), self.beta)

    def displacement(self, observations: ArrayLike, goals: ArrayLike) -> FloatArray:
        """<phi(g) - phi(x), omega_g>, row by row: the displacement read along the goal's own direction."""
        if self.parts.task is None:
            raise ConfigError(f"{self.config.algo} learns no goal directions, so there is no displacement along them.")
        return networks.projection(self.embed(observations), self.embed(goals), self.task(goals))

    def hitting_time(self, observations: ArrayLike, goals: ArrayLike) -> FloatArray:
        """Steps from x to g, row by row: the H whose discounted cost (1 - gamma^H) / (1 - gamma) is d(x, g; g)."""
        return networks.undiscounted_steps(self.distance(observations, goals, goals), self.discount)

    def planner(self, name: str = "asym-graph", **settings: Any) -> Planner:
        """A planner of `iel.planning` over the states that were exported with the model; `direct` needs none."""
        from iel.planning import make_planner  # acting needs no scipy, planning does

        if name == "direct":
            size, dimension = self.config.observation_size, self.config.dimension
            return make_planner(name, self, Pack(np.zeros((1, size), np.float32), np.zeros((1, dimension), np.float32)))
        if self.pack is None:
            raise RunError(
                "This model was exported without planning states; export it with --nodes 2048, or give make_planner "
                "observations of your own."
            )
        if name.endswith("graph"):
            settings = {"coreset": "all", **settings}
        return make_planner(name, self, self.pack, **settings)

    def _embed(self, rows: FloatArray) -> FloatArray:
        assert self.parts.embedding is not None
        return self.parts.embedding(rows)

    def _task(self, rows: FloatArray) -> FloatArray:
        if self.parts.task is not None:
            return networks.unit(self.parts.task(rows))
        # beta is 0, so any unit vector gives the same costs
        axis = np.zeros((len(rows), self.config.dimension), np.float32)
        axis[:, 0] = 1.0
        return axis

    def _act(self, rows: FloatArray, latent: FloatArray) -> FloatArray:
        return self._mean_action(np.concatenate([rows, latent], axis=1))

    def _mean_action(self, inputs: FloatArray) -> FloatArray:
        action = self.parts.policy(inputs)
        if self.config.squashed:
            action = np.tanh(action[:, : self.config.action_size])
        return np.clip(action, -1.0, 1.0, out=action)

    def _rows(self, values: ArrayLike, kind: str) -> FloatArray:
        rows = np.asarray(values, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.config.observation_size:
            raise ConfigError(
                f"The {kind} have shape {rows.shape}, but this model takes rows of "
                f"{self.config.observation_size} numbers: (n, {self.config.observation_size})."
            )
        # A sensor that says NaN must stop here, not at the motors.
        if not np.isfinite(rows).all():
            row = int(np.argmin(np.isfinite(rows).all(axis=1)))
            raise GeometryError(f"The {kind} hold a number that is not finite in row {row}; mend the input.")
        return rows


class GoalRuntime(Runtime):
    """The numpy form of `GoalModel`: the policy takes the goal itself, carried by its direction z_g = unit((g, 1))."""

    def distance(self, sources: ArrayLike, targets: ArrayLike, goals: ArrayLike) -> FloatArray:
        """-V(s, t) >= 0, row by row; whatever lies beyond t (`goals`) plays no part."""
        if not self.has_distance:
            raise ConfigError(f"{self.config.algo} learns no value, so it has no distances; it can only act.")
        return _in_blocks(self._distance, "distances", self._rows(sources, "sources"), self._rows(targets, "targets"))

    def _distance(self, rows: FloatArray, goals: FloatArray) -> FloatArray:
        inputs = np.concatenate([rows, goals], axis=1)
        by_action = self.config.value == "action"
        if by_action:
            inputs = np.concatenate([inputs, self._mean_action(inputs)], axis=1)
        values = np.stack([head(inputs)[:, 0] for head in self.parts.value])
        return np.maximum(-(values.min(0) if by_action else values.mean(0)), 0.0)

    def _embed(self, rows: FloatArray) -> FloatArray:
        return np.zeros((len(rows), self.config.dimension), np.float32)

    def _task(self, rows: FloatArray) -> FloatArray:
        latent = np.concatenate([rows, np.ones((len(rows), 1), np.float32)], axis=1)
        return latent / np.sqrt(np.square(latent).sum(-1, keepdims=True))

    def _act(self, rows: FloatArray, latent: FloatArray) -> FloatArray:
        scale = np.where(latent[:, -1:] == 0.0, np.float32(1.0), latent[:, -1:])
        return self._mean_action(np.concatenate([rows, latent[:, :-1] / scale], axis=1))


def _in_blocks(function: Callable[..., FloatArray], what: str, *arrays: FloatArray) -> FloatArray:
    """Apply a row-wise function a block at a time; input so large that it overflows is refused, not passed on."""
    rows = len(arrays[0])
    if rows > BLOCK:
        return np.concatenate(
            [_in_blocks(function, what, *(array[i : i + BLOCK] for array in arrays)) for i in range(0, rows, BLOCK)]
        )
    with np.errstate(over="ignore", invalid="ignore"):
        result = function(*arrays)
    if not np.isfinite(result).all():
        raise GeometryError(f"The model's {what} are not finite for this input; its numbers are absurdly large.")
    return result
