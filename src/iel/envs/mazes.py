"""OGBench's mazes behind one seeded interface, and their maps as plain arrays.

OGBench draws start, goal and teleports from numpy's global generator. `SeededMaze` lends it a generator of its own
for the length of every call, so that two environments never disturb each other, nor anyone else's random numbers.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from iel.errors import ConfigError, unknown_name

MAZES = ("medium", "large", "giant", "teleport")
KINDS = ("navigate", "stitch", "explore")


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


class SeededMaze(gymnasium.Wrapper):
    """An OGBench maze whose every random draw follows from the seed of its last reset."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._state = np.random.RandomState(0).get_state()
        maze: Any = self.unwrapped
        self._draws_while_stepping = maze._teleport_info is not None

    @property
    def map(self) -> MazeMap:
        """The maze's walls."""
        maze: Any = self.unwrapped
        return MazeMap(maze.maze_map.astype(bool), float(maze._maze_unit), float(maze._offset_x))

    @property
    def num_tasks(self) -> int:
        """Number of fixed evaluation tasks (start and goal cells)."""
        maze: Any = self.unwrapped
        return maze.num_tasks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """`options={"task_id": k}` chooses one of the evaluation tasks, 1 to `num_tasks`."""
        task = (options or {}).get("task_id")
        if task is not None and not 1 <= task <= self.num_tasks:
            raise ConfigError(f"Task {task} does not exist; this maze has tasks 1 to {self.num_tasks}.")
        if seed is not None:
            self._state = np.random.RandomState(seed % 2**32).get_state()
            self.env.action_space.seed(seed)
        with self._lend_generator():
            return self.env.reset(seed=seed, options=options)

    def step(self, action):
        if not self._draws_while_stepping:
            return self.env.step(action)
        with self._lend_generator():
            return self.env.step(action)

    @contextlib.contextmanager
    def _lend_generator(self) -> Iterator[None]:
        everyone = np.random.get_state()  # noqa: NPY002  OGBench leaves no other way in
        np.random.set_state(self._state)  # noqa: NPY002
        try:
            yield
        finally:
            self._state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(everyone)  # noqa: NPY002


def environment_names() -> list[str]:
    """Every environment `make_env` knows, by the name of its data set."""
    return [f"pointmaze-{maze}-{kind}-v0" for maze in MAZES for kind in KINDS]


def make_env(name: str, **settings: Any) -> SeededMaze:
    """The environment of a data set (`pointmaze-large-navigate-v0`) or of a maze (`pointmaze-large-v0`)."""
    mazes = {f"pointmaze-{maze}-v0" for maze in MAZES}
    parts = name.split("-")
    maze = f"{'-'.join(parts[:2])}-v0" if name in environment_names() else name
    if maze not in mazes:
        raise unknown_name("environment", name, [*environment_names(), *mazes])
    import ogbench  # noqa: F401  registers the environments with Gymnasium

    with _scratch_directory():
        return SeededMaze(gymnasium.make(maze, disable_env_checker=True, **settings))


@contextlib.contextmanager
def _scratch_directory() -> Iterator[None]:
    """OGBench writes its model to a temporary file and forgets it; this one is removed."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="iel-") as directory:
        tempfile.tempdir = directory
        try:
            yield
        finally:
            tempfile.tempdir = before
