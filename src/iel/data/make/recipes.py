"""What the name of a data set means: which maze, how many episodes, how they are driven.

OGBench (`pointmaze-...-v0`, `antmaze-...-v0`), the laws of its `generate_locomaze.py`; starts are anywhere:

    navigate   drive to random vertices (free cells except hallways), a new one whenever a goal is reached
    stitch     short episodes to one cell exactly four moves away, where the agent stays (its own cell if there is none)
    explore    no goal at all: a random heading, redrawn every ten steps

D4RL (`antmaze-{umaze,medium,large,ultra}-{play,diverse}`): one goal per episode, drawn from a few marked cells (play)
or from every free one (diverse), and the episode goes on around it once it is reached. Every waypoint has noise, and
the controller's action is sampled.

Robot arms (`cube-{single,double,triple,quadruple}`, `scene`, `puzzle-{3x3,4x4,4x5,4x6}`), the laws of OGBench's
`generate_manipspace.py`: one move after another by scripted controllers, along noisy plans (`play`), or from the state
alone with noisy and random actions (`noisy`); see `iel.data.make.arms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iel.envs import canonical_name, environment_names
from iel.envs.registry import ALIASES, D4RL_KINDS
from iel.errors import unknown_name

if TYPE_CHECKING:
    from iel.data.catalogue import Split

SPLITS: tuple[Split, Split] = ("train", "val")
ARMS = {"cube": ("single", "double", "triple", "quadruple"), "scene": ("",), "puzzle": ("3x3", "4x4", "4x5", "4x6")}
"""Robot arms, and what there is of each."""
LARGE = {"triple": 3000, "4x5": 3000, "quadruple": 5000, "4x6": 5000}
"""Episodes of the larger data sets of arms; the others have 1000."""
ROBOTS = ("pointmaze", "antmaze", *ARMS)
VERSION = 2
"""Rises whenever the same name, seed and number would give another episode. Files carry theirs."""


@dataclass(frozen=True)
class Recipe:
    """How one data set is collected. Sizes are those of the benchmarks."""

    name: str
    body: str
    """pointmaze, antmaze, cube, scene or puzzle."""
    maze: str
    """The maze; of arms the number of cubes, or the size of the puzzle."""
    kind: str
    episodes: int
    steps: int
    """Transitions an episode."""
    noise: float
    """Standard deviation of the noise added to the action, which for a point is a unit direction."""
    reach: float = 0.5
    """A goal counts as reached within this distance: the environment's own tolerance."""
    waypoint_shift: float = 0.0
    """D4RL: a waypoint is the centre of a cell + shift + U(-0.5, 0.5) along each axis, drawn at every step."""
    random_actions: float = 0.0
    """`noisy`: probability that an action is drawn at random."""

    @property
    def is_d4rl(self) -> bool:
        """Whether goals, starts and noise follow D4RL's script instead of OGBench's, and actions are sampled."""
        return self.body == "antmaze" and self.kind in D4RL_KINDS


def recipe_names() -> list[str]:
    """Every data set we know how to make."""
    return [name for name in environment_names() if name.startswith(ROBOTS) and "octuple" not in name]


def recipe(name: str) -> Recipe:
    """The recipe of a data set we know how to make."""
    names = recipe_names()
    if name not in ALIASES or canonical_name(name) not in names:
        known = "`iel data make --help` shows which can be made; logs of your own are read by `iel data convert`."
        raise unknown_name("data set", name, names, known)
    name = canonical_name(name)
    body, *words, kind, _ = name.split("-")
    maze = "-".join(words)  # large, or large-doors
    if body in ARMS:
        random_actions = {"play": 0.0, "noisy": 0.2 if body == "puzzle" else 0.1}[kind]
        return Recipe(name, body, maze, kind, LARGE.get(maze, 1000), 1000, noise=0.1, random_actions=random_actions)
    if kind in D4RL_KINDS:
        episodes, steps, shift = (500, 2000, 0.0) if maze == "ultra" else (1000, 1000, 0.5)
        return Recipe(name, body, maze, kind, episodes, steps, noise=0.2, waypoint_shift=shift)
    careful, reach = (0.5, 1.0) if body == "pointmaze" else (0.2, 0.5)
    if kind == "stitch":
        return Recipe(name, body, maze, kind, episodes=5000, steps=200, noise=careful, reach=reach)
    episodes, steps = (500, 2000) if maze == "giant" else (1000, 1000)
    if kind == "explore" and body == "antmaze":
        episodes, steps = 10_000, 500
    return Recipe(name, body, maze, kind, episodes, steps, noise=careful if kind == "navigate" else 1.0, reach=reach)
