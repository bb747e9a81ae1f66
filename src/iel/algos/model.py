"""The frozen model that is shipped: an embedding, a direction for every goal, and a policy over latent directions.

    phi = embed(x)          omega_g = task(g)          a = act(x, z)

It is a directory with `config.json` and `model.safetensors`; numpy goes in, numpy comes out, and no training code is
needed. `distance` is the learned (discounted) cost, `hitting_time` the number of steps it stands for. A method whose
policy takes the goal itself ships a `GoalModel`, which shows the same face.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel import distances
from iel.errors import ConfigError, RunError
from iel.loader import read_json
from iel.nn import MLP, GaussianPolicy, TanhGaussianPolicy, ensemble, scalars, unit
from iel.serial import fill, load_arrays, named_arrays, save_arrays

FORMAT = 1
BLOCK = 8192
"""Rows a network sees at once: bounds memory, and smaller inputs are padded to a power of two to bound recompiling."""

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class ModelConfig:
    """Everything needed to rebuild the networks and read their geometry."""

    algo: str
    observation_size: int
    action_size: int
    dimension: int
    hidden: tuple[int, ...]
    beta: float
    discount: float
    directed: bool = True
    """Whether there is a task identifier omega; without one beta must be 0."""
    conditioning: Literal["direction", "goal"] = "direction"
    """What the policy is told: a latent direction, or the goal itself (then the model is a `GoalModel`)."""
    value: Literal["none", "state", "action"] = "none"
    """Of a `GoalModel`: where distances come from: nowhere, V(x, g), or Q(x, g, pi(x, g))."""
    heads: int = 2
    """Of a `GoalModel`: heads of that value."""
    squashed: bool = False
    """Of a `GoalModel`: whether the policy's actions pass through tanh."""
    policy_norm: bool = False
    """Of a policy over directions: whether its hidden layers are Dense-GELU-LayerNorm rather than Dense-ReLU."""

    def settings(self) -> dict[str, Any]:
        """JSON-safe; a field that has its default is left out, so that the common model's file stays short."""
        optional = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if optional[name] != value}


class Networks(NamedTuple):
    """Head 0 of the embedding, the task identifier (if the model has one) and the policy."""

    embedding: MLP
    task: MLP | None
    policy: GaussianPolicy


class GoalNetworks(NamedTuple):
    """pi(a | x, g), and V(x, g) or Q(x, g, a) with a leading axis of heads (if there is one)."""

    policy: GaussianPolicy | TanhGaussianPolicy
    value: MLP | None


class Model:
    """A frozen, goal-reaching model."""

    def __init__(self, config: ModelConfig, networks: Any):
        self.config, self.networks = config, networks

    @property
    def has_geometry(self) -> bool:
        """Whether embeddings are points between which planners can measure and search."""
        return self.config.conditioning == "direction"

    @property
    def has_directions(self) -> bool:
        """Whether omega_g is learned; without it, `task` only keeps the planners' interface."""
        return self.has_geometry and self.config.directed

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
        return _in_blocks(self._embed, self._rows(observations, "observations"))

    def task(self, goals: ArrayLike) -> FloatArray:
        """omega_g, a unit vector: (n, observation size) -> (n, dimension)."""
        return _in_blocks(self._task, self._rows(goals, "goals"))

    def act(self, observations: ArrayLike, directions: ArrayLike) -> FloatArray:
        """The policy's mean action for latent directions z (n, dimension), within [-1, 1]: (n, action size)."""
        rows = self._rows(observations, "observations")
        directions = np.asarray(directions, np.float32)
        if directions.shape != (len(rows), self.config.dimension):
            raise ConfigError(
                f"Directions have shape {directions.shape}, but {len(rows)} observations need "
                f"({len(rows)}, {self.config.dimension})."
            )
        return _in_blocks(self._act, rows, directions)

    def distance(self, sources: ArrayLike, targets: ArrayLike, goals: ArrayLike) -> FloatArray:
        """d(s, t; g), row by row: the learned, discounted cost of going from s to t on the way to g."""
        source, target, omega = map(jnp.asarray, (self.embed(sources), self.embed(targets), self.task(goals)))
        return np.asarray(distances.directed(source, target, omega, self.beta))

    def displacement(self, observations: ArrayLike, goals: ArrayLike) -> FloatArray:
        """<phi(g) - phi(x), omega_g>, row by row: the displacement read along the goal's own direction."""
        if not self.has_directions:
            raise ConfigError(f"{self.config.algo} learns no goal directions, so there is no displacement along them.")
        source, target, omega = map(jnp.asarray, (self.embed(observations), self.embed(goals), self.task(goals)))
        return np.asarray(distances.projection(source, target, omega))

    def hitting_time(self, observations: ArrayLike, goals: ArrayLike) -> FloatArray:
        """Steps from x to g, row by row: the H whose discounted cost (1 - gamma^H) / (1 - gamma) is d(x, g; g)."""
        cost = jnp.asarray(self.distance(observations, goals, goals))
        return np.asarray(distances.undiscounted_steps(cost, self.discount))

    # ---------------------------------------------------------------- files

    def save(self, directory: Path | str) -> None:
        """Write `config.json` and `model.safetensors`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_arrays(directory / "model.safetensors", named_arrays(self.networks))
        (directory / "config.json").write_text(
            json.dumps({"format": FORMAT, **self.config.settings()}, indent=2) + "\n"
        )

    # ---------------------------------------------------------------- compiled networks

    @cached_property
    def _embed(self) -> Callable:
        return jax.jit(self.networks.embedding.__call__)

    @cached_property
    def _task(self) -> Callable:
        network = self.networks.task
        if network is None:  # beta is 0, so any unit vector gives the same costs; planners fall back on this one too
            axis = jnp.zeros(self.config.dimension).at[0].set(1.0)
            return jax.jit(lambda goals: jnp.broadcast_to(axis, (len(goals), self.config.dimension)))
        return jax.jit(lambda goals: unit(network(goals)))

    @cached_property
    def _act(self) -> Callable:
        policy = self.networks.policy
        return jax.jit(lambda x, z: jnp.clip(policy(jnp.concatenate([x, z], -1)), -1.0, 1.0))

    def _rows(self, values: ArrayLike, kind: str) -> FloatArray:
        rows = np.asarray(values, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.config.observation_size:
            raise ConfigError(
                f"The {kind} have shape {rows.shape}, but this model takes rows of "
                f"{self.config.observation_size} numbers: (n, {self.config.observation_size})."
            )
        return rows


class GoalModel(Model):
    """A model whose policy takes the goal itself: pi(a | x, g), with or without a value of (x, g).

    Such a method has no geometry: all states embed to one point, so that the only direction a planner can give is the
    goal's own, and that says which goal it is: z_g = unit((g, 1)), from which g = z[:-1] / z[-1]. The planner `direct`
    therefore hands the goal to the policy; the others have nothing to search.
    """

    def distance(self, sources: ArrayLike, targets: ArrayLike, goals: ArrayLike) -> FloatArray:
        """-V(s, t) >= 0, row by row; whatever lies beyond t (`goals`) plays no part."""
        if not self.has_distance:
            raise ConfigError(f"{self.config.algo} learns no value, so it has no distances; it can only act.")
        return _in_blocks(self._distance, self._rows(sources, "sources"), self._rows(targets, "targets"))

    @cached_property
    def _embed(self) -> Callable:
        return jax.jit(lambda x: jnp.zeros((len(x), self.config.dimension)))

    @cached_property
    def _task(self) -> Callable:
        return jax.jit(lambda goals: _unit_rows(jnp.pad(goals, ((0, 0), (0, 1)), constant_values=1.0)))

    @cached_property
    def _act(self) -> Callable:
        policy = self.networks.policy

        def act(x: jax.Array, z: jax.Array) -> jax.Array:
            scale = jnp.where(z[:, -1:] == 0.0, 1.0, z[:, -1:])
            return jnp.clip(policy(jnp.concatenate([x, z[:, :-1] / scale], -1)), -1.0, 1.0)

        return jax.jit(act)

    @cached_property
    def _distance(self) -> Callable:
        policy, value = self.networks

        def distance(x: jax.Array, g: jax.Array) -> jax.Array:
            if self.config.value == "state":
                return jnp.maximum(-scalars(value, x, g).mean(0), 0.0)
            action = jnp.clip(policy(jnp.concatenate([x, g], -1)), -1.0, 1.0)
            return jnp.maximum(-scalars(value, x, g, action).min(0), 0.0)

        return jax.jit(distance)


def goal_model_config(
    algo: str,
    spec: Any,
    hidden: tuple[int, ...],
    discount: float,
    *,
    value: Literal["none", "state", "action"] = "none",
    heads: int = 2,
    squashed: bool = False,
) -> ModelConfig:
    """The configuration of a `GoalModel`: its latent is the goal in homogeneous coordinates, without a geometry."""
    return ModelConfig(
        algo,
        spec.observation_size,
        spec.action_size,
        spec.observation_size + 1,
        hidden,
        0.0,
        discount,
        directed=False,
        conditioning="goal",
        value=value,
        heads=heads,
        squashed=squashed,
    )


def empty_networks(config: ModelConfig) -> Networks | GoalNetworks:
    """Networks of the right shapes, for loading."""
    size, actions, dimension, hidden = config.observation_size, config.action_size, config.dimension, config.hidden

    def directions(key: jax.Array) -> Networks:
        return Networks(
            MLP(key, size, hidden, dimension),
            MLP(key, size, hidden, dimension) if config.directed else None,
            GaussianPolicy(key, size + dimension, hidden, actions, layer_norm=config.policy_norm),
        )

    def goals(key: jax.Array) -> GoalNetworks:
        policy = (TanhGaussianPolicy if config.squashed else GaussianPolicy)(key, 2 * size, hidden, actions)
        if config.value == "none":
            return GoalNetworks(policy, None)
        inputs = 2 * size + (actions if config.value == "action" else 0)
        return GoalNetworks(policy, ensemble(key, config.heads, inputs, hidden, 1))

    build = directions if config.conditioning == "direction" else goals

    return jax.eval_shape(build, jax.random.key(0))


def load_model(directory: Path | str) -> Model:
    """Load a model directory; anything missing, damaged or of another version is refused in a sentence."""
    directory = Path(directory)
    if not (directory / "config.json").exists():
        raise RunError(f"{directory} holds no model (no config.json); train first, or check the path.")
    settings = read_json(directory / "config.json")
    version = settings.pop("format", None)
    if version != FORMAT:
        raise RunError(f"{directory} has model format {version}, but this version of iel reads format {FORMAT}.")
    try:
        config = ModelConfig(**{**settings, "hidden": tuple(settings["hidden"])})
        like = empty_networks(config)
    except (TypeError, KeyError, ValueError) as error:
        raise RunError(f"{directory / 'config.json'} does not describe a model ({error}).") from None
    source = directory / "model.safetensors"
    kind = Model if config.conditioning == "direction" else GoalModel
    return kind(config, fill(like, load_arrays(source), str(source)))


def _unit_rows(x: jax.Array) -> jax.Array:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def _in_blocks(function: Callable, *arrays: FloatArray) -> FloatArray:
    """Apply a compiled row-wise function, padding so that only a handful of shapes are ever compiled."""
    rows = len(arrays[0])
    if rows > BLOCK:
        parts = [_in_blocks(function, *(array[i : i + BLOCK] for array in arrays)) for i in range(0, rows, BLOCK)]
        return np.concatenate(parts)
    padded = 1 << max(rows - 1, 0).bit_length()
    result = function(
        *(np.concatenate([array, np.zeros((padded - rows, array.shape[1]), np.float32)]) for array in arrays)
    )
    return np.asarray(result)[:rows]
