"""Small models of every kind, and the inputs of tests."""

import numpy as np

from benchmarks.runtime import random_model
from iel.model import Model
from iel.planning import Atlas, make_planner


def made(kind: str, width: int = 16, seed: int = 0) -> Model:
    return random_model(kind, (width, width), 5, 3, 8, seed)


def inputs(scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    states, goals = scale * np.random.default_rng(1).standard_normal((2, 64, 5))
    goals[:8] = states[:8]  # a goal that is reached already
    return states.astype(np.float32), goals.astype(np.float32)


def straight(model: Model, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """The commands of direct pursuit."""
    return model.command(states, make_planner("direct", model, Atlas(states)).plan(goals).target(model.embed(states)))
