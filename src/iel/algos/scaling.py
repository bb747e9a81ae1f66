"""Train on standardised observations, ship networks that take raw ones.

With m and s the mean and spread of every observation column, training sees x~ = (x - m) / s. The first layer of a
trained network takes the change back, so that a model, its file and whoever runs it know nothing of it:

    x~ W + b = x W' + b',     W' = W / s (row by row),     b' = b - (m / s) W
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from iel.algos.model import GoalNetworks, Model
from iel.data.trajectories import Trajectories


class Scaling(NamedTuple):
    """Mean and spread of every observation column."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


def scaling_of(data: Trajectories) -> Scaling:
    """Mean and standard deviation of the columns; a constant column is measured by its own size.

    (It is 0 after standardising either way, but a large constant times a weight would have to cancel later.)
    """
    mean = data.observations.mean(0, dtype=np.float64)
    constant = np.ptp(data.observations, axis=0) == 0
    return Scaling(mean, np.where(constant, np.maximum(1.0, np.abs(mean)), data.scale.astype(np.float64)))


def standardised(data: Trajectories, scaling: Scaling) -> Trajectories:
    """The same trajectories with observations (x - m) / s."""
    observations = ((data.observations - scaling.mean) / scaling.spread).astype(np.float32)
    return Trajectories(observations, data.actions, data.offsets, data.name)


def for_raw_observations(model: Model, scaling: Scaling) -> Model:
    """A model trained on standardised observations, as one that takes them raw: the same function, to rounding."""
    size, networks = model.config.observation_size, model.networks
    seen: dict[str, tuple[int, ...]] = {"policy": (0, size), "value": (0, size)}  # the state, then the goal
    if not isinstance(networks, GoalNetworks):
        seen = {"embedding": (0,), "task": (0,), "policy": (0,)}
    folded = {name: _folded(getattr(networks, name), starts, scaling) for name, starts in seen.items()}
    return type(model)(model.config, networks._replace(**folded))


def _folded(network: Any, starts: tuple[int, ...], scaling: Scaling) -> Any:
    """The network with the standardisation of the observations that begin at these inputs inside its first layer."""
    if network is None:
        return None

    def first(module: Any) -> Any:
        return getattr(module, "mean", getattr(module, "network", module)).layers[0]

    kernel = np.array(first(network).kernel, np.float64)  # (..., inputs, outputs), with an axis of heads in front
    bias = np.array(first(network).bias, np.float64)
    for start in starts:
        rows = slice(start, start + len(scaling.mean))
        kernel[..., rows, :] /= scaling.spread[:, None]
        bias -= np.einsum("i,...io->...o", scaling.mean, kernel[..., rows, :])
    arrays = (jnp.asarray(kernel, jnp.float32), jnp.asarray(bias, jnp.float32))
    return eqx.tree_at(lambda module: (first(module).kernel, first(module).bias), network, arrays)
