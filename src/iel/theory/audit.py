"""An audit of any learned geometry: how far ahead can its step predictions be trusted?

Input is plain arrays and callables, so any method and any framework can be audited. Only the first two are needed:

    offsets (E + 1,)     episode e is rows offsets[e] .. offsets[e + 1] - 1 of the stored states
    predicted(i, j)      predicted steps from state i to state j, index arrays in, an array out
    cost(i, j)           what the planner adds up, if that is not steps (a discounted time)
    discount             gamma of a model that learned discounted times: its predictions have a ceiling
    exact(i, j)          exact steps where the environment is known (a maze turned into a chain)
    embeddings (S, d)    phi of every stored state, and actions (S, a); the last row of an episode is ignored

What is measured, each with a 95 % interval (whole episodes or whole goals drawn again), and what an exact model gives:

    order        rank correlation of predictions with exact steps, else with observed gaps                         1
    calibration  median of predicted / exact steps, also by distance; an observed gap is the length of one noisy
                 path, hence only an upper bound of the fewest steps                              1, or at most 1
    progress     d(x, g) - d(x', g) for steps x -> x' of the data and goals g drawn independently of them. Its mean
                 given x and g is 1 if d are the times of the policy that made the data (Poisson equation) and at most
                 1 if d are the fewest possible steps. Hindsight goals, later states of the same episode, would make it
                 too large: they are picked because the walk went there. With exact steps known, the slope of predicted
                 on exact progress                                                                              1
    horizon      how far predictions are both in order and calibrated                        as far as the data reach
    triangle     share of triples whose direct cost exceeds that of the path through a third state, on `cost`       0
    saturation   share of predictions at the ceiling that discounting puts on them                                 0
    closure      error of a linear latent model phi' = K_a phi per step, transition noise taken out (Definition 2.1) 0

Costs that are not steps (log-odds) have an order, a triangle inequality and an asymmetry, and nothing else of this:
`audit_costs` measures those.

No figure multiplies one-step errors by 1 / (1 - spectral radius): docs/theory.md, point 6, says why.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from iel.distances import longest_steps
from iel.errors import ChainError
from iel.theory.calibration import (
    CONFIDENCE,
    FACTOR,
    CalibrationBin,
    ErrorCertificate,
    Interval,
    LatentDynamics,
    PairFunction,
    bootstrap,
    calibration_table,
    episode_of,
    error_certificate,
    fit_latent_dynamics,
    mean_interval,
    spearman,
    step_rows,
    trusted_bins,
    trusted_horizon,
)

GOALS = 64
"""Independent goals behind the figure `progress`."""


@dataclass(frozen=True)
class Progress:
    """What one step of the data does to the predicted distance of an independent goal."""

    mean: Interval
    fastest: Interval  # largest mean over doubling bins of d(x, g): above 1 for no policy's times, nor fewest steps
    by_distance: list[tuple[float, Interval]]  # (mean d(x, g) of a bin, mean progress there)
    slope: Interval | None  # least-squares slope of predicted on exact progress, where exact steps are known


@dataclass(frozen=True)
class CostAudit:
    """What can be measured of any costs, steps or not. `sentences()` for people, `to_dict()` for JSON."""

    data: str  # what the figures were computed on, in words
    states: int
    episodes: int
    against_exact: bool  # whether the reference is exact steps; otherwise it is observed gaps
    order: Interval
    triangle: Interval
    triangle_excess: float  # median of c(x, z) / (c(x, y) + c(y, z)) - 1 over the violating triples
    asymmetry: float  # median of |d(x, y) - d(y, x)| over the mean of the two: a fact, not a fault

    @property
    def reference(self) -> str:
        """What predictions are compared with, in a word."""
        return "exact" if self.against_exact else "observed"

    @property
    def verdict(self) -> str:
        """How well it orders, in words: costs that are not steps have no horizon."""
        return f"orders states like {self.reference} steps to {self.order.value:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Numbers only, safe for JSON: values that are not finite become null."""
        return json_safe({"verdict": self.verdict, **vars(self)})

    def facts(self, what: str) -> list[str]:
        """The sentences on any geometry: what was audited, its order, its triangles, its asymmetry."""
        return [
            f"Audited {self.states} states of {self.episodes} episodes: {self.data}.",
            f"{what} and {self.reference} steps have rank correlation {self.order:.2f}.",
            f"The triangle inequality of costs fails for {100 * self.triangle.value:.1f} % of random triples"
            + (f", by {100 * self.triangle_excess:.0f} % at the median." if self.triangle.value else "."),
            f"There and back differ by {100 * self.asymmetry:.0f} % at the median.",
        ]

    def sentences(self) -> list[str]:
        """The audit in plain English."""
        return [
            *self.facts("Costs"),
            "These costs are not in steps, so they predict none: calibration, progress and horizon are not measured.",
        ]


@dataclass(frozen=True)
class Audit(CostAudit):
    """All measurements of a model that predicts steps; `draw_audit` makes a picture of it."""

    ratio: Interval
    calibration: list[CalibrationBin]
    progress: Progress
    horizon: Interval
    reach: float  # the farthest reference distance that enough pairs have
    saturated: Interval
    ceiling: float  # the most steps the model can predict; infinite without discounting
    certificate: ErrorCertificate | None  # what may be promised for new pairs, where exact steps are known
    dynamics: LatentDynamics | None  # None for models without an embedding
    pairs: dict[str, np.ndarray] = field(repr=False)  # reference steps and predictions, for the picture

    def figures(self) -> dict[str, bool]:
        """Each figure, and whether it is what an exact geometry gives, up to rounding and sampling."""
        slope, fastest = self.progress.slope, self.progress.fastest
        answers = {
            "order": self.order.value >= 0.99 if self.against_exact else self.order.low > 0.0,
            "calibration": self.ratio.within(0.95, 1.05) if self.against_exact else self.ratio.low <= 1.0,
            "progress": fastest.low <= 1.0 if slope is None else slope.within(0.95, 1.05),
            "horizon": self.horizon.low >= self.reach > 0,
            "triangle": self.triangle.value <= 1e-3,
            "saturation": self.saturated.value <= 1e-3,
        }
        if self.dynamics is not None:
            answers["closure"] = self.dynamics.epsilon.value <= 0.05 * self.dynamics.step + 1e-12
        return answers

    @property
    def verdict(self) -> str:
        """`exact` (every figure, against exact steps), `trusted up to H steps`, or `cannot be trusted`."""
        if self.against_exact and all(self.figures().values()):
            return "exact"
        return f"trusted up to {self.horizon.low:.0f} steps" if self.horizon.low > 0 else "cannot be trusted"

    def to_dict(self) -> dict[str, Any]:
        """Numbers only, safe for JSON: values that are not finite become null."""
        shown = {name: value for name, value in vars(self).items() if name not in ("dynamics", "pairs")}
        closure = self.dynamics and {name: getattr(self.dynamics, name) for name in ("epsilon", "noise", "step")}
        return json_safe({"verdict": self.verdict, "as_exact": self.figures(), **shown, "closure": closure})

    def sentences(self) -> list[str]:
        """The audit in plain English."""
        progress, dynamics = self.progress, self.dynamics
        audited, ordered, *shape = self.facts("Predictions")
        lines = [audited, ordered, f"The median prediction is {self.ratio:.2f} times the {self.reference} steps."]
        if not self.against_exact:
            lines[-1] += (
                " An observed gap is the length of a noisy path and bounds the fewest steps only from above, so a "
                "ratio below 1 is not an error."
            )
        lines.append(
            f"One step of the data shortens the predicted distance to an independent goal by {progress.mean:.2f} on "
            "average; it would be 1 for times of the policy that made the data, and at most 1 for fewest steps."
        )
        if progress.slope is not None:
            lines.append(f"Where a step really gains one step, predictions gain {progress.slope:.2f}.")
        if progress.fastest.low > 1.0:
            lines.append(
                f"At some distances predictions shrink by {progress.fastest:.2f} per step: faster than time passes, "
                "so they are neither the times of the policy that made the data nor fewest steps."
            )
        lines += shape
        if math.isfinite(self.ceiling):
            lines.append(
                f"The model cannot predict more than {self.ceiling:.0f} steps; {100 * self.saturated.value:.1f} % of "
                "predictions are there and say only 'far'."
            )
        if dynamics is not None:
            lines.append(
                f"A linear latent model misses the mean next embedding by {dynamics.epsilon.value:.3g} (at least), "
                f"{dynamics.epsilon.value / max(dynamics.step, 1e-300):.2f} of a step of {dynamics.step:.3g}; "
                f"transition noise adds {dynamics.noise.value:.3g} (at most)."
            )
        if self.certificate is not None:
            lines.append(self.certificate.sentence)
        return [*lines, self._conclusion()]

    def _conclusion(self) -> str:
        rule = (
            f"pairs twice as far apart get the larger prediction in at least {100 * CONFIDENCE:.0f} % of cases, and "
            f"the median prediction is {'within' if self.against_exact else 'not above'} a factor {FACTOR:g} of the "
            f"{self.reference} steps"
        )
        if self.verdict == "exact":
            return "Every figure is what an exact geometry gives: predictions are exact."
        if self.horizon.low > 0:
            beyond = self.horizon.value > self.horizon.low
            more = f"; by the estimates alone, up to {self.horizon.value:.0f} steps" if beyond else ""
            return f"Predictions can be trusted up to {self.horizon.low:.0f} steps: until there, {rule}{more}."
        sound = trusted_bins(self.calibration, "worse", upper_only=not self.against_exact)
        good = [row for row, trusted in zip(self.calibration, sound, strict=True) if trusted and row.low >= 1.0]
        where = ", ".join(f"{row.low:.0f} to {row.high:.0f}" for row in good)
        text = f"Predictions cannot be trusted from the shortest distances on: it is not so that {rule}."
        return f"{text} It is so at {where} steps." if good else text


def audit_costs(
    offsets: np.ndarray,
    *,
    cost: PairFunction,
    generator: np.random.Generator,
    exact: PairFunction | None = None,
    data: str = "the states given",
    pairs: int = 4000,
) -> CostAudit:
    """The part of the audit that needs no steps; arguments as in `audit_embedding`."""
    bounds, i, j, reference, triples = _drawn(offsets, pairs, exact, generator)
    answers = _checked(cost, "cost")(i, j)
    order = bootstrap(lambda rows: spearman(answers[rows], reference[rows]), episode_of(i, bounds), generator)[0]
    shape = _shape(cost, cost, triples, bounds, generator)
    return CostAudit(data, int(bounds[-1]), len(bounds) - 1, exact is not None, order, *shape)


def audit_embedding(
    offsets: np.ndarray,
    *,
    predicted: PairFunction,
    generator: np.random.Generator,
    cost: PairFunction | None = None,
    discount: float | None = None,
    exact: PairFunction | None = None,
    embeddings: np.ndarray | None = None,
    actions: np.ndarray | None = None,
    data: str = "the states given",
    pairs: int = 4000,
) -> Audit:
    """Run the audit. `data` names the states in the report: say there whether training has seen them."""
    steps = _checked(predicted, "predicted")
    bounds, i, j, reference, triples = _drawn(offsets, pairs, exact, generator)
    answers, clusters = steps(i, j), episode_of(i, bounds)
    away = np.isfinite(reference) & (reference > 0)
    if not away.any():
        raise ChainError("No pair of states has a finite distance above zero: pass states that differ.")
    ceiling = math.inf if discount is None else longest_steps(discount)
    table = calibration_table(reference, answers, clusters, generator)

    def agreement(rows: np.ndarray) -> list[float]:
        apart = rows[away[rows]]
        ratio = np.median(answers[apart] / reference[apart])
        saturated = (answers[rows] >= ceiling * (1 - 1e-5)).mean() if math.isfinite(ceiling) else 0.0
        return [spearman(answers[rows], reference[rows]), ratio, saturated]

    order, ratio, saturated = bootstrap(agreement, clusters, generator)
    triangle, excess, asymmetry = _shape(cost or steps, steps, triples, bounds, generator)
    certificate = None
    if exact is not None:  # over the pairs drawn independently of each other, at least one step apart
        apart = np.flatnonzero(away[:pairs] & (reference[:pairs] >= 1.0))
        certificate = error_certificate(answers[apart], reference[apart])
    return Audit(
        data=data,
        states=int(bounds[-1]),
        episodes=len(bounds) - 1,
        against_exact=exact is not None,
        order=order,
        triangle=triangle,
        triangle_excess=excess,
        asymmetry=asymmetry,
        ratio=ratio,
        calibration=table,
        progress=measure_progress(steps, exact, bounds, pairs, generator),
        horizon=trusted_horizon(table, upper_only=exact is None),
        reach=table[-1].farthest if table else 0.0,
        saturated=saturated,
        ceiling=ceiling,
        certificate=certificate,
        dynamics=_closure(embeddings, actions, bounds, generator),
        pairs={"reference": reference, "predicted": answers},
    )


def _shape(
    cost: PairFunction, steps: PairFunction, triples: np.ndarray, offsets: np.ndarray, generator: np.random.Generator
) -> tuple[Interval, float, float]:
    """Share and median excess of triples x, y, z with c(x, z) > c(x, y) + c(y, z), and how far steps are asymmetric."""
    x, y, z = triples
    through, direct = np.asarray(cost(x, y) + cost(y, z), np.float64), np.asarray(cost(x, z), np.float64)
    broken = (direct > through * (1 + 1e-6)) & (x != z) & np.isfinite(direct)
    excess = float(np.median(direct[broken] / through[broken] - 1.0)) if broken.any() else 0.0
    there, back = steps(x, y), steps(y, x)
    both = np.isfinite(there) & np.isfinite(back) & (there + back > 0)
    apart = np.abs(there[both] - back[both]) / ((there[both] + back[both]) / 2.0)
    asymmetry = float(np.median(apart)) if both.any() else 0.0
    return mean_interval(broken, episode_of(x, offsets), generator), excess, asymmetry


def _drawn(
    offsets: np.ndarray, pairs: int, exact: PairFunction | None, generator: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """The episodes' bounds, pairs (i, j) with exact steps, or of one episode with observed gaps, and triples (3, n)."""
    bounds = np.asarray(offsets, dtype=np.int64)
    if bounds.ndim != 1 or len(bounds) < 3 or bounds[0] != 0 or (np.diff(bounds) <= 0).any():
        raise ChainError("The episode offsets must rise from 0 and hold at least two episodes.")
    if np.diff(bounds).max() < 2:
        raise ChainError("No episode has two states: pass longer episodes.")
    # Pairs of one episode have log-uniform gaps, so that every scale is represented.
    lengths = np.diff(bounds)
    usable = np.flatnonzero(lengths > 1)
    chosen = generator.choice(usable, size=pairs, p=lengths[usable] / lengths[usable].sum())
    longest = lengths[chosen] - 1
    gaps = np.minimum(np.floor(np.exp(generator.uniform(0.0, np.log(longest + 1.0)))).astype(np.int64), longest)
    first = bounds[chosen] + np.floor(generator.random(pairs) * (lengths[chosen] - gaps)).astype(np.int64)
    later = first + gaps
    triples = generator.integers(bounds[-1], size=(3, pairs))
    if exact is None:
        return bounds, first, later, gaps.astype(np.float64), triples
    # Random pairs reach farther than pairs of one episode; pairs of one episode fill the short bins.
    i, j = np.concatenate([triples[0], first]), np.concatenate([triples[1], later])
    return bounds, i, j, _checked(exact, "exact")(i, j), triples


def measure_progress(
    steps: PairFunction, exact: PairFunction | None, offsets: np.ndarray, pairs: int, generator: np.random.Generator
) -> Progress:
    """E[d(x, g) - d(x', g) | x, g] over steps of the data and goals drawn from other episodes, where d(x, g) >= 1."""
    goals = generator.choice(offsets[-1], size=GOALS)
    now = generator.choice(step_rows(offsets), size=GOALS * max(1, pairs // GOALS))
    towards = np.repeat(goals, max(1, pairs // GOALS))
    other = episode_of(now, offsets) != episode_of(towards, offsets)
    now, towards = now[other], towards[other]
    before = steps(now, towards)
    away = before >= 1.0  # off the goal a hitting time is at least one; at the goal the equation does not hold
    now, towards, before = now[away], towards[away], before[away]
    if not len(now):
        raise ChainError("No prediction is as long as one step: the model does not tell states apart.")
    gain = before - steps(now + 1, towards)
    gain = np.where(np.isnan(gain), 0.0, gain)  # from infinite to infinite: no progress
    mean = mean_interval(gain, towards, generator)
    level = np.floor(np.log2(before)).astype(np.int64)
    by_distance = [
        (float(before[own].mean()), mean_interval(gain[own], towards[own], generator))
        for own in (level == each for each in np.unique(level))
        if own.sum() >= 50
    ]
    fastest = max((row[1] for row in by_distance), key=lambda interval: interval.low, default=mean)
    slope = None
    if exact is not None:
        truth = exact(now, towards) - exact(now + 1, towards)
        finite = np.isfinite(truth)
        gain, truth, towards = gain[finite], truth[finite], towards[finite]
        if (truth**2).sum() > 0:
            slope = bootstrap(lambda rows: gain[rows] @ truth[rows] / (truth[rows] ** 2).sum(), towards, generator)[0]
    return Progress(mean, fastest, by_distance, slope)


def _closure(
    embeddings: np.ndarray | None, actions: np.ndarray | None, offsets: np.ndarray, generator: np.random.Generator
) -> LatentDynamics | None:
    if embeddings is None or actions is None:
        return None
    phi, moves = np.asarray(embeddings, dtype=np.float64), np.asarray(actions, dtype=np.float64)
    if phi.ndim != 2 or moves.ndim != 2 or len(phi) != offsets[-1] or len(moves) != offsets[-1]:
        raise ChainError(f"Embeddings {phi.shape} and actions {moves.shape} must be 2-D with one row per stored state.")
    if not (np.isfinite(phi).all() and np.isfinite(moves[step_rows(offsets)]).all()):
        raise ChainError("Embeddings or actions hold values that are not finite: check the model and the data first.")
    return fit_latent_dynamics(phi, moves, offsets, generator)


def _checked(call: PairFunction, name: str) -> PairFunction:
    """The same function, which must answer one number per pair, infinite perhaps but not NaN."""

    def answer(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        values = np.asarray(call(i, j), dtype=np.float64).ravel()
        if len(values) != len(i):
            raise ChainError(f"{name}(i, j) returned {len(values)} numbers for {len(i)} pairs: one per pair is needed.")
        if np.isnan(values).any():
            raise ChainError(f"{name}(i, j) contains NaN: fix the model before auditing it.")
        return values

    return answer


def json_safe(value: Any) -> Any:
    """What JSON makes of it: numbers, words, lists and dicts, with null for what is not finite."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=lambda number: number.item()))
