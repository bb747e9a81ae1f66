"""The pictures of a comparison: success with intervals, profiles, and learning curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from iel.compare.results import THRESHOLDS, Comparison
from iel.envs import make_env
from iel.errors import IELError
from iel.model import Model
from iel.training import open_run
from iel.training.trackers import read_losses
from iel.viz.comparison import draw_bars, draw_by_distance, draw_by_time, draw_learning, draw_profiles
from iel.viz.pictures import draw_orders


def draw_pictures(comparison: Comparison, out: Path) -> dict[str, Path]:
    """Title -> file of every picture there is data for."""
    pictures: dict[str, Path] = {}
    panels: dict[str, Any] = {
        env: {c: (e.scores, e.interval) for c in comparison.columns if (e := comparison.entries.get((env, c)))}
        for env in comparison.environments
    }
    published = {
        env: {c: n[0] / 100 for c in comparison.columns if (n := comparison.published.get((env, c)))}
        for env in comparison.environments
    }
    pictures["Success with 95 % intervals"] = out / "success.png"
    draw_bars(out / "success.png", comparison.columns, panels, published)
    bands: dict[str, Any] = {
        env: {c: e.bands for c in comparison.columns if (e := comparison.entries.get((env, c))) and e.bands}
        for env in comparison.environments
    }
    if bands := {env: entries for env, entries in bands.items() if entries}:
        pictures["Success by distance"] = out / "distances.png"
        draw_by_distance(out / "distances.png", comparison.columns, bands)
    if times := _by_time(comparison):
        pictures["Success against the time of training"] = out / "time.png"
        draw_by_time(out / "time.png", times)
    if comparison.complete:
        profiles = {column: comparison.profile(column) for column in comparison.complete}
        pictures["Performance profiles"] = out / "profiles.png"
        draw_profiles(out / "profiles.png", comparison.columns, THRESHOLDS, profiles)
    if success := _success_curves(comparison):
        pictures["Success during training"] = out / "progress.png"
        draw_learning(out / "progress.png", success, "success, per cent")
    if curves := _curves(comparison):
        pictures["Training losses"] = out / "learning.png"
        draw_learning(out / "learning.png", curves)
    for number, env in enumerate(comparison.environments):
        if fields := _fields(comparison, env, out / f"fields{number or ''}.png"):
            pictures[f"What is near the goal, {env}"] = fields
    return pictures


def _by_time(comparison: Comparison) -> dict[str, dict[str, tuple[float, np.ndarray]]]:
    """Minutes of training and scores of the seeds under its best planner, by environment and method."""
    panels: dict[str, dict[str, tuple[float, np.ndarray]]] = {}
    for (env, method), seconds in comparison.seconds.items():
        own = [e.scores for (other, column), e in comparison.entries.items() if (other, column[0]) == (env, method)]
        if own:
            panels.setdefault(env, {})[method] = seconds.training / 60, max(own, key=np.mean)
    return {env: methods for env, methods in panels.items() if len(methods) > 1}


def _fields(comparison: Comparison, env_name: str, path: Path) -> Path | None:
    """The order in which every method's distances have the points of a maze (first seed, first task, start's pose).

    Of methods that were only sent straight to their goals, whose distances nobody asked for, there is none.
    """
    models: dict[str, Model] = {}
    planned = {method for method, planner in comparison.columns if planner != "direct"}
    try:
        if "maze" not in env_name or (world := make_env(env_name)).map is None:
            return None
        for (env, method, _), path_of_run in comparison.runs.items():
            if env == env_name and method in planned - models.keys() and (path_of_run / "model").is_dir():
                run = open_run(path_of_run)
                if run.status == "finished" and run.model.metric is not None:
                    models[method] = run.model
    except IELError:  # no simulator here, or a run that is damaged: the tables are what a report is for
        return None
    if len(models) < 2:
        return None
    start, info = world.reset(seed=0, options={"task_id": 1})
    goal = np.asarray(info["goal"], np.float32)
    world.close()
    assert world.map is not None

    def cost(model: Model) -> Callable[[np.ndarray], np.ndarray]:
        return lambda states: model.cost(states, *(np.tile(goal, (len(states), 1)) for _ in range(2)))

    draw_orders(path, world.map, goal, {method: cost(model) for method, model in models.items()}, start)
    return path


def _success_curves(comparison: Comparison) -> dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """Success in per cent at every measured checkpoint, by method (under its last planner) and environment."""
    curves: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
    last = {method: (method, planner) for method, planner in comparison.columns}
    for (env, column), entry in comparison.entries.items():
        if column != last[column[0]] or not entry.curve:
            continue
        steps = np.array([*entry.curve, entry.last_step], float)
        values = 100 * np.array([*(rates.mean(1) for rates in entry.curve.values()), entry.scores])
        curves.setdefault(" ".join(column), {})[env] = [(steps, seed) for seed in values.T]
    return curves


def _curves(comparison: Comparison) -> dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """Losses of all phases, one after the other, by method and environment."""
    curves: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {}
    for (env, method, _), run in comparison.runs.items():
        if not (run / "metrics.csv").exists():
            continue
        steps, values = (np.asarray(part, float) for part in read_losses(run / "metrics.csv"))
        if steps.size:
            curves.setdefault(method, {}).setdefault(env, []).append((steps, values))
    return curves
