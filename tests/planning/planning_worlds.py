"""Small worlds for the planning tests: random and degenerate point sets, a model made of two linear maps, toy data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from iel.distances import Displacement
from iel.model import Direction
from iel.planning import Atlas, PlanningModel, Target

BETAS = (0.0, 0.1, 0.5, 1.0)


def degenerate_points(kind: str, count: int, dimension: int, generator: np.random.Generator) -> np.ndarray:
    """Point sets that break careless code: duplicates, lattices full of ties, lines, near-duplicates, far clusters."""
    dispersion = 10.0 * generator.normal(size=(count, dimension))
    if kind == "lattice":
        return generator.integers(0, 3, size=(count, dimension)).astype(float)
    if kind == "line":
        return np.outer(generator.integers(0, 20, count), np.ones(dimension)).astype(float)
    if kind == "one point":
        return np.repeat(dispersion[:1], count, axis=0)
    if kind == "near duplicates":
        return dispersion[generator.integers(0, max(1, count // 2), count)] + 1e-5 * generator.normal(
            size=(count, dimension)
        )
    if kind == "clusters":
        return 0.1 * dispersion + 500.0 * generator.integers(0, 3, size=(count, 1))
    if kind == "wide":
        return 1e6 * dispersion[generator.integers(0, max(1, count // 2), count)]
    if kind == "far away":
        return dispersion + 1e6
    return dispersion


KINDS = ("random", "lattice", "line", "one point", "near duplicates", "clusters", "far away", "wide")


@dataclass(frozen=True)
class Instance:
    """Points, a goal with its unit direction, and the graph's settings."""

    points: np.ndarray
    goal: np.ndarray
    direction: np.ndarray
    beta: float
    neighbours: int


@st.composite
def instances(draw: st.DrawFn, most: int = 40, betas: tuple[float, ...] = BETAS) -> Instance:
    """An instance of any kind; directions along an axis make even more ties."""
    count, dimension = draw(st.integers(1, most)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    points = degenerate_points(draw(st.sampled_from(KINDS)), count, dimension, generator)
    direction = generator.normal(size=dimension)
    if draw(st.booleans()):
        direction = np.eye(dimension)[0]
    goal = points[draw(st.integers(0, count - 1))] + draw(st.sampled_from([0.0, 3.0])) * generator.normal(
        size=dimension
    )
    beta = draw(st.sampled_from(betas))
    return Instance(points, goal, direction / np.linalg.norm(direction), beta, draw(st.integers(1, 12)))


class LinearModel(PlanningModel):
    """phi(s) = s A with orthogonal A, omega_g = unit(g B); the policy moves along the direction it is given."""

    def __init__(self, width: int = 2, dimension: int = 6, beta: float = 0.1, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.forward = np.linalg.qr(generator.normal(size=(dimension, width)))[0].T
        self.tasks = generator.normal(size=(width, dimension))
        self.metric, self.directions = Displacement(beta), dimension

    def embed(self, observations: np.ndarray) -> np.ndarray:
        return (observations @ self.forward).astype(np.float32)

    def goals(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = states @ self.tasks
        return self.embed(states), (raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-6)).astype(
            np.float32
        )

    def command(self, observations: np.ndarray, target: Target, embeddings: np.ndarray) -> np.ndarray:
        return Direction().command(self, observations, target, embeddings)

    def act(self, observations: np.ndarray, commands: np.ndarray) -> np.ndarray:
        return np.asarray(commands, np.float32) @ self.forward.T.astype(np.float32)


def corridor(count: int = 600, seed: int = 0) -> Atlas:
    """States of a U-shaped corridor: two long arms joined at the right end, so a wall bars the straight line."""
    generator = np.random.default_rng(seed)
    along = generator.uniform(0.0, 50.0, count)
    arm = np.where(along < 20.0, 0.0, np.where(along < 30.0, along - 20.0, 10.0))
    reach = np.where(along < 20.0, along, np.where(along < 30.0, 20.0, 50.0 - along))
    return Atlas(np.column_stack([reach, arm]).astype(np.float32))
