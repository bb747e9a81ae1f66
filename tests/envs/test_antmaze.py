"""D4RL's AntMaze: its maps, its body, its starts and goals."""

import mujoco
import numpy as np
import pytest

from iel.envs import make_env
from iel.envs.antmaze import LAYOUTS
from iel.errors import ConfigError


def test_maps_are_whole():
    for maze, (rows, columns, goal, goals) in {
        "umaze": (5, 5, (8.0, 0.0), 1),
        "medium": (8, 8, (20.0, 20.0), 3),
        "large": (9, 12, (24.0, 32.0), 7),
        "ultra": (12, 16, (36.0, 52.0), 21),
    }.items():
        layout = LAYOUTS[maze]
        walls = layout.map.walls
        assert walls.shape == (rows, columns) and walls[0].all() and walls[-1].all() and walls[:, [0, -1]].all()
        assert layout.map.centre((1, 1)).tolist() == [0.0, 0.0] and layout.rows[1][1] == "R"
        assert tuple(layout.map.centre(layout.goal)[::-1]) == goal and len(layout.collection_goals) == goals
        assert not walls[layout.goal] and np.isfinite(layout.map.cell_distances).all()  # no cell is cut off


def test_walls_stand_where_the_map_says():
    env = make_env("antmaze-umaze-v2")
    model, maze = env.unwrapped.model, env.map
    walls = [model.geom(number) for number in range(model.ngeom) if model.geom(number).name.startswith("wall_")]
    assert len(walls) == maze.walls.sum()
    for wall in walls:
        assert wall.size.tolist() == [2.0, 2.0, 1.0] and wall.pos[2] == 1.0
        assert maze.walls[tuple(maze.cell_of(wall.pos[:2]))]


def test_the_request_body_is_d4rls():
    """The figures of D4RL's ant model, except that its motors have gear 1 and a range of 30."""
    simulator = make_env("antmaze-large-play").unwrapped
    model = simulator.model
    assert simulator.frame_skip == 5 and model.opt.timestep == 0.02
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    assert (model.actuator_gear[:, 0] == 30).all() and model.actuator_ctrllimited.all()
    assert model.actuator_ctrlrange.tolist() == [[-1.0, 1.0]] * 8
    driven = [model.joint(joint).name for joint in model.actuator_trnid[:, 0]]
    assert driven == ["hip_4", "ankle_4", "hip_1", "ankle_1", "hip_2", "ankle_2", "hip_3", "ankle_3"]
    assert (model.dof_damping[6:] == 1).all() and (model.dof_armature[6:] == 1).all()
    degrees = np.degrees(model.jnt_range[1:]).round(6).tolist()
    assert degrees == [[-30, 30], [30, 70], [-30, 30], [-70, -30], [-30, 30], [-70, -30], [-30, 30], [30, 70]]
    torso = model.geom("torso_geom")
    assert torso.size[0] == 0.25 and torso.friction.tolist() == [1.0, 0.5, 0.5]


def test_gear_thirty_is_control_thirty():
    """30 x a with gear 1 gives the same states to the bit, so D4RL's rescaled actions mean the same here."""
    ours, theirs = (make_env("antmaze-umaze-v2") for _ in range(2))
    model = theirs.unwrapped.model
    model.actuator_gear[:, 0], model.actuator_ctrlrange[:] = 1.0, (-30.0, 30.0)
    for env in (ours, theirs):
        env.reset(seed=4)
    rng = np.random.default_rng(0)
    for _ in range(40):
        action = rng.uniform(-1.3, 1.3, 8)  # clipped at one, here by the motor, there by the wrapper
        one = ours.step(action)[0]
        other = theirs.step(30.0 * action)[0]
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert np.abs(one[:2]).max() > 0.01


def test_starts_and_goals():
    for maze, low in {
        "umaze": (0.0, 8.0),
        "medium": (20.0, 20.0),
        "large": (32.0, 24.0),
        "ultra": (51.0, 35.0),
    }.items():
        env = make_env(f"antmaze-{maze}-play")
        starts, goals = [], []
        for seed in range(150):
            observation, info = env.reset(seed=seed, options={"task_id": 1})
            starts.append(observation)
            goals.append(info["goal"])
        starts, goals = np.array(starts), np.array(goals)
        around = starts[:, :15] - env.unwrapped.init_qpos
        assert np.abs(around).max() <= 0.1 and np.abs(around).max() > 0.095 and abs(around.mean()) < 0.01
        assert starts[:, 15:].std() == pytest.approx(0.1, rel=0.05)
        noise = goals[:, :2] - low  # U(0, 1) + U(0, 0.5)
        assert noise.min() >= 0 and noise.max() <= 1.5 and noise.max() > 1.25 and noise.min() < 0.25
        assert noise.mean(0) == pytest.approx([0.75, 0.75], abs=0.1)
        assert (goals[:, 2:] == goals[0, 2:]).all()  # one pose, whatever the goal


def test_goals_below_zero_are_lifted():
    layout = LAYOUTS["ultra"]
    goals = np.array([layout.draw_goal(np.random.default_rng(seed), cell=(1, 1)) for seed in range(50)])
    assert goals.min() == 0.0 and goals.max() < 0.5


def test_success_within_half_a_unit():
    env = make_env("antmaze-large-diverse")
    for distance, expected in ((0.45, True), (0.75, False)):
        _, info = env.reset(seed=0)
        env.unwrapped.set_xy(info["goal"][:2] + np.array([distance, 0.0]))
        observation, reward, terminated, _, info = env.step(np.zeros(8, np.float32))
        assert abs(np.linalg.norm(observation[:2] - env.unwrapped.goal_xy) - distance) < 0.05
        assert (reward, terminated, info["success"]) == (float(expected), expected, expected)


def test_goal_takes_its_pose_from_the_data():
    reference = np.arange(29.0)
    env = make_env("antmaze-medium-play", reference=reference)
    _, info = env.reset(seed=0)
    assert np.array_equal(info["goal"][2:], reference[2:]) and info["goal"][0] > 19
    with pytest.raises(ConfigError, match="30 numbers instead of 29"):
        make_env("antmaze-medium-play", reference=np.zeros(30))
