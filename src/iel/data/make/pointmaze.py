"""How PointMaze data is collected: a noisy shortest-path driver in OGBench's MuJoCo environment.

With d the driver's unit direction, a = clip(d + noise * N(0, I), -1, 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iel.data.make.episodes import MazeCollector


class PointMazeCollector(MazeCollector):
    """A point goes where it is told, with noise."""

    def act(self, observation: NDArray, direction: NDArray, rng: np.random.Generator) -> NDArray:
        return np.clip(direction + self.plan.noise * rng.standard_normal(2), -1.0, 1.0)
