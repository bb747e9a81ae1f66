"""The options of every command, as dataclasses: the docstring of a field is its `--help`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

PLANNER_NAMES = ("direct", "rec-mid", "sym-graph", "asym-graph")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What every command has."""

    json: bool = False
    """Print one JSON object as the last line of stdout."""


@dataclass(frozen=True, kw_only=True)
class Demo(Output):
    """Collect data in a maze, train IEL, plan in four ways, evaluate and draw: the whole paper in a few minutes."""

    out: Path | None = None
    """Run directory (default: the next free runs/demo-NNN)."""
    seed: int = 0
    """Seed of training and evaluation."""
    episodes: int = 10
    """Evaluation episodes a task."""


@dataclass(frozen=True, kw_only=True)
class Train(Output):
    """Train a method on a data set. Every setting of the method is an option; defaults are those of the preset."""

    env: str | None = None
    """Data set and environment, e.g. pointmaze-large-navigate-v0; collected first if it is not on this machine."""
    data: Path | None = None
    """Train on this npz file instead of the environment's own data set."""
    episodes: int | None = None
    """Use a collected data set of this many episodes instead of the benchmark's own size."""
    algo: str = "iel"
    """Method."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; several are trained at once, each with a run directory of its own."""
    out: Path | None = None
    """Run directory (default: the next free runs/ENV-ALGO-NNN)."""
    checkpoint_every: int | None = None
    """Save a checkpoint every this many steps (the last step is always saved)."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra `tensorboard`)."""
    settings: Annotated[Any, tyro.conf.arg(name="")] = None
    """Settings of the method."""


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """How planners see the data."""

    nodes: int | None = None
    """Nodes of the planning graph (default 2048, or as many as there are states)."""
    neighbours: int = 10
    """Cheapest edges kept out of every node."""
    coreset: Literal["farthest", "dpp"] | None = None
    """How nodes are chosen (default: the planner's own)."""
    data: Path | None = None
    """Take states from this npz file instead of the data the run was trained on."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Output):
    """Measure success rates of a run under each planner and draw its pictures."""

    run: tyro.conf.Positional[Path]
    """Run directory, or a directory of several seeds."""
    planners: tuple[str, ...] = PLANNER_NAMES
    """Ways of acting: direct, rec-mid, sym-graph, asym-graph."""
    episodes: int = 20
    """Episodes a task."""
    tasks: tuple[int, ...] | None = None
    """Only these tasks, counted from 1 (default: all)."""
    seed: int = 0
    """Seed of every start and goal."""
    pictures: bool = True
    """Draw the field, the rollouts and the training curves into RUN/plots."""
    planning: Annotated[PlannerSettings, tyro.conf.arg(name="")] = field(default_factory=PlannerSettings)


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Output):
    """Plan one way from a start to a goal: prints the waypoints and draws them in the planning graph."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    planner: str = "asym-graph"
    """sym-graph or asym-graph."""
    task: int = 1
    """Take start and goal from this task of the environment."""
    start: tuple[float, ...] | None = None
    """Start observation instead of the task's (for a PointMaze: x y)."""
    goal: tuple[float, ...] | None = None
    """Goal observation instead of the task's."""
    seed: int = 0
    """Seed of the task's start and goal."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/plan.png)."""
    planning: Annotated[PlannerSettings, tyro.conf.arg(name="")] = field(default_factory=PlannerSettings)


@dataclass(frozen=True, kw_only=True)
class AuditCommand(Output):
    """How far can this geometry be trusted? Latent dynamics, calibration and agreement with exact hitting times."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    data: Path | None = None
    """Audit on these trajectories (default: the validation set of the run's data, which training never saw)."""
    seed: int = 0
    """Seed of the pairs that are drawn."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/audit.png)."""


@dataclass(frozen=True, kw_only=True)
class DataMake(Output):
    """Collect a data set in the simulator, with a validation set a tenth of its size."""

    name: tyro.conf.Positional[str]
    """pointmaze-{medium,large,giant,teleport}-{navigate,stitch,explore}-v0."""
    episodes: int | None = None
    """Number of episodes (default: OGBench's)."""
    seed: int = 0
    """The same seed gives the same file, bit for bit."""
    workers: int | None = None
    """Processes (default: all cores; does not change the result)."""
    out: Path | None = None
    """Directory (default: $IEL_DATA, else the user's cache)."""


@dataclass(frozen=True, kw_only=True)
class DataInfo(Output):
    """What a data set holds."""

    name: tyro.conf.Positional[str]
    """Name of a data set on this machine, or path of an npz file."""
    episodes: int | None = None
    """The size it was made with, if not the benchmark's own."""


@dataclass(frozen=True, kw_only=True)
class Doctor(Output):
    """Check this machine: versions, devices, rendering, directories. Says what to fix."""


@dataclass(frozen=True, kw_only=True)
class BenchTraining(Output):
    """Training speed of every phase against plain matrix products of the same shapes."""

    widths: tuple[int, ...] = (256, 512)
    """Hidden widths, paired with --batches."""
    batches: tuple[int, ...] = (256, 1024)
    """Batch sizes, paired with --widths."""
    seconds: float = 6.0
    """Time spent on each number."""


@dataclass(frozen=True, kw_only=True)
class BenchPlanning(Output):
    """Planning speed: the dense formula against the exact fast path, in one run."""

    nodes: tuple[int, ...] | None = None
    """Coreset sizes (default: 1024 to 65536)."""
    beta: tuple[float, ...] | None = None
    """Values of beta (default: 0 to 1)."""
    quick: bool = False
    """Only the small cases."""
