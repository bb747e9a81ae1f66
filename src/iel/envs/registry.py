"""Names to environments. A name is that of a data set (`antmaze-large-navigate-v0`) or of an environment
(`antmaze-large-v0`); both make the same environment.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from iel.envs.directed import WORLDS, World, directed_maze
from iel.envs.mazes import MazeMap
from iel.errors import ConfigError, install, unknown_name

if TYPE_CHECKING:
    from gymnasium import Space

    from iel.envs.seeded import SeededEnv

MAZES = ("medium", "large", "giant", "teleport")
DIRECTED = tuple(WORLDS)
"""Our own: OGBench's medium and large with one-way doors or wind."""
KINDS = ("navigate", "stitch", "explore")
# family: (its mazes, the kinds of data collected in them)
OGBENCH_MAZES = {
    "pointmaze": ((*MAZES, *DIRECTED), KINDS),
    "antmaze": ((*MAZES, *DIRECTED), KINDS),
    "humanoidmaze": (("medium", "large", "giant"), ("navigate", "stitch")),  # its teleport model does not load
    "antsoccer": (("arena", "medium"), ("navigate", "stitch")),
}
OGBENCH_TASKS = (
    *(f"cube-{count}" for count in ("single", "double", "triple", "quadruple", "octuple")),
    "scene",
    *(f"puzzle-{size}" for size in ("3x3", "4x4", "4x5", "4x6")),
)
D4RL_MAZES = ("umaze", "medium", "large", "ultra")
D4RL_KINDS = ("play", "diverse")
KITCHENS = ("complete", "partial", "mixed")
NUM_ENVS = 10
"""Robot arms come with detailed meshes, 60 to 190 MB each: no more than this many at a time."""


def _aliases() -> dict[str, str]:
    """Every accepted name -> the name of the data set or environment it stands for."""
    named = [(f"{family}-{maze}", kinds) for family, (mazes, kinds) in OGBENCH_MAZES.items() for maze in mazes]
    named += [(task, ("play", "noisy")) for task in OGBENCH_TASKS]
    plain = [name for base, kinds in named for name in (base, *(f"{base}-{kind}" for kind in kinds))]
    known = {f"{name}-v0": f"{name}-v0" for name in plain}
    for maze, kind in itertools.product(D4RL_MAZES, D4RL_KINDS):
        canonical = f"antmaze-{maze}-{kind}-{'v0' if maze == 'ultra' else 'v2'}"
        # D4RL calls umaze-play by its maze alone.
        also = ("antmaze-umaze",) if (maze, kind) == ("umaze", "play") else ()
        for spelling in (f"antmaze-{maze}-{kind}", *also):
            known |= dict.fromkeys((spelling, *(f"{spelling}-v{version}" for version in range(3))), canonical)
    for kind in KITCHENS:
        known |= dict.fromkeys((f"kitchen-{kind}", f"kitchen-{kind}-v0"), f"kitchen-{kind}-v0")
    return known


ALIASES = _aliases()


def canonical_name(name: str) -> str:
    """The one name of an environment or data set that is known by several (`antmaze-large-play` is `...-play-v2`)."""
    if name not in ALIASES:
        if name.startswith("visual-"):
            raise ConfigError(f"{name} shows pictures, which no method here reads; use {name.removeprefix('visual-')}.")
        own = (
            "it is none of OGBench, D4RL or the kitchen (docs/environments.md lists them); for a robot of your own, "
            "train with --data FILE and evaluate with --env-factory package:function."
        )
        raise unknown_name("environment", name, ALIASES, own)
    return ALIASES[name]


def environment_names() -> list[str]:
    """Every environment `make_env` knows, by the names of its data sets."""
    collected = {*KINDS, *D4RL_KINDS, *KITCHENS, "noisy"}
    return [name for name in dict.fromkeys(ALIASES.values()) if name.split("-")[-2] in collected]


def require_simulator(what: str) -> None:
    """Refuse what needs a simulator on a machine that has none."""
    missing = [name for name in ("gymnasium", "mujoco", "ogbench") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {' and '.join(missing)}; {install('sim')}.")


def make_env(name: str, *, reference: ArrayLike | None = None, **settings: Any) -> SeededEnv:
    """The environment of a data set or maze, by name (`environment_names()` lists them).

    `reference` is one observation of the data set that D4RL's goals take the robot's pose from (its first one in the
    official evaluation); environments that state whole goals themselves ignore it. `settings` go to the simulator.
    """
    name = canonical_name(name)
    require_simulator(name)
    from iel.envs.seeded import SeededEnv

    family, kind, *more = name.split("-")
    if family == "antmaze" and more[0] in D4RL_KINDS:
        from iel.envs.antmaze import LAYOUTS, D4RLAntMaze

        layout = LAYOUTS[kind]
        maze = D4RLAntMaze(layout, reference=reference, **settings)
        return SeededEnv(maze, name, layout.horizon, maze=layout.map)
    if family == "kitchen":
        from iel.envs.kitchen import HORIZON, Kitchen

        kitchen = Kitchen(kind, reference=reference, **settings)
        return SeededEnv(kitchen, name, HORIZON, subtasks=len(kitchen.elements), num_envs=NUM_ENVS)
    return _make_ogbench(name, settings)


def _make_ogbench(name: str, settings: dict[str, Any]) -> SeededEnv:
    """An environment registered by OGBench, built without Gymnasium's usual wrappers."""
    import gymnasium

    from iel.envs.seeded import SeededEnv

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*DISPLAY environment variable.*")  # no window is ever opened
        warnings.filterwarnings("ignore", message=".*precision lowered.*")  # bounds of -1 and 1 lose nothing
        import ogbench  # noqa: F401  registers the environments with Gymnasium

        words = name.removesuffix("-v0").split("-")
        world = WORLDS.get("-".join(words[1:3]), World(()))
        left_out = {*KINDS, "play", "noisy", "doors", "wind"}
        spec = gymnasium.spec("-".join([word for word in words if word not in left_out] + ["v0"]))
        assert isinstance(spec.entry_point, str) and spec.max_episode_steps
        create = gymnasium.envs.registration.load_env_creator(spec.entry_point)
        if inspect.isclass(create):
            create = _keep_action_space(create)
        if world.tasks:
            create = functools.partial(directed_maze, create, world)
        with _scratch_directory():
            env: Any = create(**{**spec.kwargs, **settings})
        assert env.action_space is env.action_space  # one to seed
    env.spec = spec
    walls = getattr(env, "maze_map", None)
    geometry = float(getattr(env, "_maze_unit", 0)), float(getattr(env, "_offset_x", 0)), world.doors, world.winds
    maze = None if walls is None else MazeMap(walls.astype(bool), *geometry)
    may_draw = _near_teleport(env) if getattr(env, "_teleport_info", None) else None
    num_envs = NUM_ENVS if maze is None else None
    num_tasks = 0 if settings.get("mode") == "data_collection" else env.num_tasks
    return SeededEnv(
        env, name, spec.max_episode_steps, maze=maze, num_tasks=num_tasks, num_envs=num_envs, may_draw=may_draw
    )


def _near_teleport(env: Any) -> Callable[[], bool]:
    """Whether the next step could enter a teleport, which draws its exit. Lending the generator costs as much as half a
    step, so it is done only within a cell's width of one; nothing here moves a quarter of that in a step.
    """
    entries = [(float(x), float(y)) for x, y in env._teleport_info["teleport_in_xys"]]
    reach = (1.5 * env._teleport_info["teleport_radius"] + env._maze_unit) ** 2
    qpos = env.data.qpos

    def near() -> bool:
        here_x, here_y = qpos.item(0), qpos.item(1)  # plain numbers: this runs every step
        return any((here_x - x) ** 2 + (here_y - y) ** 2 <= reach for x, y in entries)

    return near


def _keep_action_space(environment: Any) -> type:
    """The manipulation environments build a new, unseeded action space at each look and draw the robot's pose in the
    goal from it; retained, it can be seeded.
    """

    class Retained(environment):
        @functools.cached_property
        def action_space(self) -> Space:
            space = super().action_space
            return type(space)(-1.0, 1.0, space.shape, np.float32)

    Retained.__name__ = environment.__name__
    return Retained


@contextlib.contextmanager
def _scratch_directory() -> Iterator[None]:
    """OGBench writes its model to a temporary file and forgets it; this one is removed."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="iel-") as directory:
        tempfile.tempdir = directory
        try:
            yield
        finally:
            tempfile.tempdir = before
