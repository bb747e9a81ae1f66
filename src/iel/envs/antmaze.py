"""D4RL's AntMaze on current MuJoCo: D4RL's maps and evaluation protocol around OGBench's ant.

The body is the same (D4RL: motors of gear 1 driven within +-30 by an action rescaled from +-1; OGBench: gear 30 driven
within +-1, so the torque is 30 a in both), and so are time step (0.02, RK4), frame skip (5), masses, contacts and the
walls (4-unit boxes, 2 high). See docs/environments.md for how that was checked.
"""

import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from ogbench.locomaze.ant import AntEnv

from iel.envs.mazes import MazeMap
from iel.envs.own import Info
from iel.errors import ConfigError

CELL, WALL_HEIGHT = 4.0, 2.0
GOAL_TOLERANCE = 0.5
"""An episode succeeds within this distance of the goal, in the plane."""
GOAL_NOISE = (1.0, 0.5)
"""A goal is the centre of its cell + shift + U(0, 1) + U(0, 0.5) along each axis, and at least 0."""


@dataclass(frozen=True)
class Layout:
    """One of D4RL's mazes. 1 wall, 0 free, R where the ant starts (the origin), G goals when `play` is collected."""

    rows: tuple[str, ...]
    goal: tuple[int, int]
    """Row and column of the cell that evaluation goals are drawn in."""
    horizon: int = 1000
    goal_shift: float = 0.0

    @cached_property
    def map(self) -> MazeMap:
        """The walls. Anything on the rim is closed: ultra's collection map has two openings there that lead nowhere."""
        walls = np.array([[cell == "1" for cell in row] for row in self.rows])
        walls[[0, -1], :] = walls[:, [0, -1]] = True
        return MazeMap(walls, CELL, CELL)

    @cached_property
    def collection_goals(self) -> NDArray[np.int64]:
        """(cells, 2) rows and columns of the G cells."""
        return np.argwhere(np.array([list(row) for row in self.rows]) == "G")

    def draw_goal(self, rng: np.random.Generator, cell: tuple[int, int] | None = None) -> NDArray[np.float64]:
        """xy of a goal in a cell (the evaluation's own, if none is given)."""
        centre = self.map.centre(self.goal if cell is None else cell)
        noise = sum(rng.uniform(0.0, high, 2) for high in GOAL_NOISE)
        return np.maximum(centre + self.goal_shift + noise, 0.0)


LAYOUTS = {
    "umaze": Layout(("11111", "1R001", "11101", "1G001", "11111"), goal=(3, 1)),
    "medium": Layout(
        ("11111111", "1R011001", "100100G1", "11000111", "10010001", "1G100101", "10001G01", "11111111"), goal=(6, 6)
    ),
    "large": Layout(
        (
            "111111111111",
            "1R0001G00001",
            "101101010101",
            "10000G0100G1",
            "101111011101",
            "10G101000001",
            "110101010111",
            "1001G0G10G01",
            "111111111111",
        ),
        goal=(7, 9),
    ),
    # Not D4RL's own: the extension that added it has goals one unit nearer to the origin.
    "ultra": Layout(
        (
            "1111111111111111",
            "1R00G000100G00G1",
            "10111G101G110101",
            "1011101G00010101",
            "100G10110111G101",
            "1G10001G00G000G1",
            "10001G0010111011",
            "101G1110100G1011",
            "1G00000G10100G01",
            "11011G1000111101",
            "110100101G0000G1",
            "1111111010111111",
        ),
        goal=(10, 14),
        horizon=2000,
        goal_shift=-1.0,
    ),
}


class D4RLAntMaze(AntEnv):
    """An ant that starts at the origin and must come within 0.5 of a goal drawn anew each episode in one far cell.

    Observation: 15 positions and 14 velocities. The goal observation is the goal's xy followed by columns 2 to 28 of
    `reference` (the official evaluation takes the data set's first observation); without one, the ant at rest in the
    pose every episode starts around.
    """

    def __init__(
        self, layout: Layout, *, terminate_at_goal: bool = True, reference: ArrayLike | None = None, **settings: Any
    ):
        self.layout, self.terminate_at_goal = layout, terminate_at_goal
        self.goal_xy = np.zeros(2)
        with tempfile.TemporaryDirectory(prefix="iel-") as folder:
            model = Path(folder) / "antmaze.xml"
            _write_model(model, layout.map)
            super().__init__(xml_file=str(model), **settings)
        pose = np.concatenate([self.init_qpos, np.zeros(self.model.nv)])
        self.pose = pose if reference is None else np.array(reference, np.float64)
        if self.pose.shape != pose.shape:
            raise ConfigError(
                f"The reference observation of an AntMaze has {self.pose.size} numbers instead of {pose.size}; "
                "pass one observation of its data set."
            )

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[NDArray, Info]:
        observation, info = super().reset(seed=seed, options=options)
        self.set_goal(self.layout.draw_goal(self.np_random))
        info["goal"] = self.pose.copy()
        info["goal"][:2] = self.goal_xy
        return observation, info

    def step(self, action: NDArray) -> tuple[NDArray, float, bool, bool, Info]:
        self.do_simulation(action, self.frame_skip)
        qpos = self.data.qpos
        success = float(np.hypot(qpos[0] - self.goal_xy[0], qpos[1] - self.goal_xy[1])) <= GOAL_TOLERANCE
        return self.get_ob(), float(success), success and self.terminate_at_goal, False, {"success": success}

    def set_goal(self, xy: ArrayLike) -> None:
        """Move the goal, and its mark in pictures."""
        self.goal_xy = np.array(xy, np.float64)
        self.model.site("goal").pos[:2] = self.goal_xy


def _write_model(path: Path, maze: MazeMap) -> None:
    """OGBench's ant among the walls of a maze."""
    tree = ET.parse(AntEnv.xml_file)
    world = tree.find("worldbody")
    assert world is not None
    half, height = maze.cell / 2, WALL_HEIGHT / 2
    for row, column in np.argwhere(maze.walls):
        x, y = maze.centre((row, column))
        ET.SubElement(
            world, "geom", name=f"wall_{row}_{column}", type="box", material="wall", contype="1", conaffinity="1",
            pos=f"{x} {y} {height}", size=f"{half} {half} {height}",
        )  # fmt: skip
    ET.SubElement(world, "site", name="goal", type="cylinder", size=".5 .05", pos="0 0 .05", material="target")
    left, right, bottom, top = maze.extent
    floor = world.find("geom[@name='floor']")
    assert floor is not None
    floor.set("pos", f"{(left + right) / 2} {(bottom + top) / 2} 0")
    floor.set("size", f"{(right - left) / 2} {(top - bottom) / 2} 0.2")
    tree.write(path)
