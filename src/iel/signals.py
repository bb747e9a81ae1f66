"""Names, units and ranges of a robot's columns, and its control rate.

    Signals(observations=("x", "y"), actions=("v", "w"), units={"x": "m", "v": "m/s"},
            action_low=(0.0, -1.6), action_high=(0.6, 1.6), rate=10.0)

Signals are read with the data, stored with a run's model and exported with it, so names are accepted wherever column
numbers are, and actions can be returned in the robot's own units:

    u = low + (a + 1) (high - low) / 2,      a within [-1, 1]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from iel.errors import ConfigError, IELError, unknown_name
from iel.typed import LARGEST

CONVERSION = 1
"""Version of how files become rows (docs/formats.md); another one may read the same file differently."""
RATE_TOLERANCE = 0.05
"""Largest relative difference of two control rates that count as the same."""
Units = Literal["unit", "robot"]
"""Actions within [-1, 1], or in the units of the robot."""
Kind = Literal["observation", "action"]
Value = TypeVar("Value")


class Signals(Struct, frozen=True, omit_defaults=True):
    """Names, units and ranges of the columns, in their order; what is not known is left out."""

    observations: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    units: dict[str, str] = {}
    """Free text by the name of a column."""
    action_low: tuple[float, ...] = ()
    """An action of -1 in the robot's units."""
    action_high: tuple[float, ...] = ()
    """An action of 1 in the robot's units."""
    rate: float | None = None
    """Rows per second (Hz)."""
    conversion: int = 0
    """`CONVERSION` when the data was read; 0: not known."""

    def violation(self, observation_size: int, action_size: int) -> str | None:
        """The first contradiction, within itself or with the sizes; None if there is none."""
        named = (("observation", self.observations, observation_size), ("action", self.actions, action_size))
        for kind, names, size in named:
            if names and (len(names) != size or len(set(names)) != size or not all(names)):
                return f"it must name {size} different {kind} columns, but names {', '.join(names)[:80]}"
        if strange := [name for name in self.units if name not in (*self.observations, *self.actions)]:
            return f"it has a unit for '{strange[0][:40]}', which is not one of its columns"
        low, high = self.action_low, self.action_high
        fits = len(low) == len(high) in (0, action_size)
        if not fits or not all(-math.inf < a <= b < math.inf for a, b in zip(low, high, strict=True)):
            return f"action_low and action_high must be {action_size} finite numbers each, low <= high"
        if self.rate is not None and not 0.0 < self.rate < math.inf:
            return f"the rate is {self.rate}, but must be a positive number of rows per second"
        return None

    def require(self, observation_size: int, action_size: int, source: str, error: type[IELError]) -> Signals:
        """These signals; `error` is raised where they do not fit the sizes, or contradict themselves."""
        if wrong := self.violation(observation_size, action_size):
            raise error(f"{source}: {wrong}; correct the names, units, ranges or rate.")
        return self

    def replace(self, **changes: object) -> Signals:
        """These signals with other entries."""
        return structs.replace(self, **changes)

    # ---------------------------------------------------------------- columns

    def label(self, column: int, kind: Kind | None = None) -> str:
        """The column in messages: "column 'x' (0)", or "column 0" where it has no name."""
        names = self.actions if kind == "action" else self.observations
        what = f"{kind} column" if kind else "column"
        return f"{what} '{names[column]}' ({column})" if names else f"{what} {column}"

    def axis(self, column: int) -> str:
        """The observation column in pictures: "x [m]"."""
        if not self.observations:
            return f"column {column}"
        name = self.observations[column]
        return f"{name} [{self.units[name]}]" if name in self.units else name

    def column(self, name: object, size: int = LARGEST) -> int:
        """The number of an observation column, by its name or its number."""
        if isinstance(name, str) and name in self.observations:
            return self.observations.index(name)
        if isinstance(name, str) and name.strip().isdecimal():
            name = int(name)
        if isinstance(name, int | np.integer) and not isinstance(name, bool) and 0 <= name < size:
            return int(name)
        if isinstance(name, str) and self.observations:
            raise unknown_name("observation column", name, self.observations)
        reason = "" if self.observations else "; the data was read without names, so give numbers"
        raise ConfigError(f"Column {name!r} does not exist; observations have columns 0 to {size - 1}{reason}.")

    def columns(self, wanted: Mapping[Any, Value], size: int = LARGEST) -> dict[int, Value]:
        """Values of some columns, by column number."""
        found = {self.column(name, size): value for name, value in wanted.items()}
        if len(found) != len(wanted):
            raise ConfigError(f"A column is given twice, by name and by number, among {', '.join(map(str, wanted))}.")
        return found

    # ---------------------------------------------------------------- actions

    def in_units(self, actions: NDArray[np.float32], units: Units) -> NDArray[np.float32]:
        """Actions (..., act_dim) within [-1, 1] as they are ("unit"), or u as above ("robot")."""
        if units == "unit":
            return actions
        if units != "robot":
            raise ConfigError(f"units is '{units}'; choose unit or robot.")
        if not self.action_low:
            raise ConfigError(
                "The range of the robot's actions is not known, so they cannot be given in its units; convert its logs "
                "with `iel data convert --unit-actions` and train on the result."
            )
        low, high = np.array(self.action_low), np.array(self.action_high)
        return (low + (actions.astype(np.float64) + 1.0) * (high - low) / 2.0).astype(np.float32)

    def check_rate(self, rate: float) -> None:
        """Refuse to be driven at another rate than the data's, where that is known."""
        if not 0.0 < rate < math.inf:
            raise ConfigError(f"The rate is {rate}; give a positive number of actions per second.")
        if self.rate is not None and abs(rate - self.rate) > RATE_TOLERANCE * self.rate:
            raise ConfigError(
                f"The data was recorded at {self.rate:g} Hz and the agent is to be driven at {rate:g} Hz, where its "
                f"actions mean something else; drive it at {self.rate:g} Hz, or say any_rate=True."
            )


UNNAMED = Signals()
"""Nothing is known."""
