"""What several commands share: options, and how they become environments and planners."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import docstring_parser
import tyro

import iel
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.envs import World
    from iel.model import Model
    from iel.signals import Signals
    from iel.training import Run

T = TypeVar("T")
Facts = dict[str, Any]
"""What a command found, as `--json` prints it."""
ADVANCED = "--help-all"
"""Shows every setting of a method; `--help` shows what most people need."""
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""An option that is only ever switched on. A plain `bool` gets `--name` and `--no-name`."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What every command has."""

    json: Flag = False
    """Print one JSON object as the last line of stdout."""

    @classmethod
    def for_arguments(cls, arguments: list[str]) -> type[Self]:
        """These options, where some depend on others that are given."""
        return cls


def readable(options_type: type[T]) -> type[T]:
    """These options as `--help` prints them well: help texts without the line breaks of the source, positional
    arguments by their names, and no `(default: ...)` of what is off, empty or absent."""
    hints, texts = get_type_hints(options_type, include_extras=True), _docstrings(options_type)
    fields: list[Any] = []
    for field in dataclasses.fields(options_type):  # type: ignore[arg-type]
        hint, default = hints[field.name], field.default
        kind, *marks = (hint.__origin__, *hint.__metadata__) if get_origin(hint) is Annotated else (hint,)
        if dataclasses.is_dataclass(default) and not isinstance(default, type):
            kind = readable(type(default))
            default = kind(**vars(default))
        several = [get_args(each)[0].__name__.upper() for each in get_args(kind) if get_origin(each) is tuple]
        metavar = f"{several[0]} [{several[0]} ...]" if several else None
        if tyro.conf.Positional[Any].__metadata__[0] in marks:  # type: ignore[misc]
            metavar = field.name.upper()
        quiet = default is dataclasses.MISSING or any(default is nothing for nothing in (None, False, ()))
        about = tyro.conf.arg(help=texts.get(field.name), metavar=metavar, help_behavior_hint="" if quiet else None)
        values = field if default is dataclasses.MISSING else dataclasses.field(default=default)
        fields.append((field.name, Annotated[(kind, about, *marks)], values))
    return dataclasses.make_dataclass(
        options_type.__name__, fields, bases=(options_type,), namespace={"__doc__": options_type.__doc__},
        frozen=True, kw_only=True,
    )  # fmt: skip


def _docstrings(options_type: type) -> dict[str, str]:
    """Field -> its docstring on one line."""
    found: dict[str, str] = {}
    for kind in reversed(options_type.__mro__[:-1]):
        params = docstring_parser.parse_from_object(kind).params
        found |= {param.arg_name: " ".join((param.description or "").split()) for param in params}
    return found


@dataclass(frozen=True, kw_only=True)
class Command(Output, ABC):
    """The options of a command. A call runs it, prints for people, and returns what `--json` prints."""

    @abstractmethod
    def __call__(self) -> Facts: ...


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command):
    """A command about one run."""

    run: tyro.conf.Positional[Path]
    """Run directory."""


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The planning graph."""

    nodes: int | None = None
    """Nodes of the planning graph (default: 2048; 8192 for waypoint policies; 512 where the embedding is not Euclidean:
    value networks, QRL, CMD, TMD)."""
    neighbours: int = 10
    """Out-edges of every node: the cheapest ones."""
    join: Literal["best", "nearest"] | None = None
    """Connect agents and goals to the graph at the best of several nodes, or at the nearest alone as in the paper
    (default: best; nearest where every cost is a network evaluation)."""
    coreset: Literal["farthest", "dpp"] | None = None
    """How nodes are chosen (default: the planner's own)."""
    lookahead: float | None = None
    """Head for the first node on the route that is this far ahead (default: the distance of waypoints in training; for
    policies that receive a goal state, what ten steps of the data cost; else 0, the next node)."""
    unobserved_cost: float | None = None
    """Factor on the cost of edges that no trajectory of the data takes, e.g. 1000; inf removes these edges."""
    teleports: bool = True
    """Plan through regions from which the agent is thrown elsewhere (teleports), where that is expected to be
    shorter."""
    reach: float | None = None
    """gas-graph: largest distance of joined nodes, in the model's unit (default: as the policy was trained, or 8);
    greedy: largest number of steps to the next node (default 10)."""
    backups: int | None = None
    """greedy: Bellman backups of the distance to the goal over nodes within reach (default 0)."""

    def options(self, planner: str) -> dict[str, Any]:
        """The settings of this planner that were given."""
        from iel.planning import PLANNERS

        names = PLANNERS[planner].setting_names() if planner in PLANNERS else []
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}

    def agent(self, planner: str | None, model: Model, data: iel.Trajectories) -> iel.Agent:
        """An agent whose planner has these settings; without a name the usual planner."""
        from iel.planning import usual_planner

        name = planner or usual_planner(model, data)
        return iel.Agent(model, data, name, **self.options(name))


@dataclass(frozen=True, kw_only=True)
class PlannerSettings(GraphOptions):
    """The planner and its states."""

    data: Path | None = None
    """Take states from this file or folder (default: the data of the run)."""


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """The environment to act in, if it is not the one of the data."""

    env_factory: str | None = None
    """Act in your own environment: package.module:function makes a Gymnasium environment (docs/own-robot.md)."""
    tolerance: float | None = None
    """In your environment, a goal within this distance is reached (default: where info["success"] is true)."""
    columns: tuple[str, ...] | None = None
    """Columns of that distance, by name or number (default: all columns of the goal)."""
    max_steps: int | None = None
    """Steps of an episode (default and maximum: the environment's own limit)."""

    def world(self, signals: Signals) -> World | None:
        """The environment, if one is given."""
        from iel.envs import World

        columns = None if self.columns is None else tuple(map(signals.column, self.columns))
        facts = {"tolerance": self.tolerance, "columns": columns, "max_steps": self.max_steps}
        return None if self.env_factory is None else World.from_text(self.env_factory, **facts)


@dataclass(frozen=True, kw_only=True)
class PlanningCommand(RunCommand):
    """A command that plans with a run."""

    planning: Annotated[PlannerSettings, tyro.conf.OmitArgPrefixes] = PlannerSettings()


@dataclass(frozen=True, kw_only=True)
class ActingCommand(PlanningCommand):
    """A command that acts in an environment."""

    environment: Annotated[WorldSettings, tyro.conf.OmitArgPrefixes] = WorldSettings()


def known_environment(name: str) -> str | None:
    """The environment of this name, if there is one; logs of one's own have none."""
    from iel.envs.registry import ALIASES  # slow to import

    return ALIASES.get(name)


def environment_of(run: Run) -> str:
    """The run's environment, refused when it was trained on a file without one."""
    if known_environment(run.env) is None:
        raise ConfigError(
            f"{run.path} was trained on '{run.env}', which has no environment to act in; give one of your own with "
            "`iel evaluate RUN --env-factory package:function`, or use `iel play`, `plan`, `audit` and `export`."
        )
    return run.env
