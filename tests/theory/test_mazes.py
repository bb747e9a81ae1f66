"""Mazes as chains: positions, distances, one-way doors, wind, teleports."""

from __future__ import annotations

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import Teleports, maze_from_map, optimal_hitting_times, shortest_steps, steps_between
from iel.theory.bounds import MEDIUM_MAZE

ROOM = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]])
BLOCK = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]])


def test_positions_follow_the_ogbench_convention():
    maze = maze_from_map(MEDIUM_MAZE, subcells=1)
    # Cell (i, j) is centred at x = 4 j - 4, y = 4 i - 4: the first free cell (1, 1) is the origin.
    assert np.allclose(maze.positions()[0], [0.0, 0.0])
    assert np.allclose(maze.cell_centre((6, 5)), [16.0, 20.0])
    assert maze.states == int((MEDIUM_MAZE == 0).sum())
    state = maze.nearest_state(np.array([16.3, 19.2]))
    assert np.allclose(maze.positions()[state], [16.0, 20.0])
    # A position inside a wall belongs to the nearest free cell.
    assert np.allclose(maze.positions()[maze.nearest_state(np.array([-3.9, 0.0]))], [0.0, 0.0])


def test_free_motion_has_the_chebyshev_metric():
    maze = maze_from_map(np.pad(np.zeros((5, 5), int), 1, constant_values=1), subcells=10)
    goal = maze.cell_centre((3, 3))
    steps = shortest_steps(maze, goal, step=0.4)[0]
    state = maze.nearest_state(goal)
    distance = np.abs(maze.positions() - maze.positions()[state]).max(axis=1)
    assert np.allclose(steps, distance / 0.4)


def test_walls_force_detours_and_corners_are_not_cut():
    maze = maze_from_map(BLOCK, subcells=1)
    left, right = maze.cell_centre((2, 1)), maze.cell_centre((2, 3))
    # Around the block: up, across two cells, down, with no diagonal past its corners.
    assert steps_between(maze, left[None], right[None], step=4.0)[0] == 4


def test_shortest_steps_equal_the_optimal_times_of_the_process():
    maze = maze_from_map(MEDIUM_MAZE, subcells=2, one_way=[((1, 1), (1, 2))])
    goal = maze.cell_centre((6, 6))
    direct = shortest_steps(maze, goal, step=2.0)[0]
    solved = optimal_hitting_times(maze.process(), int(maze.nearest_state(goal))).values
    assert np.allclose(direct, solved)


def test_finer_squares_do_not_change_distances_by_more_than_their_size():
    coarse, fine = (maze_from_map(MEDIUM_MAZE, subcells=k, margin=0.7) for k in (8, 20))
    starts = np.array([coarse.cell_centre(cell) for cell in ((1, 1), (4, 1), (1, 6), (6, 2))])
    goals = np.array([coarse.cell_centre(cell) for cell in ((6, 6), (1, 5), (6, 6), (4, 4))])
    first, second = steps_between(coarse, starts, goals), steps_between(fine, starts, goals)
    assert np.all(np.abs(first - second) <= 0.1 * second)


def test_one_path_doors_make_hitting_times_asymmetric():
    maze = maze_from_map(ROOM, subcells=1, one_way=[((1, 1), (1, 2))])
    a, b = maze.cell_centre((1, 1)), maze.cell_centre((1, 3))
    assert steps_between(maze, a[None], b[None], step=4.0)[0] == 2
    assert np.isinf(steps_between(maze, b[None], a[None], step=4.0)[0])


def test_teleports_send_to_a_random_exit():
    walls = np.ones((3, 7), int)
    walls[1, 1:6] = 0
    maze = maze_from_map(walls, subcells=1, teleports=Teleports([(1, 3)], [(1, 1), (1, 5)], radius=1.0))
    times = optimal_hitting_times(maze.process(), int(maze.nearest_state(maze.cell_centre((1, 5))))).values
    # From cell 1: one move to cell 2, then entering the teleport leads to either end: V1 = 2 + V1 / 2.
    assert np.isclose(times[maze.nearest_state(maze.cell_centre((1, 1)))], 4.0)
    with pytest.raises(ChainError, match="exit lies inside"):
        maze_from_map(walls, subcells=1, teleports=Teleports([(1, 3)], [(1, 3)])).process()


@pytest.mark.parametrize("one_way", [(), [((1, 1), (1, 2)), ((4, 2), (3, 2))]])
def test_walking_or_teleporting_equals_the_stochastic_shortest_path(one_way):
    """The closed form for teleports against policy iteration on the full process, for every goal of a maze."""
    doors = Teleports([(2, 5), (4, 1)], [(1, 1), (6, 2), (4, 6)], radius=1.5)
    maze = maze_from_map(MEDIUM_MAZE, subcells=2, teleports=doors, one_way=one_way)
    process = maze.process()
    goals = np.arange(0, maze.states, 5)
    closed_form = shortest_steps(maze, maze.positions()[goals], step=2.0)
    solved = np.stack([optimal_hitting_times(process, int(goal)).values for goal in goals])
    assert np.array_equal(np.isinf(closed_form), np.isinf(solved))
    finite = np.isfinite(solved)
    assert np.allclose(closed_form[finite], solved[finite])
    # Walks and teleports both occur.
    assert len(np.unique(np.round(solved[finite] % 1, 6))) > 1


def test_steps_between_positions_are_not_rounded_to_squares():
    """On open ground they are the Chebyshev distance to the last digit, and one step of the point changes them by 1."""
    room = maze_from_map(np.pad(np.zeros((5, 5), int), 1, constant_values=1), subcells=8)
    generator = np.random.default_rng(0)
    starts, goals = generator.uniform(0, 16, (2, 300, 2))
    assert np.allclose(steps_between(room, starts, goals), np.abs(goals - starts).max(axis=1) / 0.2)
    assert np.allclose(steps_between(room, starts, starts + 0.05), 0.25)  # the shortest bins are filled
    # Around a wall too a straight part costs what it costs.
    maze = maze_from_map(MEDIUM_MAZE, subcells=8, margin=0.7)
    start, goal = maze.cell_centre((1, 2)), maze.cell_centre((6, 3))
    down = np.linspace(0.0, 3.0, 40)[:, None] * np.array([0.0, 1.0])
    steps = steps_between(maze, start + down, np.repeat(goal[None], 40, axis=0))
    assert np.allclose(np.diff(steps), -np.diff(down[:, 1]) / 0.2, atol=1e-9)


def test_the_margin_keeps_the_request_body_off_the_walls():
    maze = maze_from_map(ROOM, subcells=20, margin=0.7)
    y = maze.positions()[:, 1]
    assert y.min() >= -2 + 0.7 - 1e-9 and y.max() <= 2 - 0.7 + 1e-9
    with pytest.raises(ChainError, match="lower the margin"):
        maze_from_map(ROOM, subcells=4, margin=3.0)


def test_malformed_maps_are_refused():
    with pytest.raises(ChainError, match=r"0 \(free\) and 1"):
        maze_from_map(np.array([[0, 2]]))
    with pytest.raises(ChainError, match="subcells"):
        maze_from_map(ROOM, subcells=0)
    with pytest.raises(ChainError, match="finite xy"):
        maze_from_map(ROOM).nearest_state(np.array([np.nan, 0.0]))
