"""Which logged episodes look wrong? Each is held against the geometry and the policy that were learned from all.

    progress   min over windows of  mean d(x_t, x_{t+H}) / H
               steps that predictions towards the state H steps ahead fall per logged step: 1 straight on, 0 on the spot
    step       max_t d(x_t, x_{t+1})
               a step of the world is one step at most: with HTP's d, max_w <phi(x') - phi(x), w> <= 1
    action     max over windows of  mean |a_t - pi(x_t, x_{t+A})|^2
               what the policy does to go where the log went
    outside    max_t excess(x_t)
               distance to the data over its limit (iel.model.support)

    score      max_k  s_k (v_k - median v_k) / (1.4826 MAD v_k),   s = -1 for progress, else 1, over all episodes

A score is how unusual the worst trait of an episode is among the episodes at hand, so at most half of them may be
wrong. Costs that are not in steps serve as well, because only their order and dispersion count. A model trained on the
same episodes finds those that differ from most others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data import Trajectories
from iel.evaluation.diagnosis import AHEAD, command_towards
from iel.model import Model
from iel.model.support import support_of

WINDOW, LOOKAHEAD = 25, 10
"""Steps of a window, and H."""
SUSPECT = 10.0
"""Score above which an episode should be looked at."""
Numbers = NDArray[np.float64]


class Trait(NamedTuple):
    """One quantity of every episode."""

    values: Numbers
    rows: NDArray[np.int64]
    """Where it was found: first rows of windows, or rows."""
    sign: float
    """1 where large values are unusual, -1 where small ones are."""

    @property
    def unusual(self) -> Numbers:
        """Standard deviations from the median, estimated by the median absolute deviation."""
        off = self.values - np.median(self.values)
        deviation = 1.4826 * float(np.median(np.abs(off)))
        return self.sign * off / max(deviation, 1e-6 * float(np.abs(self.values).max(initial=0.0)), 1e-12)


@dataclass(frozen=True)
class Quality:
    """Scores of all episodes, and what they were made of."""

    data: Trajectories
    traits: dict[str, Trait]

    @property
    def scores(self) -> Numbers:
        """(episodes,) how unusual the worst trait is."""
        found: Numbers = np.max([trait.unusual for trait in self.traits.values()], axis=0)
        return found

    @property
    def order(self) -> NDArray[np.int64]:
        """Episodes, the most suspicious first."""
        return np.argsort(-self.scores, kind="stable").astype(np.int64)

    def worst(self, episode: int) -> str:
        """The trait that gave an episode its score."""
        return max(self.traits, key=lambda name: self.traits[name].unusual[episode])

    def entry(self, episode: int) -> dict[str, Any]:
        """For tables and JSON."""
        name = self.worst(episode)
        return {
            "episode": episode,
            "score": round(float(self.scores[episode]), 2),
            "trait": name,
            "at": int(self.traits[name].rows[episode] - self.data.offsets[episode]),
            **{trait: float(f"{found.values[episode]:.4g}") for trait, found in self.traits.items()},
        }


def score_episodes(model: Model, data: Trajectories) -> Quality:
    """Scores of the episodes of a data set under a model, which may have been trained on it."""
    data.require_memory("score its episodes")
    states, rows = data.observations, np.arange(data.num_states)
    later = lambda steps: np.minimum(rows + steps, data.final)  # noqa: E731
    traits: dict[str, Trait] = {}
    if model.metric is not None:
        counts = model.metric.discount is not None
        pace, step = (
            model.steps(states, ends) / ahead if counts else model.cost(states, ends, ends) / ahead
            for ahead, ends in ((LOOKAHEAD, states[later(LOOKAHEAD)]), (1, states[later(1)]))
        )
        traits["progress"] = _extreme(pace, data, WINDOW, LOOKAHEAD, -1.0)
        traits["step"] = _extreme(step, data, 1, 1, 1.0)
    acted = model.act(states, command_towards(model, states, states[later(AHEAD)]))
    errors = ((acted - data.actions).astype(np.float64) ** 2).mean(axis=1)
    traits["action"] = _extreme(errors, data, WINDOW, 1, 1.0)
    support = model.support or support_of(data)
    traits["outside"] = _extreme(support.excess(states), data, 1, 0, 1.0)
    return Quality(data, traits)


def _extreme(values: NDArray, data: Trajectories, window: int, left_out: int, sign: float) -> Trait:
    """The largest (or, with sign -1, smallest) mean over a window of every episode, without its last rows."""
    found, rows = np.zeros(len(data)), np.zeros(len(data), np.int64)
    for episode, (first, end) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        part = np.asarray(values[first : max(end - left_out, first + 1)], np.float64)
        sums = np.concatenate([[0.0], np.cumsum(part)])
        width = min(window, len(part))
        means = (sums[width:] - sums[:-width]) / width
        slot = int(np.argmax(sign * means))
        found[episode], rows[episode] = means[slot], first + slot
    return Trait(found, rows, sign)
