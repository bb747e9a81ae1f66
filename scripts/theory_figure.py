"""The figure of docs/theory.md: Theorem 3.3's bound beside the true error as the dimension d shrinks.

    python scripts/theory_figure.py docs/images/theory-bound.png

World: a random walk in OGBench's medium maze, one state per half cell, absorbing goal. Ambient features are one-hot;
the subspace of dimension d holds the goal, the unit cost 1{x != g} (both demanded by the theorem) and the d - 2
slowest modes of the killed walk: eigenvectors of the symmetrised P_Q, those that decay last.
"""

from __future__ import annotations

import sys

import numpy as np
from matplotlib.figure import Figure

from iel.theory.bounds import (
    approximation_bound,
    fit_readout,
    invariant_operator,
    maze_walk,
    relative_error_bound,
    slow_subspace,
)

FLOOR = 1e-4
"""Exact at full dimension: drawn at the bottom edge, so that the rest stays readable."""


def main(path: str) -> None:
    chain, goal = maze_walk()
    dimensions = np.unique(np.round(np.geomspace(2, len(chain), 24)).astype(int))
    spaces = [slow_subspace(chain, goal, int(dimension)) for dimension in dimensions]
    theorem = [approximation_bound(chain, goal, phi, invariant_operator(chain, phi, goal)) for phi in spaces]
    corrected = [relative_error_bound(chain, goal, phi, fit_readout(chain, goal, phi)) for phi in spaces]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for values, label, style in (
        ([t.true_error for t in theorem], "true error", "-"),
        ([t.bound for t in theorem], "bound of Theorem 3.3", "--"),
        ([t.sharp_bound for t in theorem], "same proof, sharper", ":"),
        ([c.error.max() for c in corrected], "true error, corrected readout", "-"),
        ([c.bound.max() for c in corrected], "corrected bound", "--"),
    ):
        left.plot(dimensions, np.maximum(values, FLOOR), style, marker=".", label=label)
    left.axhline(theorem[0].resolvent, color="0.5", linewidth=1, label="longest hitting time")
    left.set(ylabel="steps", title="Error and bound, shrinking d")
    for values, label in (
        ([t.epsilon for t in theorem], "capacity error epsilon"),
        ([1.0 - t.spectral_radius for t in theorem], "1 - rho(T_Q)"),
    ):
        right.plot(dimensions, np.maximum(values, FLOOR), marker=".", label=label)
    right.set_title("What the bound is made of")
    for panel in (left, right):
        panel.set(xscale="log", yscale="log", xlabel="dimension d")
        panel.set_ylim(bottom=FLOOR)
        panel.invert_xaxis()
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/theory-bound.png")
