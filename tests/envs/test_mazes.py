"""Seeded mazes: the same seed gives the same episode, whatever else draws random numbers meanwhile."""

import numpy as np
import pytest

from iel.envs import MazeMap, make_env
from iel.errors import ConfigError


def drive(env, seed: int, steps: int = 40, disturb: bool = False) -> np.ndarray:
    observation, info = env.reset(seed=seed, options={"task_id": 2})
    states, actions = [observation, info["goal"]], np.random.default_rng(seed)
    for _ in range(steps):
        if disturb:
            np.random.rand(3)  # noqa: NPY002  what a careless neighbour does
        observation, *_ = env.step(actions.uniform(-1, 1, 2).astype(np.float32))
        states.append(observation)
    return np.array(states)


@pytest.mark.parametrize("maze", ["medium", "teleport"])
def test_an_episode_follows_from_its_seed(maze):
    one, other = make_env(f"pointmaze-{maze}-v0"), make_env(f"pointmaze-{maze}-navigate-v0")
    first = drive(one, seed=5)
    assert np.array_equal(first, drive(one, seed=5))
    assert np.array_equal(first, drive(other, seed=5, disturb=True))
    assert not np.array_equal(first, drive(one, seed=6))


def test_teleports_are_seeded_too():
    env = make_env("pointmaze-teleport-v0")

    def exits(seed: int) -> list[np.ndarray]:
        ends = []
        for trial in range(6):
            env.reset(seed=100 * seed + trial, options={"task_id": 1})
            simulator = env.unwrapped
            simulator.set_xy(np.array(simulator._teleport_info["teleport_in_xys"][0]))
            env.step(np.zeros(2, np.float32))
            ends.append(simulator.get_xy())
        return ends

    assert np.array_equal(exits(1), exits(1))
    assert len(np.unique(np.round(exits(1), 3), axis=0)) > 1  # it does jump to different exits


def test_the_callers_random_numbers_are_left_alone():
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    env = make_env("pointmaze-teleport-v0")
    env.reset(seed=1, options={"task_id": 1})
    env.step(np.zeros(2, np.float32))
    assert np.random.rand() == expected  # noqa: NPY002


def test_goal_is_an_observation_and_success_is_reported():
    env = make_env("pointmaze-large-v0")
    _, info = env.reset(seed=0, options={"task_id": 1})
    assert info["goal"].shape == env.observation_space.shape
    env.unwrapped.set_xy(info["goal"])
    *_, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert terminated and info["success"] == 1.0


def test_unknown_names_and_tasks_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean pointmaze-large-navigate-v0"):
        make_env("pointmaze-large-navigat-v0")
    with pytest.raises(ConfigError, match="tasks 1 to 5"):
        make_env("pointmaze-large-v0").reset(seed=0, options={"task_id": 6})


def test_no_temporary_files_are_left(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_env("pointmaze-medium-v0").reset(seed=0)
    assert list(tmp_path.iterdir()) == []


def test_map_geometry():
    maze = make_env("pointmaze-large-v0").map
    assert isinstance(maze, MazeMap)
    assert np.array_equal(maze.cell_of(maze.centre(maze.free)), maze.free)
    assert not maze.walls[1, 1] and maze.centre((1, 1)).tolist() == [0.0, 0.0]
    assert maze.centre((7, 10)).tolist() == [36.0, 24.0]


def test_next_cell_follows_shortest_paths():
    maze = make_env("pointmaze-giant-v0").map
    goal, number = 7, len(maze.free)
    for start in range(number):
        here, moves = start, 0
        while here != goal:
            following = maze.next_cell[goal, here]
            assert np.abs(maze.free[following] - maze.free[here]).sum() == 1
            here, moves = following, moves + 1
        assert moves == maze.cell_distances[start, goal]


@pytest.mark.parametrize(
    "name, free, vertices", [("medium", 26, 21), ("large", 46, 22), ("giant", 86, 46), ("teleport", 45, 24)]
)
def test_vertices_and_ties_are_ogbenchs(name, free, vertices):
    """Hallways have both neighbours along one axis only; of two shortest paths OGBench's oracle takes a certain one."""
    env = make_env(f"pointmaze-{name}-v0")
    maze, oracle = env.map, env.unwrapped.get_oracle_subgoal
    assert (len(maze.free), len(maze.vertices)) == (free, vertices)
    for i, j in np.delete(maze.free, maze.vertices, axis=0):
        across, along = maze.walls[i, [j - 1, j + 1]], maze.walls[[i - 1, i + 1], j]
        assert (across.all() and not along.any()) or (along.all() and not across.any())
    centres = maze.centre(maze.free)
    for goal in range(0, free, 7):
        ahead = [oracle(xy, centres[goal])[0] for xy in centres]
        assert np.array_equal(ahead, centres[maze.next_cell[goal]])
