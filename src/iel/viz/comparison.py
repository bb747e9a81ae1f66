"""Pictures of a comparison: bars with intervals, performance profiles, training curves. Arrays in, one PNG out."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

from iel.viz.style import EDGE, INK, LINES, panels, plain_log

LIGHTER = (1.0, 0.72, 0.5, 0.32)
"""Planners of one method are shades of its colour."""
Column = tuple[str, str]
"""A method and a planner."""


def method_looks(methods: Iterable[str]) -> dict[str, tuple[str, str]]:
    """(colour, marker) of every method of a comparison, the same in all of its pictures."""
    return {method: (LINES[n % len(LINES)], "osD^v"[n // len(LINES) % 5]) for n, method in enumerate(methods)}


def column_colours(columns: Sequence[Column]) -> dict[Column, tuple[float, ...]]:
    """A colour per method, a shade per planner, the last planner the strongest."""
    looks = method_looks(dict.fromkeys(method for method, _ in columns))
    colours = {}
    for column in columns:
        base = np.array(matplotlib.colors.to_rgb(looks[column[0]][0]))
        siblings = [other for other in columns if other[0] == column[0]]
        weight = LIGHTER[min(len(siblings) - 1 - siblings.index(column), len(LIGHTER) - 1)]
        colours[column] = tuple((weight * base + (1 - weight)).tolist())
    return colours


def draw_bars(
    path: Path | str,
    columns: Sequence[Column],
    results: Mapping[str, Mapping[Column, tuple[ArrayLike, tuple[float, float]]]],
    published: Mapping[str, Mapping[Column, float]] | None = None,
) -> None:
    """One panel per environment: a bar per method and planner with its interval, a dot per seed, published diamonds.

    `results` hold (scores of the seeds, interval) by column; everything is in [0, 1] and drawn in per cent.
    """
    colours = column_colours(columns)
    theirs = published or {}
    with panels(path, len(results), len(results), (3.4, 1.1 + 0.3 * len(columns)), (1.6, 0)) as axes:
        for panel, (env, entries) in zip(axes, results.items(), strict=True):
            for row, column in enumerate(columns):
                if column in entries:
                    scores, (low, high) = entries[column]
                    values = 100 * np.asarray(scores, np.float64)
                    panel.barh(row, values.mean(), color=colours[column], height=0.72, zorder=2)
                    panel.plot([100 * low, 100 * high], [row, row], color=INK, linewidth=1.3, zorder=4)
                    rows = np.full(len(values), row)
                    panel.scatter(values, rows, s=9, color="white", edgecolor=INK, linewidth=0.7, zorder=5)
                if column in theirs.get(env, {}):
                    point = 100 * theirs[env][column], row
                    panel.scatter(*point, marker="D", s=26, color="none", edgecolor=EDGE, linewidth=1.4, zorder=6)
            panel.set_yticks([])
            panel.set(xlim=(-1, 101), ylim=(len(columns) - 0.4, -0.6), title=env.removesuffix("-v0"))
            panel.set_xlabel("success, per cent" + ("   (◇ published)" if theirs.get(env) else ""))
            panel.grid(axis="x", color=EDGE, alpha=0.25, linewidth=0.6, zorder=0)
        axes[0].set_yticks(range(len(columns)), [f"{method}  {planner}" for method, planner in columns])
        axes[0].tick_params(axis="y", length=0)


def draw_by_time(
    path: Path | str, methods: Iterable[str], results: Mapping[str, Mapping[str, tuple[float, NDArray]]]
) -> None:
    """One panel per environment: success against minutes of training; a dot per seed, a ring at each method's mean.

    `methods` are all of the comparison, so that each has its colour of the other pictures.
    """
    looks = method_looks(methods)
    with panels(path, len(results), len(results), (4.6, 4.2), (1.2, 0)) as axes:
        for panel, (env, entries) in zip(axes, results.items(), strict=True):
            for method, (minutes, scores) in entries.items():
                colour, marker = looks[method]
                values = 100 * np.asarray(scores, np.float64)
                moments = np.full(len(values), minutes)
                panel.scatter(moments, values, s=14, alpha=0.5, linewidth=0, color=colour, zorder=3)
                panel.scatter(minutes, values.mean(), s=70, marker=marker, label=method, color=colour, zorder=3)
            panel.set(xscale="log", ylim=(-3, 103), title=env.removesuffix("-v0"))
            plain_log(panel.xaxis)
            panel.set(xlabel="training of one seed, minutes", ylabel="success, per cent")
            panel.grid(color=EDGE, alpha=0.25, linewidth=0.6, which="both")
            panel.legend(fontsize=8, loc="best")


def draw_profiles(
    path: Path | str,
    columns: Sequence[Column],
    thresholds: ArrayLike,
    profiles: Mapping[Column, tuple[NDArray, tuple[NDArray, NDArray] | None]],
) -> None:
    """Share of runs (seeds of all environments) above every score: a panel per method, a shade per planner.

    The band is the last planner's. The other methods are grey in the background of each panel.
    """
    colours = column_colours(columns)
    x = 100 * np.asarray(thresholds)
    methods = list(dict.fromkeys(method for method, _ in profiles))
    last = {column[0]: column for column in profiles}  # four bands would hide each other
    with panels(path, len(methods), 3, (3.9, 3.0), (0.4, 0.3)) as axes:
        for panel, method in zip(axes, methods, strict=True):
            for column, (line, band) in profiles.items():
                if column[0] != method:
                    panel.step(x, 100 * line, where="post", color=EDGE, alpha=0.25, linewidth=0.9, zorder=1)
                    continue
                panel.step(x, 100 * line, where="post", color=colours[column], linewidth=2.0, label=column[1], zorder=3)
                if band is not None and column == last[method]:
                    low, high = 100 * band[0], 100 * band[1]
                    panel.fill_between(x, low, high, step="post", color=colours[column], alpha=0.13, lw=0, zorder=2)
            panel.set(xlim=(0, 100), ylim=(-2, 102), title=method)
            panel.set(xlabel="score t, per cent", ylabel="runs above t, per cent")
            panel.grid(color=EDGE, alpha=0.2, linewidth=0.6)
            panel.legend(fontsize=8, loc="best")


def draw_learning(
    path: Path | str, curves: Mapping[str, Mapping[str, Sequence[tuple[NDArray, NDArray]]]], unit: str = "loss"
) -> None:
    """Losses or success against steps: panels are methods, colours environments, thin lines seeds, thick lines means.

    `curves` are (steps, values) of every seed by method and environment; seeds are logged at the same steps. A NaN is a
    gap: every phase has a loss of its own.
    """
    environments = list(dict.fromkeys(env for own in curves.values() for env in own))
    with panels(path, len(curves), 3, (4.0, 2.7), (0.4, 0.5)) as axes:
        for panel, (method, own) in zip(axes, curves.items(), strict=True):
            for env, seeds in own.items():
                colour = LINES[environments.index(env) % len(LINES)]
                for steps, values in seeds:
                    panel.plot(steps / 1000, values, color=colour, linewidth=0.6, alpha=0.35)
                length = min(len(values) for _, values in seeds)
                mean = np.mean([values[:length] for _, values in seeds], axis=0)
                steps = seeds[0][0][:length] / 1000
                panel.plot(steps, mean, color=colour, linewidth=1.6, label=env.removesuffix("-v0"))
            if unit == "loss":
                panel.set_yscale("symlog", linthresh=0.1)
                panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            else:
                panel.set_ylim(-2, 102)
            panel.set(title=method, xlabel="thousand steps", ylabel="loss of each phase" if unit == "loss" else unit)
            panel.grid(color=EDGE, alpha=0.2, linewidth=0.6)
        axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def draw_by_distance(
    path: Path | str, columns: Sequence[Column], results: Mapping[str, Mapping[Column, Mapping[str, ArrayLike]]]
) -> None:
    """One panel per environment: success against the distance of the goal, a line per method and planner.

    `results` hold the scores of the seeds, in [0, 1], by column and band; thin bars go from the worst to the best seed.
    """
    colours = column_colours(columns)
    with panels(path, len(results), len(results), (3.6, 3.6), (1.8, 0)) as axes:
        for panel, (env, entries) in zip(axes, results.items(), strict=True):
            for shift, (column, bands) in enumerate(entries.items()):
                scores = [100 * np.asarray(values, np.float64) for values in bands.values()]
                mean, low, high = ([pick(own) for own in scores] for pick in (np.mean, np.min, np.max))
                x = np.arange(len(scores)) + 0.05 * (shift - (len(entries) - 1) / 2)
                panel.plot(x, mean, "o-", ms=4, color=colours[column], label=" ".join(column).strip())
                panel.vlines(x, low, high, color=colours[column], lw=1)
                panel.set_xticks(range(len(bands)), [band.removesuffix(" cells") for band in bands])
            panel.set(ylim=(-2, 102), title=env.removesuffix("-v0"), xlabel="cells from start to goal")
            panel.grid(color=EDGE, alpha=0.2, linewidth=0.6)
        axes[0].set_ylabel("success, per cent")
        axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
