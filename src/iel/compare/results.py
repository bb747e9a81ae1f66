"""What came out of a comparison: scores of every seed and task, and the statistics that go with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.compare.cells import CHECKPOINT, Times, evaluation_file, finished, read_times
from iel.compare.execute import list_jobs, read_recorded
from iel.compare.grid import GridProtocol
from iel.errors import IELError, RunError
from iel.evaluation.result import Episodes, Result, results_of
from iel.evaluation.rollout import ACTIONS
from iel.evaluation.stats import (
    SUCCESS_INTERVAL,
    Interval,
    improvement_interval,
    interquartile_mean,
    mean_and_deviation,
    performance_profile,
    probability_of_improvement,
    profile_band,
    stratified_interval,
    success_interval,
)
from iel.loader import read_json, read_toml
from iel.planning import ACTION_KINDS

Column = tuple[str, str]
"""(method, planner)."""
THRESHOLDS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Entry:
    """A method under a planner in one environment."""

    seeds: tuple[int, ...]
    rates: NDArray[np.float64]
    """(seeds, tasks) mean scores."""
    episodes: int
    """Episodes per task and seed."""
    steps: float
    metric: str = "success_rate"
    curve: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """Step -> (seeds, tasks) mean scores of earlier checkpoints."""
    last_step: int = 0
    """The step of the last checkpoint, if it was noted."""
    bands: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Band of distance -> scores of the seeds, where it was measured."""

    @property
    def best(self) -> NDArray[np.float64] | None:
        """Each seed's highest score over its checkpoints, or None where only the last one was measured.

        Chosen by the episodes it is judged by, so it flatters: most where checkpoints are many and episodes few.
        """
        if not self.curve:
            return None
        return np.max([self.scores, *(rates.mean(1) for rates in self.curve.values())], axis=0)

    @property
    def scores(self) -> NDArray[np.float64]:
        """One number per seed."""
        return self.rates.mean(1)

    @cached_property
    def interval(self) -> Interval:
        return success_interval(self.rates, self.episodes)

    def describe(self) -> dict[str, Any]:
        """JSON-safe."""
        mean, deviation = mean_and_deviation(self.scores)
        return {
            "metric": self.metric,
            "mean": mean,
            "standard_deviation": deviation,
            "interval": list(self.interval),
            "per_seed": dict(zip(map(str, self.seeds), self.scores.tolist(), strict=True)),
            "per_task": self.rates.mean(0).tolist(),
            "episodes_per_task": self.episodes,
            "mean_steps": self.steps,
            **self._describe_best(),
            **({"by_distance": {band: scores.tolist() for band, scores in self.bands.items()}} if self.bands else {}),
        }

    def _describe_best(self) -> dict[str, Any]:
        if self.best is None:
            return {}
        mean, deviation = mean_and_deviation(self.best)
        curve = {str(step): rates.mean(1).tolist() for step, rates in self.curve.items()}
        return {"best_checkpoint": {"mean": mean, "standard_deviation": deviation}, "earlier": curve}


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
    sessions: list[dict[str, Any]] = field(default_factory=list)

    def groups(self, column: Column) -> list[NDArray[np.float64]] | None:
        """Scores of the seeds in every environment; None where one is missing."""
        entries = [self.entries.get((env, column)) for env in self.environments]
        return None if any(entry is None for entry in entries) else [entry.scores for entry in entries if entry]

    @property
    def complete(self) -> list[Column]:
        """Columns that have a result in every environment, which aggregates need."""
        return [column for column in self.columns if self.groups(column) is not None]

    @property
    def reference(self) -> Column | None:
        """What the others are compared with: IEL (or the first method) under its last planner."""
        ours = [column for column in self.complete if column[0] == "IEL"] or self.complete[:1]
        return ours[-1] if ours else None

    def aggregates(self) -> dict[Column, dict[str, Any]]:
        """Interquartile mean, mean and probability of improvement of the reference over each column."""
        result: dict[Column, dict[str, Any]] = {}
        for column in self.complete:
            groups = self.groups(column)
            assert groups is not None
            numbers: dict[str, Any] = {
                "iqm": float(interquartile_mean(np.concatenate(groups))),
                "iqm_interval": _listed(stratified_interval(groups, interquartile_mean)),
                "mean": float(np.mean([group.mean() for group in groups])),
                "mean_interval": _listed(stratified_interval(groups)),
            }
            if self.reference and column != self.reference:
                best = self.groups(self.reference)
                assert best is not None
                numbers["improvement"] = probability_of_improvement(best, groups)
                numbers["improvement_interval"] = _listed(improvement_interval(best, groups))
            result[column] = numbers
        return result

    def profile(self, column: Column) -> tuple[NDArray, tuple[NDArray, NDArray] | None]:
        """Share of runs above each of THRESHOLDS, and its band."""
        groups = self.groups(column)
        assert groups is not None
        return performance_profile(groups, THRESHOLDS), profile_band(groups, THRESHOLDS)

    def describe(self) -> dict[str, Any]:
        """Everything a table shows, JSON-safe; the same results give the same description, bit for bit."""
        return {
            "title": self.title,
            "scale": self.scale,
            "checkpoint": CHECKPOINT,
            "interval": SUCCESS_INTERVAL,
            "protocol": asdict(self.protocol),
            "results": {
                env: {label_of(c): self.entries[env, c].describe() for c in self.columns if (env, c) in self.entries}
                for env in self.environments
            },
            "aggregates": {label_of(column): numbers for column, numbers in self.aggregates().items()},
            "reference": label_of(self.reference) if self.reference else None,
            "published": {
                "source": self.published_source,
                "results": {
                    env: {label_of(c): list(self.published[env, c]) for c in self.columns if (env, c) in self.published}
                    for env in self.environments
                },
            },
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
    found: dict[tuple[str, Column], list[Result]] = {}
    pictures: dict[tuple[str, Column], Path] = {}
    runs: dict[tuple[str, str, int], Path] = {}
    errors: dict[str, str] = {}
    spent: dict[tuple[str, str], list[Times]] = {}
    jobs = list_jobs(grid, out, recorded.data)
    for job in jobs:
        cell = job.cell
        if job.state != "done" and (job.directory / "error.json").exists():
            errors[cell.name] = str(read_json(job.directory / "error.json").get("error"))
        if (job.directory / "run" / "config.json").exists():
            runs[cell.env, cell.method, cell.seed] = job.directory / "run"
        if job.state == "done":
            spent.setdefault((cell.env, cell.method), []).append(read_times(job.directory))
        for variant in cell.planners if job.fingerprint else ():
            if (result := finished(job.directory, cell, job.fingerprint, variant)) is not None:
                key = cell.env, (cell.method, variant.label)
                found.setdefault(key, []).append(result)
                picture = evaluation_file(job.directory, variant.label).with_suffix(".png")
                if picture.exists():
                    pictures.setdefault(key, picture)
    published, source = published_numbers(grid.published, grid.environments, columns)
    sessions = read_json(out / "sessions.json").get("sessions", []) if (out / "sessions.json").exists() else []
    return Comparison(
        title=grid.title,
        environments=grid.environments,
        columns=columns,
        entries={key: _entry(results) for key, results in found.items()},
        published=published,
        published_source=source,
        protocol=grid.protocol,
        scale=grid.scale,
        errors=errors,
        unfinished=sum(job.state != "done" for job in jobs),
        runs=runs,
        pictures=pictures,
        seconds={key: mean_times(times) for key, times in spent.items()},
        sessions=sessions,
    )


def collect_runs(sources: Sequence[Path]) -> Comparison:
    """Runs of `iel train` that `iel evaluate` measured; of several evaluations, the newest of those with most episodes
    counts for each planner, so a quick look later changes nothing."""
    from iel.training import open_runs

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
    environments = tuple(dict.fromkeys(env for env, _ in found))
    columns = tuple(dict.fromkeys(column for _, column in found))
    entries = {key: _entry(results) for key, results in found.items()}
    return Comparison(
        "runs", environments, columns, entries, {}, unfinished=unfinished, protocol=protocols.pop(), runs=runs
    )


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
        _rates([result.episodes for result in results]),
        first.episodes.per_task,
        float(np.mean([result.episodes.steps for result in results])),
        first.episodes.metric,
        {step: _rates([result.earlier[step] for result in results]) for step in first.earlier},
        first.step,
        dict(zip(bands[0].names, _rates(bands).T, strict=True)) if bands else {},
    )


def _rates(seeds: Sequence[Episodes]) -> NDArray[np.float64]:
    """(seeds, tasks) mean scores."""
    return np.array([list(episodes.means(episodes.scores).values()) for episodes in seeds])


def published_numbers(
    name: str | None, environments: Sequence[str], columns: Sequence[Column]
) -> tuple[dict[tuple[str, Column], tuple[float, float | None]], str]:
    """The numbers of a published table for these environments and columns, and where they are from."""
    tables = read_toml(Path(__file__).parent / "published.toml")
    if name is None:
        return {}, ""
    if name not in tables:
        raise IELError(f"There is no published table '{name}'; there are {', '.join(tables)}.")
    rows: Mapping[str, Any] = tables[name]["rows"]
    numbers = {
        (env, column): tuple(rows[env][label_of(column)])
        for env in environments
        for column in columns
        if label_of(column) in rows.get(env, {})
    }
    return numbers, f"{tables[name]['source']}: {tables[name]['note']}"


def mean_times(times: Sequence[Times]) -> Times:
    """Means over cells, by what the time was spent on."""
    return Times(*(float(np.mean(seconds)) for seconds in zip(*map(astuple, times), strict=True)))


def _listed(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)
