"""A model's world as a flat map: how states are drawn, and how a click becomes a state.

    maze        x and y of a maze, walls included
    columns     two columns of the observations: those that tell the place, else the slowest
    latent      two directions of the embedding: the slowest, or where there are no episodes the widest

A map has a raster: points at which the learned field is drawn, each with a state that stands for it. In a maze a state
is placed at any free point. Elsewhere a point without data near it stays empty, and a click means the nearest state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from iel.data.positions import place_columns, slow_directions, slowness
from iel.data.trajectories import Trajectories
from iel.envs.mazes import MazeMap
from iel.errors import DataError
from iel.serving.source import Served

Floats = NDArray[np.floating[Any]]
POOL = 20_000
"""States of the data that clicks and empty points are compared with."""
CLOUD = 3000
"""Of these, so many are drawn."""
POINTS = 2600
"""Points of a raster at most: so many are answered in a few milliseconds."""


@dataclass(frozen=True, eq=False)
class View:
    """A flat map of states. Build one with `view_of`."""

    kind: str
    axes: tuple[str, str]
    """What is drawn along x and y."""
    extent: tuple[float, float, float, float]
    """(left, right, bottom, top)."""
    equal: bool
    """Whether both axes have the same unit."""
    pool: NDArray[np.float32]
    """States of the data, (n, observation size)."""
    flat: Floats
    """The same on the map, (n, 2)."""
    project: Callable[[Floats], Floats]
    """Observations (n, o) -> places (n, 2)."""
    raster: Raster
    maze: MazeMap | None = None

    def places(self, observations: ArrayLike) -> Floats:
        """Where states are drawn, (n, 2)."""
        rows = np.asarray(observations, np.float32)
        return self.project(rows) if len(rows) else np.empty((0, 2))

    def state(self, place: ArrayLike) -> NDArray[np.float32]:
        """The state that a click means."""
        spot = np.asarray(place, np.float64)
        if self.maze is not None:
            row, column = self.maze.cell_of(spot)
            if self.maze.walls[row, column]:
                spot = self.raster.places[np.argmin(((self.raster.places - spot) ** 2).sum(1))]
        scale = self.scale
        nearest = int(np.argmin((((self.flat - spot) / scale) ** 2).sum(1)))
        observation = self.pool[nearest].copy()
        if self.maze is not None:
            observation[:2] = spot
        return observation

    @property
    def scale(self) -> Floats:
        """What counts as equally far along both axes."""
        return scale_of(self.extent, self.equal)

    def describe(self) -> dict[str, Any]:
        """Everything the page needs to draw it."""
        maze, raster = self.maze, self.raster
        shown = self.flat[np.linspace(0, len(self.flat) - 1, min(CLOUD, len(self.flat))).astype(int)]
        return {
            "kind": self.kind,
            "axes": self.axes,
            "extent": self.extent,
            "equal": self.equal,
            "walls": None if maze is None else maze.walls.astype(int).tolist(),
            "cloud": np.round(shown, 3).tolist(),
            "raster": {"width": raster.shape[1], "height": raster.shape[0], "filled": raster.pixels.tolist()},
        }


@dataclass(frozen=True, eq=False)
class Raster:
    """Points of a grid that have a state, row by row from the bottom."""

    shape: tuple[int, int]
    """(rows, columns) of the grid."""
    pixels: NDArray[np.int64]
    """(k,) numbers of the grid's points that have a state."""
    places: Floats
    """(k, 2)."""
    observations: NDArray[np.float32]
    """(k, o)."""


def view_of(served: Served, maze: MazeMap | None = None) -> View:
    """The best map there is."""
    states = served.states
    generator = np.random.default_rng(0)
    rows = np.arange(len(states))
    if len(rows) > POOL:
        rows = np.sort(generator.choice(rows, POOL, replace=False))
    pool = np.asarray(states[rows], np.float32)
    if maze is not None:
        flat: Floats = pool[:, :2].astype(np.float64)
        raster = _maze_raster(maze, pool, flat)
        return View("maze", ("x", "y"), maze.extent, True, pool, flat, _columns((0, 1)), raster, maze)
    kind, axes, project, equal = _projection(served, pool)
    flat = project(pool)
    low, high = np.quantile(flat, (0.0, 1.0) if kind == "columns" else (0.001, 0.999), axis=0)
    spread = np.maximum(high - low, 1e-6)
    low, high = low - 0.06 * spread, high + 0.06 * spread
    equal = equal and bool(spread.max() < 4.0 * spread.min())
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    return View(kind, axes, extent, equal, pool, flat, project, _data_raster(extent, equal, pool, flat))


# ---------------------------------------------------------------- which two numbers


Projection = tuple[str, tuple[str, str], Callable[[Floats], Floats], bool]


def _projection(served: Served, pool: Floats) -> Projection:
    chosen = _place_columns(served)
    if chosen is not None:
        names = tuple(f"column {column}" for column in chosen)
        return "columns", (names[0], names[-1] if len(chosen) > 1 else ""), _columns(chosen), True
    model = served.model
    points = model.embed(pool).astype(np.float64)
    centre = points.mean(axis=0)
    data = served.drawable.trajectories
    if data is not None:
        try:
            directions = slow_directions(model.embed(data.observations), data.offsets).directions[:, :2]
            return (
                "latent",
                ("slowest direction", "next slowest"),
                _directions(model, centre, directions, points),
                False,
            )
        except (DataError, np.linalg.LinAlgError):
            pass
    scaled = points - centre
    widest = np.linalg.svd(scaled[:: max(1, len(scaled) // 4000)], full_matrices=False)[2][:2].T
    return "latent", ("widest direction", "next widest"), _directions(model, centre, widest, points), False


def _place_columns(served: Served) -> tuple[int, ...] | None:
    """One or two columns that tell the place, or None."""
    size = served.model.observation_size
    if size <= 2:
        return tuple(range(size))
    steered = served.model.target_spec.columns
    if len(steered) >= 2:
        return tuple(steered[:2])
    data = served.drawable.trajectories
    return None if data is None else _slow_pair(data)


def _slow_pair(data: Trajectories) -> tuple[int, ...] | None:
    try:
        ratios = slowness(data)
        found = place_columns(data, ratios=ratios)
    except DataError:
        return None
    if len(found) == 1:  # the next slowest beside it
        rest = np.where(np.arange(len(ratios)) == found[0], -np.inf, ratios)
        found.append(int(np.argmax(rest)))
    return tuple(found[:2])


def _columns(chosen: tuple[int, ...]) -> Callable[[Floats], Floats]:
    def project(rows: Floats) -> Floats:
        taken = np.asarray(rows)[:, list(chosen)].astype(np.float64)
        return taken if taken.shape[1] == 2 else np.column_stack([taken, np.zeros(len(taken))])

    return project


def _directions(model: Any, centre: Floats, directions: Floats, points: Floats) -> Callable[[Floats], Floats]:
    """Along directions of the embedding, each in units of the data's own spread."""
    if directions.shape[1] < 2:
        directions = np.column_stack([directions, np.zeros(len(directions))])
    scaled = directions / np.maximum(((points - centre) @ directions).std(axis=0), 1e-9)
    return lambda rows: (model.embed(rows).astype(np.float64) - centre) @ scaled


# ---------------------------------------------------------------- rasters


def scale_of(extent: tuple[float, float, float, float], equal: bool) -> Floats:
    """Units of the axes: the same for both, or the width and height of the map."""
    left, right, bottom, top = extent
    return np.ones(2) if equal else np.array([right - left, top - bottom])


def _maze_raster(maze: MazeMap, pool: Floats, flat: Floats) -> Raster:
    """Every free point of the maze, each with the nearest state placed there."""
    fine = int(np.clip(np.sqrt(POINTS / max(1, len(maze.free))), 3, 9))
    rows, columns = (fine * n for n in maze.walls.shape)
    places = _grid(maze.extent, rows, columns)
    cells = maze.cell_of(places)
    pixels = np.flatnonzero(~maze.walls[cells[:, 0], cells[:, 1]])
    observations = pool[cKDTree(flat).query(places[pixels])[1]].copy()
    observations[:, :2] = places[pixels]
    return Raster((rows, columns), pixels, places[pixels], observations)


def _data_raster(extent: tuple[float, float, float, float], equal: bool, pool: Floats, flat: Floats) -> Raster:
    """Points with data nearby, each with the nearest state."""
    scale = scale_of(extent, equal)
    left, right, bottom, top = extent
    ratio = ((right - left) / scale[0]) / ((top - bottom) / scale[1]) * (1.0 if equal else 1.4)
    columns = int(np.clip(np.sqrt(1.4 * POINTS * ratio), 8, 200))
    rows = int(np.clip(np.sqrt(1.4 * POINTS / ratio), 8, 200))
    places = _grid(extent, rows, columns)
    pixel = np.array([(right - left) / columns, (top - bottom) / rows]) / scale
    distance, nearest = cKDTree(flat / scale).query(places / scale)
    pixels = np.flatnonzero(distance <= 1.1 * np.linalg.norm(pixel))
    if len(pixels) > 2 * POINTS:
        pixels = pixels[:: len(pixels) // POINTS]
    return Raster((rows, columns), pixels, places[pixels], pool[nearest[pixels]].copy())


def _grid(extent: tuple[float, float, float, float], rows: int, columns: int) -> Floats:
    """(rows * columns, 2) centres of a grid's points, row by row from the bottom."""
    left, right, bottom, top = extent
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = bottom + (np.arange(rows) + 0.5) * (top - bottom) / rows
    return np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
