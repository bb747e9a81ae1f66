"""Goals, regions and rewards as they are typed.

1.5 2.0              an observation
x=8.5 y=2.0          columns of it, by name or number (0=8.5): any state of the data that matches
0=4:8,1=2:6          a region: column 0 from 4 to 8 and column 1 from 2 to 6 (without a number, an end is open)
0=4:8,1=2:6@1        a region and the reward of each step in it
8.5,2.0@-1           an observation and its weight
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from iel.errors import ConfigError, DataError
from iel.signals import UNNAMED, Signals

ColumnRegion: TypeAlias = dict[int, float | tuple[float, float]]
"""Column -> its value, or its range."""
Rewards: TypeAlias = np.ndarray | Callable[[np.ndarray], np.ndarray]


def parse_goal(words: Sequence[str], signals: Signals = UNNAMED) -> np.ndarray | ColumnRegion:
    """An observation, or a dictionary of columns where words have the form COLUMN=VALUE."""
    if any("=" in word for word in words):
        return parse_region(",".join(words), signals)
    return np.array([_number(word, " ".join(words)) for word in words], np.float32)


def parse_region(text: str, signals: Signals = UNNAMED, ranges: bool = False) -> ColumnRegion:
    """`0=4:8,1=2` as {0: (4.0, 8.0), 1: 2.0}; with `ranges`, single values are refused."""
    found: ColumnRegion = {}
    for part in text.split(","):
        column, sign, wanted = part.partition("=")
        if not sign or not column.strip():
            raise ConfigError(f"'{part}' gives no value for a column; write it like 0=8.5 or 0=4:8.")
        low, colon, high = wanted.partition(":")
        if ranges and not colon:
            raise ConfigError(f"'{part}' is a single value, but a region needs ranges; write it like 0=4:8.")
        ends = (_number(low, text) if low else -math.inf, _number(high, text) if high else math.inf)
        found[signals.column(column.strip())] = ends if colon else _number(low, text)
    return found


def parse_regions(texts: Sequence[str], signals: Signals = UNNAMED) -> list[ColumnRegion]:
    """Several regions."""
    return [parse_region(text, signals, ranges=True) for text in texts]


def parse_weighted(texts: Sequence[str]) -> tuple[np.ndarray, list[float]]:
    """Observations and their weights from words like 8.5,2.0@-1."""
    parts = [_weighted(text) for text in texts]
    states = [[_number(value, state) for value in state.split(",")] for state, _ in parts]
    if len({len(state) for state in states}) != 1:
        raise ConfigError("Weighted goals must all have as many numbers as an observation, as in 8.5,2.0@1.")
    return np.array(states, np.float32), [weight for _, weight in parts]


def parse_reward(texts: Sequence[str], signals: Signals = UNNAMED) -> Rewards:
    """A function of observations from regions and their rewards, or the array `rewards` of one npz file."""
    from iel.data.npz import read_npz
    from iel.planning.goals import inside

    if len(texts) == 1 and "@" not in texts[0]:
        arrays = read_npz(Path(texts[0]), ["rewards"])
        if "rewards" not in arrays:
            raise DataError(
                f"{texts[0]} holds no array 'rewards'; save one number per state of the data under this name."
            )
        return arrays["rewards"]
    parts = [(parse_region(region, signals, ranges=True), reward) for region, reward in map(_weighted, texts)]
    return lambda rows: sum((reward * inside(region, rows) for region, reward in parts), np.zeros(len(rows)))


def _weighted(text: str) -> tuple[str, float]:
    """What stands before the @, and the number after it."""
    what, sign, weight = text.rpartition("@")
    if not sign:
        raise ConfigError(f"'{text}' has no weight; write it like 0=4:8,1=2:6@1.")
    return what, _number(weight, text)


def _number(text: str, whole: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    where = "" if text == whole else f" in '{whole}'"
    raise ConfigError(f"'{text}'{where} is neither a finite number nor COLUMN=VALUE, such as x=8.5.")
