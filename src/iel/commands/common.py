"""What several commands share: options, and how they become environments and planners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tyro

import iel
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.envs import World
    from iel.model import Model
    from iel.signals import Signals
    from iel.training import Run

Facts = dict[str, Any]
"""What a command found, as `--json` prints it."""
ADVANCED = "--help-all"
"""Shows every setting of a method; `--help` shows what most people need."""
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""An option that is only ever switched on. A plain `bool` gets `--name` and `--no-name`."""
UNSAID = tyro.conf.arg(help_behavior_hint="")
"""No `(default: None)` after a sentence that says what happens then; `iel.cli` adds it to the fields of commands."""
PLANNER_NAMES = ("direct", "rec-mid", "sym-graph", "asym-graph")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What every command has."""

    json: Flag = False
    """Print one JSON object as the last line of stdout."""

    @classmethod
    def for_arguments(cls, arguments: list[str]) -> type[Self]:
        """These options, where some depend on others that are given."""
        return cls


@dataclass(frozen=True, kw_only=True)
class Command(Output, ABC):
    """The options of a command. A call does what it is for, prints it for people, and returns it for programs."""

    @abstractmethod
    def __call__(self) -> Facts: ...


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command):
    """A command about one run."""

    run: tyro.conf.Positional[Path]
    """Run directory."""


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How planners make their graphs."""

    nodes: Annotated[int | None, UNSAID] = None
    """Nodes of the planning graph (default 2048, 8192 for policies that go to waypoints, 512 without an
    embedding that is a space: value networks, QRL, CMD, TMD)."""
    neighbours: int = 10
    """Cheapest edges kept out of every node."""
    join: Annotated[Literal["best", "nearest"] | None, UNSAID] = None
    """Join agents and goals to the graph at the best of several nodes, or at the nearest alone, as in the paper
    (default: best, unless every cost is a network's answer)."""
    coreset: Annotated[Literal["farthest", "dpp"] | None, UNSAID] = None
    """How nodes are chosen (default: the planner's own)."""
    lookahead: Annotated[float | None, UNSAID] = None
    """Head for the first node on the way that is this far ahead (default: as far as waypoints were in training; for
    policies that are sent to states what ten steps of the data cost; else 0, the next node)."""
    unobserved_cost: Annotated[float | None, UNSAID] = None
    """Edges that no trajectory was seen to take cost so many times as much, e.g. 1000; inf takes them out."""
    teleports: bool = True
    """Go through places that throw the agent elsewhere (teleports) where that is expected to be shorter."""
    reach: Annotated[float | None, UNSAID] = None
    """gas-graph: how far apart joined nodes may be, in the model's unit (default: as the policy was trained, or 8);
    greedy: how many steps away the next node may be (default 10)."""
    backups: Annotated[int | None, UNSAID] = None
    """greedy: Bellman backups of the distance to the goal over nodes within reach (default 0: believe it)."""

    def options(self, planner: str) -> dict[str, Any]:
        """What is configurable of this planner and was given."""
        from iel.planning import PLANNERS

        names = PLANNERS[planner].setting_names() if planner in PLANNERS else []
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}

    def agent(self, planner: str, model: Model, data: iel.Trajectories) -> iel.Agent:
        """An agent whose planner has what is configurable of it."""
        return iel.Agent(model, data, planner, **self.options(planner))


@dataclass(frozen=True, kw_only=True)
class PlannerSettings(GraphOptions):
    """How planners see the data."""

    data: Annotated[Path | None, UNSAID] = None
    """Take states from this file or folder instead of the data the run was trained on."""


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """Where it acts, if not in the environment of its data, and for how long."""

    env_factory: Annotated[str | None, UNSAID] = None
    """Act in your own environment: package.module:function makes a Gymnasium environment (docs/own-robot.md)."""
    tolerance: Annotated[float | None, UNSAID] = None
    """There, a goal counts as reached within this distance (default: info["success"] says so)."""
    columns: Annotated[tuple[str, ...] | None, UNSAID] = None
    """Columns of that distance, by name or number (default: all that the goal names)."""
    max_steps: Annotated[int | None, UNSAID] = None
    """Steps an episode may take (default, and at most: the environment's own limit)."""

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
