"""Train on standardised observations, ship networks that take raw ones.

With m and s the mean and spread of every observation column, training sees x~ = (x - m) / s. The first layer of a
trained network takes the change back, so that a model, its file and whoever runs it know nothing of it:

    x~ W + b = x W' + b',     W' = W / s (row by row),     b' = b - (m / s) W
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.slowness import typical_reach
from iel.data.trajectories import Trajectories
from iel.methods.contract import Examples, Method, Spec
from iel.model import GoalState, Model, Network, Perceptron, Waypoint


class Scaling(NamedTuple):
    """Mean and spread of every observation column."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


def scaling_of(data: Trajectories) -> Scaling:
    """Mean and standard deviation of the columns; a constant column is measured by its own size.

    (It is 0 after standardising either way, but a large constant times a weight would have to cancel later.)
    """
    size = np.where(data.constant, np.maximum(1.0, np.abs(data.mean)), data.scale.astype(np.float64))
    return Scaling(data.mean, size)


def spec_of(algo: Method, data: Trajectories, scaling: Scaling | None = None) -> Spec:
    """What networks need to know about data that will be standardised so."""
    place = algo.place_of(data)
    examples = draw_examples(data, algo.examples, scaling) if algo.examples else None
    if not place:
        return Spec(data.observation_size, data.action_size, examples=examples)
    spread = 1.0 if scaling is None else scaling.spread[list(place)]
    reach = typical_reach(data, list(place), algo.waypoint_steps, spread) if algo.waypoint_steps else 0.0
    return Spec(data.observation_size, data.action_size, place, reach, examples)


def draw_examples(data: Trajectories, count: int, scaling: Scaling | None) -> Examples:
    """`count` transitions, or all there are, as training sees them; always the same ones."""
    rows = np.random.default_rng(0).permutation(data.transitions)[:count]
    pair = data.observations[rows], data.observations[rows + 1]
    return Examples(*(pair if scaling is None else (scaled(part, scaling) for part in pair)))


def standardised(data: Trajectories, scaling: Scaling) -> Trajectories:
    """The same trajectories with observations (x - m) / s."""
    return Trajectories(scaled(data.observations, scaling), data.actions, data.offsets, data.name)


def scaled(observations: NDArray[np.float32], scaling: Scaling) -> NDArray[np.float32]:
    """(x - m) / s, row by row."""
    return ((observations - scaling.mean) / scaling.spread).astype(np.float32)


def for_raw_observations(model: Model, scaling: Scaling) -> Model:
    """A model trained on standardised observations, as one that takes them raw: the same function, to rounding."""
    steering = model.steering
    if isinstance(steering, Waypoint):
        spread = scaling.spread[list(steering.columns)] * np.array(steering.scale)
        steering = replace(steering, scale=tuple(spread.tolist()))
    networks = {name: _folded(model, network, scaling) for name, network in model.networks.items()}
    beta, discount = (getattr(model.metric, name, None) for name in ("beta", "discount"))
    unit: dict[str, Any] = {"beta": beta, "discount": discount, "metric": model.stated_metric}
    unit["residual"] = model.residual
    return Model(model.algo, model.observation_size, model.action_size, networks, steering, **unit, atlas=model.atlas)


def _folded(model: Model, network: Network, scaling: Scaling) -> Network:
    """The network with the standardisation of the observations among its inputs inside its first layer."""
    whole = np.arange(model.observation_size)
    columns = {"observation": whole, "goal": whole, "blind": np.array(model.elsewhere, np.int64)}
    if isinstance(model.steering, GoalState):
        columns["command"] = whole
    widths = {**{name: len(own) for name, own in columns.items()}, "action": model.action_size}
    heads, start = list(network.heads), 0
    for name in network.inputs:
        width = widths.get(name, model.command_size)
        if name in columns:
            heads = [_fold(head, start, columns[name], scaling) for head in heads]
        start += width
    return replace(network, heads=tuple(heads))


def _fold(head: Perceptron, start: int, columns: NDArray[np.int64], scaling: Scaling) -> Perceptron:
    kernel, bias = head.kernels[0].astype(np.float64), head.biases[0].astype(np.float64)
    rows = slice(start, start + len(columns))
    kernel[rows] /= scaling.spread[columns][:, None]
    bias -= scaling.mean[columns] @ kernel[rows]
    kernels, biases = (kernel.astype(np.float32), *head.kernels[1:]), (bias.astype(np.float32), *head.biases[1:])
    return replace(head, kernels=kernels, biases=biases)
