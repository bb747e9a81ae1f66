"""The paper's five conditions of use (appendix "When should the representation work?") as numbers, from samples."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from iel.errors import ChainError
from iel.readout import affine_readout, unexplained
from iel.theory.calibration import LatentDynamics, PairFunction, fit_latent_dynamics, step_rows
from iel.theory.evidence import Evidence, statement


def held_out_misfit(inputs: np.ndarray, targets: np.ndarray, generator: np.random.Generator) -> float:
    """1 - R^2 of an affine readout on the half of the rows it was not fitted on: 0 is perfect, 1 is the mean."""
    x, y = np.asarray(inputs, np.float64), np.asarray(targets, np.float64)
    if x.ndim != 2 or len(x) != len(y) or len(x) < 4:
        raise ChainError("A readout needs at least four rows of inputs and as many targets.")
    y = y.reshape(len(y), -1)
    order = generator.permutation(len(x))
    fit, test = order[::2], order[1::2]
    weights, intercept = affine_readout(x[fit], y[fit])
    return unexplained(y[test] - x[test] @ weights - intercept, y[test])


@dataclass(frozen=True)
class Conditions:
    """The five conditions as shares that are lost (0 is perfect), the fourth as a ratio; None where not given.

    (i)    closure   1 - R^2 of phi' = K_a phi, transition noise taken out
    (ii)   goals     1 - R^2 of the goal's attributes read off phi(g)
    (iii)  rewards   1 - R^2 of the reward read off phi(x)
    (iv)   horizon   steps to nine tenths of random goals over the longest episode: above 1 no episode is that long
    (v)    maximum   1 - R^2 of max_a <K_a phi(x), z> read off phi(x), for random z
    """

    closure: float
    goals: float | None
    rewards: float | None
    horizon: float | None
    maximum: float

    def sentences(self) -> list[str]:
        """One line per condition that could be measured."""
        return [
            text.format(100 * value if "%" in text else value)
            for text, value in zip(SENTENCES, astuple(self), strict=True)
            if value is not None
        ]


SENTENCES = (
    "(i) predictive closure: {:.1f} % of latent steps is not linear in phi and the action.",
    "(ii) goals: {:.1f} % of their columns cannot be read off phi(g).",
    "(iii) rewards: {:.1f} % of the reward cannot be read off phi.",
    "(iv) horizon: nine tenths of random goals are within {:.2f} longest episodes.",
    "(v) optimal control: {:.1f} % of the best action's value leaves the latent span.",
)


def when_it_works(
    embeddings: np.ndarray,
    actions: np.ndarray,
    offsets: np.ndarray,
    generator: np.random.Generator,
    *,
    attributes: np.ndarray | None = None,
    rewards: np.ndarray | None = None,
    predicted: PairFunction | None = None,
    rows: int = 4000,
) -> Conditions:
    """Measure the conditions on logged steps; `attributes` (S, k) and `rewards` (S,) belong to the stored states."""
    phi, bounds = np.asarray(embeddings, np.float64), np.asarray(offsets, np.int64)
    moving = step_rows(bounds)
    moves = np.asarray(actions, np.float64)
    dynamics = fit_latent_dynamics(phi, moves, bounds, generator)
    dispersion = float(((phi[moving + 1] - phi[moving]) ** 2).sum(axis=1).mean())
    some = generator.choice(len(phi), size=min(rows, len(phi)), replace=False)
    horizon = None
    if predicted is not None:
        steps = np.asarray(predicted(*generator.integers(len(phi), size=(2, rows))), np.float64)
        horizon = float(np.quantile(steps, 0.9) / (np.diff(bounds).max() - 1))
    return Conditions(
        closure=dynamics.epsilon.value**2 / dispersion if dispersion > 0 else 0.0,
        goals=None if attributes is None else held_out_misfit(phi[some], attributes[some], generator),
        rewards=None if rewards is None else held_out_misfit(phi[some], rewards[some], generator),
        horizon=horizon,
        maximum=_maximum_misfit(dynamics, phi[some], moves[moving], generator),
    )


def _maximum_misfit(
    dynamics: LatentDynamics, phi: np.ndarray, actions: np.ndarray, generator: np.random.Generator
) -> float:
    """1 - R^2 of x -> max over logged actions of <K_a phi(x), z>: maximising is the step that can leave the span."""
    kinds = generator.permutation(np.unique(actions, axis=0))[:32]
    after = np.stack([dynamics.predict(phi, np.repeat(kind[None], len(phi), axis=0)) for kind in kinds])
    z = generator.normal(size=(phi.shape[1], 8)) / np.maximum(phi.std(axis=0), 1e-12)[:, None]
    return held_out_misfit(phi, (after @ z).max(axis=0), generator)


@statement("When should it work, (i) to (v)", "closure, goals, rewards, horizon, optimal control", "definition")
def conditions(generator: np.random.Generator) -> Iterator[Evidence]:
    for name, slopes in (("actions that move alike", (0.5, 0.5)), ("actions that pull apart", (0.8, -0.8))):
        starts, taken = generator.choice((-1.5, -0.5, 0.5, 1.5), 4000), generator.integers(2, size=4000)
        ends = np.array(slopes)[taken] * starts + 0.1 * generator.normal(size=4000)
        phi = np.stack([starts, ends], axis=1).reshape(-1, 1)
        actions = np.repeat(np.eye(2)[taken], 2, axis=0)
        found = when_it_works(phi, actions, np.arange(4001) * 2, generator, attributes=phi, rewards=phi[:, 0] ** 2)
        assert found.goals is not None and found.rewards is not None
        numbers = {"(i)": found.closure, "(ii)": found.goals, "(iii)": found.rewards, "(v)": found.maximum}
        wanted = numbers["(i)"] < 0.1 and numbers["(ii)"] < 1e-6 < 0.5 < numbers["(iii)"]
        closed = found.maximum < 1e-3 if slopes[0] == slopes[1] else found.maximum > 0.3
        text = f"8000 states on a line, phi = x, reward x^2, {name}: share lost"
        yield Evidence(text, numbers, wanted and closed)
