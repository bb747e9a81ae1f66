"""A model's world as a flat map: where states are drawn, and which state a click means.

    maze        x and y of a maze, walls included
    columns     two columns of the observations: the position columns, else the slowest
    latent      two directions of the embedding: the slowest, or without episodes the widest

The learned field is drawn on a raster: each of its points has a state that stands for it. In a maze a state can be put
at any free point. Elsewhere a point without data near it stays empty, and a click means the nearest state.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from iel.data.positions import slow_directions, slowness, usual_lag
from iel.distances import Floats, Integers
from iel.envs import MazeMap
from iel.errors import DataError
from iel.serving.engine import Served
from iel.serving.schemas import Answer

Extent = tuple[float, float, float, float]
"""(left, right, bottom, top)."""
Projection = Callable[[Floats], Floats]
"""Observations (n, o) -> points of the map (n, 2)."""
POOL, CLOUD = 20_000, 3000
"""States of the data that clicks and points are compared with, and those that are drawn, at most."""
POINTS = 2600
"""Points of a raster at most: a field of this size takes a few milliseconds."""


class Raster(NamedTuple):
    """Points of a grid that have a state, row by row from the bottom."""

    shape: tuple[int, int]
    """(rows, columns) of the grid."""
    pixels: Integers
    """(k,) numbers of the grid's points that have a state."""
    xy: Floats
    """(k, 2)."""
    observations: Floats
    """(k, o)."""


@dataclass(frozen=True, eq=False)
class View:
    """A flat map of states. Build one with `view_of`."""

    kind: str
    axes: tuple[str, str]
    """What is drawn along x and y."""
    extent: Extent
    equal: bool
    """Whether both axes have the same unit."""
    scale: Floats
    """Units of the axes: the same for both, or the width and height of the map."""
    brush: float
    """Radius of the brush that draws walls, in these units."""
    pool: Floats
    """States of the data, (n, o)."""
    flat: Floats
    """Their points on the map, (n, 2)."""
    project: Projection
    raster: Raster
    maze: MazeMap | None = None

    def xy(self, observations: ArrayLike) -> Floats:
        """Where states are drawn, (n, 2)."""
        rows = np.asarray(observations, np.float32)
        return self.project(rows) if len(rows) else np.empty((0, 2))

    def state(self, region: ArrayLike) -> NDArray[np.float32]:
        """The state that a click means."""
        spot = np.asarray(region, np.float64)
        if self.maze is not None and self.maze.walls[tuple(self.maze.cell_of(spot))]:
            spot = self.raster.xy[np.argmin(((self.raster.xy - spot) ** 2).sum(1))]
        observation = self.pool[np.argmin((((self.flat - spot) / self.scale) ** 2).sum(1))].copy()
        if self.maze is not None:
            observation[:2] = spot
        return observation

    def describe(self) -> Answer:
        """Everything the page needs to draw it."""
        raster = self.raster
        shown = self.flat[np.linspace(0, len(self.flat) - 1, min(CLOUD, len(self.flat))).astype(int)]
        return {
            "kind": self.kind,
            "axes": self.axes,
            "extent": self.extent,
            "equal": self.equal,
            "brush": self.brush,
            "walls": None if self.maze is None else self.maze.walls.astype(int).tolist(),
            "cloud": np.round(shown, 3).tolist(),
            "raster": {"width": raster.shape[1], "height": raster.shape[0], "filled": raster.pixels.tolist()},
        }


def view_of(served: Served, maze: MazeMap | None = None) -> View:
    """The best map there is."""
    rows = np.arange(len(served.states))
    if len(rows) > POOL:
        rows = np.sort(np.random.default_rng(0).choice(rows, POOL, replace=False))
    pool = np.asarray(served.states[rows], np.float32)
    kind, axes, project = ("maze", ("x", "y"), _columns((0, 1))) if maze else _projection(served, pool)
    flat, equal = project(pool), kind != "latent"
    if maze is not None:
        extent = maze.extent
    else:
        low, high = np.quantile(flat, (0.0, 1.0) if kind == "columns" else (0.001, 0.999), axis=0)
        size = np.maximum(high - low, 1e-6)
        low, high = low - 0.06 * size, high + 0.06 * size
        equal = equal and bool(size.max() < 4.0 * size.min())
        extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    left, right, bottom, top = extent
    scale = np.ones(2) if equal else np.array([right - left, top - bottom])
    brush = 0.02 * float(min((right - left) / scale[0], (top - bottom) / scale[1]))
    if maze is not None:
        brush = 0.2 * (right - left) / maze.walls.shape[1]
    raster = _raster(extent, equal, scale, pool, flat, maze)
    return View(kind, axes, extent, equal, scale, brush, pool, flat, project, raster, maze)


# ---------------------------------------------------------------- which two numbers


def _projection(served: Served, pool: Floats) -> tuple[str, tuple[str, str], Projection]:
    """(kind, names of the axes, the projection)."""
    columns = _position_columns(served)
    if columns:
        first, second = [*map(served.model.signals.axis, columns), ""][:2]
        return "columns", (first, second), _columns(columns)
    model, data, directions = served.model, served.drawable.trajectories, None
    points = model.embed(pool).astype(np.float64)
    centre, axes = points.mean(axis=0), ("slowest direction", "next slowest")
    if data is not None:
        with contextlib.suppress(DataError, np.linalg.LinAlgError):
            directions = slow_directions(model.embed(data.observations), data.offsets).directions[:, :2]
    if directions is None:
        axes = "widest direction", "next widest"
        some = (points - centre)[:: max(1, len(points) // 4000)]
        directions = np.linalg.svd(some, full_matrices=False)[2][:2].T
    # Each direction is in units of the data's own standard deviation.
    scaled = _two(directions / np.maximum(((points - centre) @ directions).std(axis=0), 1e-9))
    return "latent", axes, lambda rows: (model.embed(rows).astype(np.float64) - centre) @ scaled


def _position_columns(served: Served) -> tuple[int, ...]:
    """One or two position columns; none where no column is clearly one."""
    size, data = served.model.observation_size, served.drawable.trajectories
    if size <= 2:
        return tuple(range(size))
    conditioned = served.model.target_spec.columns
    if 2 <= len(conditioned) < size:
        return tuple(conditioned[:2])
    if data is None:
        return ()
    found = data.position_columns
    if len(found) == 1:  # the next slowest beside it
        ratios = slowness(data, usual_lag(data))
        ratios[found[0]] = -np.inf
        found = (*found, int(np.argmax(ratios)))
    return found[:2]


def _columns(chosen: tuple[int, ...]) -> Projection:
    return lambda rows: _two(rows[:, list(chosen)].astype(np.float64))


def _two(columns: Floats) -> Floats:
    """Two columns, the second one zeros where there is only one."""
    return np.pad(columns, ((0, 0), (0, 2 - columns.shape[1])))


def _raster(extent: Extent, equal: bool, scale: Floats, pool: Floats, flat: Floats, maze: MazeMap | None) -> Raster:
    """Every free point of a maze, with the nearest state put there; else the points near data, with that state."""
    left, right, bottom, top = extent
    if maze is not None:
        fine = int(np.clip(np.sqrt(POINTS / max(1, len(maze.free))), 3, 9))
        rows, columns = (fine * count for count in maze.walls.shape)
    else:
        ratio = ((right - left) / scale[0]) / ((top - bottom) / scale[1]) * (1.0 if equal else 1.4)
        columns = int(np.clip(np.sqrt(1.4 * POINTS * ratio), 8, 200))
        rows = int(np.clip(np.sqrt(1.4 * POINTS / ratio), 8, 200))
    pixel = np.array([(right - left) / columns, (top - bottom) / rows])
    x, y = left + (np.arange(columns) + 0.5) * pixel[0], bottom + (np.arange(rows) + 0.5) * pixel[1]
    xy = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    distance, nearest = cKDTree(flat / scale).query(xy / scale)
    if maze is not None:
        pixels = np.flatnonzero(~maze.walls[tuple(maze.cell_of(xy).T)])
    else:
        pixels = np.flatnonzero(distance <= 1.1 * np.linalg.norm(pixel / scale))
        if len(pixels) > 2 * POINTS:
            pixels = pixels[:: len(pixels) // POINTS]
    observations = pool[nearest[pixels]].copy()
    if maze is not None:
        observations[:, :2] = xy[pixels]
    return Raster((rows, columns), pixels, xy[pixels], observations)
