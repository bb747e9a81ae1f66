"""The frozen model that is shipped: an embedding, a direction for every goal, and a policy over latent directions.

    phi = embed(x)          omega_g = task(g)          a = act(x, z)

It is a directory with `config.json` and `model.safetensors`; numpy goes in, numpy comes out, and no training code is
needed. `distance` is the learned (discounted) cost, `hitting_time` the number of steps it stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel import distances
from iel.errors import ConfigError, RunError
from iel.nn import MLP, GaussianPolicy, unit
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


class Networks(NamedTuple):
    """Head 0 of the embedding, the task identifier and the policy."""

    embedding: MLP
    task: MLP
    policy: GaussianPolicy


class Model:
    """A frozen, goal-reaching model."""

    def __init__(self, config: ModelConfig, networks: Networks):
        self.config, self.networks = config, networks

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
        (directory / "config.json").write_text(json.dumps({"format": FORMAT, **asdict(self.config)}, indent=2) + "\n")

    # ---------------------------------------------------------------- compiled networks

    @cached_property
    def _embed(self) -> Callable:
        return jax.jit(self.networks.embedding.__call__)

    @cached_property
    def _task(self) -> Callable:
        network = self.networks.task
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


def empty_networks(config: ModelConfig) -> Networks:
    """Networks of the right shapes, for loading."""

    def build(key: jax.Array) -> Networks:
        size, dimension, hidden = config.observation_size, config.dimension, config.hidden
        return Networks(
            MLP(key, size, hidden, dimension),
            MLP(key, size, hidden, dimension),
            GaussianPolicy(key, size + dimension, hidden, config.action_size),
        )

    return jax.eval_shape(build, jax.random.key(0))


def load_model(directory: Path | str) -> Model:
    """Load a model directory; anything missing, damaged or of another version is refused in a sentence."""
    directory = Path(directory)
    try:
        settings: dict[str, Any] = json.loads((directory / "config.json").read_text())
    except FileNotFoundError:
        raise RunError(f"{directory} holds no model (no config.json); train first, or check the path.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise RunError(f"{directory / 'config.json'} is not JSON; the directory is damaged.") from None
    version = settings.pop("format", None) if isinstance(settings, dict) else None
    if version != FORMAT:
        raise RunError(f"{directory} has model format {version}, but this version of iel reads format {FORMAT}.")
    try:
        config = ModelConfig(**{**settings, "hidden": tuple(settings["hidden"])})
        like = empty_networks(config)
    except (TypeError, KeyError, ValueError) as error:
        raise RunError(f"{directory / 'config.json'} does not describe a model ({error}).") from None
    source = directory / "model.safetensors"
    return Model(config, fill(like, load_arrays(source), str(source)))


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
