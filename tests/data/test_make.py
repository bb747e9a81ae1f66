"""The maker: seeded, the same bits for any number of processes, in OGBench's own layout."""

import numpy as np
import ogbench.utils
import pytest

from iel.data import load
from iel.data.catalogue import find
from iel.data.make import make_dataset, recipe, recipe_names
from iel.data.make.pointmaze import PointMazeCollector
from iel.envs import environment_names, make_env
from iel.errors import ConfigError, DataError

NAME = "pointmaze-medium-stitch-v0"


def test_one_or_two_processes_make_the_same_file(tmp_path):
    one = make_dataset(NAME, episodes=4, directory=tmp_path / "one", workers=1, progress=False)
    two = make_dataset(NAME, episodes=4, directory=tmp_path / "two", workers=2, progress=False)
    for split in ("train", "val"):
        assert one[split].read_bytes() == two[split].read_bytes()
    other = make_dataset(NAME, episodes=4, seed=1, directory=tmp_path / "one", workers=2, progress=False)
    assert load(one["train"]).fingerprint != load(other["train"]).fingerprint
    assert load(one["train"]).observations[0].tolist() != load(one["val"]).observations[0].tolist()


def test_ogbench_reads_what_we_write(maze_data):
    path = find(maze_data.name, len(maze_data))
    theirs = ogbench.utils.load_dataset(str(path))
    assert np.array_equal(theirs["observations"], maze_data.observations[maze_data.transitions])
    assert np.array_equal(theirs["next_observations"], maze_data.observations[maze_data.transitions + 1])
    assert np.array_equal(theirs["actions"], maze_data.actions[maze_data.transitions])
    assert theirs["terminals"].sum() == len(maze_data)


def test_the_recorded_actions_did_move_the_point(maze_data):
    """In free space a step adds 0.2 a: most recorded steps must be just that, none may be longer."""
    moved = np.diff(maze_data.episode(0).observations, axis=0)
    planned = 0.2 * maze_data.episode(0).actions
    assert np.mean(np.abs(moved - planned).max(1) < 0.02) > 0.8
    assert np.abs(moved).max() < 0.45


def test_navigation_covers_the_maze(maze_data):
    maze = make_env(maze_data.name).map
    visited = {tuple(cell) for cell in maze.cell_of(maze_data.observations[::20])}
    assert visited == {tuple(cell) for cell in maze.free}


@pytest.mark.parametrize("kind, furthest", [("stitch", 5), ("explore", 12)])
def test_kinds_differ_in_how_far_they_go(kind, furthest):
    name = f"pointmaze-giant-{kind}-v0"
    collector = PointMazeCollector(recipe(name), seed=0)
    maze = collector.maze
    for index in range(2):
        states, _ = collector.episode(index, "train")
        cells = maze.number[tuple(maze.cell_of(states[::10]).T)]
        assert maze.cell_distances[cells[0], cells[cells >= 0]].max() <= furthest


def test_every_recipe_has_ogbenchs_size():
    assert recipe("pointmaze-giant-navigate-v0").episodes == 500
    assert recipe("pointmaze-large-navigate-v0").steps == 1000
    assert recipe("pointmaze-large-stitch-v0").episodes == 5000
    assert [recipe(name).name for name in recipe_names()] == recipe_names()
    assert set(recipe_names()) < set(environment_names())


def test_bad_requests():
    with pytest.raises(ConfigError, match="did you mean pointmaze-giant-stitch-v0"):
        make_dataset("pointmaze-giant-stich-v0")
    with pytest.raises(ConfigError, match="at least one"):
        make_dataset(NAME, episodes=0)
    with pytest.raises(DataError, match="iel data make"):
        load("pointmaze-giant-explore-v0", make=False)
    with pytest.raises(ConfigError, match=r"did you mean|choose from"):
        load("antmaze")
