"""Mazes as chains: exact steps between xy positions of any 0/1 map, OGBench's and D4RL's included.

A map is an array of rows i and columns j, 1 = wall. With OGBench's conventions cell (i, j) is a square of side 4
centred at x = 4 j - 4, y = 4 i - 4, and a step moves the point by at most `step` = 0.2 per axis:

    row i    x ->            y grows with the row number
      1 1 1 1 1              `subcells` = k cuts every cell into k x k states; a state is one small square of side
      1 . . . 1              4 / k; `margin` removes states closer than the body's radius to a wall.
      1 1 1 . 1
      1 1 1 1 1

Moving diagonally costs the same as moving straight, because actions are bounded per axis. Free motion therefore has the
Chebyshev metric, which the eight king moves reproduce exactly on the grid: steps = (4 / k / step) * king moves.

Two things make directions differ. A one-way door forbids the moves from its second cell to its first. Wind of velocity
w (as a fraction of `step`, below 1) in a cell lets a move by (a, b) squares, a and b in {-1, 0, 1}, take

    steps = (4 / k / step) * max(a / (sign(a) + w_x), b / (sign(b) + w_y))        (0 for a component that is 0)

with the wind of the cell it leaves. Along a corridor that is exact; slanting paths in the wind are rounded up, because
king moves cannot use one axis' gain while the other still needs its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.ndimage import distance_transform_edt
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import cKDTree

from iel.errors import ChainError
from iel.theory.builders import KING_MOVES, move_table, moving
from iel.theory.chains import ControlledProcess

if TYPE_CHECKING:
    from iel.envs.mazes import MazeMap

Cell = tuple[int, int]
Wind = tuple[Cell, tuple[float, float]]
"""A cell and the wind in it, (x, y), as a fraction of the step."""
CELL = 4.0
"""Side of a cell; cell (1, 1) is centred at the origin."""
BLOCK = 256
"""Goals whose steps from everywhere `steps_between` holds at a time, about."""


@dataclass(frozen=True)
class Teleports:
    """Entering any cell within `radius` of an entrance leads to one of the exits, uniformly (OGBench: radius 1.5)."""

    entrances: Sequence[Cell]
    exits: Sequence[Cell]
    radius: float = 1.5


@dataclass(frozen=True)
class Maze:
    """A discretised maze: state numbers, positions and the moves between them."""

    free: np.ndarray
    """(rows * subcells, columns * subcells): which small squares may be occupied."""
    subcells: int
    teleports: Teleports | None
    one_way: Sequence[tuple[Cell, Cell]]
    winds: Sequence[Wind]

    @property
    def states(self) -> int:
        return int(self.free.sum())

    @property
    def side(self) -> float:
        """Side of a small square."""
        return CELL / self.subcells

    def positions(self) -> np.ndarray:
        """xy of every state's centre, (states, 2)."""
        return -1.5 * CELL + (np.argwhere(self.free)[:, ::-1] + 0.5) * self.side

    def nearest_state(self, xy: np.ndarray) -> np.ndarray:
        """The nearest state of each position (..., 2); positions inside walls or outside snap to the closest one."""
        points = np.atleast_2d(np.asarray(xy, dtype=np.float64))
        if points.shape[-1] != 2 or not np.all(np.isfinite(points)):
            raise ChainError("Maze positions must be finite xy pairs: pass an array whose last axis has length 2.")
        square = np.floor((points[..., ::-1] + 1.5 * CELL) / self.side).astype(np.int64)
        number = np.full(self.free.shape, -1, dtype=np.int64)
        number[self.free] = np.arange(self.states)
        state = number[tuple(np.moveaxis(np.clip(square, 0, np.array(self.free.shape) - 1), -1, 0))]
        outside = state < 0
        if outside.any():
            state[outside] = cKDTree(self.positions()).query(points[outside])[1]
        return state.reshape(np.shape(xy)[:-1])

    def cell_centre(self, cell: Cell) -> np.ndarray:
        """xy of the middle of map cell (i, j)."""
        return CELL * (np.array(cell[::-1]) - 1.0)

    def process(self) -> ControlledProcess:
        """The controlled process with the eight king moves, one-way doors and teleports applied."""
        if self.winds:
            raise ChainError("In the wind moves take different times and do not form a chain: use shortest_steps.")
        walking, (caught, exits) = moving(self.moves()), self.caught()
        if self.teleports is None:
            return walking
        # Where each state leads at once: itself, or the exits when it lies within a teleport's radius.
        landing = np.bincount(exits, minlength=self.states) / len(exits)
        leave = sp.csr_array(caught[:, None].astype(np.float64)) @ sp.csr_array(landing[None])
        jump = sp.diags_array((~caught).astype(np.float64)) + leave
        return ControlledProcess.of([chain @ jump for chain in walking.transitions])

    def _cells(self) -> np.ndarray:
        """The map cell (i, j) of every state, (states, 2)."""
        return np.argwhere(self.free) // self.subcells

    def moves(self) -> np.ndarray:
        """The state each of the eight moves leads to, (states, 8), one-way doors respected, teleports not applied."""
        nexts, cells = move_table(self.free, KING_MOVES), self._cells()
        for entry, leave in self.one_way:  # no move leads from the second cell to the first
            backwards = np.all(cells == leave, axis=1)[:, None] & np.all(cells[nexts] == entry, axis=2)
            nexts = np.where(backwards, np.arange(self.states)[:, None], nexts)
        return nexts

    def durations(self) -> np.ndarray:
        """(states, 8) time of every move, in moves of calm air."""
        wind = np.zeros((self.states, 1, 2))
        cells = self._cells()
        for cell, velocity in self.winds:
            wind[np.all(cells == cell, axis=1)] = velocity
        move = KING_MOVES[None, :, ::-1]  # rows and columns as x and y
        return np.abs(move / (np.where(move == 0, np.inf, np.sign(move)) + wind)).max(axis=2)

    def caught(self) -> tuple[np.ndarray, np.ndarray]:
        """States within a teleport's radius, as a mask, and the exits' states; none of both without teleports."""
        caught = np.zeros(self.states, dtype=bool)
        if self.teleports is None:
            return caught, np.zeros(0, dtype=np.int64)
        positions = self.positions()
        exits = self.nearest_state(np.array([self.cell_centre(cell) for cell in self.teleports.exits]))
        for cell in self.teleports.entrances:
            caught |= np.linalg.norm(positions - self.cell_centre(cell), axis=1) <= self.teleports.radius
        if caught[exits].any():
            raise ChainError("A teleport's exit lies inside an entrance's radius: move the exit or shrink the radius.")
        return caught, exits


def maze_from_map(
    walls: np.ndarray,
    subcells: int = 4,
    margin: float = 0.0,
    teleports: Teleports | None = None,
    one_way: Sequence[tuple[Cell, Cell]] = (),
    winds: Sequence[Wind] = (),
) -> Maze:
    """Discretise a map (1 = wall). `margin` keeps state centres that far from walls (OGBench's point: 0.7)."""
    grid = np.asarray(walls)
    if grid.ndim != 2 or not np.isin(grid, (0, 1)).all():
        raise ChainError("A maze map must be a 2-D array of 0 (free) and 1 (wall): convert other symbols first.")
    if subcells < 1:
        raise ChainError(f"A maze with subcells = {subcells} has no squares: choose 1 or more.")
    free = np.kron(grid == 0, np.ones((subcells, subcells), dtype=bool)).astype(bool)
    if margin > 0:
        free &= distance_transform_edt(np.pad(free, 1))[1:-1, 1:-1] - 0.5 >= margin / (CELL / subcells) - 1e-9
    if not free.any():
        raise ChainError("No free square is left in the maze: lower the margin or raise subcells.")
    if any(not abs(component) < 1 for _, velocity in winds for component in velocity):
        raise ChainError("A wind is a fraction of the step and must be slower than it: give numbers between -1 and 1.")
    if winds and teleports is not None:
        raise ChainError("A maze with both wind and teleports has no exact steps here: leave one of them out.")
    return Maze(free, subcells, teleports, tuple(one_way), tuple(winds))


def maze_of(world: MazeMap, teleports: Teleports | None = None) -> Maze:
    """A simulator's maze as its point sees it, in squares of half a unit: its centre stays 0.7 away from walls."""
    walls = world.walls.astype(int)
    return maze_from_map(walls, subcells=8, margin=0.7, teleports=teleports, one_way=world.doors, winds=world.winds)


def shortest_steps(maze: Maze, goals: np.ndarray, step: float = 0.2) -> np.ndarray:
    """Fewest steps from every state to each goal position (G, 2) -> (G, states); infinite where no path exists.

    With teleports these are the expected steps of the best policy, which either walks or takes an entrance:
    V(x) = min(walk(x, g), walk(x, entrance) + m), with m the mean of V over the exits.
    """
    targets = maze.nearest_state(np.atleast_2d(goals))
    moves, (caught, exits) = maze.moves(), maze.caught()
    durations = maze.durations()
    best = _walk(moves, durations, targets, caught)
    if maze.teleports is not None:
        before = np.flatnonzero(caught[moves].any(axis=1))  # one move away from being caught
        entrance = 1.0 + _walk(moves, durations, before, caught).min(axis=0, initial=np.inf)
        after = _mean_over_exits(best[:, exits], entrance[exits])
        best = np.minimum(best, entrance[None] + after[:, None])
        best[np.arange(len(targets)), targets] = 0.0
    return best * (maze.side / step)


def _walk(moves: np.ndarray, durations: np.ndarray, targets: np.ndarray, closed: np.ndarray) -> np.ndarray:
    """The time from every state to each target without entering a closed state, (targets, states)."""
    states = len(moves)
    reached, row = moves.ravel(), np.repeat(np.arange(states), moves.shape[1])
    real = (reached != row) & ~closed[reached]
    # Transposed, so that one search from the goal gives the distances of all states to it.
    backward = sp.csr_array((durations.ravel()[real], (reached[real], row[real])), shape=(states, states))
    return dijkstra(backward, indices=targets)


def _mean_over_exits(walk: np.ndarray, entrance: np.ndarray) -> np.ndarray:
    """m = mean_k min(walk_k, entrance_k + m) for each goal (row of `walk`): the mean value after a teleport.

    For a fixed choice of the exits that teleport again, m = (sum of the others' walks + their entrances) / others.
    Starting from those that cannot walk at all, the choice improves until it is optimal, at most once per exit.
    """
    again = np.isinf(walk)
    mean = np.full(len(walk), np.inf)
    for _ in range(walk.shape[1] + 1):
        others = (~again).sum(axis=1)
        total = np.where(again, entrance[None], walk).sum(axis=1)
        mean = np.divide(total, others, out=np.full(len(walk), np.inf), where=others > 0)
        again = np.isinf(walk) | (entrance[None] + mean[:, None] < walk)
    return mean


def steps_between(maze: Maze, starts: np.ndarray, goals: np.ndarray, step: float = 0.2) -> np.ndarray:
    """Fewest steps from starts[m] to goals[m], (m, 2) each; with teleports the best policy's expected steps.

    Not rounded to squares: steps are length over `step`. Where the box between both positions is free, its longer side
    is the answer; elsewhere the path goes over the centre of a square next to each of them, whichever is best. Wind
    counts between those two centres only.
    """
    begin, end = maze.nearest_state(starts), maze.nearest_state(goals)
    first, last, centre = np.asarray(starts, np.float64), np.asarray(goals, np.float64), maze.positions()
    moves = maze.moves()
    around = np.column_stack([np.arange(len(moves)), moves])  # a state itself, then where its moves lead
    caught, _ = maze.caught()
    back = (around[around] == np.arange(len(moves))[:, None, None]).any(axis=2)  # v next to x leads back to x
    answer = _through_free_box(maze, begin, end, first, last, caught) / step
    order = np.argsort(end, kind="stable")
    for rows in np.array_split(order, max(1, math.ceil(len(np.unique(end)) / BLOCK))):
        u, v = around[begin[rows]][:, :, None], around[end[rows]][:, None]
        targets, which = np.unique(v, return_inverse=True)
        walk = shortest_steps(maze, centre[targets], step)[which.reshape(v.shape), u]
        enter = np.abs(first[rows, None, None] - centre[u]).max(axis=3) / step
        leave = np.abs(last[rows, None, None] - centre[v]).max(axis=3) / step
        usable = back[end[rows]][:, None] & (~caught[v] | (v == end[rows, None, None]))
        usable = usable & (~caught[u] | (u == begin[rows, None, None]))
        total = np.where(usable, enter + walk + leave, np.inf).min(axis=(1, 2))
        answer[rows] = np.minimum(answer[rows], total)
    return answer


def _through_free_box(
    maze: Maze, begin: np.ndarray, end: np.ndarray, first: np.ndarray, last: np.ndarray, caught: np.ndarray
) -> np.ndarray:
    """The Chebyshev distance of positions whose box of squares is free of walls and teleports, else infinity."""
    blocked = ~maze.free
    blocked[maze.free] = caught
    filled = np.pad(np.cumsum(np.cumsum(blocked, axis=0), axis=1), ((1, 0), (1, 0)))
    squares = np.argwhere(maze.free)
    low, high = np.minimum(squares[begin], squares[end]), np.maximum(squares[begin], squares[end]) + 1
    inside = filled[high[:, 0], high[:, 1]] - filled[low[:, 0], high[:, 1]]
    inside += filled[low[:, 0], low[:, 1]] - filled[high[:, 0], low[:, 1]]
    return np.where((inside == 0) & (not maze.one_way and not maze.winds), np.abs(last - first).max(axis=1), np.inf)
