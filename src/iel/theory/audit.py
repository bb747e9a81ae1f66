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
    triangle     share of triples whose direct cost exceeds that of the way through a third state, on `cost`       0
    saturation   share of predictions at the ceiling that discounting puts on them                                 0
    closure      error of a linear latent model phi' = K_a phi per step, transition noise taken out (Definition 2.1) 0

Costs that are no steps (log-odds) have an order, a triangle inequality and an asymmetry, and nothing else of this:
`audit_costs` measures those.

No figure multiplies one-step errors by 1 / (1 - spectral radius): docs/theory.md, point 6, says why.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

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
    fastest: Interval
    """The largest mean over doubling bins of d(x, g): above 1, no policy's times and no fewest steps are like that."""
    by_distance: list[tuple[float, Interval]]
    """(Mean d(x, g) of a bin, mean progress there)."""
    slope: Interval | None
    """Least-squares slope of predicted on exact progress, where exact steps are known."""


@dataclass(frozen=True)
class Audit:
    """All measurements. `sentences()` for people, `to_dict()` for JSON, `draw_audit` for a picture."""

    data: str
    """What the figures were computed on, in words."""
    states: int
    episodes: int
    against_exact: bool
    """Whether the reference is exact steps; otherwise it is observed gaps."""
    order: Interval
    ratio: Interval
    calibration: list[CalibrationBin]
    progress: Progress
    horizon: Interval
    reach: float
    """The farthest reference distance that enough pairs have."""
    triangle: Interval
    triangle_excess: float
    """Median of c(x, z) / (c(x, y) + c(y, z)) - 1 over the violating triples."""
    saturated: Interval
    ceiling: float
    """The most steps the model can predict; infinite without discounting."""
    asymmetry: float
    """Median of |d(x, y) - d(y, x)| over the mean of the two: a fact, not a fault."""
    dynamics: LatentDynamics | None
    """None for models without an embedding."""
    certificate: ErrorCertificate | None
    """What may be promised for new pairs, where exact steps are known."""
    pairs: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    """Samples for the picture: reference steps and predictions."""

    def figures(self) -> dict[str, bool]:
        """Each figure, and whether it is what an exact geometry gives, up to rounding and sampling."""
        answers = {
            "order": self.order.value >= 0.99 if self.against_exact else self.order.low > 0.0,
            "calibration": self.ratio.within(0.95, 1.05) if self.against_exact else self.ratio.low <= 1.0,
            "progress": self.progress.slope.within(0.95, 1.05)
            if self.progress.slope is not None
            else self.progress.fastest.low <= 1.0,
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
        plain = {name: value for name, value in vars(self).items() if name not in ("dynamics", "pairs")}
        answer: dict[str, Any] = {"verdict": self.verdict, "as_exact": self.figures()}
        for name, value in plain.items():
            answer[name] = asdict(value) if isinstance(value, (Interval, Progress, ErrorCertificate)) else value
        answer["calibration"] = [asdict(row) for row in self.calibration]
        answer["closure"] = self.dynamics and {
            "epsilon": asdict(self.dynamics.epsilon),
            "noise": asdict(self.dynamics.noise),
            "step": self.dynamics.step,
        }
        return _json_safe(answer)

    def sentences(self) -> list[str]:
        """The audit in plain English."""
        return _sentences(self)


@dataclass(frozen=True)
class CostAudit:
    """What can be measured of costs that are no steps; the fields mean what they mean in `Audit`."""

    data: str
    states: int
    episodes: int
    against_exact: bool
    order: Interval
    triangle: Interval
    triangle_excess: float
    asymmetry: float

    @property
    def verdict(self) -> str:
        """How well it orders, in words: there is no horizon without steps."""
        return f"orders states like {'exact' if self.against_exact else 'observed'} steps to {self.order.value:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Numbers only, safe for JSON."""
        return _json_safe({"verdict": self.verdict, **asdict(self)})

    def sentences(self) -> list[str]:
        """The audit in plain English."""
        return [
            *_facts(self, "Costs"),
            "These costs are not in steps, so they predict none: calibration, progress and horizon are not measured.",
        ]


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
    bounds = _checked_offsets(offsets)
    i, j, reference, triples = _drawn(bounds, pairs, exact, generator)
    answers = _finite_or_infinite(cost(i, j), "cost", len(i))
    correlation = lambda rows: np.array([spearman(answers[rows], reference[rows])])  # noqa: E731
    order = bootstrap(correlation, episode_of(i, bounds), generator)[0]
    triangle, excess = _triangle(cost, triples, bounds, generator)
    sizes = int(bounds[-1]), len(bounds) - 1
    return CostAudit(data, *sizes, exact is not None, order, triangle, excess, _asymmetry(cost, triples))


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
    bounds = _checked_offsets(offsets)

    def steps(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return _finite_or_infinite(predicted(i, j), "predicted", len(i))

    i, j, reference, triples = _drawn(bounds, pairs, exact, generator)
    answers, clusters = steps(i, j), episode_of(i, bounds)
    away = np.flatnonzero(np.isfinite(reference) & (reference > 0))
    if away.size == 0:
        raise ChainError("No pair of states has a finite distance above zero: pass states that differ.")
    ceiling = math.inf if discount is None else longest_steps(discount)
    table = calibration_table(reference, answers, clusters, generator)
    agreement = bootstrap(
        lambda rows: np.array(
            [
                spearman(answers[rows], reference[rows]),
                np.median(answers[_kept(rows, reference)] / reference[_kept(rows, reference)]),
                (answers[rows] >= ceiling * (1 - 1e-5)).mean() if math.isfinite(ceiling) else 0.0,
            ]
        ),
        clusters,
        generator,
    )
    triangle, excess = _triangle(cost or steps, triples, bounds, generator)
    return Audit(
        data=data,
        states=int(bounds[-1]),
        episodes=len(bounds) - 1,
        against_exact=exact is not None,
        order=agreement[0],
        ratio=agreement[1],
        calibration=table,
        progress=measure_progress(steps, exact, bounds, pairs, generator),
        horizon=trusted_horizon(table, upper_only=exact is None),
        reach=table[-1].farthest if table else 0.0,
        triangle=triangle,
        triangle_excess=excess,
        saturated=agreement[2],
        ceiling=ceiling,
        asymmetry=_asymmetry(steps, triples),
        dynamics=_closure(embeddings, actions, bounds, generator),
        certificate=None if exact is None else _certificate(answers[:pairs], reference[:pairs]),
        pairs={"reference": reference, "predicted": answers},
    )


def _drawn(
    bounds: np.ndarray, pairs: int, exact: PairFunction | None, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs (i, j) with their exact steps, or those of one episode with observed gaps; and random triples, (3, n)."""
    first, later = _same_episode_pairs(bounds, pairs, generator)
    triples = generator.integers(bounds[-1], size=(3, pairs))
    if exact is None:
        return first, later, (later - first).astype(np.float64), triples
    # Random pairs reach farther than pairs of one episode; pairs of one episode fill the short bins.
    i, j = np.concatenate([triples[0], first]), np.concatenate([triples[1], later])
    return i, j, _finite_or_infinite(exact(i, j), "exact", len(i)), triples


def _certificate(answers: np.ndarray, reference: np.ndarray) -> ErrorCertificate:
    """Over the pairs drawn independently of each other, at least one step apart."""
    apart = np.isfinite(reference) & (reference >= 1.0)
    return error_certificate(answers[apart], reference[apart])


def _kept(rows: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The rows with a finite reference above zero."""
    return rows[np.isfinite(reference[rows]) & (reference[rows] > 0)]


def measure_progress(
    steps: PairFunction, exact: PairFunction | None, offsets: np.ndarray, pairs: int, generator: np.random.Generator
) -> Progress:
    """E[d(x, g) - d(x', g) | x, g] over steps of the data and goals drawn from other episodes, where d(x, g) >= 1."""
    moving = step_rows(offsets)
    goals = generator.choice(offsets[-1], size=GOALS)
    now = generator.choice(moving, size=(GOALS, max(1, pairs // GOALS)))
    towards = np.repeat(goals, now.shape[1])
    now = now.ravel()
    other = episode_of(now, offsets) != episode_of(towards, offsets)
    now, towards = now[other], towards[other]
    before = steps(now, towards)
    away = before >= 1.0  # off the goal a hitting time is at least one; at the goal the equation does not hold
    now, towards, before = now[away], towards[away], before[away]
    if not len(now):
        raise ChainError("No prediction is as long as one step: the model does not tell states apart.")
    gain = before - steps(now + 1, towards)
    gain = np.where(np.isnan(gain), 0.0, gain)  # from infinite to infinite: no progress
    mean = bootstrap(lambda rows: gain[rows].mean(), towards, generator)[0]
    level = np.floor(np.log2(before)).astype(np.int64)
    by_distance = [
        (
            float(before[level == b].mean()),
            bootstrap(partial(_mean_of, gain[level == b]), towards[level == b], generator)[0],
        )
        for b in np.unique(level)
        if (level == b).sum() >= 50
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


def _mean_of(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return values[rows].mean()


def _triangle(
    cost: PairFunction, triples: np.ndarray, offsets: np.ndarray, generator: np.random.Generator
) -> tuple[Interval, float]:
    """Share and median excess of triples x, y, z with c(x, z) > c(x, y) + c(y, z)."""
    x, y, z = triples
    through, direct = np.asarray(cost(x, y) + cost(y, z), np.float64), np.asarray(cost(x, z), np.float64)
    broken = (direct > through * (1 + 1e-6)) & (x != z) & np.isfinite(direct)
    excess = float(np.median(direct[broken] / through[broken] - 1.0)) if broken.any() else 0.0
    return bootstrap(lambda rows: broken[rows].mean(), episode_of(x, offsets), generator)[0], excess


def _asymmetry(steps: PairFunction, triples: np.ndarray) -> float:
    there, back = steps(triples[0], triples[1]), steps(triples[1], triples[0])
    both = np.isfinite(there) & np.isfinite(back) & (there + back > 0)
    apart = np.abs(there[both] - back[both]) / ((there[both] + back[both]) / 2.0)
    return float(np.median(apart)) if both.any() else 0.0


def _closure(
    embeddings: np.ndarray | None, actions: np.ndarray | None, offsets: np.ndarray, generator: np.random.Generator
) -> LatentDynamics | None:
    if embeddings is None or actions is None:
        return None
    phi, moves = np.asarray(embeddings, dtype=np.float64), np.asarray(actions, dtype=np.float64)
    if phi.ndim != 2 or moves.ndim != 2 or len(phi) != offsets[-1] or len(moves) != offsets[-1]:
        raise ChainError(f"Embeddings {phi.shape} and actions {moves.shape} must be 2-D with one row per stored state.")
    used = step_rows(offsets)
    if not np.all(np.isfinite(phi)) or not np.all(np.isfinite(moves[used])):
        raise ChainError("Embeddings or actions hold values that are not finite: check the model and the data first.")
    return fit_latent_dynamics(phi, moves, offsets, generator)


def _checked_offsets(offsets: Any) -> np.ndarray:
    bounds = np.asarray(offsets, dtype=np.int64)
    if bounds.ndim != 1 or len(bounds) < 3 or bounds[0] != 0 or (np.diff(bounds) <= 0).any():
        raise ChainError("The episode offsets must rise from 0 and hold at least two episodes.")
    if np.diff(bounds).max() < 2:
        raise ChainError("No episode has two states: pass longer episodes.")
    return bounds


def _finite_or_infinite(values: Any, name: str, count: int) -> np.ndarray:
    answer = np.asarray(values, dtype=np.float64).ravel()
    if len(answer) != count:
        raise ChainError(f"{name}(i, j) returned {len(answer)} numbers for {count} pairs: one per pair is needed.")
    if np.isnan(answer).any():
        raise ChainError(f"{name}(i, j) contains NaN: fix the model before auditing it.")
    return answer


def _same_episode_pairs(
    offsets: np.ndarray, pairs: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs i < j of one episode with log-uniform gaps, so that every scale is represented."""
    lengths = np.diff(offsets)
    usable = np.flatnonzero(lengths > 1)
    chosen = generator.choice(usable, size=pairs, p=lengths[usable] / lengths[usable].sum())
    longest = lengths[chosen] - 1
    gaps = np.minimum(np.floor(np.exp(generator.uniform(0.0, np.log(longest + 1.0)))).astype(np.int64), longest)
    starts = offsets[chosen] + np.floor(generator.random(pairs) * (lengths[chosen] - gaps)).astype(np.int64)
    return starts, starts + gaps


def _json_safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_safe(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _facts(audit: Audit | CostAudit, what: str) -> list[str]:
    """What is said of every geometry: what was audited, its order, its triangles, its asymmetry."""
    name = "exact" if audit.against_exact else "observed"
    return [
        f"Audited {audit.states} states of {audit.episodes} episodes: {audit.data}.",
        f"{what} and {name} steps have rank correlation {audit.order:.2f}.",
        f"The triangle inequality of costs fails for {100 * audit.triangle.value:.1f} % of random triples"
        + (f", by {100 * audit.triangle_excess:.0f} % at the median." if audit.triangle.value else "."),
        f"There and back differ by {100 * audit.asymmetry:.0f} % at the median.",
    ]


def _sentences(audit: Audit) -> list[str]:
    name, progress = "exact" if audit.against_exact else "observed", audit.progress
    audited, ordered, *shape = _facts(audit, "Predictions")
    lines = [
        audited,
        ordered,
        f"The median prediction is {audit.ratio:.2f} times the {name} steps."
        + (
            ""
            if audit.against_exact
            else " An observed gap is the length of a noisy path and bounds the fewest steps "
            "only from above, so a ratio below 1 is no fault."
        ),
        f"One step of the data shortens the predicted way to an independent goal by {progress.mean:.2f} on average; "
        "it would be 1 for times of the policy that made the data, and at most 1 for fewest steps.",
    ]
    if progress.slope is not None:
        lines.append(f"Where a step really gains one step, predictions gain {progress.slope:.2f}.")
    if progress.fastest.low > 1.0:
        lines.append(
            f"At some distances predictions shrink by {progress.fastest:.2f} per step: faster than time passes, "
            "so they are neither the times of the policy that made the data nor fewest steps."
        )
    lines += shape
    if math.isfinite(audit.ceiling):
        lines.append(
            f"The model cannot predict more than {audit.ceiling:.0f} steps; {100 * audit.saturated.value:.1f} % of "
            "predictions are there and say only 'far'."
        )
    if audit.dynamics is not None:
        lines.append(
            f"A linear latent model misses the mean next embedding by {audit.dynamics.epsilon.value:.3g} (at least), "
            f"{audit.dynamics.epsilon.value / max(audit.dynamics.step, 1e-300):.2f} of a step of "
            f"{audit.dynamics.step:.3g}; transition noise adds {audit.dynamics.noise.value:.3g} (at most)."
        )
    if audit.certificate is not None:
        lines.append(audit.certificate.sentence)
    rule = (
        f"pairs twice as far apart get the larger prediction in at least {100 * CONFIDENCE:.0f} % of cases, and the "
        f"median prediction is "
        + ("within" if audit.against_exact else "not above")
        + f" a factor {FACTOR:g} of the {name} steps"
    )
    if audit.verdict == "exact":
        lines.append("Every figure is what an exact geometry gives: predictions are exact.")
    elif audit.horizon.low > 0:
        lines.append(f"Predictions can be trusted up to {audit.horizon.low:.0f} steps: until there, {rule}.")
        if audit.horizon.value > audit.horizon.low:
            lines[-1] = f"{lines[-1][:-1]}; by the estimates alone, up to {audit.horizon.value:.0f} steps."
    else:
        good = [row for row, sound in zip(audit.calibration, _sound(audit), strict=True) if sound and row.low >= 1.0]
        lines.append(
            f"Predictions cannot be trusted from the shortest distances on: it is not so that {rule}."
            + (f" It is so at {', '.join(f'{row.low:.0f} to {row.high:.0f}' for row in good)} steps." if good else "")
        )
    return lines


def _sound(audit: Audit) -> list[bool]:
    return trusted_bins(audit.calibration, "worse", upper_only=not audit.against_exact)
