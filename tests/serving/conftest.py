"""Served models without training (random networks over a random walk), and a server in a thread."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("starlette")
import uvicorn

from benchmarks.runtime import random_model
from iel.data import Trajectories
from iel.planning import Atlas, over_coreset
from iel.serving.app import create_app
from iel.serving.engine import Served
from iel.serving.guard import AccessPolicy, Limits
from iel.serving.listen import bind, settings


def walk(count: int = 600, columns: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(observations, offsets) of six episodes: two slow columns, and noise."""
    generator = np.random.default_rng(seed)
    heading = np.cumsum(generator.normal(0, 0.2, count))
    position = np.cumsum(0.3 * np.stack([np.cos(heading), np.sin(heading)], 1), axis=0)
    rest = generator.normal(0, 1, (count, columns - 2))
    return np.column_stack([rest, position]).astype(np.float32), np.linspace(0, count, 7).astype(np.int64)


def nodes(count: int):
    """Options of planners over this number of nodes."""
    return lambda planner: {"nodes": count} if over_coreset(planner) else {}


def served(kind: str = "directed", columns: int = 2, *, states: bool = True, episodes: bool = True) -> Served:
    """A model of one of the kinds of `benchmarks.runtime`."""
    model = random_model(kind, (32, 32), columns, 2, 6)
    observations, offsets = walk(columns=columns)
    if not states:
        return Served("walk", model)
    data = atlas(observations, offsets) if episodes else Atlas(observations)
    return Served("walk", model, data, options=nodes(80))


def atlas(observations: np.ndarray, offsets: np.ndarray) -> Atlas:
    """Of trajectories without actions."""
    return Atlas.of(Trajectories(observations, np.zeros((len(observations), 1)), offsets, checked=True))


def maze_model() -> Served:
    """The same in a maze that has a simulator; its states are anywhere in the maze's free cells."""
    xy = np.random.default_rng(0).uniform(-2, 22, (3000, 2)).astype(np.float32)
    from iel.envs import make_env

    maze = make_env("pointmaze-medium-navigate-v0").map
    free = xy[~maze.walls[tuple(maze.cell_of(xy).T)]]
    model = random_model("directed", (32, 32), 2, 2, 6)
    return Served("maze", model, Atlas(free), env="pointmaze-medium-navigate-v0", options=nodes(250))


class Running:
    """A server in a thread, on a free port."""

    def __init__(self, *models, policy: AccessPolicy | None = None, limits: Limits | None = None, play: bool = False):
        self.bound = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.bound.getsockname()[1]}"
        self.server = uvicorn.Server(settings(create_app(models, policy, limits, play=play)))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.bound]}, daemon=True)

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture(scope="session")
def model():
    return served()
