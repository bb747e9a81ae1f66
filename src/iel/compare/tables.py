"""Markdown in the paper's layout: data sets down, methods and planners across, published numbers in lines of their own.

A table with many columns is turned round, like the paper's sensitivity table: configurations down, data sets across.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from iel.compare.progress import clock
from iel.compare.results import Column, Comparison, Entry, label_of, mean_times
from iel.cores import usable_cores
from iel.evaluation.rollout import ACTIONS
from iel.evaluation.stats import SUCCESS_INTERVAL, mean_and_deviation

WIDE = 8
"""Columns up to which the paper's main layout is readable."""
PACKAGES = ("iel", "numpy", "jax", "equinox", "optax", "gymnasium", "mujoco", "ogbench")


def number(mean: float, deviation: float | None) -> str:
    """`71.8 ± 6.5`, in per cent."""
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def interval_text(interval: Any) -> str:
    """`[62.1, 80.0]`, in per cent."""
    return "–" if interval is None else f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def published_text(numbers: tuple[float, float | None]) -> str:
    """A number of others is in italics wherever it stands, and is in per cent already."""
    mean, deviation = numbers
    return f"*{mean:g}*" if deviation is None else f"*{mean:g} ± {deviation:g}*"


def best_in(comparison: Comparison, env: str) -> float:
    """The highest mean of an environment, which is printed bold."""
    return max((e.scores.mean() for (name, _), e in comparison.entries.items() if name == env), default=float("nan"))


def cell_text(entry: Entry | None, best: float, with_interval: bool = False) -> str:
    """Mean ± standard deviation, bold for the best."""
    if entry is None:
        return "–"
    text = number(*mean_and_deviation(entry.scores))
    text = f"**{text}**" if entry.scores.mean() >= best - 1e-12 else text
    return f"{text} {interval_text(entry.interval)}" if with_interval else text


def main_table(comparison: Comparison) -> list[str]:
    """The comparison in one of the paper's two layouts."""
    return _across(comparison) if len(comparison.columns) <= WIDE else _down(comparison)


def _across(comparison: Comparison) -> list[str]:
    lines = ["| data set | " + " | ".join(f"{method}<br>{planner}" for method, planner in comparison.columns) + " |"]
    lines.append("|---|" + "---|" * len(comparison.columns))
    for env in comparison.environments:
        best = best_in(comparison, env)
        cells = [cell_text(comparison.entries.get((env, column)), best) for column in comparison.columns]
        lines.append(f"| {env} | " + " | ".join(cells) + " |")
        theirs = [comparison.published.get((env, column)) for column in comparison.columns]
        if any(theirs):
            lines.append("| *published* | " + " | ".join(published_text(t) if t else "" for t in theirs) + " |")
    return lines


def _down(comparison: Comparison) -> list[str]:
    heads = []
    for env in comparison.environments:
        heads += [env, *(["*published*"] if _has_published(comparison, env) else [])]
    lines = ["| method | planner | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(heads)]
    for column in comparison.columns:
        cells = []
        for env in comparison.environments:
            cells.append(cell_text(comparison.entries.get((env, column)), best_in(comparison, env)))
            if _has_published(comparison, env):
                theirs = comparison.published.get((env, column))
                cells.append(published_text(theirs) if theirs else "")
        lines.append(f"| {column[0]} | {column[1]} | " + " | ".join(cells) + " |")
    return lines


def _has_published(comparison: Comparison, env: str) -> bool:
    return any(name == env for name, _ in comparison.published)


def interval_table(comparison: Comparison) -> list[str]:
    """Every entry with its interval and its tasks."""
    lines = ["| data set | method | planner | seeds | mean ± std | 95 % interval | per task | mean steps |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for (env, (method, planner)), entry in ordered(comparison):
        tasks = " ".join(f"{100 * rate:.0f}" for rate in entry.rates.mean(0))
        lines.append(
            f"| {env} | {method} | {planner} | {len(entry.seeds)} | {number(*mean_and_deviation(entry.scores))} | "
            f"{interval_text(entry.interval)} | {tasks} | {entry.steps:.0f} |"
        )
    return lines


def ordered(comparison: Comparison) -> Iterator[tuple[tuple[str, Column], Entry]]:
    """Entries in the order of the grid."""
    for env in comparison.environments:
        for column in comparison.columns:
            if (env, column) in comparison.entries:
                yield (env, column), comparison.entries[env, column]


def aggregate_table(comparison: Comparison) -> list[str]:
    """Interquartile means over all environments, and how probably the reference beats each."""
    reference = comparison.reference
    if reference is None or len(comparison.environments) * len(next(iter(comparison.entries.values())).seeds) < 4:
        return []
    lines = [f"| method | planner | IQM | 95 % interval | mean | P({label_of(reference)} is better) | 95 % interval |"]
    lines.append("|---|---|---|---|---|---|---|")
    for (method, planner), numbers in comparison.aggregates().items():
        better = numbers.get("improvement")
        lines.append(
            f"| {method} | {planner} | {100 * numbers['iqm']:.1f} | {interval_text(numbers['iqm_interval'])} | "
            f"{100 * numbers['mean']:.1f} | {'–' if better is None else f'{better:.2f}'} | "
            f"{'–' if better is None else _shares(numbers['improvement_interval'])} |"
        )
    return lines


def best_table(comparison: Comparison) -> list[str]:
    """The best of several checkpoints beside the last one; empty where only the last was measured."""
    rows = [(key, entry, entry.best) for key, entry in ordered(comparison) if entry.best is not None]
    if not rows:
        return []
    lines = ["| data set | method | planner | last checkpoint | best checkpoint of |", "|---|---|---|---|---|"]
    for (env, (method, planner)), entry, best in rows:
        last, top = number(*mean_and_deviation(entry.scores)), number(*mean_and_deviation(best))
        lines.append(f"| {env} | {method} | {planner} | {last} | {top} of {len(entry.curve) + 1} |")
    return lines


BEST_NOTE = (
    "The best checkpoint of each seed was chosen by the very episodes it is judged by, so these numbers flatter; all "
    "other tables show the last checkpoint."
)


def _shares(interval: Any) -> str:
    return "–" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]"


def protocol_text(comparison: Comparison) -> str:
    """How the numbers were measured, in a sentence or two."""
    protocol, counts = comparison.protocol, sorted({len(entry.seeds) for entry in comparison.entries.values()})
    seeds = f"{' or '.join(map(str, counts)) or 'no'} training {'seed' if counts == [1] else 'seeds'}"
    limit = f", at most {protocol.max_steps} steps" if protocol.max_steps else ""
    metrics = {entry.metric for entry in comparison.entries.values()}
    metric = "Success rate" if metrics <= {"success_rate"} else "Success rate (kitchen: fraction of subtasks)"
    return (
        f"{metric} in per cent: mean ± standard deviation over {seeds}, best mean in bold. "
        f"{protocol.episodes} episodes per task and seed{limit}, evaluation seed {protocol.seed}, "
        f"actions: {ACTIONS[protocol.action]}, the last checkpoint. "
        f"Intervals: {SUCCESS_INTERVAL}; aggregates: corrected stratified bootstrap."
    )


def machine_facts() -> list[str]:
    """What the numbers were made on; nothing that names the machine or its user."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES if find_spec(name))
    return [
        f"{len(usable_cores())} cores ({platform.machine()}, {platform.system()}), Python {platform.python_version()}",
        packages,
    ]


def session_lines(comparison: Comparison) -> list[str]:
    """Exact commands and the time they took."""
    lines = []
    for session in comparison.sessions:
        seconds = session.get("seconds")
        took = "stopped before its end" if seconds is None else clock(seconds) or "under a second"
        lines.append(f"`{session['command']}` ({session['jobs']} at a time, {session['ran']} cells to do: {took})")
    for method in dict.fromkeys(method for _, method in comparison.seconds):
        times = mean_times([spent for (_, other), spent in comparison.seconds.items() if other == method])
        parts = " and ".join(f"{clock(seconds) or '0 s'} of {kind}" for kind, seconds in asdict(times).items())
        lines.append(f"{method}: {parts} per cell on average")
    return lines


def markdown(comparison: Comparison, pictures: dict[str, str], level: int = 1) -> str:
    """The whole report as Markdown, its title a heading of this level; `pictures` are titles and relative paths."""
    heading, section = "#" * level, "#" * (level + 1)
    lines = [f"{heading} {comparison.title}", "", protocol_text(comparison), "", *main_table(comparison), ""]
    if comparison.published:
        lines += [f"*Published* numbers are in italics and were not measured here ({comparison.published_source}).", ""]
    if comparison.errors or comparison.unfinished:
        lines += [f"**{comparison.unfinished} cells are not finished.**", ""]
        lines += [f"- {cell}: {error}" for cell, error in comparison.errors.items()] + [""]
    if aggregate := aggregate_table(comparison):
        lines += [f"{section} All environments together", "", *aggregate, ""]
    lines += [f"{section} Every result", "", *interval_table(comparison), ""]
    if best := best_table(comparison):
        lines += [f"{section} Best checkpoint", "", BEST_NOTE, "", *best, ""]
    for title, path in pictures.items():
        lines += [f"![{title}]({path})", ""]
    lines += [
        f"{section} How it was made",
        "",
        *(f"- {line}" for line in (*session_lines(comparison), *machine_facts())),
        "",
    ]
    return "\n".join(lines)
