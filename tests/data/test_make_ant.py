"""The ant: a controller that walks in a commanded direction, and data sets made with it that survive a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import mujoco
import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import save_file

from iel.data.make import make_collector, make_dataset, recipe, recipe_names
from iel.data.make.ant import FEATURES, AntController, features, load_controller, to_motors, upright
from iel.data.make.episodes import Driver
from iel.envs import make_env
from iel.envs.antmaze import LAYOUTS
from iel.errors import ConfigError, DataError

ORIGIN = np.array([0.0, 0.0, 0.6, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0, *np.zeros(14)])


@pytest.fixture(scope="module")
def floor():
    """The ant in the middle of a cell, without anything it could bump into for a while."""
    env = make_env("antmaze-umaze-play").unwrapped
    env.model.geom_contype[[i for i in range(env.model.ngeom) if env.model.geom(i).name.startswith("wall")]] = 0
    env.model.geom_conaffinity[[i for i in range(env.model.ngeom) if env.model.geom(i).name.startswith("wall")]] = 0
    return env


def walk(env, controller, heading, steps=100, state=ORIGIN, rng=None):
    env.set_state(state[:15], state[15:])
    direction = np.array([np.cos(heading), np.sin(heading)])
    states = [env.get_ob()]
    for _ in range(steps):
        env.do_simulation(controller(states[-1], direction, rng), env.frame_skip)
        states.append(env.get_ob())
    return np.array(states)


@pytest.mark.parametrize("heading", [0.0, 0.5 * np.pi, np.pi, -0.5 * np.pi])
def test_it_walks_where_it_is_reported(floor, heading):
    states = walk(floor, load_controller(), heading)
    direction = np.array([np.cos(heading), np.sin(heading)])
    across = np.array([-direction[1], direction[0]])
    moved = states[-1, :2] - states[20, :2]
    assert moved @ direction / 80 > 0.12
    assert abs(moved @ across) < 0.35 * (moved @ direction)
    assert upright(states).min() > 0.0


def test_the_mean_is_repeatable_and_samples_follow_the_generator(floor):
    controller = load_controller()
    assert np.array_equal(walk(floor, controller, 1.0, 20), walk(floor, controller, 1.0, 20))
    first, again, other = (walk(floor, controller, 1.0, 20, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize("turn", [0.7, 2.0, -2.5])
@pytest.mark.parametrize("legs", [0, 1, 2, 3])
def test_the_controller_sees_no_heading_and_no_favourite_leg(floor, turn, legs):
    """Turn the world and renumber the legs: inputs and, with the same canonical actions, the physics stay the same."""
    rng = np.random.default_rng(legs)
    state = ORIGIN + 0.1 * rng.standard_normal(29)
    state[3:7] /= np.linalg.norm(state[3:7])
    command = rng.uniform(-np.pi, np.pi)
    actions = rng.uniform(-1, 1, (6, 8))
    plain = canonical_run(floor, state, command, actions)
    moved = canonical_run(floor, turned(state, turn, legs), command + turn, actions)
    assert_allclose(moved, plain, atol=2e-4)


def canonical_run(env, state, command, actions):
    env.set_state(state[:15], state[15:])
    seen = []
    for action in actions:
        inputs, turns = features(env.get_ob(), (np.cos(command), np.sin(command)))
        seen.append(inputs)
        env.do_simulation(to_motors(action, turns), env.frame_skip)
    return np.array(seen)


def turned(state, angle, legs):
    """The same ant in a world turned by `angle`, its legs counted from another one on."""
    out, body = state.copy(), -legs * np.pi / 2
    rotate = lambda pair, by: [[np.cos(by), -np.sin(by)], [np.sin(by), np.cos(by)]] @ pair  # noqa: E731
    about_z = lambda by: np.array([np.cos(by / 2), 0.0, 0.0, np.sin(by / 2)])  # noqa: E731
    half = np.zeros(4)
    mujoco.mju_mulQuat(half, about_z(angle), state[3:7])
    mujoco.mju_mulQuat(out[3:7], half, about_z(body))
    out[15:17], out[18:20] = rotate(state[15:17], angle), rotate(state[18:20], -body)
    signs = np.array([[1, 1], [1, -1], [1, -1], [1, 1]])
    for first in (7, 21):
        joints = state[first : first + 8].reshape(4, 2) * signs
        out[first : first + 8] = (np.roll(joints, legs, axis=0) * signs).ravel()
    return out


def test_inputs_do_not_depend_on_the_position():
    there = ORIGIN.copy()
    there[:2] = 17.0, -3.0
    assert np.array_equal(features(ORIGIN, (1.0, 0.0))[0], features(there, (1.0, 0.0))[0])


def test_a_controller_in_the_public_layout_is_read_and_used(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {"fc0": (256, 29), "fc1": (256, 256), "last_fc": (8, 256), "last_fc_log_std": (8, 256)}
    arrays = {f"{name}.weight": 0.1 * rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    arrays |= {f"{name}.bias": 0.1 * rng.standard_normal(size[0]).astype(np.float32) for name, size in sizes.items()}
    np.savez(tmp_path / "policy.npz", **arrays)
    hidden = np.concatenate([ORIGIN[2:], [6.0, 8.0]])
    for name in ("fc0", "fc1"):
        hidden = np.maximum(arrays[f"{name}.weight"] @ hidden + arrays[f"{name}.bias"], 0.0)
    expected = np.tanh(arrays["last_fc.weight"] @ hidden + arrays["last_fc.bias"])
    assert_allclose(load_controller(tmp_path / "policy.npz")(ORIGIN, np.array([0.6, 0.8])), expected, atol=1e-5)


def test_bad_controllers_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="No ant controller at"):
        load_controller(tmp_path / "absent.npz")
    with pytest.raises(DataError, match="No ant controller at"):
        make_dataset("antmaze-medium-stitch-v0", episodes=1, directory=tmp_path, controller=tmp_path / "absent.npz")
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(DataError, match=r"other\.npz lacks fc0\.weight"):
        load_controller(tmp_path / "other.npz")
    good = {
        f"layers.{i}.kernel": np.zeros(shape, np.float32) for i, shape in enumerate([(FEATURES, 4), (4, 4), (4, 16)])
    }
    good |= {f"layers.{i}.bias": np.zeros(width, np.float32) for i, width in enumerate([4, 4, 16])}
    assert np.array_equal(AntController(good)(ORIGIN, np.array([1.0, 0.0])), np.zeros(8))
    with pytest.raises(DataError, match=r"layers\.1\.kernel is \[5, 4\], which does not take 4 inputs"):
        AntController(good | {"layers.1.kernel": np.zeros((5, 4), np.float32)})
    save_file(
        good | {"layers.2.kernel": np.zeros((4, 8), np.float32), "layers.2.bias": np.zeros(8, np.float32)},
        tmp_path / "a",
    )
    with pytest.raises(DataError, match="8 numbers instead of 16"):
        load_controller(tmp_path / "a")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "a").read_bytes()[:-7])
    with pytest.raises(DataError, match="cut"):
        load_controller(tmp_path / "cut.safetensors")


def test_every_recipe_has_the_benchmarks_size():
    sizes = {name: (recipe(name).episodes, recipe(name).steps, recipe(name).noise) for name in recipe_names()}
    assert sizes["antmaze-large-navigate-v0"] == (1000, 1000, 0.2)
    assert sizes["antmaze-giant-navigate-v0"] == (500, 2000, 0.2)
    assert sizes["antmaze-teleport-stitch-v0"] == (5000, 200, 0.2)
    assert sizes["antmaze-medium-explore-v0"] == (10_000, 500, 1.0)
    assert sizes["antmaze-large-diverse-v2"] == (1000, 1000, 0.2)
    assert sizes[recipe("antmaze-ultra-play").name] == (500, 2000, 0.2)
    assert recipe("antmaze-umaze-v2").kind == "play"
    with pytest.raises(ConfigError, match="did you mean antmaze-large-diverse-v2"):
        recipe("antmaze-large-divers-v2")
    with pytest.raises(ConfigError, match="Unknown data set 'kitchen-mixed-v0'"):
        recipe("kitchen-mixed-v0")


def short(name, steps, seed=0):
    """A collector of a recipe with shorter episodes."""
    return make_collector(replace(recipe(name), steps=steps), seed)


def test_the_recorded_actions_replay_to_the_recorded_states():
    collector = short("antmaze-medium-navigate-v0", 60)
    states, actions = collector.episode(0, "train")
    assert states.shape == (61, 29) and actions.shape == (60, 8)
    assert np.abs(actions).max() <= 1.0 and (np.abs(actions) < 0.999).mean() > 0.05
    simulator = collector.env.unwrapped
    simulator.set_state(states[0, :15].astype(float), states[0, 15:].astype(float))
    assert_allclose(simulator.step(actions[0])[0], states[1], atol=1e-3)


def test_the_ant_gets_to_its_goals_in_the_maze():
    collector = short("antmaze-medium-navigate-v0", 400)
    reached = 0
    for index in range(2):
        states, _ = collector.episode(index, "train")
        reached += collector.goals_reached
        cells = collector.maze.cell_of(states[:, :2])
        assert not collector.maze.walls[tuple(cells.T)].any()
    assert reached >= 2


@pytest.mark.parametrize("kind", ["play", "diverse"])
def test_d4rl_episodes_have_one_goal_and_stay_there(kind):
    collector = short(f"antmaze-umaze-{kind}-v2", 150)
    layout, cells = LAYOUTS["umaze"], set()
    for index in range(3):
        states, _ = collector.episode(index, "train")
        start = states[0, :2] - collector.maze.centre(collector.maze.cell_of(states[0, :2]))
        assert start.min() >= 0.0 and start.max() <= 1.0
        goal = collector.env.unwrapped.goal_xy
        cells.add(tuple(int(i) for i in collector.maze.cell_of(goal)))
        distance = np.linalg.norm(states[:, :2] - goal, axis=1)
        assert distance.min() <= 0.5 and distance[-20:].max() < 2.0
    if kind == "play":
        assert cells == {tuple(cell) for cell in layout.collection_goals}
    else:
        assert len(cells) > 1


def test_d4rl_waypoints_are_noisy_and_its_goals_are_aimed_at():
    """D4RL's script: a waypoint is the next cell's centre + U(0, 1), the goal itself from the cell before on."""
    plan, maze = recipe("antmaze-large-diverse-v2"), LAYOUTS["large"].map
    goal = int(maze.number[1, 3])
    xy = maze.centre((1, 3)) + 0.7
    driver = Driver(plan, maze, np.random.default_rng(0), 0, goal=(goal, xy))
    here = maze.centre((1, 1))
    ahead = np.array([driver(here) for _ in range(2000)])
    slopes = ahead[:, 1] / ahead[:, 0]  # towards (4 + U, U): from 0 to 1 / 4
    assert slopes.min() >= 0.0 and 0.2 < slopes.max() <= 0.25
    assert_allclose(
        driver(maze.centre((1, 2))), (xy - maze.centre((1, 2))) / np.linalg.norm(xy - maze.centre((1, 2))), atol=1e-5
    )
    driver.reach_target(xy)
    assert driver.goal_xy is xy and driver.reached == 1


def test_stitch_stays_near_and_explore_turns_often():
    collector = short("antmaze-giant-stitch-v0", 200)
    states, _ = collector.episode(1, "train")
    cells = collector.maze.number[tuple(collector.maze.cell_of(states[::10, :2]).T)]
    assert collector.maze.cell_distances[cells[0], cells].max() == 4
    explorer = short("antmaze-medium-explore-v0", 60)
    states, actions = explorer.episode(0, "train")
    assert (np.abs(actions) == 1.0).mean() > 0.3


SCRIPT = """
import json, sys
from pathlib import Path
import iel.data.make.collect as collect
collect.BLOCK_STEPS = 200
collect.make_dataset("pointmaze-medium-stitch-v0", episodes=60, directory=Path(sys.argv[1]), workers=2, progress=False)
"""


def test_killed_half_path_it_goes_on_and_makes_the_same_file(tmp_path):
    """The first process is killed when some blocks are there; the second reuses them and ends with the same bits."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([sys.executable, "-c", SCRIPT, str(whole)], check=True)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(broken)], start_new_session=True)
    try:
        blocks = wait_for_blocks(broken, 6)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert 6 <= len(blocks) < 66 and not list(broken.glob("*.npz"))
    times = {path: path.stat().st_mtime_ns for path in blocks}
    damaged = blocks[0]
    damaged.write_bytes(damaged.read_bytes()[:1000])

    reused = reuse(broken, blocks[1:])
    assert reused == {path: times[path] for path in blocks[1:]}
    assert {p.name: p.read_bytes() for p in broken.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}


def wait_for_blocks(directory, count):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        blocks = sorted(directory.glob(".*.parts/train-*.npz"))
        if len(blocks) >= count:
            return blocks
        time.sleep(0.01)
    raise AssertionError("no blocks were written")


def reuse(directory, blocks):
    """Finish the data set, and the times at which the old blocks had been written when the last new one was."""
    code = SCRIPT.replace(
        "collect.make_dataset(",
        "join = collect._join\n"
        "def spy(*args):\n"
        "    print(json.dumps({p: Path(p).stat().st_mtime_ns for p in sys.argv[2:]}), flush=True)\n"
        "    return join(*args)\n"
        "collect._join = spy\n"
        "collect.make_dataset(",
    )
    words = [sys.executable, "-c", code, str(directory), *map(str, blocks)]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return {type(directory)(path): when for path, when in json.loads(out.splitlines()[0]).items()}


def test_blocks_of_other_settings_are_not_reused(tmp_path):
    from iel.data.make.collect import _open_parts, _settings

    parts = tmp_path / ".parts"
    parts.mkdir()
    plan = recipe("antmaze-medium-stitch-v0")
    _open_parts(parts, _settings(plan, 0, None))
    (parts / "train-000000-50.npz").write_bytes(b"block")
    _open_parts(parts, _settings(plan, 0, None))
    assert (parts / "train-000000-50.npz").exists()
    _open_parts(parts, _settings(plan, 1, None))
    assert not (parts / "train-000000-50.npz").exists()
