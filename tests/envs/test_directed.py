"""Worlds where direction matters: doors let through one way only, wind pushes, and the data respects both."""

import numpy as np
import pytest

from iel.data.make import make_collector, recipe
from iel.data.make.ant import load_controller
from iel.envs import MazeMap, environment_names, make_env
from iel.envs.directed import DRIFT, WORLDS
from iel.theory import maze_from_map, shortest_steps


def placed(env, cell):
    env.reset(seed=0, options={"task_info": {"init_ij": cell, "goal_ij": (1, 1)}})
    env.unwrapped.set_xy(env.map.centre(cell))
    return env.unwrapped


def walk(env, source, target, steps, controller=None):
    """How far (in cells, 0 to 1) one gets from the centre of one cell towards the next."""
    simulator = placed(env, source)
    direction = env.map.centre(target) - env.map.centre(source)
    observation, furthest = simulator.get_ob(), 0.0
    for _ in range(steps):
        heading = direction / np.linalg.norm(direction)
        observation = env.step(heading if controller is None else controller(observation, heading))[0]
        furthest = max(furthest, (simulator.get_xy() - env.map.centre(source)) @ direction / (direction @ direction))
    return furthest


@pytest.mark.parametrize("size", ["medium", "large"])
def test_a_door_lets_a_point_through_one_path_and_blocks_the_other(size):
    env = make_env(f"pointmaze-{size}-doors-v0", terminate_at_goal=False)
    for front, back in env.map.doors:
        assert walk(env, front, back, 20) > 0.95
        assert walk(env, back, front, 60) < 0.35  # the door is at 0.5, and its push reaches 1 of 4 further


def test_no_agent_turns_round_in_a_door_whether_it_has_shut_or_not():
    env = make_env("pointmaze-medium-doors-v0", terminate_at_goal=False)
    front, back = env.map.doors[0]
    along = (env.map.centre(back) - env.map.centre(front)) / 4
    middle = (env.map.centre(back) + env.map.centre(front)) / 2
    for where in (0.05, 0.3, 0.6, 0.9):
        simulator = placed(env, front)
        while (simulator.get_xy() - middle) @ along < where:
            env.step(0.2 * along)
        for _ in range(30):
            env.step(-along)
            assert (simulator.get_xy() - middle) @ along > where - 0.2
    simulator = placed(env, front)
    simulator.set_xy(middle - 0.1 * along)  # not yet in it
    env.step(-along)
    assert np.isclose((simulator.get_xy() - middle) @ along, -0.3)


def test_a_door_lets_an_ant_through_one_path_and_blocks_the_other():
    env, controller = make_env("antmaze-medium-doors-v0", terminate_at_goal=False), load_controller()
    (front, back), *_ = env.map.doors
    assert walk(env, front, back, 40, controller) > 0.9
    assert walk(env, back, front, 80, controller) < 0.4


@pytest.mark.parametrize("size", ["medium", "large"])
def test_wind_pushes_a_point(size):
    env = make_env(f"pointmaze-{size}-wind-v0", terminate_at_goal=False)
    for cell, wind in env.map.winds:
        simulator = placed(env, cell)
        before = simulator.get_xy()
        for count in (1, 2):
            env.step(np.zeros(2))
            assert np.allclose(simulator.get_xy() - before, count * 0.2 * np.array(wind), atol=1e-6)
    still = next(tuple(cell) for cell in env.map.free if tuple(cell) not in dict(env.map.winds))
    simulator = placed(env, still)
    before = simulator.get_xy()
    env.step(np.zeros(2))
    assert np.allclose(simulator.get_xy(), before)


def test_wind_pushes_an_ant():
    env, controller = make_env("antmaze-medium-wind-v0", terminate_at_goal=False), load_controller()
    cell, wind = env.map.winds[0]
    ahead = tuple(np.array(cell) + np.sign(wind)[::-1].astype(int))
    back = tuple(np.array(cell) - np.sign(wind)[::-1].astype(int))
    assert walk(env, cell, ahead, 14, controller) > 1.3 * walk(env, cell, back, 14, controller)


@pytest.mark.parametrize("name", list(WORLDS))
def test_every_goal_can_be_reached_and_most_tasks_have_a_better_path_back(name):
    maze = make_env(f"pointmaze-{name}-v0").map
    calm = MazeMap(maze.walls)
    assert np.isfinite(maze.cell_times).all()
    assert len(WORLDS[name].tasks) == 5 == make_env(f"antmaze-{name}-v0").num_tasks
    cost = [[m[maze.number[start], maze.number[goal]] for start, goal in WORLDS[name].tasks]
            for m in (calm.cell_times, maze.cell_times)]  # fmt: skip
    assert (np.array(cost[1]) > np.array(cost[0])).sum() >= (4 if name.startswith("medium") else 3)
    assert f"pointmaze-{name}-navigate-v0" in environment_names()


def test_the_next_cell_goes_round_closed_doors_and_prefers_the_wind():
    maze = make_env("pointmaze-medium-doors-v0").map
    for front, back in maze.doors:
        a, b = maze.number[front], maze.number[back]
        assert maze.cell_distances[a, b] == 1 and maze.cell_distances[b, a] == 11
        here, moves = b, 0
        while here != a:
            here, moves = maze.next_cell[a, here], moves + 1
        assert moves == 11
    open_field = np.pad(np.zeros((3, 3), bool), 1, constant_values=True)
    windy = MazeMap(open_field, winds=(((1, 2), (-DRIFT, 0.0)), ((3, 2), (DRIFT, 0.0))))
    start, goal = windy.number[2, 1], windy.number[2, 3]
    assert tuple(windy.free[windy.next_cell[goal, start]]) == (2, 2)
    around = MazeMap(np.where(np.arange(25).reshape(5, 5) == 12, True, open_field), winds=windy.winds)
    start, goal = around.number[2, 1], around.number[2, 3]
    assert tuple(around.free[around.next_cell[goal, start]]) == (3, 1)  # with the wind, not against it
    assert tuple(around.free[around.next_cell[start, goal]]) == (1, 3)


def test_collected_episodes_cross_no_door_backwards_and_reach_goals():
    collector = make_collector(recipe("pointmaze-medium-doors-navigate-v0"), seed=3)
    crossings = {True: 0, False: 0}
    for episode in range(2):
        observations, _ = collector.episode(episode, "train")
        assert collector.goals_reached >= 2
        cells = collector.maze.number[tuple(collector.maze.cell_of(observations).T)]
        for front, back in collector.maze.doors:
            a, b = collector.maze.number[front], collector.maze.number[back]
            crossings[True] += int(((cells[:-1] == a) & (cells[1:] == b)).sum())
            crossings[False] += int(((cells[:-1] == b) & (cells[1:] == a)).sum())
    assert crossings[True] > 0 and crossings[False] == 0


def test_exact_steps_of_the_theory_know_doors_and_wind():
    doors = make_env("pointmaze-medium-doors-v0").map
    maze = maze_from_map(doors.walls.astype(int), subcells=4, one_way=doors.doors)
    for front, back in doors.doors:
        there, again = (
            shortest_steps(maze, doors.centre(goal)[None])[0, maze.nearest_state(doors.centre(start))]
            for start, goal in ((front, back), (back, front))
        )
        assert there == 20 and 6 * there < again <= 11 * there
    wind = make_env("pointmaze-medium-wind-v0").map
    maze = maze_from_map(wind.walls.astype(int), subcells=4, winds=wind.winds)
    (row, column), _ = wind.winds[0]
    middle = wind.centre((row, column))
    west, east = (maze.positions()[maze.nearest_state(middle + np.array([x, 0.5]))] for x in (-1.5, 1.5))
    there, again = (
        shortest_steps(maze, goal[None])[0, maze.nearest_state(start)] for start, goal in ((west, east), (east, west))
    )
    assert np.isclose(there, 3 / 0.2 / (1 + DRIFT)) and np.isclose(again, 3 / 0.2 / (1 - DRIFT))
