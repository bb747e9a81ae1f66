"""Videos and strips exist, have the requested frames, and show what they should."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from iel.envs import make_env
from iel.errors import ConfigError
from iel.viz import rendering
from iel.viz.video import draw_frames, draw_strip, record, write_video


def walk(name: str, steps: int = 12):
    env = make_env(name)
    observation, info = env.reset(seed=0, options={"task_id": 1})
    path, rng = [observation], np.random.default_rng(0)
    for _ in range(steps):
        path.append(env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[0])
    return np.array(path), info["goal"]


def test_gif_and_strip_have_the_frames_requested_for(tmp_path):
    path, goal = walk("antmaze-medium-v0")
    made = record(
        "antmaze-medium-v0", path, goal, tmp_path / "a" / "walk.gif", waypoints=path[:, :2] + 4, frames=5,
        pictures=3, backend="drawing",
    )  # fmt: skip
    with Image.open(made.video) as video:
        assert video.n_frames == 5 and video.size == (640, 640)
    with Image.open(made.strip) as strip:
        assert strip.size == (3 * 640 + 2 * 4, 640)


def test_mp4_has_the_frames_requested_for(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path, goal = walk("pointmaze-large-v0", 30)
    made = record("pointmaze-large-v0", path, goal, tmp_path / "walk.mp4", frames=9, backend="drawing")
    assert ffmpeg.count_frames_and_secs(str(made.video))[0] == 9


def test_without_ffmpeg_a_gif_is_written_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    frames = np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), np.uint8)
    assert write_video(tmp_path / "x.mp4", frames) == tmp_path / "x.gif"
    assert "'.[video]'" in capsys.readouterr().err


def test_drawing_shows_waypoints_and_the_path_so_far():
    path, goal = np.linspace((0.0, 0.0), (4.0, 0.0), 5), np.array([20.0, 20.0])
    steps, none = np.array([0, 4]), np.zeros((0, 2))
    plain = draw_frames("pointmaze-medium-v0", path, goal, none, steps)
    planned = draw_frames("pointmaze-medium-v0", path, goal, np.array([[8.0, 12.0]]), steps)
    height, width = plain.shape[1:3]
    left, right, bottom, top = make_env("pointmaze-medium-v0").map.extent

    def pixel(frame, x, y):
        return frame[int((top - y) / (top - bottom) * height), int((x - left) / (right - left) * width)].astype(int)

    assert np.abs(pixel(plain[0], 8, 12) - pixel(planned[0], 8, 12)).max() > 60  # a dot, where the plan says
    assert np.abs(pixel(plain[0], 2, 0) - pixel(plain[1], 2, 0)).max() > 60  # the path, once it was followed


def test_kitchen_is_drawn_as_distances_over_time():
    pytest.importorskip("gymnasium_robotics")
    path = np.linspace(np.zeros(30), np.ones(30), 6)
    frames = draw_frames("kitchen-partial-v0", path, np.zeros(30), path[1:3], np.array([0, 5]))
    assert frames.shape == (2, 480, 640, 3) and (frames[0] != frames[1]).any()


def test_when_no_gl_library_works_a_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rendering, "find_backend", lambda: None)
    path, goal = walk("pointmaze-medium-v0", 4)
    made = record("pointmaze-medium-v0", path, goal, tmp_path / "walk.gif")
    assert made.backend == "drawing" and made.video.is_file()
    said = capsys.readouterr().err.strip()
    assert said.startswith("Neither EGL nor OSMesa works here") and said.count("\n") == 0
    backend, why = rendering.choose_backend("humanoidmaze-medium-v0")
    assert backend is None and "do not hold its whole state" in why


def test_a_crashing_gl_library_is_survived(monkeypatch):
    def crash(command, **_):
        return subprocess.CompletedProcess(command, -11, "", "Segmentation fault")

    rendering.find_backend.cache_clear()
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(rendering.subprocess, "run", crash)
    assert rendering.find_backend() is None
    rendering.find_backend.cache_clear()


def test_mujoco_renders_where_gl_works(tmp_path):
    backend = rendering.find_backend()
    if backend is None:
        pytest.skip("no GL library works here")
    path, goal = walk("antmaze-umaze-v2", 8)
    frames = rendering.render("antmaze-umaze-v2", path[[0, 8]], goal, path[:1] + 4.0, backend, longest=160)
    assert frames.shape == (2, 160, 160, 3)
    changed = np.argwhere(np.abs(frames[0].astype(int) - frames[1]).max(-1) > 60)
    # The ant starts in the lower left cell of the map, seen from above: only there may anything change, but for the
    # faint light above it.
    assert len(changed) and changed[:, 0].min() > 96 and changed[:, 1].max() < 80


def test_bad_input_is_refused(tmp_path):
    path, goal = np.zeros((3, 2)), np.zeros(2)
    with pytest.raises(ConfigError, match=r"an \.mp4 or a \.gif file, not walk\.avi"):
        write_video(tmp_path / "walk.avi", np.zeros((1, 16, 16, 3), np.uint8))
    with pytest.raises(ConfigError, match="at least two finite observations"):
        record("pointmaze-medium-v0", path[:1], goal, tmp_path / "a.gif")
    with pytest.raises(ConfigError, match="Waypoints must be a table"):
        record("pointmaze-medium-v0", path, goal, tmp_path / "a.gif", waypoints=goal, backend="drawing")


def test_strips_have_the_first_and_last_frame(tmp_path):
    frames = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    strip = np.asarray(Image.open(draw_strip(tmp_path / "s.png", frames, 2)))
    assert strip[0, 0, 0] == 0 and strip[0, -1, 0] == 9
