"""Networks in numpy, for every machine that only runs a trained model.

    hidden layer with norm       y = LayerNorm(gelu(x W + b))
    hidden layer without         y = max(x W + b, 0), or y = gelu(x W + b) where its description says so
    gelu(x)                      x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
    LayerNorm(x)                 (x - mean) / sqrt(variance + 1e-6) * scale + offset

Everything is float32, as in training. Intermediate arrays are a few kilobytes and come from numpy's own cache, so
nothing is stored between calls and one network may be used from several threads.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.errors import GeometryError

FloatArray = NDArray[np.float32]

BLOCK = 1024
"""Rows a network sees at once: their activations stay in the processor's cache (`iel bench runtime`)."""
LAYER_NORM_EPSILON = 1e-6
GELU_SLOPE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
UNIT_EPSILON = 1e-6
SQUARED_NORM_FLOOR = 1e-12
"""`unit` divides by sqrt(max(||x||^2, this)) + UNIT_EPSILON."""
_ONE, _HALF, _CUBIC, _SLOPE, _EPSILON = (
    np.array(number, np.float32) for number in (1.0, 0.5, GELU_CUBIC, GELU_SLOPE, LAYER_NORM_EPSILON)
)  # for one row an operation with a Python number takes more than twice as long


@dataclass(frozen=True)
class Norm:
    """Scale and offset of one LayerNorm."""

    scale: FloatArray
    offset: FloatArray


@dataclass(frozen=True)
class Perceptron:
    """Hidden layers and a linear output; with norms a hidden layer is Dense-GELU-LayerNorm, without Dense-ReLU or
    Dense-GELU."""

    kernels: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    norms: tuple[Norm, ...] = ()
    smooth: bool = False
    """GELU without norms (with norms it always is)."""

    def __call__(self, x: FloatArray) -> FloatArray:
        """(n, inputs) -> (n, outputs)."""
        x = self.hidden(x) @ self.kernels[-1]
        x += self.biases[-1]
        return x

    def hidden(self, x: FloatArray) -> FloatArray:
        """What the last layer is given, (n, inputs) -> (n, width)."""
        for index, (kernel, bias) in enumerate(zip(self.kernels[:-1], self.biases[:-1], strict=True)):
            x = x @ kernel
            x += bias
            if self.norms:
                norm = self.norms[index]
                x = normalise(gelu(x))
                x *= norm.scale
                x += norm.offset
            elif self.smooth:
                x = gelu(x)
            else:
                np.maximum(x, 0.0, out=x)
        return x

    @property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, hidden widths, outputs."""
        return (self.kernels[0].shape[0], *(kernel.shape[1] for kernel in self.kernels))


@dataclass(frozen=True)
class Network:
    """What a model's file says of one network, and its weights: one head, or several that were trained together."""

    inputs: tuple[str, ...]
    """Its inputs, side by side: `observation`, `without_position` (the observation without the position columns),
    `goal`, `command`, `action`, `representation` (what the network of that name makes of observation and goal)."""
    heads: tuple[Perceptron, ...]
    squash: bool = False
    """Of a policy: outputs are mean and log standard deviation of a Gaussian whose samples pass through tanh; or, with
    `log_std`, a mean that passes through tanh before noise is added."""
    log_std: FloatArray | None = None
    """Of a policy: learned log standard deviation of every action; None if it was fixed in training."""
    logit: bool = False
    """Of a value: it is a log-odds, and counts no steps."""

    def __call__(self, x: FloatArray) -> FloatArray:
        """The only head's answer, (n, inputs) -> (n, outputs)."""
        return self.heads[0](x)

    def mean(self, x: FloatArray) -> FloatArray:
        """The mean of all heads' answers, (n, inputs) -> (n, outputs)."""
        return self(x) if len(self.heads) == 1 else self.features(x).mean(0)

    def features(self, x: FloatArray) -> FloatArray:
        """Every head's answer, (n, inputs) -> (heads, n, outputs)."""
        return np.stack([head(x) for head in self.heads])

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.heads[0].sizes

    def describe(self) -> dict[str, Any]:
        """Its entry in config.json."""
        optional = {
            "heads": len(self.heads) if len(self.heads) > 1 else 0,
            "squash": self.squash,
            "stochastic": self.log_std is not None,
            "logit": self.logit,
            "gelu": self.heads[0].smooth and not self.has_norm,
        }
        facts = {"inputs": list(self.inputs), "sizes": list(self.sizes), "norm": self.has_norm}
        return facts | {name: value for name, value in optional.items() if value}

    @property
    def has_norm(self) -> bool:
        return bool(self.heads[0].norms)

    def arrays(self) -> dict[str, FloatArray]:
        """Named tensors; those of several heads have a leading axis."""
        each = [_named(head) for head in self.heads]
        several = len(each) > 1
        named = {name: np.stack([head[name] for head in each]) if several else each[0][name] for name in each[0]}
        return named if self.log_std is None else {**named, "log_std": self.log_std}


def _named(head: Perceptron) -> dict[str, FloatArray]:
    arrays: dict[str, FloatArray] = {}
    for index, (kernel, bias) in enumerate(zip(head.kernels, head.biases, strict=True)):
        arrays |= {f"layers.{index}.kernel": kernel, f"layers.{index}.bias": bias}
    for index, norm in enumerate(head.norms):
        arrays |= {f"norms.{index}.scale": norm.scale, f"norms.{index}.offset": norm.offset}
    return arrays


def perceptron(arrays: Mapping[str, FloatArray], layers: int, norm: bool, smooth: bool = False) -> Perceptron:
    """The inverse of `Network.arrays` for one head; its caller has checked the arrays."""
    return Perceptron(
        tuple(arrays[f"layers.{i}.kernel"] for i in range(layers)),
        tuple(arrays[f"layers.{i}.bias"] for i in range(layers)),
        tuple(Norm(arrays[f"norms.{i}.scale"], arrays[f"norms.{i}.offset"]) for i in range(layers - 1 if norm else 0)),
        smooth or norm,
    )


def gelu(x: FloatArray) -> FloatArray:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    inner = x * x
    inner *= _CUBIC
    inner += _ONE
    inner *= x
    inner *= _SLOPE
    np.tanh(inner, out=inner)
    inner += _ONE
    inner *= x
    inner *= _HALF
    return inner


def normalise(x: FloatArray) -> FloatArray:
    """(x - mean) / sqrt(variance + 1e-6) over the last axis."""
    centred = x - _mean(x)
    variance = _mean(np.square(centred))
    variance += _EPSILON
    centred /= np.sqrt(variance, out=variance)
    return centred


def _mean(x: FloatArray) -> FloatArray:
    """`x.mean(-1, keepdims=True)`, which takes three times as long for one row."""
    total = np.add.reduce(x, axis=-1, keepdims=True)
    total /= x.shape[-1]
    return total


def unit(x: FloatArray) -> FloatArray:
    """x / (sqrt(max(||x||^2, 1e-12)) + 1e-6) along the last axis: zero stays zero."""
    norm = np.sqrt(np.maximum(np.square(x).sum(-1, keepdims=True), SQUARED_NORM_FLOOR))
    return x / (norm + UNIT_EPSILON)


def on_sphere(x: FloatArray) -> FloatArray:
    """Rows of c numbers scaled to length sqrt(c), so that their numbers are of size one."""
    return np.sqrt(np.float32(x.shape[-1])) * unit(x)


def distinct_rows(rows: FloatArray) -> tuple[FloatArray, NDArray[np.intp]]:
    """The different rows, and for every row which of them it is."""
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    return distinct, inverse.reshape(-1)  # numpy 2.0.0 gives it a second axis


def products(first: Network, x: FloatArray, second: Network, y: FloatArray) -> FloatArray:
    """<first(x), second(y)> row by row, of every head, (heads, n).

    With first(x) = W h(x) + b it is <h(x), W^T second(y)> + <b, second(y)>, and the part of y is computed once for
    every distinct row: planners evaluate few targets many times.
    """
    distinct, which = distinct_rows(y)
    found = np.empty((len(first.heads), len(x)), np.float32)
    for row, head, other in zip(found, first.heads, second.heads, strict=True):
        features = other(distinct)
        row[:] = np.einsum("nd,nd->n", head.hidden(x), (features @ head.kernels[-1].T)[which])
        row += (features @ head.biases[-1])[which]
    return found


def softplus(x: FloatArray) -> FloatArray:
    """log(1 + e^x), which does not overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def in_blocks(function: Callable[..., FloatArray], what: str, *arrays: FloatArray) -> FloatArray:
    """Apply a row-wise function a block at a time; input so large that it overflows is refused, not passed on."""
    rows = len(arrays[0])
    if rows > BLOCK:
        return np.concatenate(
            [in_blocks(function, what, *(array[i : i + BLOCK] for array in arrays)) for i in range(0, rows, BLOCK)]
        )
    with np.errstate(over="ignore", invalid="ignore"):
        result = function(*arrays)
    if not np.isfinite(result).all():
        raise GeometryError(f"The model's {what} are not finite for this input; its numbers are absurdly large.")
    return result
