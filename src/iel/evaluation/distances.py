"""Success by distance: pairs of cells of a maze instead of its five tasks.

The tasks of a large maze are all long, 12 to 19 cells, so success there is nearly all or nothing. Here starts and goals
come from all ordered pairs of free cells, in bands of n, the moves of the shortest path between them:

    1-2, 3-5, 6-9, 10-14, 15 and more cells.

Every band gets as many episodes. The pair of episode e of band b follows from (seed, b, e).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.envs import MazeMap
from iel.errors import ConfigError

BANDS = ((1, 2), (3, 5), (6, 9), (10, 14), (15, None))
"""Fewest and most moves of each band."""


class Band(NamedTuple):
    """Pairs of cells that are about as far apart."""

    label: str
    pairs: NDArray[np.int64]
    """(pairs, 2, 2) rows and columns of start and goal."""

    def task(self, seed: np.random.SeedSequence) -> dict[str, Any]:
        """One of the pairs, as OGBench's `reset` takes it."""
        start, goal = self.pairs[np.random.default_rng(seed).integers(len(self.pairs))]
        return {"init_ij": tuple(map(int, start)), "goal_ij": tuple(map(int, goal))}


def bands_of(name: str, maze: MazeMap | None) -> tuple[Band, ...]:
    """The bands that a maze has pairs for; refused where episodes of an environment cannot begin in any cell."""
    if maze is None or not can_measure(name):
        raise ConfigError(f"{name} has starts and goals of its own; success by distance needs a maze of OGBench's.")
    moves = maze.cell_distances
    found = []
    for low, high in BANDS:
        start, goal = np.nonzero((moves >= low) & (moves <= (np.inf if high is None else high)) & np.isfinite(moves))
        if len(start):
            label = f"{low}+ cells" if high is None else f"{low}-{high} cells"
            found.append(Band(label, np.stack([maze.free[start], maze.free[goal]], axis=1)))
    return tuple(found)


def can_measure(name: str) -> bool:
    """Whether an environment starts in any cell: those with OGBench's kinds of data do, D4RL's do not."""
    return any(f"-{kind}-" in name for kind in ("navigate", "stitch", "explore"))
