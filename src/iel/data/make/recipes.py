"""What the name of a data set means: which maze, how many episodes, how they are driven.

OGBench (`pointmaze-...-v0`, `antmaze-...-v0`):

    navigate   drive to random cells of the whole maze, a new goal whenever one is reached
    stitch     short episodes that stay near where they began (goals at most four cells away)
    explore    no goal at all: a random heading, redrawn every ten steps

D4RL (`antmaze-{umaze,medium,large,ultra}-{play,diverse}`): one goal an episode, drawn from a few marked cells (play)
or from every free one (diverse), and the episode goes on around it once it is reached. Every waypoint has noise, and
the controller's action is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

from iel.envs import canonical_name, environment_names
from iel.envs.registry import ALIASES, D4RL_KINDS
from iel.errors import unknown_name

BODIES = ("pointmaze", "antmaze")


@dataclass(frozen=True)
class Recipe:
    """How one data set is collected. Sizes are those of the benchmarks."""

    name: str
    body: str
    maze: str
    kind: str
    episodes: int
    steps: int
    """Transitions an episode."""
    noise: float
    """Standard deviation of the noise added to the action, which for a point is a unit direction."""
    reach: float = 0.5
    """A goal counts as reached within this distance."""
    stitch_cells: int = 4
    """`stitch`: goals are at most this many cells away from the start."""
    redraw_every: int = 10
    """`explore`: steps between two random headings."""
    waypoint_noise: float = 0.0
    """D4RL: a waypoint is the centre of a cell + U(-noise, noise) along each axis, drawn at every step."""
    sampled: bool = False
    """D4RL: the controller's action is sampled; otherwise it is the mean."""

    @property
    def is_d4rl(self) -> bool:
        """Whether goals, starts and noise follow D4RL's script instead of OGBench's."""
        return self.kind in D4RL_KINDS


def recipe_names() -> list[str]:
    """Every data set we know how to make."""
    return [name for name in environment_names() if name.split("-")[0] in BODIES]


def recipe(name: str) -> Recipe:
    """The recipe of a data set we know how to make."""
    names = recipe_names()
    if name not in ALIASES or canonical_name(name) not in names:
        raise unknown_name("data set", name, names)
    name = canonical_name(name)
    body, maze, kind, _ = name.split("-")
    if kind in D4RL_KINDS:
        episodes, steps = (500, 2000) if maze == "ultra" else (1000, 1000)
        return Recipe(name, body, maze, kind, episodes, steps, noise=0.2, waypoint_noise=0.5, sampled=True)
    careful = 0.5 if body == "pointmaze" else 0.2
    if kind == "stitch":
        return Recipe(name, body, maze, kind, episodes=5000, steps=200, noise=careful)
    episodes, steps = (500, 2000) if maze == "giant" else (1000, 1000)
    if kind == "explore" and body == "antmaze":
        episodes, steps = 10_000, 500
    return Recipe(name, body, maze, kind, episodes, steps, noise=careful if kind == "navigate" else 1.0)
