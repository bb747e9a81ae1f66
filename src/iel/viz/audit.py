"""One picture of an audit: calibration, order by distance, progress at independent goals, latent model error."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from iel.theory.audit import Audit
from iel.theory.calibration import CONFIDENCE, Interval
from iel.viz.style import EDGE, FAILURE, INK, figure, plain_log


def draw_audit(audit: Audit, path: Path | str) -> Path:
    """Write the four panels to `path` (a PNG) and return it."""
    with figure(path, 2, 2, size=(11, 8)) as panels:
        _calibration(panels[0, 0], audit)
        _order(panels[0, 1], audit)
        _progress(panels[1, 0], audit)
        _errors(panels[1, 1], audit)
    return Path(path)


def _calibration(panel: Axes, audit: Audit) -> None:
    reference, predicted = audit.pairs["reference"], audit.pairs["predicted"]
    shown = np.isfinite(reference) & np.isfinite(predicted) & (reference > 0) & (predicted > 0)
    panel.scatter(reference[shown][:3000], predicted[shown][:3000], s=3, alpha=0.2, color=EDGE, linewidths=0)
    middle = [row.reference for row in audit.calibration]
    low, medians, high = np.array([row.predicted for row in audit.calibration]).reshape(-1, 3).T
    if np.isfinite(medians).any():
        panel.fill_between(middle, low, high, alpha=0.25, label="10 % to 90 %")
        panel.plot(middle, medians, marker="o", label="median prediction")
    limits = [1.0, max(2.0, float(reference[np.isfinite(reference)].max(initial=2.0)))]
    panel.plot(limits, limits, color=INK, linewidth=1, linestyle="--", label="equal")
    if audit.horizon.low > 0:
        panel.axvline(audit.horizon.low, color=FAILURE, linewidth=1, label="trusted horizon")
    if np.isfinite(audit.ceiling):
        panel.axhline(audit.ceiling, color=EDGE, linewidth=1, linestyle=":", label="ceiling of discounting")
    panel.set(xscale="log", yscale="log", title="Calibration")
    panel.set(xlabel=f"{audit.reference} steps", ylabel="predicted steps")
    plain_log(panel.xaxis)
    plain_log(panel.yaxis)
    panel.legend(fontsize=8)


def _order(panel: Axes, audit: Audit) -> None:
    rows = audit.calibration[1:]
    panel.errorbar([row.high for row in rows], *_bars([row.order for row in rows]), marker="o", capsize=3)
    panel.axhline(CONFIDENCE, color=FAILURE, linewidth=1, label="needed for trust")
    panel.axhline(0.5, color=EDGE, linewidth=1, linestyle=":", label="guessing")
    panel.set(xscale="log", xlabel="steps", title="Twice as far is predicted farther")
    panel.set_ylabel("share of pairs")
    panel.set_ylim(min(0.3, panel.get_ylim()[0]), 1.02)
    plain_log(panel.xaxis)
    panel.legend(fontsize=8)


def _progress(panel: Axes, audit: Audit) -> None:
    rows = audit.progress.by_distance
    panel.errorbar([row[0] for row in rows], *_bars([row[1] for row in rows]), marker="o", capsize=3)
    panel.axhline(1.0, color=INK, linewidth=1, linestyle="--", label="the most that is possible: the pace of the data")
    panel.set(xscale="log", xlabel="predicted steps to an independent goal", ylabel="steps gained per step")
    panel.set_title("Progress at independent goals")
    plain_log(panel.xaxis)
    panel.legend(fontsize=8)


def _errors(panel: Axes, audit: Audit) -> None:
    panel.set_title("Latent linear model")
    if audit.dynamics is None:
        panel.text(0.5, 0.5, "this model has no embedding", ha="center")
        return
    errors = np.sort(audit.dynamics.errors) / (audit.dynamics.step or 1.0)
    panel.plot(errors, np.linspace(0, 1, len(errors)))
    panel.set(xlabel="one-step error / typical step, noise included", ylabel="share of held-out steps")
    panel.set_xlim(0, float(np.quantile(errors, 0.995)) * 1.05 + 1e-12)


def _bars(intervals: list[Interval]) -> tuple[list[float], list[list[float]]]:
    """Values and the lengths of their error bars, as `errorbar` wants them."""
    below = [max(0.0, i.value - i.low) for i in intervals]
    return [i.value for i in intervals], [below, [max(0.0, i.high - i.value) for i in intervals]]
