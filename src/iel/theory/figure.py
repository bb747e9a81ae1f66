"""The figure of docs/theory.md: Theorem 3.3's bound beside the true error as the dimension d shrinks.

    python -m iel.theory.figure docs/images/theory-bound.png

World: a random walk in OGBench's medium maze, one state per half cell, absorbing goal. Ambient features are one-hot;
the subspace of dimension d holds the goal, the unit cost 1{x != g} (both demanded by the theorem) and the d - 2
slowest modes of the killed walk: eigenvectors of the symmetrised P_Q, those that decay last.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iel.theory.bounds import approximation_bound, fit_readout, invariant_operator, relative_error_bound
from iel.theory.builders import absorbing
from iel.theory.chains import ControlledProcess, policy_chain, uniform_policy
from iel.theory.mazes import maze_from_map

MEDIUM_MAZE = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 0, 0, 1, 1, 0, 0, 1],
        [1, 0, 0, 1, 0, 0, 0, 1],
        [1, 1, 0, 0, 0, 1, 1, 1],
        [1, 0, 0, 1, 0, 0, 0, 1],
        [1, 0, 1, 0, 0, 1, 0, 1],
        [1, 0, 0, 0, 1, 0, 0, 1],
        [1, 1, 1, 1, 1, 1, 1, 1],
    ]
)


@dataclass(frozen=True)
class BoundCurve:
    """One row per dimension: true error, the theorem's bound, the sharper and the corrected one, and their factors."""

    dimensions: np.ndarray
    true_error: np.ndarray
    bound: np.ndarray
    sharp_bound: np.ndarray
    relative_error: np.ndarray
    relative_bound: np.ndarray
    epsilon: np.ndarray
    spectral_radius: np.ndarray
    longest: float
    """max_x V(x, g), the scale of the errors."""


def slow_subspace(chain: np.ndarray, goal: int, dimension: int) -> np.ndarray:
    """An orthonormal basis (n, d) of span{e_g, 1 - e_g, slowest d - 2 modes of the symmetrised killed walk}."""
    states = len(chain)
    transient = np.delete(np.arange(states), goal)
    killed = chain[np.ix_(transient, transient)]
    values, vectors = np.linalg.eigh((killed + killed.T) / 2.0)
    slow = np.zeros((states, states - 1))
    slow[transient] = vectors[:, np.argsort(-values)]
    outside = np.ones(states)
    outside[goal] = 0.0
    basis = np.column_stack([np.eye(states)[goal], outside, slow[:, : dimension - 2]])
    orthonormal, triangular = np.linalg.qr(basis)
    return orthonormal[:, np.abs(np.diag(triangular)) > 1e-9]


def bound_curve(process: ControlledProcess, goal: int, dimensions: np.ndarray) -> BoundCurve:
    """Evaluate Theorem 3.3 and its corrected form for every dimension."""
    ended = absorbing(process, goal)
    chain = policy_chain(ended, uniform_policy(ended))
    rows: list[tuple[float, ...]] = []
    longest = 0.0
    for dimension in dimensions:
        features = slow_subspace(chain.toarray(), goal, int(dimension))
        theorem = approximation_bound(chain, goal, features, invariant_operator(chain, features, goal))
        relative = relative_error_bound(chain, goal, features, fit_readout(chain, goal, features))
        rows.append(
            (
                theorem.true_error,
                theorem.bound,
                theorem.sharp_bound,
                float(relative.error.max()),
                float(relative.bound.max()),
                theorem.epsilon,
                theorem.spectral_radius,
            )
        )
        longest = float(relative.exact.max())
    columns = np.array(rows).T
    return BoundCurve(
        dimensions=np.asarray(dimensions),
        true_error=columns[0],
        bound=columns[1],
        sharp_bound=columns[2],
        relative_error=columns[3],
        relative_bound=columns[4],
        epsilon=columns[5],
        spectral_radius=columns[6],
        longest=longest,
    )


def maze_curve() -> BoundCurve:
    """The curve of the figure: OGBench's medium maze at half-cell resolution, goal in the far corner."""
    maze = maze_from_map(MEDIUM_MAZE, subcells=2)
    goal = int(maze.nearest_state(maze.cell_centre((6, 6))))
    dimensions = np.unique(np.round(np.geomspace(2, maze.states, 24)).astype(int))
    return bound_curve(maze.process(), goal, dimensions)


def draw_bound_curve(curve: BoundCurve, path: str | Path) -> Path:
    """Two panels: absolute errors and bounds; and the factors of the bound."""
    from matplotlib.figure import Figure  # here, so that the theory itself needs numpy and scipy only

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    floor = 1e-4  # exact at full dimension: drawn at the bottom edge, so that the rest stays readable
    for values, label, style in (
        (curve.true_error, "true error", "-"),
        (curve.bound, "bound of Theorem 3.3", "--"),
        (curve.sharp_bound, "same proof, sharper", ":"),
        (curve.relative_error, "true error, corrected readout", "-"),
        (curve.relative_bound, "corrected bound", "--"),
    ):
        left.plot(curve.dimensions, np.maximum(values, floor), style, marker=".", label=label)
    left.axhline(curve.longest, color="0.5", linewidth=1, label="longest hitting time")
    left.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="steps", title="Error and bound, shrinking d")
    left.set_ylim(bottom=floor)
    left.invert_xaxis()
    left.legend(fontsize=7)
    right.plot(curve.dimensions, np.maximum(curve.epsilon, floor), marker=".", label="capacity error epsilon")
    right.plot(curve.dimensions, 1.0 - curve.spectral_radius, marker=".", label="1 - rho(T_Q)")
    right.set(xscale="log", yscale="log", xlabel="dimension d", title="What the bound is made of")
    right.set_ylim(bottom=floor)
    right.invert_xaxis()
    right.legend(fontsize=8)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    return target


if __name__ == "__main__":
    print(draw_bound_curve(maze_curve(), sys.argv[1] if len(sys.argv) > 1 else "docs/images/theory-bound.png"))
