"""Robot arms: OGBench's scripted controllers, driven by a loop of ours, with names for all columns."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_allclose

from iel.data import load
from iel.data.make import make_collector, make_dataset, recipe
from iel.data.make.arms import LARGEST_MOVE, arm_signals, oracles
from iel.envs import make_env
from iel.planning.goals import as_where, matching_states

TASKS = ("cube-single-play-v0", "cube-triple-noisy-v0", "scene-play-v0", "puzzle-4x4-noisy-v0")


def short(name, steps):
    return replace(recipe(name), steps=steps)


@pytest.mark.parametrize("name", ["cube-single-play-v0", "scene-play-v0", "puzzle-3x3-play-v0"])
def test_an_episode_is_what_the_benchmarks_own_controllers_do(name):
    """These draw nothing of their own: OGBench's plain environment and controllers give the same bits."""
    plan = short(name, 130)
    collector = make_collector(plan, seed=3)
    states, actions = collector.episode(1, "train")
    seed = int(np.random.default_rng([3, 0, 1]).integers(2**31))
    settings = {"terminate_at_goal": False, "mode": "data_collection", "max_episode_steps": 1001}
    plain = gymnasium.make(name.replace("-play", ""), **settings)
    observation, info = plain.reset(seed=seed)
    np.random.seed(seed)  # noqa: NPY002  the controllers draw from numpy's global generator
    controllers, moves = oracles(plan, plain), 0
    controller = controllers[info["privileged/target_task"]]
    controller.reset(observation, info)
    for step, action in enumerate(actions):
        assert np.array_equal(states[step], observation.astype(np.float32))
        assert np.array_equal(action, np.clip(controller.select_action(observation, info), -1, 1).astype(np.float32))
        observation, _, _, _, info = plain.step(action)
        if controller.done:
            moves += 1
            state, target = plain.unwrapped.set_new_target(p_stack=0.5)
            controller = controllers[target["privileged/target_task"]]
            controller.reset(state, target)
    assert moves == collector.moves >= 1


@pytest.mark.parametrize("name", ["scene-noisy-v0", "puzzle-3x3-noisy-v0"])
def test_an_episode_depends_on_nothing_but_its_number(name):
    together, alone = (make_collector(short(name, 60), seed=3) for _ in range(2))
    episodes = [together.episode(index, "val") for index in range(3)]
    for one, other in zip(episodes[2], alone.episode(2, "val"), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(episodes[0][1], alone.episode(0, "val")[1])


@pytest.mark.parametrize("name", TASKS)
def test_every_column_has_its_name(name):
    env, signals = make_env(name), arm_signals(recipe(name))
    observation, facts = env.reset(seed=0)
    assert signals.violation(len(observation), env.action_space.shape[0]) is None
    row = dict(zip(signals.observations, observation, strict=True))
    known = {"gripper_contact": facts["proprio/gripper_contact"], "effector_cos": np.cos(facts["proprio/effector_yaw"])}
    for i in range(6):
        known |= {f"joint{i}": facts["proprio/joint_pos"][i], f"joint{i}_velocity": facts["proprio/joint_vel"][i]}
    known |= dict(zip(("effector_x", "effector_y"), 10 * (facts["proprio/effector_pos"] - [0.425, 0, 0]), strict=False))
    for i in range(observation.size):
        if (block := facts.get(f"privileged/block_{i}_pos")) is not None:
            known |= {f"block{i}_x": 10 * (block[0] - 0.425), f"block{i}_z": 10 * block[2]}
            known |= {f"block{i}_qw": facts[f"privileged/block_{i}_quat"][0]}
        if (state := facts.get(f"privileged/button_{i}_state")) is not None:
            known |= {f"button{i}_state{state}": 1.0, f"button{i}_state{1 - state}": 0.0}
            known |= {f"button{i}_velocity": facts[f"privileged/button_{i}_vel"]}
    if "scene" in name:
        known |= {"drawer_position": 18 * facts["privileged/drawer_pos"]}
        known |= {"window_velocity": facts["privileged/window_vel"]}
    assert_allclose([row[column] for column in known], [np.ravel(value)[0] for value in known.values()], atol=1e-12)
    assert_allclose(env.unwrapped.unnormalize_action(np.ones(5)), LARGEST_MOVE)


def test_names_travel_with_the_data_and_are_goals(tmp_path, monkeypatch):
    from iel.data.make import collect

    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    monkeypatch.setattr(collect, "recipe", lambda name: short(name, 120))
    monkeypatch.setattr(collect, "_collect", lambda job, blocks, workers, advance: collect._work(*job, blocks))
    make_dataset("cube-single-play-v0", episodes=2, progress=False)
    data = load("cube-single-play-v0", episodes=2)
    assert (data.observation_size, data.num_transitions, data.signals.rate) == (28, 240, 20.0)
    std, column = data.observations.std(axis=0), data.signals.column("block0_x")
    where = as_where({"block0_x": data.observations[0, column]}, data.signals, 28)
    assert where.columns == {column: data.observations[0, column]}
    states, _ = matching_states(data.observations, std, where, 10, data.signals)
    assert_allclose(states[:, column], data.observations[0, column], atol=0.3 * std[column])


def test_controllers_move_the_objects():
    """Within 300 steps a cube has moved, and the gripper has closed around it."""
    collector = make_collector(short("cube-double-play-v0", 300), seed=0)
    states, _ = collector.episode(0, "train")
    columns = [i for i, column in enumerate(collector.signals.observations) if column.startswith("block")]
    assert collector.moves >= 3 and np.ptp(states[:, columns], axis=0).max() > 0.5
    assert states[:, collector.signals.column("gripper_contact")].max() > 0.5


def test_a_scene_without_its_cube_is_drawn_again(monkeypatch):
    collector = make_collector(short("scene-play-v0", 5), seed=0)
    states, actions = collector.episode(0, "train")
    assert collector._within_reach(states)
    for y, z, stays in ((0.1, 0.02, True), (0.3, 0.02, False), (-0.31, 0.07, True), (-0.31, 0.02, False)):
        states[2, 20:22] = 10 * y, 10 * z
        assert collector._within_reach(states) == stays
    attempts = [(states * 0 + 9.0, actions), (states[:2], actions)]
    monkeypatch.setattr(collector, "_attempt", lambda rng: attempts.pop(0))
    assert len(collector.episode(0, "train")[0]) == 2 and not attempts


def test_success_of_an_arm_is_its_objects_at_their_goals():
    for name in ("cube-single-v0", "puzzle-3x3-v0"):
        env = make_env(name, terminate_at_goal=False)
        observation, info = env.reset(seed=0, options={"task_id": 5})
        assert env.num_tasks == 5 and info["goal"].shape == observation.shape
        assert not env.step(np.zeros(5))[4]["success"]
        raw = env.unwrapped
        if name.startswith("cube"):
            raw._data.joint("object_joint_0").qpos[:3] = raw.cur_task_info["goal_xyzs"][0]
        else:
            raw._cur_button_states[:] = raw.cur_task_info["goal_button_states"]
        assert env.step(np.zeros(5))[4]["success"]


def test_every_arm_recipe_has_ogbenchs_size():
    sizes = {"cube-triple-play-v0": 3000, "puzzle-4x6-noisy-v0": 5000, "scene-noisy-v0": 1000}
    assert {name: recipe(name).episodes for name in sizes} == sizes
    assert [recipe(name).random_actions for name in ("cube-single-noisy-v0", "puzzle-3x3-noisy-v0")] == [0.1, 0.2]
    assert recipe("cube-single-play-v0").steps == 1000 and recipe("scene-play-v0").random_actions == 0.0
