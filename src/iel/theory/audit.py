"""An audit of any learned geometry: how far ahead can its step predictions be trusted?

Input is plain arrays, so any method and any framework can be audited:

    embeddings (S, d)    phi of every stored state            actions (S, a)    the last row of an episode is ignored
    offsets (E + 1,)     episode e is rows offsets[e] .. offsets[e+1] - 1
    predicted(i, j)      predicted steps from state i to state j, index arrays in, an array out
    task(j)              omega of state j as a goal, (m, d)
    exact(i, j)          exact optimal steps where the environment is known (a maze turned into a chain)

What is measured, and which statement of the paper it belongs to:

    latent dynamics   phi' ~ A phi + B a + c by ridge on four fifths of the episodes; epsilon = its error on the rest
                      (Definition 2.1), the spectral radius of A and the horizon factor 1 / (1 - rho) (Theorem 3.3)
    progress          <phi(x_{t+1}) - phi(x_t), omega_g> per step towards a later state g; one in an exact geometry
                      (the corrected form of Theorem 3.3 turns its deviation from one into a relative error)
    calibration       predicted against observed steps. An observed gap is the length of one noisy path and therefore an
                      upper bound of the optimal time: predictions below it are expected, predictions above it are not
    order             Spearman correlation, triangle violations, asymmetry
    trusted horizon   the largest distance h, doubling from one step, such that at every doubling up to h a pair twice
                      as far apart gets the larger prediction in at least `confidence` of the cases
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iel.errors import ChainError
from iel.theory.calibration import (
    CalibrationBin,
    LatentDynamics,
    calibration_table,
    fit_latent_dynamics,
    spearman,
    step_rows,
    trusted_horizon,
    undiscounted_steps,
)

PairFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Audit:
    """All measurements. `sentences()` for people, `to_dict()` for JSON, `draw_audit` for a picture."""

    states: int
    episodes: int
    dynamics: LatentDynamics
    progress: np.ndarray
    """Quantiles 10 %, 50 %, 90 % of latent progress per step towards a later state."""
    calibration: list[CalibrationBin]
    """Against exact steps where given, otherwise against observed gaps."""
    against_exact: bool
    horizon: float
    confidence: float
    saturated: float
    """Share of predictions at or beyond the discounting ceiling."""
    triangle_violations: float
    triangle_excess: float
    """Median of d(x, z) / (d(x, y) + d(y, z)) - 1 over the violating triples."""
    asymmetry: float
    """Median of |d(x, y) - d(y, x)| / mean of the two."""
    spearman_observed: float
    spearman_exact: float | None
    ratio: float
    """Median of predicted / reference steps: one for a calibrated model, below one is expected of observed gaps."""
    spearman_euclidean: float
    """Rank correlation of plain latent distance with the same reference, for comparison."""
    pairs: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    """Samples for the picture: observed gaps or exact steps against predictions."""

    def to_dict(self) -> dict[str, Any]:
        """Numbers only, safe for JSON: values that are not finite become null."""
        return _json_safe(
            {
                "states": self.states,
                "episodes": self.episodes,
                "epsilon": {f"q{round(100 * q)}": self.dynamics.epsilon(q) for q in QUANTILES},
                "latent_step": self.dynamics.step_size,
                "spectral_radius": self.dynamics.spectral_radius,
                "horizon_factor": self.dynamics.horizon_factor,
                "progress": {"q10": self.progress[0], "q50": self.progress[1], "q90": self.progress[2]},
                "calibration_reference": "exact" if self.against_exact else "observed",
                "calibration": [vars(row) for row in self.calibration],
                "trusted_horizon": self.horizon,
                "confidence": self.confidence,
                "saturated": self.saturated,
                "triangle_violations": self.triangle_violations,
                "triangle_excess": self.triangle_excess,
                "asymmetry": self.asymmetry,
                "spearman_observed": self.spearman_observed,
                "spearman_exact": self.spearman_exact,
                "ratio": self.ratio,
                "spearman_euclidean": self.spearman_euclidean,
            }
        )

    def sentences(self) -> list[str]:
        """The audit in plain English."""
        return _sentences(self)


def audit_embedding(
    embeddings: np.ndarray,
    actions: np.ndarray,
    offsets: np.ndarray,
    *,
    predicted: PairFunction,
    task: Callable[[np.ndarray], np.ndarray],
    exact: PairFunction | None = None,
    discount: float | None = None,
    pairs: int = 4000,
    confidence: float = 0.7,
    generator: np.random.Generator,
) -> Audit:
    """Run the audit; one fifth of the episodes is held out for every number reported.

    Pass `discount` when `predicted` returns discounted times: they are turned back into steps, and the share of
    saturated predictions is reported. Leave it None when they are steps already.
    """
    phi, moves, bounds = _checked(embeddings, actions, offsets)
    held_out = _held_out(len(bounds) - 1, generator)
    first, later = _same_episode_pairs(bounds, held_out, pairs, generator)
    rows = np.flatnonzero(held_out[np.searchsorted(bounds, np.arange(len(phi)), side="right") - 1])
    triples = generator.choice(rows, size=(3, pairs))

    def steps(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        raw = np.asarray(predicted(i, j), dtype=np.float64).ravel()
        return raw if discount is None else undiscounted_steps(raw, discount)

    order = _order_facts(steps, triples)
    i, j, observed = first, later, (later - first).astype(np.float64)
    answers = along = steps(first, later)
    reference, spearman_exact = observed, None
    if exact is not None:
        # Random pairs reach farther than pairs of one episode; pairs of one episode fill the short bins.
        i, j = np.concatenate([triples[0], first]), np.concatenate([triples[1], later])
        answers = np.concatenate([steps(triples[0], triples[1]), along])
        reference = np.asarray(exact(i, j), dtype=np.float64).ravel()
        spearman_exact = spearman(answers, reference)
    table = calibration_table(reference, answers)
    away = np.isfinite(reference) & np.isfinite(answers) & (reference > 0)
    return Audit(
        states=len(phi),
        episodes=len(bounds) - 1,
        dynamics=fit_latent_dynamics(phi, moves, bounds, held_out),
        progress=_progress(phi, task, first, later),
        calibration=table,
        against_exact=exact is not None,
        horizon=trusted_horizon(table, confidence),
        confidence=confidence,
        saturated=float(np.isinf(answers).mean()),
        triangle_violations=order[0],
        triangle_excess=order[1],
        asymmetry=order[2],
        spearman_observed=spearman(along, observed),
        spearman_exact=spearman_exact,
        ratio=float(np.median(answers[away] / reference[away])) if away.any() else math.nan,
        spearman_euclidean=spearman(np.linalg.norm(phi[j] - phi[i], axis=1), reference),
        pairs={"reference": reference, "predicted": answers},
    )


def _order_facts(steps: PairFunction, triples: np.ndarray) -> tuple[float, float, float]:
    """Share and median excess of triangle violations, and the median asymmetry, over random triples x, y, z."""
    x, y, z = triples
    there, onward, direct, back = steps(x, y), steps(y, z), steps(x, z), steps(y, x)
    through = there + onward
    broken = (direct > through * (1 + 1e-6)) & (x != z) & np.isfinite(direct)
    excess = float(np.median(direct[broken] / through[broken] - 1.0)) if broken.any() else 0.0
    both = np.isfinite(there) & np.isfinite(back) & (there + back > 0)
    asymmetry = np.abs(there[both] - back[both]) / ((there[both] + back[both]) / 2.0)
    return float(broken.mean()), excess, float(np.median(asymmetry)) if both.any() else 0.0


def _checked(embeddings: Any, actions: Any, offsets: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    phi, moves = np.asarray(embeddings, dtype=np.float64), np.asarray(actions, dtype=np.float64)
    bounds = np.asarray(offsets, dtype=np.int64)
    if phi.ndim != 2 or moves.ndim != 2 or len(phi) != len(moves):
        raise ChainError(f"Embeddings {phi.shape} and actions {moves.shape} must be 2-D with one row per stored state.")
    if bounds.ndim != 1 or len(bounds) < 3 or bounds[0] != 0 or bounds[-1] != len(phi) or (np.diff(bounds) <= 0).any():
        raise ChainError(f"The episode offsets must rise from 0 to {len(phi)} and hold at least two episodes.")
    used = step_rows(bounds)
    if not np.all(np.isfinite(phi)) or not np.all(np.isfinite(moves[used])):
        raise ChainError("Embeddings or actions hold values that are not finite: check the model and the data first.")
    # The action stored with an episode's last state leads nowhere and is often padding: give it a harmless value.
    padded = np.zeros_like(moves)
    padded[used] = moves[used]
    return phi, padded, bounds


def _held_out(episodes: int, generator: np.random.Generator) -> np.ndarray:
    """A fifth of the episodes, at least one, drawn without replacement."""
    mask = np.zeros(episodes, dtype=bool)
    mask[generator.permutation(episodes)[: max(1, episodes // 5)]] = True
    return mask


def _same_episode_pairs(
    offsets: np.ndarray, held_out: np.ndarray, pairs: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs i < j of held-out episodes with log-uniform gaps, so that every scale is represented."""
    lengths = np.diff(offsets)
    usable = np.flatnonzero(held_out & (lengths > 1))
    if usable.size == 0:
        raise ChainError("No held-out episode has two states: pass longer episodes.")
    chosen = generator.choice(usable, size=pairs, p=lengths[usable] / lengths[usable].sum())
    longest = lengths[chosen] - 1
    gaps = np.minimum(np.floor(np.exp(generator.uniform(0.0, np.log(longest + 1.0)))).astype(np.int64), longest)
    starts = offsets[chosen] + np.floor(generator.random(pairs) * (lengths[chosen] - gaps)).astype(np.int64)
    return starts, starts + gaps


def _progress(
    phi: np.ndarray, task: Callable[[np.ndarray], np.ndarray], first: np.ndarray, later: np.ndarray
) -> np.ndarray:
    """Quantiles of <phi(x_{t+1}) - phi(x_t), omega_g> for g a later state of the same episode."""
    omegas = np.asarray(task(later), dtype=np.float64)
    if omegas.shape != (len(later), phi.shape[1]):
        wanted = (len(later), phi.shape[1])
        raise ChainError(f"task(indices) returned shape {omegas.shape}, not {wanted}: one omega per goal index.")
    return np.quantile(np.einsum("md,md->m", phi[first + 1] - phi[first], omegas), (0.1, 0.5, 0.9))


def _json_safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_safe(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _sentences(audit: Audit) -> list[str]:
    dynamics, epsilon = audit.dynamics, audit.dynamics.epsilon
    unit = dynamics.step_size or 1.0
    reference = "exact" if audit.against_exact else "observed"
    lines = [
        f"Audited {audit.states} states of {audit.episodes} episodes; every number is from held-out episodes.",
        f"A linear latent model with actions misses the next embedding by {epsilon(0.5) / unit:.2f} of a typical step "
        f"at the median and {epsilon(0.9) / unit:.2f} at the 90 % quantile "
        f"(epsilon {epsilon(0.5):.3g} and {epsilon(0.9):.3g}).",
        f"Its spectral radius is {dynamics.spectral_radius:.4f}, so one-step errors are amplified by a factor of "
        + (
            "infinity: the fitted dynamics do not contract."
            if math.isinf(dynamics.horizon_factor)
            else f"about {dynamics.horizon_factor:.0f} over a long horizon."
        ),
        f"One step makes {audit.progress[1]:.2f} units of latent progress towards a later state at the median "
        f"({audit.progress[0]:.2f} to {audit.progress[2]:.2f}); an exact geometry makes 1 for the policy it describes.",
        f"Predictions and {reference} steps have rank correlation "
        f"{audit.spearman_exact if audit.spearman_exact is not None else audit.spearman_observed:.2f}; plain latent "
        f"distance has {audit.spearman_euclidean:.2f}.",
        f"The median prediction is {audit.ratio:.2f} times the {reference} steps.",
        f"The triangle inequality fails for {100 * audit.triangle_violations:.1f} % of random triples"
        + (f", by {100 * audit.triangle_excess:.0f} % at the median." if audit.triangle_violations else "."),
        f"There and back differ by {100 * audit.asymmetry:.0f} % at the median.",
    ]
    if audit.saturated:
        lines.append(
            f"{100 * audit.saturated:.1f} % of predictions are beyond the discounting ceiling and say only 'far'."
        )
    if audit.horizon > 0:
        lines.append(
            f"Predictions can be trusted up to about {audit.horizon:.0f} steps: until there, pairs twice as far apart "
            f"get the larger prediction in at least {100 * audit.confidence:.0f} % of cases."
        )
    else:
        lines.append(
            f"Predictions cannot be trusted at any distance: pairs twice as far apart get the larger prediction in "
            f"fewer than {100 * audit.confidence:.0f} % of cases already at the shortest distances."
        )
    if not audit.against_exact:
        lines.append("Observed gaps are lengths of noisy paths and only bound the shortest time from above.")
    return lines
