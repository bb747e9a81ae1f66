"""The paper's five conditions of use (appendix "When should the representation work?") as numbers, from samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.readout import affine_readout, unexplained
from iel.theory.calibration import fit_latent_dynamics, step_rows


def held_out_misfit(
    inputs: np.ndarray, targets: np.ndarray, generator: np.random.Generator, ridge: float = 1e-8
) -> float:
    """1 - R^2 of an affine readout on the half of the rows it was not fitted on: 0 is perfect, 1 is the mean."""
    x, y = np.asarray(inputs, np.float64), np.asarray(targets, np.float64)
    if x.ndim != 2 or len(x) != len(y) or len(x) < 4:
        raise ChainError("A readout needs at least four rows of inputs and as many targets.")
    y = y.reshape(len(y), -1)
    order = generator.permutation(len(x))
    fit, test = order[::2], order[1::2]
    weights, intercept = affine_readout(x[fit], y[fit], ridge)
    return unexplained(y[test] - x[test] @ weights - intercept, y[test])


@dataclass(frozen=True)
class Conditions:
    """The five conditions as shares that are lost (0 is perfect), the fourth as a ratio; None where not given."""

    closure: float
    """(i) 1 - R^2 of phi' = K_a phi, transition noise taken out."""
    goals: float | None
    """(ii) 1 - R^2 of the goal's attributes read off phi(g)."""
    rewards: float | None
    """(iii) 1 - R^2 of the reward read off phi(x)."""
    horizon: float | None
    """(iv) steps to nine tenths of random goals over the longest episode: above 1 no episode shows such a way whole."""
    maximum: float
    """(v) 1 - R^2 of max_a <K_a phi(x), z> read off phi(x), for random z."""

    def sentences(self) -> list[str]:
        """One line per condition that could be judged."""
        lines = [f"(i) predictive closure: {_share(self.closure)} of latent steps is not linear in phi and the action."]
        if self.goals is not None:
            lines.append(f"(ii) goals: {_share(self.goals)} of their columns cannot be read off phi(g).")
        if self.rewards is not None:
            lines.append(f"(iii) rewards: {_share(self.rewards)} of the reward cannot be read off phi.")
        if self.horizon is not None:
            lines.append(f"(iv) horizon: nine tenths of random goals are within {self.horizon:.2f} longest episodes.")
        lines.append(f"(v) optimal control: {_share(self.maximum)} of the best action's value leaves the latent span.")
        return lines


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def when_it_works(
    embeddings: np.ndarray,
    actions: np.ndarray,
    offsets: np.ndarray,
    generator: np.random.Generator,
    *,
    attributes: np.ndarray | None = None,
    rewards: np.ndarray | None = None,
    predicted: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    rows: int = 4000,
) -> Conditions:
    """Judge the conditions on logged steps; `attributes` (S, k) and `rewards` (S,) belong to the stored states."""
    phi, bounds = np.asarray(embeddings, np.float64), np.asarray(offsets, np.int64)
    moving = step_rows(bounds)
    moves = np.asarray(actions, np.float64)
    dynamics = fit_latent_dynamics(phi, moves, bounds, generator)
    spread = float(((phi[moving + 1] - phi[moving]) ** 2).sum(axis=1).mean())
    some = generator.choice(len(phi), size=min(rows, len(phi)), replace=False)
    horizon = None
    if predicted is not None:
        steps = np.asarray(predicted(*generator.integers(len(phi), size=(2, rows))), np.float64)
        horizon = float(np.quantile(steps, 0.9) / (np.diff(bounds).max() - 1))
    return Conditions(
        closure=dynamics.epsilon.value**2 / spread if spread > 0 else 0.0,
        goals=None if attributes is None else held_out_misfit(phi[some], attributes[some], generator),
        rewards=None if rewards is None else held_out_misfit(phi[some], rewards[some], generator),
        horizon=horizon,
        maximum=_maximum_misfit(dynamics.predict, phi[some], moves[moving], generator),
    )


def _maximum_misfit(
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray],
    phi: np.ndarray,
    actions: np.ndarray,
    generator: np.random.Generator,
    directions: int = 8,
    choices: int = 32,
) -> float:
    """1 - R^2 of x -> max over logged actions of <K_a phi(x), z>: maximising is the step that can leave the span."""
    kinds = np.unique(actions, axis=0)
    kinds = kinds[generator.permutation(len(kinds))[:choices]]
    after = np.stack([predict(phi, np.repeat(kind[None], len(phi), axis=0)) for kind in kinds])
    z = generator.normal(size=(phi.shape[1], directions)) / np.maximum(phi.std(axis=0), 1e-12)[:, None]
    return held_out_misfit(phi, (after @ z).max(axis=0), generator)
