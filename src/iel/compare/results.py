"""The results of a comparison: scores of every seed and task, and their statistics.

Scores are those of the model that training ended with. With `checkpoints` above 1 in the protocol models of earlier
steps are measured as well, for learning curves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from iel.compare.cells import Times, evaluation_file, finished, read_times
from iel.compare.execute import list_jobs, read_recorded
from iel.compare.grid import GridProtocol
from iel.compare.published import Column, published_numbers
from iel.errors import RunError
from iel.evaluation.result import JSON, Result, rates_of, results_of
from iel.evaluation.rollout import ACTIONS
from iel.evaluation.stats import (
    SUCCESS_INTERVAL,
    Interval,
    improvement_interval,
    interquartile_mean,
    mean_and_deviation,
    probability_of_improvement,
    stratified_interval,
    success_interval,
)
from iel.loader import read_json
from iel.planning import ACTION_KINDS
from iel.training import open_runs

Scores = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A method under a planner in one environment."""

    seeds: tuple[int, ...]
    rates: Scores
    """(seeds, tasks) mean scores."""
    episodes: int
    """Episodes per task and seed."""
    steps: float
    metric: str = "success_rate"
    curve: dict[int, Scores] = field(default_factory=dict)
    """Step -> (seeds, tasks) mean scores of earlier checkpoints."""
    last_step: int = 0
    """The step of the last checkpoint, if it was recorded."""
    bands: dict[str, Scores] = field(default_factory=dict)
    """Band of distance -> scores of the seeds, where they were measured."""

    @property
    def scores(self) -> Scores:
        """One number per seed."""
        return self.rates.mean(1)

    @cached_property
    def interval(self) -> Interval:
        return success_interval(self.rates, self.episodes)

    def describe(self) -> JSON:
        """JSON-safe."""
        described: JSON = {
            "metric": self.metric,
            **dict(zip(("mean", "standard_deviation"), mean_and_deviation(self.scores), strict=True)),
            "interval": list(self.interval),
            "per_seed": dict(zip(map(str, self.seeds), self.scores.tolist(), strict=True)),
            "per_task": self.rates.mean(0).tolist(),
            "episodes_per_task": self.episodes,
            "mean_steps": self.steps,
        }
        if self.curve:
            described["earlier"] = {str(step): rates.mean(1).tolist() for step, rates in self.curve.items()}
        if self.bands:
            described["by_distance"] = {band: scores.tolist() for band, scores in self.bands.items()}
        return described


@dataclass(frozen=True)
class Comparison:
    """All finished results, in the order of the grid."""

    title: str
    environments: tuple[str, ...]
    columns: tuple[Column, ...]
    entries: dict[tuple[str, Column], Entry]
    published: dict[tuple[str, Column], tuple[float, float | None]]
    """Mean and standard deviation as printed by others, in per cent."""
    published_source: str = ""
    protocol: GridProtocol = field(default_factory=GridProtocol)
    scale: str | None = None
    errors: dict[str, str] = field(default_factory=dict)
    """Cells that failed, and why."""
    unfinished: int = 0
    runs: dict[tuple[str, str, int], Path] = field(default_factory=dict)
    """(environment, method, seed) -> directory of its training run."""
    pictures: dict[tuple[str, Column], Path] = field(default_factory=dict)
    seconds: dict[tuple[str, str], Times] = field(default_factory=dict)
    """(environment, method) -> mean seconds of training and evaluation of a cell."""
    sessions: list[JSON] = field(default_factory=list)

    @cached_property
    def complete(self) -> dict[Column, list[Scores]]:
        """Scores of the seeds in every environment, of columns that have a result in all, which aggregates need."""
        found = {
            column: [self.entries[env, column].scores for env in self.environments if (env, column) in self.entries]
            for column in self.columns
        }
        return {column: groups for column, groups in found.items() if len(groups) == len(self.environments)}

    @property
    def reference(self) -> Column | None:
        """What the others are compared with: IEL (or the first method) under its last planner."""
        ours = [column for column in self.complete if column[0] == "IEL"] or list(self.complete)[:1]
        return next(reversed(ours), None)

    def aggregates(self) -> dict[Column, JSON]:
        """Interquartile mean, mean and probability of improvement of the reference over each column."""
        result: dict[Column, JSON] = {}
        for column, groups in self.complete.items():
            result[column] = {
                "iqm": float(interquartile_mean(np.concatenate(groups))),
                "iqm_interval": stratified_interval(groups, interquartile_mean),
                "mean": float(np.mean([group.mean() for group in groups])),
                "mean_interval": stratified_interval(groups),
            }
            if self.reference and column != self.reference:
                best = self.complete[self.reference]
                result[column]["improvement"] = probability_of_improvement(best, groups)
                result[column]["improvement_interval"] = improvement_interval(best, groups)
        return result

    def by_environment(self, numbers: Mapping[tuple[str, Column], T]) -> dict[str, dict[Column, T]]:
        """Environment -> column -> number, in the order of the grid."""
        return {
            env: {column: numbers[env, column] for column in self.columns if (env, column) in numbers}
            for env in self.environments
        }

    def describe(self) -> JSON:
        """Everything a table shows, JSON-safe; the same results give the same description, bit for bit."""

        def labelled(numbers: Mapping[tuple[str, Column], T], shown: Callable[[T], Any]) -> JSON:
            return {
                env: {label_of(column): shown(number) for column, number in own.items()}
                for env, own in self.by_environment(numbers).items()
            }

        return {
            "title": self.title,
            "scale": self.scale,
            "checkpoint": "last",
            "interval": SUCCESS_INTERVAL,
            "protocol": structs.asdict(self.protocol),
            "results": labelled(self.entries, Entry.describe),
            "aggregates": {label_of(column): numbers for column, numbers in self.aggregates().items()},
            "reference": label_of(self.reference) if self.reference else None,
            "published": {"source": self.published_source, "results": labelled(self.published, list)},
            "failed": self.errors,
            "unfinished": self.unfinished,
        }


def label_of(column: Column) -> str:
    """A method and its planner in words."""
    return f"{column[0]}/{column[1]}"


def collect(sources: Sequence[Path]) -> Comparison:
    """The results of a directory `iel compare` wrote, or of several run directories with evaluations in them."""
    if len(sources) == 1 and (sources[0] / "grid.json").exists():
        return collect_grid(sources[0])
    return collect_runs(sources)


def collect_grid(out: Path) -> Comparison:
    """Only results that are whole and belong to the grid count."""
    recorded = read_recorded(out)
    grid = recorded.grid
    columns = tuple((method, label) for method in grid.methods for label in grid.variants[method])
    published, source = published_numbers(grid.published, grid.environments, columns)
    comparison = Comparison(grid.title, grid.environments, columns, {}, published, source, grid.protocol, grid.scale)
    found: dict[tuple[str, Column], list[Result]] = {}
    spent: dict[tuple[str, str], list[Times]] = {}
    jobs = list_jobs(grid, out, recorded.data)
    for job in jobs:
        cell = job.cell
        if job.state == "done":
            spent.setdefault((cell.env, cell.method), []).append(read_times(job.directory))
        elif (job.directory / "error.json").exists():
            comparison.errors[cell.name] = str(read_json(job.directory / "error.json").get("error"))
        if (job.directory / "run" / "config.json").exists():
            comparison.runs[cell.env, cell.method, cell.seed] = job.directory / "run"
        for variant in cell.planners if job.fingerprint else ():
            if (result := finished(job.directory, cell, job.fingerprint, variant)) is not None:
                key = cell.env, (cell.method, variant.label)
                found.setdefault(key, []).append(result)
                picture = evaluation_file(job.directory, variant.label).with_suffix(".png")
                if picture.exists():
                    comparison.pictures.setdefault(key, picture)
    sessions = out / "sessions.json"
    return replace(
        comparison,
        entries={key: _entry(results) for key, results in found.items()},
        unfinished=sum(job.state != "done" for job in jobs),
        seconds={key: mean_times(times) for key, times in spent.items()},
        sessions=read_json(sessions).get("sessions", []) if sessions.exists() else [],
    )


def collect_runs(sources: Sequence[Path]) -> Comparison:
    """Runs of `iel train` that `iel evaluate` measured; of several evaluations, the newest of those with most episodes
    counts for each planner, so a quick look later changes nothing."""
    found: dict[tuple[str, Column], list[Result]] = {}
    runs: dict[tuple[str, str, int], Path] = {}
    unfinished = 0
    for run in (run for source in sources for run in open_runs(source)):
        unfinished += run.tell_unfinished()
        # Stable: among those with equally many episodes the newest is last.
        results = sorted(results_of(run), key=lambda result: len(result.episodes.tasks))
        if not results:
            raise RunError(f"{run.path} was not evaluated yet; run `iel evaluate {run.path}` first.")
        method = str(run.config["algo"])
        runs[run.env, method, run.seed] = run.path
        for planner, result in {result.planner: result for result in results}.items():
            found.setdefault((run.env, (method, planner)), []).append(result)
    protocols = {_protocol(result) for results in found.values() for result in results}
    if len(protocols) != 1:
        raise RunError("These runs were evaluated by different protocols; evaluate them again with equal options.")
    environments, columns = dict.fromkeys(env for env, _ in found), dict.fromkeys(column for _, column in found)
    entries = {key: _entry(results) for key, results in found.items()}
    parts = tuple(environments), tuple(columns), entries
    return Comparison("runs", *parts, {}, unfinished=unfinished, protocol=protocols.pop(), runs=runs)


def _protocol(result: Result) -> GridProtocol:
    """What evaluations must have in common to stand in one table."""
    stated = result.protocol
    action = next(kind for kind in ACTION_KINDS if ACTIONS[kind] == stated["action"])
    return GridProtocol(stated["episodes_per_task"], stated["seed"], action=action)


def _entry(results: list[Result]) -> Entry:
    results = sorted(results, key=lambda result: result.seed)
    seeds = tuple(result.seed for result in results)
    if len(set(seeds)) != len(seeds):
        raise RunError(f"Seed {max(seeds, key=seeds.count)} of one method and environment is given twice.")
    first = results[0]
    if any(result.episodes.names != first.episodes.names for result in results):
        raise RunError("Seeds of one method were evaluated on different tasks; evaluate them again with equal options.")
    bands = [result.bands for result in results if result.bands is not None]
    return Entry(
        seeds,
        rates_of([result.episodes for result in results]),
        first.episodes.per_task,
        float(np.mean([result.episodes.steps for result in results])),
        first.episodes.metric,
        {step: rates_of([result.earlier[step] for result in results]) for step in first.earlier},
        first.step,
        dict(zip(bands[0].names, rates_of(bands).T, strict=True)) if bands else {},
    )


def mean_times(times: Sequence[Times]) -> Times:
    """Means over cells, by what the time was spent on."""
    return Times(*(float(np.mean([getattr(own, kind) for own in times])) for kind in ("training", "evaluation")))
