"""One look for every picture: colours, sizes, and how a maze is drawn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from iel.envs.mazes import MazeMap
from iel.files import writing

WALL = "#31363f"
FLOOR = "#f7f5f0"
INK = "#22262e"
START = "#1b7837"
GOAL = "#d6336c"
PATH = "#e8590c"
SUCCESS = "#1c7ed6"
FAILURE = "#e03131"
EDGE = "#7a8699"
GROUND = "#d9d5cb"
DOOR, WIND = "#c92a2a", "#1098ad"
LINES = ("#1c7ed6", "#e8590c", "#2f9e44", "#9c36b5", "#d6336c", "#0c8599")
FIELD_MAP = "viridis_r"
REWARD_MAP = "coolwarm_r"

RULES: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "figure.facecolor": "white",
    "savefig.dpi": 130,
    "legend.frameon": False,
}


@contextmanager
def figure(path: Path | str, rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.0, 4.5)) -> Iterator[Any]:
    """`with figure(path, rows, columns) as axes:` draws without a screen and saves a PNG when the block ends well."""
    with matplotlib.rc_context(RULES):
        page = Figure(figsize=size, layout="constrained")
        axes = page.subplots(rows, columns, squeeze=False)
        yield axes
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            page.savefig(file, format="png")


@contextmanager
def panels(
    path: Path | str, count: int, across: int, cell: tuple[float, float], margin: tuple[float, float] = (0.0, 0.0)
) -> Iterator[list[Axes]]:
    """`count` panels of size `cell`, at most `across` in a row; what is left of the last row stays empty."""
    columns = min(across, count)
    rows = -(-count // columns)
    with figure(path, rows, columns, size=(cell[0] * columns + margin[0], cell[1] * rows + margin[1])) as axes:
        for panel in axes.flat[count:]:
            panel.set_visible(False)
        yield list(axes.flat[:count])


def plain_log(axis: Axis) -> None:
    """A logarithmic axis with numbers as people write them, at 1, 2 and 5 of each decade, however short it is."""
    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low) if low > 0 else 0.0
    axis.set_major_locator(
        LogLocator(subs=(1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 0.7 else range(1, 10))
    )
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def picture_columns(positions: Sequence[int], size: int) -> tuple[int, int]:
    """The two columns to draw observations in: the position columns, else the first of the `size` columns."""
    both = [*positions, *(column for column in range(size) if column not in positions)][:2]
    return both[0], both[-1]


class Ground(NamedTuple):
    """What to draw on without a map: two columns of the data's states."""

    points: NDArray
    columns: tuple[int, int]
    names: tuple[str, str]
    """What they are called, with their units."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """left, right, bottom, top of the data, and a margin."""
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        margin = 0.05 * float(np.max(high - low)) + 1e-6
        left, bottom = (low - margin).tolist()
        right, top = (high + margin).tolist()
        return left, right, bottom, top


def draw_maze(axes: Axes, maze: MazeMap | Ground) -> None:
    """Walls and floor in the environment's own units; without a map, where the data was."""
    if isinstance(maze, Ground):
        axes.scatter(maze.points[:, 0], maze.points[:, 1], s=2, color=GROUND, linewidth=0, zorder=0)
        left, right, bottom, top = maze.extent
        axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
        axes.set(xlabel=maze.names[0], ylabel=maze.names[1])
        return
    colours = np.array([matplotlib.colors.to_rgb(FLOOR), matplotlib.colors.to_rgb(WALL)])
    axes.imshow(colours[maze.walls.astype(int)], extent=maze.extent, origin="lower", interpolation="nearest", zorder=0)
    _frame(axes, maze)


def draw_walls(axes: Axes, maze: MazeMap) -> None:
    """Only the walls, over whatever lies below."""
    image = np.zeros((*maze.walls.shape, 4))
    image[..., :3] = matplotlib.colors.to_rgb(WALL)
    image[..., 3] = maze.walls
    axes.imshow(image, extent=maze.extent, origin="lower", interpolation="nearest", zorder=2)
    _frame(axes, maze)


def mark(axes: Axes, xy: NDArray, kind: str, size: float = 110.0) -> None:
    """A start (disc) or a goal (star)."""
    shape, colour, scale = ("*", GOAL, 2.2) if kind == "goal" else ("o", START, 0.8)
    x, y, area = xy[0], xy[1], size * scale
    axes.scatter(x, y, s=area, marker=shape, color=colour, edgecolor="white", linewidth=1.2, zorder=6, label=kind)


def draw_directions(axes: Axes, maze: MazeMap) -> None:
    """One-way doors as bars with an arrow in the direction they open, wind as an arrow in its cell."""
    for front, back in maze.doors:
        middle, direction = maze.centre([front, back]).mean(axis=0), maze.centre(back) - maze.centre(front)
        bar = np.stack([middle + side * direction[::-1] / 2 for side in (-1, 1)])
        axes.plot(*bar.T, color=DOOR, linewidth=3.0, solid_capstyle="butt", zorder=3)
        _arrow(axes, middle - 0.3 * direction, middle + 0.3 * direction, DOOR)
    for cell, wind in maze.winds:
        middle, blow = maze.centre(cell), 0.6 * maze.cell * np.array(wind)
        _arrow(axes, middle - blow, middle + blow, WIND)


def _arrow(axes: Axes, start: NDArray, end: NDArray, colour: str) -> None:
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=tuple(end), xytext=tuple(start), arrowprops=look, zorder=4)


def _frame(axes: Axes, maze: MazeMap) -> None:
    draw_directions(axes, maze)
    left, right, bottom, top = maze.extent
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
