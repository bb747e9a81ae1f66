"""A rollout as a video (MP4 or GIF) and as a strip of pictures, with the planned waypoints drawn in."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from iel.envs import MazeMap, canonical_name, make_env
from iel.errors import ConfigError, install
from iel.viz.rendering import choose_backend, frame_size, render
from iel.viz.style import INK, LINES, PATH, RULES, SUCCESS, draw_maze, mark

DPI, FPS = 100, 20
Frames = NDArray[np.uint8]


class Recording(NamedTuple):
    """What `record` wrote."""

    video: Path
    strip: Path
    backend: str
    """"egl", "osmesa" or "drawing"."""


def record(
    env_name: str,
    observations: ArrayLike,
    goal: ArrayLike,
    out: Path | str,
    *,
    waypoints: ArrayLike | None = None,
    frames: int = 150,
    pictures: int = 6,
    backend: str | None = None,
) -> Recording:
    """Write a rollout (observations (T + 1, n), as in `Rollouts.paths`) as the video `out` and a strip beside it.

    `waypoints` (m, n) are the planned observations, in order; in a maze their first two columns are enough.
    `backend` is "egl", "osmesa" or "drawing"; by default the first that works, and a sentence on stderr if none does.
    """
    env_name, path, goal = canonical_name(env_name), np.asarray(observations, np.float64), np.asarray(goal, np.float64)
    if path.ndim != 2 or len(path) < 2 or goal.shape != path.shape[1:] or not np.isfinite(path).all():
        raise ConfigError(
            f"A rollout of {env_name} needs at least two finite observations of the goal's size; "
            f"got observations {path.shape} and a goal {goal.shape}."
        )
    points = np.zeros((0, path.shape[1])) if waypoints is None else np.asarray(waypoints, np.float64)
    if points.ndim != 2 or (points.shape[1] < 2 and len(points)):
        raise ConfigError(f"Waypoints must be a table (number, columns), but have shape {points.shape}.")
    chosen = np.unique(np.linspace(0, len(path) - 1, min(frames, len(path))).round().astype(int))
    if backend is None:
        backend, reason = choose_backend(env_name)
        if backend is None:
            print(reason, file=sys.stderr)
    if backend in (None, "drawing"):
        backend = "drawing"
        images = draw_frames(env_name, path, goal, points, chosen)
    else:
        images = render(env_name, path[chosen], goal, points, backend)
    video = write_video(out, images)
    return Recording(video, draw_strip(video.with_suffix(".png"), images, pictures), backend)


def write_video(path: Path | str, frames: Frames) -> Path:
    """Write frames (t, height, width, 3) as MP4, or as GIF by the suffix or without imageio-ffmpeg; returns it."""
    path = Path(path)
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ConfigError(f"A video is an .mp4 or a .gif file, not {path.name}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".mp4":
        try:
            import imageio_ffmpeg
        except ImportError:
            path = path.with_suffix(".gif")
            print(f"MP4 needs imageio-ffmpeg ({install('video')}); writing {path.name} instead.", file=sys.stderr)
        else:
            height, width = frames.shape[1:3]
            writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=FPS, ffmpeg_log_level="error")
            writer.send(None)
            for frame in frames:
                writer.send(np.ascontiguousarray(frame))
            writer.close()
            return path
    images = [Image.fromarray(frame).quantize(128) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / FPS), loop=0)
    return path


def draw_strip(path: Path | str, frames: Frames, pictures: int = 6) -> Path:
    """Evenly spaced frames side by side, the first and the last among them, as one PNG."""
    path = Path(path)
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(pictures, len(frames))).round().astype(int))
    gap = np.full((frames.shape[1], 4, 3), 255, np.uint8)
    parts = [part for frame in frames[chosen] for part in (frame, gap)][:-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(parts, axis=1)).save(path)
    return path


def draw_frames(env_name: str, path: NDArray, goal: NDArray, waypoints: NDArray, chosen: NDArray) -> Frames:
    """2-D drawings of a rollout up to each chosen step: the path through a maze, or the distances to the goal."""
    maze = make_env(env_name).map
    width, height = frame_size(maze)
    with matplotlib.rc_context(RULES):
        page = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        canvas = FigureCanvasAgg(page)
        if maze is None:
            show = _chart(page, env_name, path, goal, waypoints)
        else:
            show = _walk(page, maze, env_name, path, goal, waypoints)
        frames = np.empty((len(chosen), height, width, 3), np.uint8)
        for number, step in enumerate(chosen):
            show(int(step))
            canvas.draw()
            frames[number] = np.asarray(canvas.buffer_rgba())[..., :3]
    return frames


def _walk(
    page: Figure, maze: MazeMap, env_name: str, path: NDArray, goal: NDArray, waypoints: NDArray
) -> Callable[[int], None]:
    axes = page.add_axes((0, 0, 1, 1))
    draw_maze(axes, maze)
    axes.plot(*waypoints[:, :2].T, "o--", color=PATH, markersize=5, linewidth=0.8, alpha=0.8, zorder=3)
    mark(axes, path[0, :2], "start", 60)
    mark(axes, goal[:2], "goal", 60)
    (line,) = axes.plot([], [], color=SUCCESS, linewidth=1.6, zorder=4)
    (body,) = axes.plot([], [], "o", color=INK, markersize=9, zorder=7)
    (nose,) = axes.plot([], [], color=INK, linewidth=3, zorder=7)

    def show(step: int) -> None:
        line.set_data(*path[: step + 1, :2].T)
        body.set_data(*path[step : step + 1, :2].T)
        if env_name.split("-")[0] in ("antmaze", "antsoccer"):  # its first axis, from its quaternion
            w, x, y, z = path[step, 3:7]
            ahead = np.array([1 - 2 * (y**2 + z**2), 2 * (x * y + w * z)])
            ahead *= 0.4 * maze.cell / (np.linalg.norm(ahead) + 1e-9)
            nose.set_data(*np.stack([path[step, :2], path[step, :2] + ahead]).T)

    return show


def _chart(page: Figure, env_name: str, path: NDArray, goal: NDArray, waypoints: NDArray) -> Callable[[int], None]:
    """Distances over time: of the kitchen's four elements, elsewhere of the whole observation; waypoints as dots."""
    states = np.concatenate([path, waypoints]) if waypoints.shape[1] == path.shape[1] else path
    names: tuple[str, ...] = ("observation",)
    distance = np.linalg.norm(states - goal, axis=1)[:, None]
    axes = page.add_axes((0.11, 0.12, 0.86, 0.84))
    if env_name.startswith("kitchen-"):
        from iel.envs.kitchen import ELEMENTS, TOLERANCE, distances

        kind = env_name.split("-")[1]
        distance, names = distances(states, kind), ELEMENTS[kind]
        axes.axhline(TOLERANCE, color=INK, linewidth=0.8, linestyle=":")
    values, planned = np.split(distance, [len(path)])
    axes.set(xlim=(0, len(path) - 1), ylim=(0, 1.1 * values.max() + 1e-9), xlabel="step", ylabel="distance to the goal")
    moments = np.linspace(0, len(path) - 1, len(planned) + 2)[1:-1]
    lines = []
    for number, (name, colour) in enumerate(zip(names, LINES, strict=False)):
        lines += axes.plot([], [], color=colour, linewidth=2, label=name)
        axes.plot(moments, planned[:, number], "o", color=colour, markersize=4, alpha=0.5)
    axes.legend(loc="upper right")

    def show(step: int) -> None:
        for line, column in zip(lines, values.T, strict=True):
            line.set_data(np.arange(step + 1), column[: step + 1])

    return show
