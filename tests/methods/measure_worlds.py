"""A world with exact measures: a ring of 12 positions on which an agent may go on, go back or stay."""

import numpy as np

from iel.data import Trajectories

COUNT = 12
ANGLES = 2 * np.pi * np.arange(COUNT) / COUNT
RING = 2.0 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1).astype(np.float32)
APART = np.abs(np.arange(COUNT)[:, None] - np.arange(COUNT))
EXACT = np.minimum(APART, COUNT - APART)
"""Least steps from every position to every position."""


def step(position, action):
    """On for an action above a third, back for one below minus a third, otherwise nowhere."""
    return (position + (action > 1 / 3) - (action < -1 / 3)) % COUNT


def wandering(seed: int = 0, episodes: int = 40, length: int = 50) -> Trajectories:
    """Uniform random actions from random positions."""
    rng = np.random.default_rng(seed)
    walks = []
    for _ in range(episodes):
        actions = rng.uniform(-1, 1, (length, 1)).astype(np.float32)
        positions = [int(rng.integers(COUNT))]
        for action in actions[:, 0]:
            positions.append(int(step(positions[-1], action)))
        walks.append((RING[positions], actions))
    return Trajectories.from_episodes(walks, "ring", trust=True)


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Every position with every goal, row by row of `EXACT`."""
    return np.repeat(RING, COUNT, axis=0), np.tile(RING, (COUNT, 1))


def reaches_goal(act) -> float:
    """Share of all pairs of positions from which act(observations, goals) gets to the goal in the least steps."""
    positions, goals = np.repeat(np.arange(COUNT), COUNT), np.tile(np.arange(COUNT), COUNT)
    left = EXACT.ravel().copy()
    for _ in range(COUNT // 2):
        moved = step(positions, act(RING[positions], RING[goals])[:, 0])
        positions, left = np.where(left > 0, moved, positions), np.maximum(left - 1, 0)
    return float((positions == goals).mean())
