"""Mazes as plain arrays of walls, with positions, neighbours and shortest paths of their cells."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class MazeMap:
    """A maze as a grid of cells. Row i is y, column j is x; cell (i, j) is centred at (cell * j, cell * i) - offset."""

    walls: NDArray[np.bool_]
    """(rows, columns), true where there is a wall."""
    cell: float = 4.0
    """Side of a cell in the environment's units."""
    offset: float = 4.0
    """Distance from the origin to the centre of cell (0, 0), along both axes."""
    doors: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()
    """One-way doors: from the first cell to the second, not back."""
    winds: tuple[tuple[tuple[int, int], tuple[float, float]], ...] = ()
    """(cell, (x, y)): how fast the wind blows there, as a fraction of walking speed."""

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

    def against(self, starts: ArrayLike, ends: ArrayLike) -> NDArray[np.bool_]:
        """Which straight lines from starts[i] to ends[i], (n, >= 2) twice, cross a door from its back to its front."""
        first, last = (np.atleast_2d(np.asarray(points, np.float64))[:, :2] for points in (starts, ends))
        through = np.zeros(len(first), bool)
        for front, back in self.doors:
            along = (self.centre(back) - self.centre(front)) / self.cell
            middle = self.centre([front, back]).mean(axis=0)
            (before, side), (after, other) = (
                ((points - middle) @ along, (points - middle) @ along[::-1]) for points in (first, last)
            )
            crossed = (before > 0) & (after <= 0)
            share = before / np.where(crossed, before - after, 1.0)
            through |= crossed & (np.abs(side + share * (other - side)) < self.cell / 2)
        return through

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
    def _neighbours(self) -> NDArray[np.int64]:
        """(4, cells) number of the free cell above, left, below and right of each, -1 where there is a wall."""
        padded = np.pad(self.number, 1, constant_values=-1)
        rows, columns = self.free.T + 1
        return np.stack([padded[rows + i, columns + j] for i, j in ((-1, 0), (0, -1), (1, 0), (0, 1))])

    @cached_property
    def vertices(self) -> NDArray[np.int64]:
        """Numbers of the free cells that are not hallways (both neighbours along one axis, none along the other)."""
        above, left, below, right = self._neighbours >= 0
        hallway = (above & below & ~left & ~right) | (left & right & ~above & ~below)
        return np.flatnonzero(~hallway)

    @cached_property
    def _moves(self) -> NDArray[np.int64]:
        """(4, cells) as `_neighbours`, -1 also where a door is closed from this side."""
        edges = self._neighbours.copy()
        for front, back in self.doors:
            edges[:, self.number[back]][edges[:, self.number[back]] == self.number[front]] = -1
        return edges

    @cached_property
    def _durations(self) -> NDArray[np.float64]:
        """(4, cells) time of the moves up, left, below and right, half of it in either cell; 1 where it is calm.

        Walking at speed 1 in a wind of speed w along the path takes 1 / (1 + w).
        """
        along = np.zeros((4, len(self.free)))
        for cell, (x, y) in self.winds:
            along[:, self.number[cell]] = -y, -x, y, x
        own = 1.0 / (1.0 + along)
        return (own + np.take_along_axis(own, np.maximum(self._moves, 0), axis=1)) / 2

    def _shortest(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """(from, to) over all free cells, infinite where no path leads."""
        from scipy.sparse import csr_array  # a quarter of a second, which names and maps do not need
        from scipy.sparse.csgraph import shortest_path

        n = len(self.free)
        direction, source = np.nonzero(self._moves >= 0)
        target = self._moves[direction, source]
        return shortest_path(csr_array((durations[direction, source], (source, target)), shape=(n, n)))

    @cached_property
    def cell_distances(self) -> NDArray[np.float64]:
        """(from, to) number of cell-to-cell moves between free cells, infinite where no path leads."""
        return self._shortest(np.ones(self._moves.shape))

    @cached_property
    def cell_times(self) -> NDArray[np.float64]:
        """(from, to) time between free cells in moves of calm cells: `cell_distances`, but for the wind."""
        return self._shortest(self._durations)

    @cached_property
    def next_cell(self) -> NDArray[np.int64]:
        """(goal cell, cell) -> the next cell on the fastest path to the goal; itself at the goal or without a path.

        Of two equally good ones it is the first of above, left, below, right, as for OGBench's oracle.
        """
        here = np.arange(len(self.free))
        totals = [
            np.where(route >= 0, duration + self.cell_times[route].T, np.inf)
            for route, duration in zip(self._moves, self._durations, strict=True)
        ]
        following = self._moves[np.argmin(totals, axis=0), here]
        stay = (here[:, None] == here) | ~np.isfinite(self.cell_times.T)
        return np.where(stay, here, following)
