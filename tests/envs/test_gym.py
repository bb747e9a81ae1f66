"""DirectedMaze for Gymnasium alone: names, Gymnasium's own checks, exact steps, doors on routes, the protocol."""

import hashlib
import os
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from iel.envs import directed, make_env
from iel.envs.gym import NAMES, Attempt, attempts, summary
from iel.envs.own import episode_seed
from iel.viz.rendering import find_backend

DOORS = "iel/pointmaze-medium-doors-v0"
UNBOUNDED = "Box observation space m.* value is"
"""What Gymnasium says of every robot that has positions."""


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_makes_and_checks_every_world(name):
    env = gymnasium.make(f"iel/{name}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=f".*{UNBOUNDED}")
        check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == 1000 and env.unwrapped.num_tasks == 5


def test_it_is_imported_without_jax_and_known_by_its_module_alone():
    code = f"""
import sys, gymnasium
env = gymnasium.make("iel.envs.gym:{DOORS}")
_, info = env.reset(seed=0)
assert info["exact_steps"] > 0
assert not any(name.split(".")[0] in ("jax", "iel.model", "matplotlib") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_renders_where_gl_works():
    if (backend := find_backend()) is None:
        pytest.skip("no GL library works here")
    code = f"""
import gymnasium, iel.envs.gym
env = gymnasium.make("{DOORS}", render_mode="rgb_array")
env.reset(seed=0)
assert env.render().std() > 10
env.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MUJOCO_GL": backend}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr


def test_a_version_fixes_its_worlds():
    """A changed door, wind, force or task needs a new version, or results no longer compare."""
    facts = [directed.WORLDS, directed.CLEARANCE, directed.PUSH, directed.DOOR_HALF_WIDTH, directed.DRIFT]
    digest = hashlib.sha256(repr([*facts, directed.ANT_WIND]).encode()).hexdigest()
    assert digest[:16] == "97ab98b5214271c0", "change the names to -v1, and say so in docs/directed-maze.md"


def test_episodes_follow_from_their_seeds_and_are_those_of_the_library():
    env, own = gymnasium.make(DOORS), make_env("pointmaze-medium-doors-navigate-v0")
    first, info = env.reset(seed=5, options={"task_id": 2})
    again, same = own.reset(seed=5, options={"task_id": 2})
    assert np.array_equal(first, again) and np.array_equal(info["goal"], same["goal"])
    env.unwrapped.action_space.sample()  # of no consequence to the next reset
    assert np.array_equal(env.reset(seed=5, options={"task_id": 2})[0], first)
    unseeded = [env.reset()[0] for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_exact_steps_have_a_direction():
    maze = gymnasium.make(DOORS).unwrapped
    for front, back in maze.map.doors:
        ends = maze.map.centre([front, back])
        there, again = maze.exact_steps(ends, ends[::-1])
        assert there == 20 and again > 100


def test_routes_against_a_door_are_seen():
    maze = make_env("pointmaze-medium-doors-v0").map
    (front, back), *_ = maze.doors
    a, b = maze.centre(front), maze.centre(back)
    across = (b - a)[::-1]
    assert maze.against(b, a) and not maze.against(a, b) and not maze.against(b, b - 0.1 * (b - a))
    assert not maze.against(b + across, a + across), "beside the door is a wall, and no door"
    assert maze.against(np.column_stack([[b, a], [[7.0], [7.0]]]), [a, b]).tolist() == [True, False]


def test_the_protocol_scores_an_agent_that_knows_the_path():
    """The data's own driver, on the starts and goals of the library's evaluations."""
    maze, seen = make_env("pointmaze-medium-doors-v0").map, []

    def start(goal):
        seen.append(goal)
        target = maze.number[tuple(maze.cell_of(goal))]

        def act(observation):
            here = maze.number[tuple(maze.cell_of(observation))]
            position = goal if here == target else maze.centre(maze.free[maze.next_cell[target, here]])
            return np.clip(5 * (position - observation), -1, 1)

        return act

    done = list(attempts(DOORS, start, episodes=2, seed=5000))
    own = make_env("pointmaze-medium-doors-v0")
    _, info = own.reset(seed=episode_seed(5000, 1, 1), options={"task_id": 1})
    assert np.array_equal(seen[1], info["goal"])
    assert [attempt.task for attempt in done] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    found = summary(done)
    assert found["success_rate"] == found["task4"] == 1.0 and 0.9 < found["steps_over_exact"] < 1.6
    failed = summary([Attempt(1, True, 30, 20.0), Attempt(1, False, 1000, 20.0)])
    assert failed == {"success_rate": 0.5, "task1": 0.5, "steps_over_exact": 1.5}
