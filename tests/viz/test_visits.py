"""The picture of visits: counts are at the positions that were visited."""

import matplotlib.colors
import matplotlib.image
import numpy as np

import iel.viz.pictures
from iel.data import Trajectories
from iel.envs.mazes import MazeMap
from iel.viz.pictures import draw_visits
from iel.viz.style import FLOOR


def test_visited_positions_are_coloured_and_others_are_not(tmp_path, monkeypatch):
    """Two rooms; each picture colours the one its states were in and shows the bare floor of the other."""
    monkeypatch.setattr(iel.viz.pictures, "EXAMPLES", 0)
    maze = MazeMap(np.array([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]], bool))
    pictures = []
    for column in (1, 2):
        positions = maze.centre((1, column)) + np.random.default_rng(0).uniform(-1.9, 1.9, (4000, 2))
        data = Trajectories.from_episodes([(positions, np.zeros((3999, 2)))], "corridor")
        draw_visits(tmp_path / "picture.png", maze, data)
        pictures.append(matplotlib.image.imread(tmp_path / "picture.png")[..., :3])
    bare = [np.abs(picture - matplotlib.colors.to_rgb(FLOOR)).sum(-1) < 0.02 for picture in pictures]
    rooms = bare[0] ^ bare[1]
    columns = np.flatnonzero(rooms.any(0))
    middle = (columns.min() + columns.max()) // 2
    left_room_bare, right_room_bare = (
        [picture[:, part][rooms[:, part]].mean() for picture in bare]
        for part in (slice(0, middle), slice(middle, None))
    )
    assert left_room_bare[0] < 0.05 and left_room_bare[1] > 0.95
    assert right_room_bare[0] > 0.95 and right_room_bare[1] < 0.05
