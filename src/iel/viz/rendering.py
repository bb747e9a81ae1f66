"""Frames of a rollout from its observations, without a screen: by MuJoCo where a GL library works, else drawn in 2-D.

MuJoCo chooses its GL library when it is first imported, and a broken one may take the process with it. So GL is tried
and used in processes of its own (`python -m iel.viz.rendering ...`), with MUJOCO_GL set for them alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iel.data.npz import read_npz
from iel.envs import MazeMap, make_env
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.envs.seeded import SeededEnv

STATEFUL = ("pointmaze", "antmaze", "antsoccer", "kitchen")
"""Families whose observations hold the whole configuration, so that a simulator can be put back into them."""
BLOCK = 16
"""Video codecs want sides that are multiples of this."""
WAYPOINT, GOAL = (0.91, 0.35, 0.05, 0.9), (0.84, 0.2, 0.42, 0.9)
WALL, FLOOR = (0.12, 0.14, 0.17, 1.0), (0.55, 0.54, 0.52, 1.0)
PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom size='.3' rgba='1 0 0 1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(data)
assert renderer.render().std() > 1
print("drawn")
"""


@cache
def find_backend() -> str | None:
    """The first GL library that draws a ball here: MUJOCO_GL if it is set, else EGL, else OSMesa; None if none does."""
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    for backend in (wanted,) if wanted else ("egl", "osmesa"):
        try:
            run = subprocess.run(
                [sys.executable, "-c", PROBE], env=_environment(backend), capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            continue
        if "drawn" in run.stdout:  # some drivers complain while they close, after all went well
            return backend
    return None


def choose_backend(env_name: str) -> tuple[str | None, str]:
    """(GL library, ""), or (None, one sentence that says why the rollout is drawn in 2-D)."""
    if env_name.split("-")[0] not in STATEFUL:
        return None, f"Observations of {env_name} do not hold its whole state, so the rollout is drawn in 2-D."
    none = "Neither EGL nor OSMesa works here, so the rollout is drawn in 2-D; install libegl1 or libosmesa6 for 3-D."
    backend = find_backend()
    return backend, "" if backend else none


def frame_size(maze: MazeMap | None, longest: int = 640) -> tuple[int, int]:
    """(width, height) in pixels for a map seen from above, or for a room."""
    shape = (3, 4) if maze is None else maze.walls.shape
    height, width = (longest * side / max(shape) for side in shape)
    return max(BLOCK, round(width / BLOCK) * BLOCK), max(BLOCK, round(height / BLOCK) * BLOCK)


def render(
    env_name: str, observations: ArrayLike, goal: ArrayLike, waypoints: ArrayLike, backend: str, longest: int = 640
) -> NDArray[np.uint8]:
    """(frames, height, width, 3) of a simulator put into each observation, with waypoints and goal as balls."""
    with tempfile.TemporaryDirectory(prefix="iel-render-") as folder:
        source, target = Path(folder) / "states.npz", Path(folder) / "frames.npz"
        np.savez(source, observations=observations, goal=goal, waypoints=waypoints, longest=longest)
        command = [sys.executable, "-m", "iel.viz.rendering", env_name, str(source), str(target)]
        run = subprocess.run(command, env=_environment(backend), capture_output=True, text=True)
        if not target.exists():
            reason = (run.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(
                f"Rendering {env_name} with {backend.upper()} failed ({reason}); choose a 2-D drawing instead."
            )
        return read_npz(target)["frames"]


def _environment(backend: str) -> dict[str, str]:
    return {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}


def _restore(env: SeededEnv, observation: NDArray) -> None:
    """Put the simulator into the configuration an observation shows, at rest."""
    simulator: Any = env.unwrapped
    if hasattr(simulator, "restore"):
        simulator.restore(observation)
    else:
        simulator.set_state(np.array(observation[: simulator.model.nq], np.float64), np.zeros(simulator.model.nv))


def _work(env_name: str, source: str, target: str) -> None:
    """The rendering process: states in, frames out."""
    import mujoco

    arrays = read_npz(source)
    observations, goal, waypoints = (arrays[key] for key in ("observations", "goal", "waypoints"))
    longest = int(arrays["longest"])
    env = make_env(env_name)
    env.reset(seed=0, options={"task_id": 1})
    simulator: Any = getattr(env.unwrapped, "robot", env.unwrapped)
    if hasattr(simulator, "set_goal"):
        simulator.set_goal(goal_xy=goal[:2]) if "cur_goal_xy" in vars(simulator) else simulator.set_goal(goal[:2])
    model, data = simulator.model, simulator.data
    positions = [_position(env, point) for point in waypoints]
    width, height = frame_size(env.map, longest)
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    if env.map is not None:
        model.mat("wall").rgba, model.mat("grid").rgba = WALL, FLOOR  # as in every other picture
        model.mat("grid").texid[:] = -1
        model.mat("wall").specular = model.mat("grid").specular = 0.0
    model.vis.quality.offsamples = 0  # software renderers take seconds a frame for smooth edges and shadows
    frames = np.empty((len(observations), height, width, 3), np.uint8)
    camera = _camera(env.map, simulator)
    renderer = mujoco.Renderer(model, height, width)
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    for number, observation in enumerate(observations):
        _restore(env, observation)
        renderer.update_scene(data, camera=camera)
        for spot in positions:
            _add_ball(renderer.scene, spot, 0.35 if env.map else 0.03, WAYPOINT)
        if env.map:
            _add_ball(renderer.scene, np.array([*goal[:2], 0.5]), 0.5, GOAL)
        frames[number] = renderer.render()
    np.savez(target, frames=frames)


def _position(env: SeededEnv, waypoint: NDArray) -> NDArray:
    """Where a waypoint is drawn: on the floor of a maze, or where it wants the robot's hand."""
    if env.map is not None:
        return np.array([*waypoint[:2], 0.5])
    _restore(env, waypoint)
    kitchen: Any = env.unwrapped
    return kitchen.robot.data.site("end_effector").xpos.copy()


def _camera(maze: MazeMap | None, simulator: Any) -> Any:
    import mujoco

    camera = mujoco.MjvCamera()
    if maze is None:
        for key, value in simulator.mujoco_renderer.default_cam_config.items():
            setattr(camera, key, value)
        return camera
    left, right, bottom, top = maze.extent
    camera.lookat[:] = (left + right) / 2, (bottom + top) / 2, 0.0
    camera.elevation, camera.azimuth = -90.0, 90.0
    camera.distance = (top - bottom) / (2 * np.tan(np.radians(simulator.model.vis.global_.fovy) / 2)) + 2.0
    return camera


def _add_ball(scene: Any, spot: NDArray, radius: float, colour: tuple[float, ...]) -> None:
    import mujoco

    if scene.ngeom < scene.maxgeom:
        size, turn, rgba = np.array([radius, 0.0, 0.0]), np.eye(3).ravel(), np.array(colour, np.float32)
        mujoco.mjv_initGeom(scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_SPHERE, size, spot, turn, rgba)
        scene.ngeom += 1


if __name__ == "__main__":
    _work(*sys.argv[1:])
