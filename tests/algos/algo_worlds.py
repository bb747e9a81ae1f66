"""A world with exact answers: a ring of 12 places with a short and a long way from place 0 to place 4.

Both ways end one step beyond place 4: the last state of an episode is never the start of a transition, so nothing would
say that place 4 is no steps away from itself.
"""

import itertools

import numpy as np

from iel.data import Trajectories

PLACES = 3 * np.stack([np.cos(2 * np.pi * np.arange(12) / 12), np.sin(2 * np.pi * np.arange(12) / 12)], 1)
PLACES = np.concatenate([PLACES, 1.5 * PLACES[4:5]])
SHORT = [0, 1, 2, 3, 4, 12]
LONG = [0, 11, 10, 9, 8, 7, 6, 5, 4, 12]


def action(here: int, there: int) -> np.ndarray:
    """What leads from a place to its neighbour: the unit vector between them, times 0.8 to keep clear of the bounds."""
    step = PLACES[there] - PLACES[here]
    return 0.8 * step / np.linalg.norm(step)


def ring() -> Trajectories:
    """Both ways, eight times each."""
    episodes = []
    for route in (SHORT, LONG):
        actions = np.array([action(a, b) for a, b in itertools.pairwise(route)])
        episodes += [(PLACES[route], actions)] * 8
    return Trajectories.from_episodes(episodes, "ring")


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-9))


def act(model, here: int, goal: int) -> np.ndarray:
    """The policy's action at a place towards a goal, as the planner `direct` asks for it."""
    from iel.planning import make_planner

    planner = make_planner("direct", model, ring())
    planner.prepare(PLACES[goal])
    return planner.act(PLACES[here])


def steps(model, here: int, goal: int) -> float:
    return float(model.steps(PLACES[[here]], PLACES[[goal]])[0])
