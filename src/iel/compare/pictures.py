"""The pictures of a comparison: success with intervals, profiles, and learning curves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from iel.compare.results import Comparison
from iel.envs import make_env
from iel.errors import IELError
from iel.evaluation.stats import performance_profile, profile_band
from iel.model import Model
from iel.training import open_run
from iel.training.trackers import read_losses
from iel.viz.comparison import draw_bars, draw_by_distance, draw_by_time, draw_learning, draw_profiles
from iel.viz.pictures import draw_field

THRESHOLDS = np.linspace(0, 1, 101)
"""Scores at which performance profiles are drawn."""
Curves = dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]]
"""Method -> environment -> (steps, values) of every seed."""


def draw_pictures(comparison: Comparison, out: Path) -> dict[str, Path]:
    """Title -> file of every picture there is data for."""
    pictures: dict[str, Path] = {}

    def draw(title: str, name: str, picture: Callable[..., None], *content: object) -> None:
        pictures[title] = out / name
        picture(out / name, *content)

    columns, entries = comparison.columns, comparison.entries
    panels = comparison.by_environment({key: (entry.scores, entry.interval) for key, entry in entries.items()})
    published = comparison.by_environment({key: mean / 100 for key, (mean, _) in comparison.published.items()})
    draw("Success with 95 % intervals", "success.png", draw_bars, columns, panels, published)
    bands = comparison.by_environment({key: entry.bands for key, entry in entries.items() if entry.bands})
    if bands := {env: own for env, own in bands.items() if own}:
        draw("Success by distance", "distances.png", draw_by_distance, columns, bands)
    if times := _by_time(comparison):
        draw(
            "Success against the time of training",
            "time.png",
            draw_by_time,
            dict.fromkeys(method for method, _ in columns),
            times,
        )
    if profiles := {
        column: (performance_profile(groups, THRESHOLDS), profile_band(groups, THRESHOLDS))
        for column, groups in comparison.complete.items()
    }:
        draw("Performance profiles", "profiles.png", draw_profiles, columns, THRESHOLDS, profiles)
    if success := _success_curves(comparison):
        draw("Success during training", "progress.png", draw_learning, success, "success, per cent")
    if curves := _curves(comparison):
        draw("Training losses", "learning.png", draw_learning, curves)
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
    """How every method's distances order the points of a maze (first seed, first task, pose of the start).

    A method without a planner, whose distances nothing used, has no panel.
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

    draw_field(path, world.map, goal, {method: cost(model) for method, model in models.items()}, start, ranked=True)
    return path


def _success_curves(comparison: Comparison) -> Curves:
    """Success in per cent at every measured checkpoint, by method (under its last planner) and environment."""
    curves: Curves = {}
    last = {method: (method, planner) for method, planner in comparison.columns}
    for (env, column), entry in comparison.entries.items():
        if column != last[column[0]] or not entry.curve:
            continue
        steps = np.array([*entry.curve, entry.last_step], float)
        values = 100 * np.array([*(rates.mean(1) for rates in entry.curve.values()), entry.scores])
        curves.setdefault(" ".join(column), {})[env] = [(steps, seed) for seed in values.T]
    return curves


def _curves(comparison: Comparison) -> Curves:
    """Losses of all phases, one after the other, by method and environment."""
    curves: Curves = {}
    for (env, method, _), run in comparison.runs.items():
        if not (run / "metrics.csv").exists():
            continue
        steps, values = (np.asarray(part, float) for part in read_losses(run / "metrics.csv"))
        if steps.size:
            curves.setdefault(method, {}).setdefault(env, []).append((steps, values))
    return curves
