"""A world with exact answers: a ring of 12 positions with a short and a long route from position 0 to position 4.

Both routes end one step beyond position 4: the last state of an episode never starts a transition, so the distance from
position 4 to itself would not be learned.
"""

import itertools

import jax
import numpy as np

from iel.data import Trajectories
from iel.learner import Learner, Spec, TrainState
from iel.methods import Method

POSITIONS = 3 * np.stack([np.cos(2 * np.pi * np.arange(12) / 12), np.sin(2 * np.pi * np.arange(12) / 12)], 1)
POSITIONS = np.concatenate([POSITIONS, 1.5 * POSITIONS[4:5]])
SHORT = [0, 1, 2, 3, 4, 12]
LONG = [0, 11, 10, 9, 8, 7, 6, 5, 4, 12]


def action(here: int, there: int) -> np.ndarray:
    """The action from a position to its neighbour: the unit vector between them times 0.8, within the bounds."""
    step = POSITIONS[there] - POSITIONS[here]
    return 0.8 * step / np.linalg.norm(step)


def ring() -> Trajectories:
    """Both routes, eight times each."""
    episodes = []
    for route in (SHORT, LONG):
        actions = np.array([action(a, b) for a, b in itertools.pairwise(route)])
        episodes += [(POSITIONS[route], actions)] * 8
    return Trajectories.from_episodes(episodes, "ring")


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-9))


def act(model, here: int, goal: int) -> np.ndarray:
    """The policy's action at a position towards a goal, under the planner `direct`."""
    from iel.planning import make_planner

    planner = make_planner("direct", model, ring())
    planner.prepare(POSITIONS[goal])
    return planner.act(POSITIONS[here])


def steps(model, here: int, goal: int) -> float:
    return float(model.steps(POSITIONS[[here]], POSITIONS[[goal]])[0])


# ---------------------------------------------------------------- learners of a method


def started(method: Method, spec: Spec, seed: int = 0) -> dict[str, TrainState]:
    """The state of every learner before the first step, by slot; compiled as a whole, which is quicker."""
    first = {phase.slot: phase.learner for phase in reversed(method.phases())}
    return jax.jit(lambda key: {slot: own.start(key, spec) for slot, own in first.items()})(jax.random.key(seed))


def fresh(method: Method, spec: Spec, seed: int = 0) -> dict[str, object]:
    """The networks of every learner before the first step, by slot."""
    return {slot: state.params for slot, state in started(method, spec, seed).items()}


def learner(method: Method, phase: str) -> Learner:
    """The learner of a phase."""
    return next(own.learner for own in method.phases() if own.name == phase)


# ---------------------------------------------------------------- worlds where every state reaches every other

CIRCLE = 3 * np.stack([np.cos(np.arange(8) * np.pi / 4), np.sin(np.arange(8) * np.pi / 4)], 1)
"""Eight positions on a circle."""
SQUARE = np.array([[x, y] for x in range(5) for y in range(5)], float)
"""Five by five."""


def one_way() -> Trajectories:
    """Walks round a circle that is only ever walked one way: the neighbour behind is seven steps away."""
    episodes = []
    for first in range(24):
        route = CIRCLE[(first + np.arange(41)) % 8]
        steps_ = np.diff(route, axis=0)
        episodes.append((route, 0.8 * steps_ / np.linalg.norm(steps_, axis=1, keepdims=True)))
    return Trajectories.from_episodes(episodes, "one way", trust=True)


def one_way_steps() -> np.ndarray:
    """Exact steps from every place of the circle to every other, (8, 8)."""
    return ((np.arange(8)[None] - np.arange(8)[:, None]) % 8).astype(float)


def symmetric() -> Trajectories:
    """The circle of twelve positions, walked clockwise in some episodes and counter-clockwise in the rest."""
    episodes = []
    for first in range(24):
        route = (first + (-1) ** first * np.arange(41)) % 12
        episodes.append((POSITIONS[route], np.array([action(a, b) for a, b in itertools.pairwise(route)])))
    return Trajectories.from_episodes(episodes, "both directions", trust=True)


def two_way_steps() -> np.ndarray:
    """The fewest steps between its positions, (12, 12)."""
    there = (np.arange(12)[None] - np.arange(12)[:, None]) % 12
    return np.minimum(there, 12 - there).astype(float)


def grid() -> Trajectories:
    """Random walks on a square of 25 positions."""
    generator = np.random.default_rng(0)
    moves = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    episodes = []
    for _ in range(40):
        walk, actions = [generator.integers(0, 5, 2)], []
        for _ in range(60):
            allowed = [move for move in moves if ((walk[-1] + move >= 0) & (walk[-1] + move < 5)).all()]
            move = allowed[generator.integers(len(allowed))]
            walk.append(walk[-1] + move)
            actions.append(0.8 * move)
        episodes.append((np.array(walk, float), np.array(actions)))
    return Trajectories.from_episodes(episodes, "grid", trust=True)


def grid_steps() -> np.ndarray:
    """The fewest steps between the positions of the square, (25, 25)."""
    return np.abs(SQUARE[:, None] - SQUARE[None]).sum(-1)
