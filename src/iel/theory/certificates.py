"""What may be promised about predicted steps, with the assumptions in the sentence.

`error_certificate`    no assumption on the model or the world: an order statistic of errors at independent pairs bounds
                       a quantile of the error, since P(e_(k) < q_s) = P(Binomial(n, s) >= k)
`plan_certificate`     if every edge is predicted within a factor 1 +- delta, a shortest path of predictions takes at
                       most (1 + delta) / (1 - delta) times the steps of the best path:
                       (1 - delta) V(P) <= d(P) <= d(P*) <= (1 + delta) V(P*)
`greedy_certificate`   if d >= 0, d(g) = 0 and |d(x) - 1 - min_a E[d(x') | x, a]| <= epsilon off the goal, then
                       d <= (1 + epsilon) V*  and  V of the greedy policy <= d / (1 - epsilon)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from iel.errors import ChainError
from iel.theory.chains import ControlledProcess, hitting_times, policy_chain
from iel.theory.optimal import optimal_hitting_times


@dataclass(frozen=True)
class ErrorCertificate:
    """With `confidence`, at least a share `share` of new pairs has relative error at most `bound`."""

    bound: float
    share: float
    confidence: float
    pairs: int

    @property
    def sentence(self) -> str:
        promise = f"With {100 * self.confidence:g} % confidence at least {100 * self.share:g} % of predictions"
        if math.isinf(self.bound):
            needed = math.ceil(math.log(1.0 - self.confidence) / math.log(self.share))
            return f"{promise} cannot be bounded from {self.pairs} pairs: measure at least {needed}."
        return (
            f"{promise} are off by at most {100 * self.bound:.0f} % of the true steps, if new starts and goals are "
            f"drawn like the {self.pairs} measured ones and independently of training."
        )


def error_certificate(
    predicted: np.ndarray, actual: np.ndarray, share: float = 0.9, confidence: float = 0.95
) -> ErrorCertificate:
    """An upper confidence bound for the `share`-quantile of |predicted - actual| / actual over independent pairs."""
    guess, truth = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    if guess.shape != truth.shape or guess.ndim != 1 or not np.all(truth > 0) or np.isnan(guess).any():
        raise ChainError("A certificate needs one prediction and one true time above zero per pair: leave others out.")
    if not 0.0 < share < 1.0 or not 0.0 < confidence < 1.0:
        raise ChainError(f"The share {share} and the confidence {confidence} must lie strictly between 0 and 1.")
    with np.errstate(invalid="ignore"):
        errors = np.sort(np.where(np.isinf(guess) & np.isinf(truth), 0.0, np.abs(guess - truth) / truth))
    rank = int(binom.ppf(confidence, len(errors), share)) + 1 if len(errors) else 1
    bound = float(errors[rank - 1]) if rank <= len(errors) else math.inf
    return ErrorCertificate(bound, share, confidence, len(errors))


@dataclass(frozen=True)
class PlanCertificate:
    """A planned way takes at most `factor` times the steps of the best way over the same nodes."""

    delta: float

    @property
    def factor(self) -> float:
        return (1.0 + self.delta) / (1.0 - self.delta) if self.delta < 1.0 else math.inf

    @property
    def sentence(self) -> str:
        if math.isinf(self.factor):
            return "Nothing can be said about plans: edges may be off by 100 % or more."
        return (
            f"If every edge of the graph is predicted within {100 * self.delta:.0f} % of its true steps and the policy "
            f"takes these steps, a planned way is at most {self.factor:.2f} times as long as the best way over the "
            "same nodes; ways that leave the nodes are not compared."
        )


def plan_certificate(predicted: np.ndarray, actual: np.ndarray) -> PlanCertificate:
    """delta is the largest relative error of any edge, not a quantile: planners pick extremes."""
    guess, truth = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    if guess.shape != truth.shape or not np.all(truth > 0):
        raise ChainError("A plan's certificate needs one prediction and one true time above zero per edge.")
    return PlanCertificate(float((np.abs(guess - truth) / truth).max(initial=0.0)))


@dataclass(frozen=True)
class GreedyCertificate:
    """The policy that is greedy for predictions: its true times are at most `factor` times the optimal ones."""

    residual: float
    factor: float
    greedy: np.ndarray
    """True times of the greedy policy."""
    optimal: np.ndarray


def greedy_certificate(process: ControlledProcess, goal: int, predicted: np.ndarray) -> GreedyCertificate:
    """Evaluate the bound on a known finite process, for predictions (n,) of the steps to `goal`."""
    d = np.asarray(predicted, dtype=np.float64)
    if d.shape != (process.states,) or d.min() < 0 or d[goal] != 0.0:
        raise ChainError("Predictions must be one non-negative number per state, and zero at the goal.")
    after = np.stack([chain @ d for chain in process.transitions])
    miss = np.delete(d - 1.0 - after.min(axis=0), goal)
    residual = float(np.abs(miss).max(initial=0.0))
    factor = (1.0 + residual) / (1.0 - residual) if residual < 1.0 else math.inf
    greedy = hitting_times(policy_chain(process, after.argmin(axis=0)), goal)
    return GreedyCertificate(residual, factor, greedy, optimal_hitting_times(process, goal).values)
