"""The maker: seeded, the same bits for any number of processes, in OGBench's own layout."""

import numpy as np
import ogbench.utils
import pytest
from numpy.testing import assert_allclose

from iel.data import load
from iel.data.catalogue import find, recipe_version, stored
from iel.data.make import make_collector, make_dataset, recipe, recipe_names
from iel.data.make.episodes import Driver, Explorer
from iel.data.make.recipes import VERSION
from iel.envs import MazeMap, environment_names, make_env
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


def test_what_is_there_is_not_collected_again(tmp_path, monkeypatch):
    arguments = {"episodes": 2, "directory": tmp_path, "workers": 1, "progress": False}
    files = make_dataset(NAME, **arguments)
    before = {path: path.stat().st_mtime_ns for path in files.values()}
    with monkeypatch.context() as without:
        without.setattr("iel.data.make.collect._collect", None)
        assert make_dataset(NAME, **arguments) == files and {path.name for path in tmp_path.iterdir()} == {
            path.name for path in files.values()
        }
    make_dataset(NAME, **arguments, again=True)
    assert all(path.stat().st_mtime_ns > time for path, time in before.items())
    files["val"].write_bytes(files["val"].read_bytes()[:-20])
    assert len(load(make_dataset(NAME, **arguments)["val"])) == 1, "a damaged file is made anew"
    monkeypatch.setattr("iel.data.make.collect.VERSION", 99)
    with pytest.raises(TypeError, match="not callable"):  # another recipe
        monkeypatch.setattr("iel.data.make.collect._collect", None)
        make_dataset(NAME, **arguments)


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


def collect(name, episodes):
    """(collector, the cells of every episode's states, steps at the goal) of a recipe."""
    collector = make_collector(recipe(name), seed=0)
    cells, reached = [], []
    for index in range(episodes):
        states, _ = collector.episode(index, "train")
        cells.append(collector.maze.number[tuple(collector.maze.cell_of(states[:, :2]).T)])
        reached.append(collector.goals_reached)
    return collector, cells, np.array(reached)


def test_stitch_goes_exactly_four_cells_and_stays_there():
    """OGBench's own generator, driven through its oracle: 46.6 +- 2 % of the time within reach of the goal."""
    collector, cells, reached = collect("pointmaze-giant-stitch-v0", 60)
    distances = collector.maze.cell_distances
    assert {distances[path[0], path].max() for path in cells} == {4.0}
    assert np.mean([distances[path[0], path[-1]] == 4 for path in cells]) > 0.9
    assert 0.40 < reached.mean() / collector.plan.steps < 0.53


def test_a_stitch_goal_is_the_start_where_no_cell_is_four_away():
    maze = MazeMap(np.pad(np.zeros((1, 3), bool), 1, constant_values=True))
    driver = Driver(recipe("pointmaze-medium-stitch-v0"), maze, np.random.default_rng(0), start=1)
    assert driver.goal == 1


def test_explore_goes_nowhere_in_particular():
    _, cells, reached = collect("pointmaze-giant-explore-v0", 2)
    assert max(len(set(path)) for path in cells) < 12 and reached.sum() == 0


def test_explorers_head_anywhere_for_ten_steps():
    explorer = Explorer(np.random.default_rng(0))
    headings = np.array([explorer(np.zeros(2)) for _ in range(20_000)]).reshape(-1, 10, 2)
    assert (headings == headings[:, :1]).all()
    assert_allclose(np.linalg.norm(headings[:, 0], axis=1), 1.0, atol=1e-3)
    assert np.abs(headings[:, 0].mean(0)).max() < 0.06  # of 2000 headings


@pytest.mark.parametrize("robot, reach", [("pointmaze", 1.0), ("antmaze", 0.5)])
def test_navigation_goals_are_vertices_and_are_redrawn_when_reached(robot, reach):
    plan, maze = recipe(f"{robot}-large-navigate-v0"), make_env("pointmaze-large-v0").map
    driver = Driver(plan, maze, np.random.default_rng(0), start=0)
    cells, offsets, east = set(), [], np.array([1.0, 0.0])
    for count in range(500):
        goal, xy = driver.goal, driver.goal_xy
        offsets.append(xy - maze.centre(maze.free[goal]))
        driver.reach_target(xy + (reach + 0.01) * east)
        assert driver.reached == count and driver.goal_xy is xy
        driver.reach_target(xy + (reach - 0.01) * east)
        assert driver.reached == count + 1 and driver.goal_xy is not xy
        cells.add(goal)
    assert cells == set(maze.vertices) and len(cells) == 22
    assert np.abs(offsets).max() <= 1.0 and np.std(offsets) == pytest.approx(3**-0.5, abs=0.05)


def test_the_driver_heads_for_the_centre_of_the_goals_own_cell():
    maze = make_env("pointmaze-large-v0").map
    driver = Driver(recipe("pointmaze-large-navigate-v0"), maze, np.random.default_rng(0), start=0)
    centre = maze.centre(maze.free[driver.goal])
    assert_allclose(driver(centre + np.array([0.3, -0.4])), [-0.6, 0.8], atol=1e-5)


def test_an_episode_depends_on_nothing_but_its_number():
    """Teleports and ants have the most that could leak from one episode into the next."""
    for name in ("pointmaze-teleport-stitch-v0", "antmaze-teleport-stitch-v0"):
        together, alone = (make_collector(recipe(name), seed=3) for _ in range(2))
        episodes = [together.episode(index, "val") for index in range(3)]
        assert np.array_equal(episodes[2][0], alone.episode(2, "val")[0])
        assert np.array_equal(episodes[0][1], alone.episode(0, "val")[1])


def test_files_of_another_recipe_are_stored_but_not_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    new = load(NAME, episodes=2, progress=False)
    path = find(NAME, 2)
    assert recipe_version(path) == VERSION
    new.select([0]).save(path, recipe=1)
    assert recipe_version(path) == 1 and find(NAME, 2) is None and list(stored(NAME, 2)) == [path]
    with pytest.raises(DataError, match=rf"e2\.npz was made by recipe 1 of '{NAME}', which has changed"):
        load(NAME, episodes=2, make=False)
    assert len(load(path)) == 1  # by its path it is read
    assert "kept" not in capsys.readouterr().err
    assert load(NAME, episodes=2, progress=False).fingerprint == new.fingerprint
    assert "the old one is renamed" in capsys.readouterr().err
    old = tmp_path / f"{NAME}-e2-recipe1.npz"
    assert find(NAME, 2) == path and list(stored(NAME, 2)) == [path, old] and len(load(old)) == 1
    np.savez(path, observations=new.observations, actions=new.actions, terminals=np.zeros(402), qpos=np.zeros(402))
    assert find(NAME, 2) == path  # OGBench's own file, with qpos and qvel, was not made by a recipe


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
    with pytest.raises(ConfigError, match=r"did you mean|shows which can be made"):
        load("antmaze")
