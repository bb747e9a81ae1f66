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
class PlannerSettings:
    """How planners see the data."""

    nodes: Annotated[int | None, UNSAID] = None
    """Nodes of the planning graph (default 2048, 8192 for policies that go to waypoints, 512 without an
    embedding that is a space: value networks, QRL, CMD, TMD)."""
    neighbours: int = 10
    """Cheapest edges kept out of every node."""
    coreset: Annotated[Literal["farthest", "dpp"] | None, UNSAID] = None
    """How nodes are chosen (default: the planner's own)."""
    lookahead: Annotated[float | None, UNSAID] = None
    """Head for the first node on the way that is this far ahead (default: as far as waypoints were in training; for
    policies that are sent to states what ten steps of the data cost; else 0, the next node)."""
    witnesses: Annotated[float | None, UNSAID] = None
    """Edges that no trajectory was seen to take cost so many times as much, e.g. 1000; inf takes them out."""
    chance: bool = True
    """Go through places that throw the agent elsewhere (teleports) where that is expected to be shorter."""
    reach: Annotated[float | None, UNSAID] = None
    """gas-graph: how far apart joined nodes may be, in the model's unit (default: as the policy was trained, or 8)."""
    data: Annotated[Path | None, UNSAID] = None
    """Take states from this file or folder instead of the data the run was trained on."""

    def agent(self, planner: str, model: Model, data: iel.Trajectories) -> iel.Agent:
        """An agent whose planner has what is configurable of it: a coreset and its graph, or the reach of GAS's."""
        from iel.planning import GasGraph, over_coreset

        names = {"reach"} if planner == GasGraph.name else set()
        if over_coreset(planner):
            names = {"nodes", "neighbours", "coreset", "lookahead", "witnesses", "chance"}
        options = {name: value for name, value in asdict(self).items() if name in names and value is not None}
        return iel.Agent(model, data, planner, **options)


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """Where it acts, if not in the environment of its data, and for how long."""

    env_factory: Annotated[str | None, UNSAID] = None
    """Act in your own environment: package.module:function makes a Gymnasium environment (docs/own-robot.md)."""
    tolerance: Annotated[float | None, UNSAID] = None
    """There, a goal counts as reached within this distance (default: info["success"] says so)."""
    columns: Annotated[tuple[int, ...] | None, UNSAID] = None
    """Columns of that distance (default: all that the goal names)."""
    max_steps: Annotated[int | None, UNSAID] = None
    """Steps an episode may take (default, and at most: the environment's own limit)."""

    def world(self) -> World | None:
        """The environment, if one is given."""
        from iel.envs import World

        facts = {"tolerance": self.tolerance, "columns": self.columns, "max_steps": self.max_steps}
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
