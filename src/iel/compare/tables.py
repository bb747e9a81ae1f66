"""Markdown in the paper's layout: data sets down, methods and planners across, published numbers in lines of their own.

A table with many columns is turned round, like the paper's sensitivity table: configurations down, data sets across.
"""

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec

from iel.compare.published import best_on
from iel.compare.results import Column, Comparison, Entry, label_of, mean_times
from iel.cores import usable_cores
from iel.evaluation.rollout import ACTIONS
from iel.evaluation.stats import SUCCESS_INTERVAL, mean_and_deviation
from iel.progress import clock

WIDE = 8
"""Columns up to which the paper's main layout is readable."""
PACKAGES = ("iel", "numpy", "jax", "equinox", "optax", "gymnasium", "mujoco", "ogbench")


def number(mean: float, deviation: float | None) -> str:
    """`71.8 ± 6.5`, in per cent."""
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def interval_text(interval: Sequence[float] | None, form: str = "{:.1f}", unit: float = 100) -> str:
    """`[62.1, 80.0]`, in per cent."""
    return "–" if interval is None else f"[{', '.join(form.format(unit * bound) for bound in interval)}]"


def best_in(comparison: Comparison, env: str) -> float:
    """The highest mean of an environment, which is printed bold."""
    return max((e.scores.mean() for (name, _), e in comparison.entries.items() if name == env), default=float("nan"))


def cell_text(entry: Entry | None, best: float) -> str:
    """Mean ± standard deviation, bold for the best."""
    if entry is None:
        return "–"
    text = number(*mean_and_deviation(entry.scores))
    return f"**{text}**" if entry.scores.mean() >= best - 1e-12 else text


def main_table(comparison: Comparison) -> list[str]:
    """The comparison in one of the paper's two layouts."""
    columns, rows = comparison.columns, []
    for env in comparison.environments:
        best = best_in(comparison, env)
        rows.append([env, *(cell_text(comparison.entries.get((env, column)), best) for column in columns)])
        if any(name == env for name, _ in comparison.published):
            rows.append(["*published*", *(_published(comparison, env, column) for column in columns)])
    if len(columns) <= WIDE:
        return _lines(["data set", *(f"{method}<br>{planner}" for method, planner in columns)], rows)
    heads, *turned = zip(*rows, strict=True)
    return _lines(["method", "planner", *heads], [[*names, *own] for names, own in zip(columns, turned, strict=True)])


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return [first, "|" + "---|" * len(heads), *others]


def _published(comparison: Comparison, env: str, column: Column) -> str:
    """A published number, in per cent and in italics as everywhere; empty where there is none."""
    if (env, column) not in comparison.published:
        return ""
    mean, deviation = comparison.published[env, column]
    return f"*{mean:g}*" if deviation is None else f"*{mean:g} ± {deviation:g}*"


def best_published(comparison: Comparison) -> str:
    """Per environment the best published numbers of the classes A and B."""
    found = []
    for env in comparison.environments:
        best = [number for kind, number in best_on(env).items() if kind != "C"]
        words = [f"{number.label} *{number.text}* ({number.protocol})" for number in best]
        found += [f"{env} {', '.join(words)}"] if words else []
    return "; ".join(found)


def interval_table(comparison: Comparison) -> list[str]:
    """Every entry with its interval and its tasks."""
    rows = []
    for row, entry in ordered(comparison):
        score, tasks = number(*mean_and_deviation(entry.scores)), [f"{100 * rate:.0f}" for rate in entry.rates.mean(0)]
        seeds, steps = str(len(entry.seeds)), f"{entry.steps:.0f}"
        rows.append([*row, seeds, score, interval_text(entry.interval), " ".join(tasks), steps])
    heads = ("data set", "method", "planner", "seeds", "mean ± std", "95 % interval", "per task", "mean steps")
    return _lines(heads, rows)


def ordered(comparison: Comparison) -> Iterator[tuple[tuple[str, str, str], Entry]]:
    """(environment, method, planner) and entry, in the order of the grid."""
    for env, entries in comparison.by_environment(comparison.entries).items():
        for column, entry in entries.items():
            yield (env, *column), entry


def aggregate_table(comparison: Comparison) -> list[str]:
    """Interquartile means over all environments, and how probably the reference beats each."""
    reference = comparison.reference
    if reference is None or len(comparison.environments) * len(next(iter(comparison.entries.values())).seeds) < 4:
        return []
    better = f"P({label_of(reference)} is better)"
    rows = []
    for column, numbers in comparison.aggregates().items():
        compared = ["–", "–"]
        if "improvement" in numbers:
            compared = [f"{numbers['improvement']:.2f}", interval_text(numbers["improvement_interval"], "{:.2f}", 1)]
        iqm = f"{100 * numbers['iqm']:.1f}", interval_text(numbers["iqm_interval"])
        rows.append([*column, *iqm, f"{100 * numbers['mean']:.1f}", *compared])
    return _lines(["method", "planner", "IQM", "95 % interval", "mean", better, "95 % interval"], rows)


def protocol_text(comparison: Comparison) -> str:
    """How the numbers were measured."""
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
    if published := best_published(comparison):
        lines += [f"The best published on the benchmark's own data (`iel published`): {published}.", ""]
    if comparison.errors or comparison.unfinished:
        lines += [f"**{comparison.unfinished} cells are not finished.**", ""]
        lines += [f"- {cell}: {error}" for cell, error in comparison.errors.items()] + [""]
    if aggregate := aggregate_table(comparison):
        lines += [f"{section} All environments together", "", *aggregate, ""]
    lines += [f"{section} Every result", "", *interval_table(comparison), ""]
    for title, path in pictures.items():
        lines += [f"![{title}]({path})", ""]
    lines += [
        f"{section} How it was made",
        "",
        *(f"- {line}" for line in (*session_lines(comparison), *machine_facts())),
        "",
    ]
    return "\n".join(lines)
