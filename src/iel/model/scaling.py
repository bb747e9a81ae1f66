"""Export networks that take raw observations, though they were trained on standardised ones.

Training saw x~ = (x - m) / s. The first layer of a trained network takes the change back, so that a model, its file and
all that runs it know nothing of it:

    x~ W + b = x W' + b',     W' = W / s (row by row),     b' = b - (m / s) W
"""

from dataclasses import replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from iel.data.scaling import Scaling
from iel.model.model import GoalState, Model, Waypoint
from iel.model.networks import Network, Perceptron


def for_raw_observations(model: Model, scaling: Scaling) -> Model:
    """A model trained on standardised observations, as one that takes them raw: the same function, to rounding."""
    conditioning = model.conditioning
    if isinstance(conditioning, Waypoint):
        deviation = scaling.std[list(conditioning.columns)] * np.array(conditioning.scale)
        conditioning = structs.replace(conditioning, scale=tuple(deviation.tolist()))
    return model.replaced({name: _folded(model, own, scaling) for name, own in model.networks.items()}, conditioning)


def _folded(model: Model, network: Network, scaling: Scaling) -> Network:
    """The network with the standardisation of the observations among its inputs inside its first layer."""
    whole = np.arange(model.observation_size)
    columns = {"observation": whole, "goal": whole, "without_position": np.array(model.elsewhere, np.int64)}
    if isinstance(model.conditioning, GoalState):
        columns["command"] = whole
    widths = {**{name: len(own) for name, own in columns.items()}, "action": model.action_size}
    start = 0
    for name in network.inputs:
        if name in columns:
            network = fold_input(network, start, columns[name], scaling)
        start += widths.get(name, model.command_size)
    return network


def fold_input(network: Network, start: int, columns: NDArray[np.int64], scaling: Scaling) -> Network:
    """The network with the standardisation of some inputs, from `start` on, inside its first layer: those are these
    columns of an observation."""
    return replace(network, heads=tuple(_fold(head, start, columns, scaling) for head in network.heads))


def _fold(head: Perceptron, start: int, columns: NDArray[np.int64], scaling: Scaling) -> Perceptron:
    kernel, bias = head.kernels[0].astype(np.float64), head.biases[0].astype(np.float64)
    rows = slice(start, start + len(columns))
    kernel[rows] /= scaling.std[columns][:, None]
    bias -= scaling.mean[columns] @ kernel[rows]
    kernels, biases = (kernel.astype(np.float32), *head.kernels[1:]), (bias.astype(np.float32), *head.biases[1:])
    return replace(head, kernels=kernels, biases=biases)
