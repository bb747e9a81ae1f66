"""One cell: train a method with one seed, then evaluate it under each of its planners.

    CELL/
      job.json                 what to do, and the fingerprints that make a result count
      run/                     the training run (continued from its checkpoint when it was stopped)
      evaluations/LABEL.json   scores of every episode, written whole or not at all
      evaluations/LABEL.png    the ways taken, for the first seed in a maze
      times.json               seconds of training and evaluation
      log.txt                  what the process said
      error.json               why it failed, if it did

`iel.compare.worker` runs it in a process of its own, so that a crash, or a machine out of memory, costs
one cell.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iel.compare.grid import Cell, Variant
from iel.data import Trajectories, load
from iel.errors import RunError
from iel.evaluation import Arena, Protocol, Rollouts
from iel.evaluation.ask import Ask
from iel.evaluation.distances import can_be_asked
from iel.files import locked, write_json
from iel.loader import read_json
from iel.training import open_run, train
from iel.training.loop import snapshot_model, snapshot_steps
from iel.typed import Amount, as_struct

if TYPE_CHECKING:
    from iel.model import Model

FORMAT = 1
PATIENCE = 60.0
"""Seconds to wait for another process that trains this cell."""
CHECKPOINT = "last"
"""Which model of a run the tables show: the one training ended with. With `checkpoints` above 1 in the protocol earlier
ones are measured as well, for learning curves and for a table of the best ones, which is labelled as such."""


def write_job(directory: Path, cell: Cell, data_fingerprint: str, draw: bool) -> None:
    """Describe the work of one cell."""
    (directory / "evaluations").mkdir(parents=True, exist_ok=True)
    job = {
        "format": FORMAT,
        "env": cell.env,
        "method": cell.method,
        "algo": cell.algo,
        "settings": cell.settings,
        "seed": cell.seed,
        "steps": cell.settings["steps"],
        "data": {**cell.data, "fingerprint": data_fingerprint},
        "protocol": cell.protocol,
        "draw": draw,
        "planners": [
            {
                "label": variant.label,
                "planner": variant.planner,
                "settings": variant.settings,
                "policy_of": cell.driver(variant.policy_of).directory(data_fingerprint) if variant.policy_of else "",
                "goal_columns": variant.columns_in(cell.env),
                "fingerprint": cell.evaluation_fingerprint(data_fingerprint, variant),
            }
            for variant in cell.planners
        ],
    }
    write_json(directory / "job.json", job)


def evaluation_file(directory: Path, label: str) -> Path:
    """Where the scores under a planner are kept; its picture has the same name."""
    slug = "".join(letter if letter.isalnum() or letter in "-.=" else "_" for letter in label)
    return directory / "evaluations" / f"{slug}.json"


def read_evaluation(directory: Path, cell: Cell, data_fingerprint: str, variant: Variant) -> dict[str, Any] | None:
    """A finished evaluation of exactly this cell; None for one that is missing, half-written or of something else."""
    try:
        result = read_json(evaluation_file(directory, variant.label))
        expected = cell.evaluation_fingerprint(data_fingerprint, variant)
        counts = {len(task["scores"]) for task in result["tasks"].values()}
    except (RunError, KeyError, TypeError, AttributeError):
        return None
    if result.get("format") != FORMAT or result.get("fingerprint") != expected:
        return None
    return result if counts == {cell.protocol["episodes"]} else None


def missing(directory: Path, cell: Cell, data_fingerprint: str) -> list[Variant]:
    """The planners still to be evaluated."""
    return [v for v in cell.planners if read_evaluation(directory, cell, data_fingerprint, v) is None]


def run_cell(directory: Path) -> None:
    """Do what is not done yet of a cell."""
    from iel.methods import get_algo
    from iel.methods.contract import config_from_dict
    from iel.model import load_model

    job = read_json(directory / "job.json")
    data = load(job["env"], episodes=job["data"]["episodes"], seed=job["data"]["seed"], make=False, progress=False)
    if data.fingerprint != job["data"]["fingerprint"]:
        raise RunError(f"The data of {job['env']} changed since this comparison looked at it; start it again.")
    for planner in job["planners"]:  # a driver that is missing is said before the training, not after
        _driver(directory.parent, planner.get("policy_of", ""))
    algo = config_from_dict(get_algo(job["algo"]), job["settings"])
    times = Times(directory / "times.json")
    started = time.monotonic()
    kept = job["protocol"].get("checkpoints", 1)
    with locked(directory / "run", PATIENCE):  # a worker of a comparison that was killed may still be saving
        pass
    trained = train(data, algo, [job["seed"]], out=directory / "run", resume=True, snapshots=kept)
    times.add("training", time.monotonic() - started)
    earlier = {step: snapshot_model(directory / "run", step) for step in snapshot_steps(algo, kept)[:-1]}
    models = {step: load_model(path) for step, path in earlier.items()}
    evaluate_cell(directory, job, trained.models[job["seed"]], models, data, times)


def evaluate_cell(
    directory: Path, job: dict[str, Any], model: Model, earlier: dict[int, Model], data: Trajectories, times: Times
) -> None:
    """Measure the planners whose results are not there yet: with the last model, and with those of earlier steps."""
    from iel.planning import make_planner

    protocol = {**job["protocol"], "tasks": tuple(job["protocol"]["tasks"] or ()) or None}
    protocol.pop("checkpoints", None)
    far = _far(job["env"], protocol)
    arenas: dict[tuple[int, ...] | None, Arena] = {}
    for planner in job["planners"]:
        file = evaluation_file(directory, planner["label"])
        if file.exists() and _holds(file, planner["fingerprint"]):
            continue
        columns = tuple(planner.get("goal_columns") or ()) or None
        if columns not in arenas:
            asked = Protocol(**protocol, ask=Ask(columns))
            arenas[columns] = Arena(job["env"], asked, reference=data.observations[0])
        arena = arenas[columns]
        started = time.monotonic()
        drive = _driver(directory.parent, planner.get("policy_of", ""))
        driven = drive(model)
        made = make_planner(planner["planner"], driven, data, **planner["settings"])
        rollouts = arena.rollout(driven, made, planner["label"])
        bands = {}
        if far is not None:
            away = Arena(job["env"], far, reference=data.observations[0]).rollout(driven, made, planner["label"])
            bands = {away.name_of(int(band)): scores for band, scores in _by_task(away).items()}
        before = {}
        for step, young in ((step, drive(young)) for step, young in earlier.items()):
            made = make_planner(planner["planner"], young, data, **planner["settings"])
            before[step] = _by_task(arena.rollout(young, made, f"{planner['label']}, step {step}"))
        seconds = time.monotonic() - started
        times.add("evaluation", seconds)
        if job["draw"] and (maze := arena.envs[0].map) is not None:
            from iel.viz import draw_rollouts

            draw_rollouts(file.with_suffix(".png"), maze, {planner["label"]: rollouts})
        scores = _scores(job, planner, rollouts, seconds)
        write_json(file, {**scores, "step": job["steps"], "earlier": before, "bands": bands})


def _driver(cells: Path, other: str) -> Callable[[Model], Model]:
    """Puts the policy of another cell's training into a model; nothing to do where its own policy acts."""
    if not other:
        return lambda model: model
    run = cells / other / "run"
    if not run.is_dir() or (trained := open_run(run)).status != "finished":
        raise RunError(f"The policy of {other} is to act here and is not trained yet; run that cell as well.")
    driver = trained.model
    return lambda model: model.driven_by(driver)


def _far(env: str, protocol: dict[str, Any]) -> Protocol | None:
    """How success by distance is measured, where the grid asks for it and the environment can be asked."""
    episodes = protocol.pop("distances", 0)
    if not episodes or not can_be_asked(env):
        return None
    return Protocol(**{**protocol, "episodes": episodes, "tasks": None, "by_distance": True})


def _scores(job: dict[str, Any], planner: dict[str, Any], rollouts: Rollouts, seconds: float) -> dict[str, Any]:
    """Scores of the last model, and what they are the scores of."""
    return {
        "format": FORMAT,
        "fingerprint": planner["fingerprint"],
        "checkpoint": CHECKPOINT,
        "env": job["env"],
        "method": job["method"],
        "planner": planner["label"],
        "seed": job["seed"],
        "metric": "success_rate" if rollouts.subtasks is None else "subtask_fraction",
        "tasks": _by_task(rollouts),
        "seconds": round(seconds, 2),
        "planning_seconds": round(rollouts.planning_seconds, 2),
    }


def _by_task(rollouts: Rollouts) -> dict[str, dict[str, list]]:
    """Score and length of every episode. Where tasks have subtasks the score is the fraction of them, as in D4RL."""
    scores = rollouts.success.astype(float) if rollouts.subtasks is None else rollouts.subtasks
    return {
        str(task): {
            "scores": scores[rollouts.tasks == task].tolist(),
            "steps": rollouts.steps[rollouts.tasks == task].tolist(),
        }
        for task in np.unique(rollouts.tasks)
    }


class Times:
    """Seconds spent on a cell, added up over all the processes that worked on it (a killed one does not report)."""

    def __init__(self, path: Path):
        self.path = path

    def add(self, kind: str, seconds: float) -> None:
        before = read_json(self.path) if self.path.exists() else {}
        as_struct(before, dict[str, Amount], str(self.path), RunError)
        write_json(self.path, {**before, kind: round(before.get(kind, 0.0) + seconds, 2)})


def _holds(file: Path, fingerprint: str) -> bool:
    try:
        return read_json(file).get("fingerprint") == fingerprint
    except RunError:
        return False
