"""Shared data: one small, real PointMaze data set, collected once a session in a directory of its own."""

import os
from pathlib import Path

# Tests train tiny networks for a few steps, so compiling is what takes time: XLA leaves most of its optimisations out,
# here and in the processes tests start. Tests marked `optimised` train for longer and switch them on again.
if not any(os.environ.get(name) == "1" for name in ("IEL_LONG", "IEL_FAULTS")):
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")  # compiles 40 % faster
# Compiled programs are kept: for the other test processes, for the commands that tests start, and for the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

from iel.data import Trajectories, load

MAZE = "pointmaze-medium-navigate-v0"
EPISODES = 60


# Marker -> the variable that asks for it, and the command that sets it.
ON_REQUEST = {"long": ("IEL_LONG", "make long"), "faults": ("IEL_FAULTS", "make faults")}


def pytest_collection_modifyitems(items):
    for item in items:
        for marker, (variable, command) in ON_REQUEST.items():
            if item.get_closest_marker(marker) and os.environ.get(variable) != "1":
                item.add_marker(pytest.mark.skip(reason=f"takes long: run `{command}`"))


AS_STARTED = jax.config.read("jax_disable_most_optimizations")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    optimised = item.get_closest_marker("optimised") is not None
    plain = AS_STARTED and not optimised
    if plain != jax.config.read("jax_disable_most_optimizations"):
        jax.clear_caches()  # what was compiled the other way would be used again
        jax.config.update("jax_disable_most_optimizations", plain)


@pytest.fixture(scope="session")
def data_directory(tmp_path_factory, worker_id) -> str:
    """Every test process has a data directory of its own; nothing of the user's is read or written."""
    return str(tmp_path_factory.mktemp(f"data-{worker_id}"))


@pytest.fixture(scope="session")
def worker_id(request) -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.fixture(scope="session", autouse=True)
def _own_directories(data_directory):
    before = {name: os.environ.get(name) for name in ("IEL_DATA", "XDG_CACHE_HOME")}
    os.environ["IEL_DATA"] = data_directory
    yield
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="session")
def maze_data(_own_directories) -> Trajectories:
    """60 episodes of PointMaze medium: 60,000 transitions in the real simulator."""
    return load(MAZE, episodes=EPISODES, progress=False)


@pytest.fixture
def drawn(monkeypatch) -> list[list[int]]:
    """Of every picture drawn during a test, how many lines, points, images and bars each of its axes shows."""
    from matplotlib.figure import Figure

    found: list[list[int]] = []
    save = Figure.savefig

    def savefig(figure, *arguments, **settings):
        shown = [axes for axes in figure.axes if axes.get_visible() and axes.axison]
        found.append([len([*axes.lines, *axes.collections, *axes.images, *axes.patches]) for axes in shown])
        return save(figure, *arguments, **settings)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found
