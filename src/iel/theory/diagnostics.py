"""Is this the geometry, and what else can be read off it? Diagnostics from samples of any embedding.

`spectrum`           singular values of hitting-time differences V(x0, h) - V(g, h), whose smallest is the lower
                     constant that Theorem 2.3 assumes, and their effective rank: the dimensions an embedding needs
`isomorphism_gap`    Theorem 2.3 between two embeddings of the same states, two seeds say: the share of one's
                     displacements that no linear map of the other's explains, on held-out states; 0 for isomorphic ones
`policy_readout`     the fixed-policy evaluation span from samples: V of a reward as a readout of phi, for the policy
                     that made the data; with a region to stop at, the expected steps until *any* of its states is met
`when_it_works`      the paper's five conditions of use (appendix "When should the representation work?") as numbers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from iel.errors import ChainError
from iel.readout import affine_readout, unexplained
from iel.theory.calibration import fit_latent_dynamics, step_rows


@dataclass(frozen=True)
class Spectrum:
    """Singular values, largest first, of hitting-time differences in L^2."""

    values: np.ndarray

    @property
    def effective_rank(self) -> float:
        """exp(entropy) of the squared singular values as shares: k equal ones count as k."""
        shares = self.values**2 / (self.values**2).sum()
        shares = shares[shares > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))


def spectrum(times: np.ndarray) -> Spectrum:
    """Of a table V(x, h) of states by goals, sampled or whole; rows are compared with their mean instead of one x0."""
    table = np.asarray(times, dtype=np.float64)
    if table.ndim != 2 or not np.all(np.isfinite(table)):
        raise ChainError("The spectrum needs a finite table of times, states by goals: leave unreachable goals out.")
    values = np.linalg.svd(table - table.mean(axis=0), compute_uv=False) / np.sqrt(table.size)
    if values[0] <= 0:
        raise ChainError("All states have the same times to all goals: there is no geometry to measure.")
    return Spectrum(values)


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


def isomorphism_gap(first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> float:
    """The larger held-out misfit, first -> second or second -> first, of two embeddings of the same states."""
    return max(held_out_misfit(first, second, generator), held_out_misfit(second, first, generator))


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


def policy_readout(
    embeddings: np.ndarray,
    offsets: np.ndarray,
    rewards: np.ndarray,
    *,
    discount: float = 1.0,
    stop: np.ndarray | None = None,
    ridge: float = 1e-8,
) -> np.ndarray:
    """V of every stored state (S,) for the policy that made the data: E[sum_t discount^t r(x_t)], until `stop` is met.

    Least-squares temporal differences on psi = (1, phi), over logged steps x -> x' that do not begin in `stop`:

        sum psi(x) (psi(x) - discount 1{x' not in stop} psi(x'))^T w = sum psi(x) r(x),      V = <psi, w>, 0 in `stop`

    which is w = (I - gamma K*)^-1 R of the paper's fixed-policy span, estimated. With rewards 1 and discount 1 it is
    the expected time to a *set*. That is at most the time to its nearest state, and less where chance decides which of
    them is met: the cheapest member of a region is an upper bound.
    """
    phi, bounds = np.asarray(embeddings, np.float64), np.asarray(offsets, np.int64)
    gains = np.asarray(rewards, np.float64)
    stopped = np.zeros(len(phi), bool) if stop is None else np.asarray(stop)
    if gains.shape != (len(phi),) or stopped.shape != (len(phi),) or stopped.dtype != bool:
        raise ChainError("Rewards and `stop` need one entry per stored state, `stop` True or False.")
    if not 0.0 < discount <= 1.0 or (discount == 1.0 and not stopped.any()):
        raise ChainError("Without a state to stop at a sum of rewards needs a discount below one.")
    psi = np.column_stack([np.ones(len(phi)), (phi - phi.mean(axis=0)) / np.maximum(phi.std(axis=0), 1e-12)])
    now = step_rows(bounds)
    now = now[~stopped[now]]
    onward = discount * (~stopped[now + 1])[:, None] * psi[now + 1]
    moments = psi[now].T @ (psi[now] - onward) / len(now) + ridge * np.eye(psi.shape[1])
    weights = np.linalg.solve(moments, psi[now].T @ gains[now] / len(now))
    return np.where(stopped, 0.0, psi @ weights)
