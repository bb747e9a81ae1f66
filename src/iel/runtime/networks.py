"""The networks of `iel.nn` and the geometry of `iel.distances` in numpy, for machines without JAX.

    hidden layer of an embedding or value    y = LayerNorm(gelu(x W + b))
    hidden layer of a policy                 y = max(x W + b, 0)
    gelu(x)                                  x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
    LayerNorm(x)                             (x - mean) / sqrt(variance + 1e-6) * scale + offset

Everything is float32, as in training. Arrays made on the way are a few kilobytes and come from numpy's own cache, so
nothing is kept between calls and one network may be used from several threads.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iel.errors import RunError

FloatArray = NDArray[np.float32]

LAYER_NORM_EPSILON = 1e-6
GELU_SLOPE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
UNIT_EPSILON = 1e-6
SQUARED_NORM_FLOOR = 1e-12
"""`unit` divides by sqrt(max(||x||^2, this)) + UNIT_EPSILON."""
SQUARED_LENGTH_FLOOR = 1e-6
"""A displacement is never shorter than the square root of this."""
REMAINING_FLOOR = 1e-3
"""gamma^H is never smaller than this: the longest time that `undiscounted_steps` tells apart."""


@dataclass(frozen=True)
class Norm:
    """Scale and offset of one LayerNorm."""

    scale: FloatArray
    offset: FloatArray


@dataclass(frozen=True)
class Perceptron:
    """Hidden layers and a linear output; with norms a hidden layer is Dense-GELU-LayerNorm, without Dense-ReLU."""

    kernels: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    norms: tuple[Norm, ...] = ()

    def __call__(self, x: FloatArray) -> FloatArray:
        """(n, inputs) -> (n, outputs)."""
        last = len(self.kernels) - 1
        for index, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            x = x @ kernel
            x += bias
            if index == last:
                break
            if self.norms:
                norm = self.norms[index]
                x = normalise(gelu(x))
                x *= norm.scale
                x += norm.offset
            else:
                np.maximum(x, 0.0, out=x)
        return x

    @property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, hidden widths, outputs."""
        return (self.kernels[0].shape[0], *(kernel.shape[1] for kernel in self.kernels))


def perceptron(
    arrays: MutableMapping[str, NDArray], prefix: str, sizes: Sequence[int], normed: bool, source: str
) -> Perceptron:
    """The network whose tensors are called `prefix.layers.0.kernel`, `prefix.norms.0.scale`...

    All are checked, and taken out of `arrays`: what remains there belongs to no network.
    """

    def take(name: str, shape: tuple[int, ...]) -> FloatArray:
        array = arrays.pop(name, None)
        if array is None:
            raise RunError(f"{source} lacks the tensor {name}; weights and config.json do not belong together.")
        if array.dtype != np.float32 or array.shape != shape:
            raise RunError(
                f"{source}: {name} is {array.dtype}{list(array.shape)}, but config.json asks for float32{list(shape)}; "
                "weights and config.json do not belong together."
            )
        if not np.isfinite(array).all():
            raise RunError(f"{source}: {name} holds a number that is not finite; export the run again.")
        return np.ascontiguousarray(array)

    pairs = list(pairwise(sizes))
    kernels = tuple(take(f"{prefix}.layers.{i}.kernel", pair) for i, pair in enumerate(pairs))
    biases = tuple(take(f"{prefix}.layers.{i}.bias", pair[1:]) for i, pair in enumerate(pairs))
    norms = tuple(
        Norm(take(f"{prefix}.norms.{i}.scale", pair[1:]), take(f"{prefix}.norms.{i}.offset", pair[1:]))
        for i, pair in enumerate(pairs[:-1] if normed else ())
    )
    return Perceptron(kernels, biases, norms)


def perceptrons(
    arrays: MutableMapping[str, NDArray], prefix: str, heads: int, sizes: Sequence[int], source: str
) -> tuple[Perceptron, ...]:
    """An ensemble, whose tensors have a leading axis of heads."""
    own = {name: arrays.pop(name) for name in sorted(arrays) if name.startswith(f"{prefix}.")}
    for name, array in own.items():
        if array.ndim == 0 or len(array) != heads:
            raise RunError(f"{source}: {name} has shape {list(array.shape)}, but config.json asks for {heads} heads.")
    made = []
    for number in range(heads):
        head = {name: array[number] for name, array in own.items()}
        made.append(perceptron(head, prefix, sizes, True, source))
        arrays.update(head)  # what no head has a use for
    return tuple(made)


def gelu(x: FloatArray) -> FloatArray:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    inner = x * x
    inner *= GELU_CUBIC
    inner += 1.0
    inner *= x
    inner *= GELU_SLOPE
    np.tanh(inner, out=inner)
    inner += 1.0
    inner *= x
    inner *= 0.5
    return inner


def normalise(x: FloatArray) -> FloatArray:
    """(x - mean) / sqrt(variance + 1e-6) over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    variance += LAYER_NORM_EPSILON
    centred /= np.sqrt(variance)
    return centred


def unit(x: FloatArray) -> FloatArray:
    """x / (sqrt(max(||x||^2, 1e-12)) + 1e-6) along the last axis: zero stays zero."""
    norm = np.sqrt(np.maximum(np.square(x).sum(-1, keepdims=True), SQUARED_NORM_FLOOR))
    return x / (norm + UNIT_EPSILON)


def projection(source: FloatArray, target: FloatArray, omega: FloatArray) -> FloatArray:
    """<phi(t) - phi(s), omega_g>, row by row."""
    return ((target - source) * omega).sum(-1)


def directed(source: FloatArray, target: FloatArray, omega: FloatArray, beta: float) -> FloatArray:
    """d(s, t; g) = l exp(beta (1 - <Delta, omega> / l)) with l = sqrt(max(||Delta||^2, 1e-6)), row by row."""
    length = np.sqrt(np.maximum(np.square(target - source).sum(-1), SQUARED_LENGTH_FLOOR))
    return length * np.exp(beta * (1.0 - projection(source, target, omega) / length))


def undiscounted_steps(cost: FloatArray, discount: float) -> FloatArray:
    """H = log(1 - (1 - gamma) h) / log(gamma), with 1 - (1 - gamma) h kept at or above 1e-3."""
    remaining = np.maximum(1.0 - (1.0 - discount) * cost, REMAINING_FLOOR)
    # float32 as in training: log(gamma) of a gamma near one keeps the rounding of gamma itself.
    return np.maximum(np.log(remaining) / np.log(np.float32(discount)), 0.0)
