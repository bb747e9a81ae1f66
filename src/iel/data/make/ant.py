"""The ant's legs: a controller that walks it in any commanded direction.

The simulated ant looks the same from four sides and the floor the same from everywhere, so our controller sees no xy,
no heading and no favourite leg. It turns the world until the command points between -45 and 45 degrees of a body
axis, numbers the legs from there, and gives every ankle the same sign:

    yaw    = 2 atan2(q_z, q_w)                              heading of the torso
    k      = round((angle of command - yaw) / 90 degrees)   the quarter turn nearest to the command
    input  = [z, swing, joints, velocities, command] in the frame of angle yaw + k 90 degrees      (28 numbers)
    action = tanh(mu(input) [+ sigma(input) N(0, I)]), dealt back to the legs

What it learns for one heading therefore holds for all. `scripts/train_ant.py` trains it, docs/ant-controller.md says
how well it walks. A controller in the public layout of D4RL's own (an npz file with fc0, fc1, last_fc and
last_fc_log_std, world-frame input) can be used instead.
"""

import cmath
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.npz import read_npz
from iel.errors import DataError
from iel.loader import read_safetensors

OBSERVATIONS, ACTIONS, FEATURES = 29, 8, 28
LOG_STD_RANGE = (-5.0, 2.0)
WEIGHTS = Path(__file__).with_name("ant.safetensors")

_HEIGHT, _SPEED, _SPIN, _JOINT_SPEED = 0.5, 2.0, 3.0, 8.0
"""Typical sizes the inputs are divided by."""
_HIP_RANGE, _ANKLE_MIDDLE, _ANKLE_RANGE = np.pi / 6, 5 * np.pi / 18, np.pi / 9
_ANKLE_SIGN = np.array([1.0, -1.0, -1.0, 1.0])
"""Ankles of legs 2 and 3 bend towards negative angles; times this, every ankle lives between 30 and 70 degrees."""
_LEG_OF_MOTOR = np.array([3, 0, 1, 2])
"""The motors are listed from leg 4 on, the joints from leg 1 on."""


def _renumbered(first: int, turns: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray]:
    """(hip columns, ankle columns, ankle signs) of the legs, counted from leg `turns` on."""
    legs = (np.arange(4) + turns) % 4
    return first + 2 * legs, first + 2 * legs + 1, _ANKLE_SIGN[legs]


def _input_tables() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """For every quarter turn k: input = heading-free state[column] * gain + offset.

    The heading-free state is [z, swing (w, x, y), joints, velocity, spin, joint velocities, command], see `features`.
    A quarter turn only permutes it and changes signs: (a, b) turned by -90 degrees is (b, -a).
    """
    columns, gains = [], []
    for k in range(4):
        pair = np.array([0, 1] if k % 2 == 0 else [1, 0])
        sign = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]][k], float)
        hips, ankles, ankle_signs = _renumbered(4, k)
        rates = np.stack(_renumbered(18, k)[:2], 1).ravel()
        rate_signs = np.stack([np.ones(4), ankle_signs], 1).ravel()
        parts = [
            ([0], [1 / _HEIGHT]),
            ([1], [1.0]),
            (2 + pair, sign),
            (hips, np.ones(4) / _HIP_RANGE),
            (ankles, ankle_signs / _ANKLE_RANGE),
            (12 + pair, sign / _SPEED),
            ([14], [1 / _SPEED]),
            (15 + pair, sign / _SPIN),
            ([17], [1 / _SPIN]),
            (rates, rate_signs / _JOINT_SPEED),
            (26 + pair, sign),
        ]
        columns.append(np.concatenate([column for column, _ in parts]))
        gains.append(np.concatenate([gain for _, gain in parts]))
    return np.array(columns, np.int64), np.array(gains, np.float32)


_INPUT_COLUMN, _INPUT_GAIN = _input_tables()
_INPUT_OFFSET = np.zeros(FEATURES, np.float32)
_INPUT_OFFSET[0], _INPUT_OFFSET[8:12] = -1.0, -_ANKLE_MIDDLE / _ANKLE_RANGE
# For every quarter turn k: motor = canonical action[column] * sign.
_MOTOR_COLUMN = np.array([np.stack(_renumbered(0, -k)[:2], 1)[_LEG_OF_MOTOR].ravel() for k in range(4)])
_MOTOR_SIGN = np.stack([np.ones(4), _ANKLE_SIGN], 1)[_LEG_OF_MOTOR].ravel().astype(np.float32)


def features(observation: NDArray, direction: Iterable[float]) -> tuple[NDArray[np.float32], int]:
    """(28 network inputs, quarter turn k in 0..3) of one observation (29) and a unit direction (2).

    One at a time and with Python's own numbers: for a handful of scalars that is several times faster than arrays.
    """
    _, _, z, q_w, q_x, q_y, q_z, *joints, v_x, v_y = observation[:17].tolist()
    # Pairs as complex numbers: a rotation about z by t is a multiplication by exp(i t).
    twist = complex(q_w, q_z)
    length = abs(twist)
    half_yaw = twist / length if length > 0.0 else 1.0 + 0.0j
    back = (half_yaw * half_yaw).conjugate()
    d_x, d_y = direction
    command, velocity = back * complex(d_x, d_y), back * complex(v_x, v_y)
    # q = (rotation by yaw about z) * swing; the swing's z component is zero and its w component is |(q_w, q_z)|.
    swing = half_yaw.conjugate() * complex(q_x, q_y)
    turns = round(cmath.phase(command) / (math.pi / 2)) % 4

    pose = [z, length, swing.real, swing.imag, *joints]
    numbers = [*pose, velocity.real, velocity.imag, *observation[17:].tolist(), command.real, command.imag]
    state = np.array(numbers, np.float32)
    return state[_INPUT_COLUMN[turns]] * _INPUT_GAIN[turns] + _INPUT_OFFSET, turns


def to_motors(action: NDArray, turns: int) -> NDArray[np.float32]:
    """Commands of the canonical legs (8) as motor commands of the ant."""
    return (action[_MOTOR_COLUMN[turns]] * _MOTOR_SIGN).astype(np.float32, copy=False)


def upright(observations: ArrayLike) -> NDArray[np.float64]:
    """z component of the torso's up vector: 1 standing, 0 on its side, -1 on its back."""
    quaternion = np.asarray(observations, np.float64)[..., 3:7]
    x, y = quaternion[..., 1], quaternion[..., 2]
    return 1.0 - 2.0 * (x * x + y * y) / np.square(quaternion).sum(-1)


class TanhGaussian:
    """tanh(mu) without a generator, tanh(mu + sigma N(0, I)) with one; ReLU layers, the last gives mu and log sigma."""

    def __init__(self, arrays: Mapping[str, NDArray], names: list[tuple[str, str]], inputs: int, source: str):
        self.layers: list[tuple[NDArray, NDArray]] = []
        width = inputs
        for pair in names:
            if missing := [name for name in pair if name not in arrays]:
                raise DataError(f"{source} lacks {missing[0]}; it is not an ant controller.")
            kernel, bias = (np.ascontiguousarray(arrays[name], np.float32) for name in pair)
            if kernel.ndim != 2 or kernel.shape[0] != width or bias.shape != kernel.shape[1:]:
                raise DataError(f"{source}: {pair[0]} is {list(kernel.shape)}, which does not take {width} inputs.")
            self.layers.append((kernel, bias))
            width = kernel.shape[1]
        if width != 2 * ACTIONS:
            raise DataError(f"{source}: the last layer gives {width} numbers instead of {2 * ACTIONS}.")

    def __call__(self, inputs: NDArray[np.float32], rng: np.random.Generator | None = None) -> NDArray[np.float32]:
        (kernel, bias), *others = self.layers
        out = inputs @ kernel + bias
        for kernel, bias in others:
            out = np.maximum(out, 0.0) @ kernel + bias
        mean = out[..., :ACTIONS]
        if rng is not None:
            noise = rng.standard_normal(mean.shape, np.float32)
            mean = mean + np.exp(np.clip(out[..., ACTIONS:], *LOG_STD_RANGE)) * noise
        return np.tanh(mean)


class AntController:
    """One observation (29) and a unit direction (2) in, an action in [-1, 1] (8) out: our controller, of heading-free
    features and two hidden layers. Without a generator the action is the mean one, with a generator it is sampled.
    """

    def __init__(self, arrays: Mapping[str, NDArray], source: str = "the weights"):
        names = [(f"layers.{i}.kernel", f"layers.{i}.bias") for i in range(3)]
        self.policy = TanhGaussian(arrays, names, FEATURES, source)

    def __call__(
        self, observation: NDArray, direction: NDArray, rng: np.random.Generator | None = None
    ) -> NDArray[np.float32]:
        inputs, turns = features(observation, direction)
        return to_motors(self.policy(inputs, rng), turns)


class PublicAntController(AntController):
    """A controller in D4RL's layout: input [qpos[2:15], qvel, 10 unit(direction)] in the world's frame."""

    def __init__(self, arrays: Mapping[str, NDArray], source: str = "the weights"):
        named = {name: array.T if name.endswith(".weight") else array for name, array in arrays.items()}
        for part in ("weight", "bias"):
            heads = [named[name] for name in (f"last_fc.{part}", f"last_fc_log_std.{part}") if name in named]
            if len(heads) == 2:
                named[f"last_fc + last_fc_log_std.{part}"] = np.concatenate(heads, -1)
        layers = ("fc0", "fc1", "last_fc + last_fc_log_std")
        self.policy = TanhGaussian(named, [(f"{a}.weight", f"{a}.bias") for a in layers], OBSERVATIONS, source)

    def __call__(
        self, observation: NDArray, direction: NDArray, rng: np.random.Generator | None = None
    ) -> NDArray[np.float32]:
        return self.policy(np.concatenate([observation[2:], 10.0 * direction]).astype(np.float32), rng)


def controller_file(path: Path | None = None) -> Path:
    """The file of a controller, by default of our own."""
    path = WEIGHTS if path is None else Path(path)
    if not path.is_file():
        raise DataError(f"No ant controller at {path}; give the path of a .safetensors or .npz file.")
    return path


def load_controller(path: Path | None = None) -> AntController:
    """Our own controller, or the one in a file: .safetensors (ours) or .npz (the public layout)."""
    path = controller_file(path)
    if path.suffix == ".npz":
        return PublicAntController(read_npz(path), str(path))
    return AntController(read_safetensors(path, error=DataError), str(path))
