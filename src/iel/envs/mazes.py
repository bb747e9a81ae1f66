"""Mazes as plain arrays of walls, with positions, neighbours and shortest paths of their cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path


@dataclass(frozen=True, eq=False)
class MazeMap:
    """A maze as a grid of cells. Row i is y, column j is x; cell (i, j) is centred at (cell * j, cell * i) - offset."""

    walls: NDArray[np.bool_]
    """(rows, columns), true where there is a wall."""
    cell: float = 4.0
    """Side of a cell in the environment's units."""
    offset: float = 4.0
    """Distance from the origin to the centre of cell (0, 0), along both axes."""

    @cached_property
    def free(self) -> NDArray[np.int64]:
        """(cells, 2) rows and columns of the free cells."""
        return np.argwhere(~self.walls)

    def centre(self, cells: ArrayLike) -> NDArray[np.float64]:
        """xy of cell centres; `cells` is (..., 2) rows and columns."""
        return np.asarray(cells, np.float64)[..., ::-1] * self.cell - self.offset

    def cell_of(self, xy: ArrayLike) -> NDArray[np.int64]:
        """(..., 2) row and column of the cells that contain these points, clipped to the map."""
        cells = np.floor((np.asarray(xy, np.float64)[..., ::-1] + self.offset) / self.cell + 0.5).astype(np.int64)
        return np.clip(cells, 0, np.array(self.walls.shape) - 1)

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """(left, right, bottom, top) of the whole map, for drawing."""
        rows, columns = self.walls.shape
        low = -self.offset - self.cell / 2
        return low, low + columns * self.cell, low, low + rows * self.cell

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """(rows, columns) index of each free cell in `free`, -1 in walls."""
        numbers = np.full(self.walls.shape, -1)
        numbers[tuple(self.free.T)] = np.arange(len(self.free))
        return numbers

    @cached_property
    def _paths(self) -> tuple[NDArray, NDArray]:
        pairs = []
        for step in ((0, 1), (1, 0)):
            neighbour = self.free + step
            inside = np.all(neighbour < np.array(self.walls.shape), axis=1)
            joined = inside & (self.number[tuple(np.where(inside[:, None], neighbour, 0).T)] >= 0)
            pairs.append(np.stack([np.flatnonzero(joined), self.number[tuple(neighbour[joined].T)]], 1))
        source, target = np.concatenate(pairs).T
        n = len(self.free)
        graph = csr_array((np.ones(len(source)), (source, target)), shape=(n, n))
        return shortest_path(graph, directed=False, unweighted=True, return_predecessors=True)

    @property
    def cell_distances(self) -> NDArray[np.float64]:
        """(cells, cells) number of cell-to-cell moves between free cells, infinite where there is no way."""
        return self._paths[0]

    @property
    def next_cell(self) -> NDArray[np.int64]:
        """(goal cell, cell) -> the neighbour one move nearer to the goal (the cell itself at the goal)."""
        following = self._paths[1].astype(np.int64)
        own = np.arange(len(self.free))
        return np.where(following < 0, own[None, :], following)
