"""Mazes in which the path back is another one: one-way doors and wind, in OGBench's mazes and their MuJoCo.

A door between two cells is a thin wall that yields in one direction. With s the torso's distance behind the door along
its passing direction,

        front   |   back          s < 0            open: walk in
      A ------> | ------> B       0 <= s <= clear  as it was, and the torso is pushed on: no turning back
               s = 0              s > clear        shut: a wall

Without the push the next state would depend on whether the door has fallen shut already, which no observation tells.

Wind is a force on the torso in some cells. A point is moved by `DRIFT` * 0.2 a step by it, against at most 0.2 of its
own, so it is four times as fast with the wind as against it; an ant is pushed by a constant force, and three times.

Every maze stays strongly connected: doors and wind lie on its loops, so each goal can be reached from everywhere.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]

CLEARANCE = {"point": 1.0, "ant": 1.7}
"""How far behind a door the torso must be before it shuts: radius, or reach of the legs, and half the door."""
PUSH = {"point": 1.5, "ant": 2.4}
"""Strength of a door's push, in units of the wind: more than a point or an ant can walk against."""
DOOR_HALF_WIDTH = 0.2
DRIFT = 0.6
"""Speed of the wind as a fraction of the point's own."""
ANT_WIND = 5.0
"""Force on an ant in a wind of 1: with `DRIFT` it walks at 0.22 with it and at 0.07 against it (0.18 when calm)."""
DOOR_COLOURS = {False: (0.18, 0.62, 0.27, 0.35), True: (0.88, 0.19, 0.19, 1.0)}
"""Open, shut."""


@dataclass(frozen=True)
class World:
    """What is added to one of OGBench's mazes. Cells are (row, column)."""

    tasks: tuple[tuple[Cell, Cell], ...]
    """(start, goal) of the five evaluation tasks: in most the short path is closed, or against the wind."""
    doors: tuple[tuple[Cell, Cell], ...] = ()
    """(front, back): one may go from the first cell to the second, not back."""
    winds: tuple[tuple[Cell, tuple[float, float]], ...] = ()
    """(cell, (x, y)): the wind there, as a fraction of the point's own speed."""


def _blowing(*flows: tuple[Cell, Cell]) -> tuple[tuple[Cell, tuple[float, float]], ...]:
    """Wind in the first cell of each pair, towards the second."""
    return tuple((a, (DRIFT * (b[1] - a[1]), DRIFT * (b[0] - a[0]))) for a, b in flows)


MEDIUM_TASKS = (((1, 1), (6, 6)), ((2, 6), (1, 1)), ((6, 6), (4, 1)), ((6, 1), (6, 3)), ((2, 4), (3, 2)))
LARGE_TASKS = (((1, 1), (7, 10)), ((5, 4), (7, 1)), ((7, 1), (5, 4)), ((5, 6), (7, 8)), ((1, 8), (3, 6)))
WORLDS = {
    "medium-doors": World(MEDIUM_TASKS, doors=(((3, 3), (3, 4)), ((6, 3), (6, 2)))),
    "medium-wind": World(
        MEDIUM_TASKS, winds=_blowing(((3, 3), (3, 4)), ((6, 2), (6, 1)), ((5, 1), (4, 1)), ((4, 4), (5, 4)))
    ),
    "large-doors": World(
        LARGE_TASKS,
        doors=(((1, 2), (1, 3)), ((3, 3), (3, 2)), ((1, 6), (1, 7)), ((5, 8), (5, 7)), ((1, 9), (1, 10))),
    ),
    "large-wind": World(
        LARGE_TASKS,
        winds=_blowing(
            ((1, 2), (1, 3)), ((1, 3), (1, 4)), ((3, 3), (3, 2)), ((3, 2), (3, 1)), ((1, 7), (1, 8)),
            ((4, 10), (5, 10)), ((5, 9), (5, 8)), ((5, 7), (5, 6)), ((4, 6), (3, 6)),
        ),
    ),
}  # fmt: skip
"""By the name of the maze, as in `pointmaze-medium-doors-navigate-v0`."""


def directed_maze(create: Callable[..., Any], world: World, **settings: Any) -> Any:
    """OGBench's maze environment of these settings, with the world's doors, wind and tasks."""
    robot = settings.pop("loco_env_type")
    return _directed_class(create, robot, settings.pop("maze_env_type"))(world, **settings)


@cache
def _directed_class(create: Callable[..., Any], robot: str, kind: str) -> Any:
    """OGBench makes its classes inside a function, so one instance is made to learn the class."""
    return type("DirectedMaze", (_Directed, type(create(robot, kind, maze_type="medium"))), {"robot": robot})


_Maze: Any = object
"""Stands for OGBench's class, which comes after `_Directed` in the order of bases."""


class _Directed(_Maze):
    """What a world adds to a maze of OGBench."""

    robot: str
    _reward_task_id: int | None

    def __init__(self, world: World, **settings: Any):
        self.world = world
        super().__init__(**settings)
        # MuJoCo's own arrays: writing to them opens and shuts doors.
        self._doors = [self.model.geom(f"door_{number}").id for number in range(len(world.doors))]
        cells = np.array(world.doors, float).reshape(-1, 2, 2)
        xy = (cells[..., ::-1] * self._maze_unit) - (self._offset_x, self._offset_y)
        self._door_middle = xy.mean(axis=1)
        self._door_normal = (xy[:, 1] - xy[:, 0]) / self._maze_unit
        self._shut = np.zeros(len(self._doors), bool)
        self._winds = {cell: np.array(wind) for cell, wind in world.winds}
        self._torso = self.model.body("torso").id
        # A point starts every step at rest: from F / m = 2 s / t^2 it goes s in t.
        seconds = self.model.opt.timestep * self.frame_skip
        drift = 0.2 * 2.0 * self.model.body_mass[self._torso] / seconds**2
        self._push = drift if self.robot == "point" else ANT_WIND

    def update_tree(self, tree: Any) -> None:
        super().update_tree(tree)
        unit, height = self._maze_unit, self._maze_height / 2 * self._maze_unit
        for number, (front, back) in enumerate(self.world.doors):
            (x, y), (across_x, across_y) = (
                np.mean([self.ij_to_xy(front), self.ij_to_xy(back)], axis=0),
                np.where(np.array(front) == np.array(back), unit / 2, DOOR_HALF_WIDTH)[::-1],
            )
            ET.SubElement(
                tree.find(".//worldbody"), "geom", name=f"door_{number}", type="box", contype="1", conaffinity="1",
                pos=f"{x} {y} {height}", size=f"{across_x} {across_y} {height}", rgba="0 0 0 1",
            )  # fmt: skip

    def set_tasks(self) -> None:
        self.task_infos = []
        for number, (start, goal) in enumerate(self.world.tasks, 1):
            positions = {"init_xy": self.ij_to_xy(start), "goal_xy": self.ij_to_xy(goal)}
            self.task_infos.append({"task_name": f"task{number}", "init_ij": start, "goal_ij": goal, **positions})
        if self._reward_task_id == 0:
            self._reward_task_id = 1

    def set_xy(self, xy: NDArray) -> None:
        super().set_xy(xy)
        self._move_doors(np.asarray(xy), placed=True)

    def step(self, action: Any) -> Any:
        xy = self.get_xy()
        self._move_doors(xy)
        self._blow(xy)
        return super().step(action)

    def _behind(self, xy: NDArray) -> NDArray:
        """s of every door."""
        return ((xy - self._door_middle) * self._door_normal).sum(axis=1)

    def _move_doors(self, xy: NDArray, placed: bool = False) -> None:
        """Shut the doors behind the torso, open those in front of it; one that is `placed` finds none ajar."""
        behind = self._behind(xy)
        shut = np.where(behind < 0, False, self._shut | (behind > (0.0 if placed else CLEARANCE[self.robot])))
        for door in np.flatnonzero((shut != self._shut) | placed):
            geom = self._doors[door]
            self.model.geom_contype[geom] = self.model.geom_conaffinity[geom] = int(shut[door])
            self.model.geom_rgba[geom] = DOOR_COLOURS[bool(shut[door])]
        self._shut = shut

    def _blow(self, xy: NDArray) -> None:
        """The wind of this cell, and the push of a door that one stands in."""
        wind = self._winds.get(self.xy_to_ij(xy), np.zeros(2))
        behind, away = self._behind(xy), np.abs(xy - self._door_middle).max(axis=1)
        inside = (behind >= 0) & (behind <= CLEARANCE[self.robot]) & (away < self._maze_unit / 2)
        wind = wind + PUSH[self.robot] * inside @ self._door_normal
        self.data.xfrc_applied[self._torso, :2] = self._push * wind
