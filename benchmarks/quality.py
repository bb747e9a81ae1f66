"""Does `iel data score` find episodes that were spoiled? Some are, a model is trained on all, and they are ranked.

    iel bench quality --data pointmaze-large-doors-navigate-v0-e300.npz --out spoiled

Kinds, each within the range of what the data holds (a piece is a fifth of an episode):

    backwards       the whole episode in reverse order, rows with their actions: no step is too long
    reversed        a piece in reverse order
    teleport        from some step on, the rows of another episode
    frozen          the state of some step is repeated for a quarter of a piece; actions go on
    noise           a piece whose state has noise of the size of a usual step
    wrong actions   a piece with the actions of another episode
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

import iel
from iel.commands.common import Output
from iel.evaluation.quality import Quality, score_episodes

KINDS = ("backwards", "reversed", "teleport", "frozen", "noise", "wrong actions")


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """How well scores separate corrupted episodes from others: area under the ROC curve."""

    data: Path
    """The clean data set."""
    out: Path
    """Directory of the spoiled data set and of the run that is trained on it."""
    spoiled: int = 20
    """Episodes to spoil."""
    seed: int = 0
    """Which episodes, and where."""
    preset: str = "smoke"
    """Settings of HTP."""


def spoil(data: iel.Trajectories, count: int, seed: int) -> tuple[iel.Trajectories, dict[int, str]]:
    """(the data with `count` episodes corrupted by each method in turn; method by episode)."""
    generator = np.random.default_rng(seed)
    episodes = [(states.copy(), actions.copy()) for states, actions in data]
    order = generator.permutation(len(episodes)).tolist()
    chosen, others = order[:count], order[count:]
    usual = np.median(np.abs(np.diff(data.observations, axis=0)), axis=0)
    labels = dict(zip(chosen, islice(cycle(KINDS), count), strict=True))
    for (episode, kind), other in zip(labels.items(), others, strict=False):
        states, actions = episodes[episode]
        foreign_states, foreign_actions = episodes[other]
        length = min(len(actions), len(foreign_actions))
        piece = max(length // 5, 4)
        first = int(generator.integers(length - piece))
        part = slice(first, first + piece)
        if kind == "backwards":
            states, actions = states[::-1].copy(), actions[::-1].copy()
        elif kind == "reversed":
            states[part], actions[first : first + piece - 1] = states[part][::-1].copy(), actions[part][-2::-1].copy()
        elif kind == "teleport":
            states[first : length + 1], actions[first:length] = (
                foreign_states[first : length + 1],
                foreign_actions[first:length],
            )
        elif kind == "frozen":
            states[first : first + piece // 4] = states[first]
        elif kind == "noise":
            states[part] += (usual * generator.normal(size=states[part].shape)).astype(np.float32)
        else:
            actions[part] = foreign_actions[part]
        episodes[episode] = states, actions
    return iel.Trajectories.from_episodes(episodes, f"{data.name}-spoiled", trust=True), labels


def area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: how often a positive has a higher score than another, ties counting half."""
    higher = scores[positive][:, None] - scores[~positive][None]
    return float((higher > 0).mean() + 0.5 * (higher == 0).mean())


def areas(quality: Quality, labels: dict[int, str]) -> dict[str, float]:
    """Of the score, and of every trait alone."""
    positive = np.isin(np.arange(len(quality.scores)), list(labels))
    alone = {name: area(trait.unusual, positive) for name, trait in quality.traits.items()}
    return {"score": area(quality.scores, positive), **alone}


def command(options: Options) -> dict[str, Any]:
    """Spoil, train, score, and print the areas and the rank of every spoiled episode."""
    data, labels = spoil(iel.load(options.data), options.spoiled, options.seed)
    path = data.save(options.out / "spoiled.npz")
    trained = iel.train(iel.load(path, trust=True), iel.HTP.preset(options.preset), out=options.out / "run")
    quality = score_episodes(trained.model, data)
    found = areas(quality, labels)
    ranks = {episode: rank for rank, episode in enumerate(quality.order.tolist(), start=1)}
    for episode in sorted(labels, key=ranks.__getitem__):
        entry = quality.entry(episode)
        label = f"rank {ranks[episode]:>4}  {labels[episode]:14} episode {episode:>4}"
        print(f"{label}  score {entry['score']:>8.1f}  {entry['trait']}")
    print("area under the ROC curve: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return {"areas": found, "ranks": {str(episode): [labels[episode], ranks[episode]] for episode in labels}}
