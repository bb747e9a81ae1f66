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
    """Train on this file or folder (docs/formats.md) instead of the environment's own data set."""
    episodes: int | None = None
    """Use a collected data set of this many episodes instead of the benchmark's own size."""
    algo: str = "iel"
    """Method."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; several are trained at once, each with a run directory of its own."""
    out: Path | None = None
    """Run directory (default: the next free runs/ENV-ALGO-NNN)."""
    resume: Path | None = None
    """Continue this run (or a directory of several seeds) from its newest whole checkpoint, with its own settings."""
    checkpoint_every: int | None = None
    """Save a checkpoint every this many steps (default: about once a minute; first and last are always saved)."""
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
    """Take states from this file or folder instead of the data the run was trained on."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Output):
    """Measure success rates of a run under each planner and draw its pictures."""

    run: tyro.conf.Positional[Path]
    """Run directory, or a directory of several seeds."""
    planners: tuple[str, ...] | None = None
    """Ways of acting: direct, rec-mid, sym-graph, asym-graph (default: all that the method has a geometry for)."""
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
class ExportCommand(Output):
    """Write a trained model for machines without JAX: weights, ONNX graphs, and states to plan over."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    out: Path | None = None
    """Directory to write, which must not exist yet (default: RUN/export)."""
    nodes: int | None = None
    """Take this many states of the training data along, so that graph planners need no data (2048 is usual)."""
    coreset: Literal["farthest", "dpp"] = "farthest"
    """How those states are chosen."""
    data: Path | None = None
    """Take states from this file or folder instead of the data the run was trained on."""
    onnx: bool = True
    """Write ONNX files (needs the extra `onnx`)."""


@dataclass(frozen=True, kw_only=True)
class DataMake(Output):
    """Collect a data set in the simulator, with a validation set a tenth of its size."""

    name: tyro.conf.Positional[str]
    """{pointmaze,antmaze}-{medium,large,giant,teleport}-{navigate,stitch,explore}-v0, or D4RL's
    antmaze-{umaze,medium,large}-{play,diverse}-v2 and antmaze-ultra-{play,diverse}-v0."""
    episodes: int | None = None
    """Number of episodes (default: the benchmark's)."""
    seed: int = 0
    """The same seed gives the same file, bit for bit."""
    workers: int | None = None
    """Processes (default: all cores; does not change the result)."""
    out: Path | None = None
    """Directory (default: $IEL_DATA, else the user's cache)."""
    controller: Path | None = None
    """Another controller for the ant than our own: a safetensors file, or D4RL's as npz."""


@dataclass(frozen=True, kw_only=True)
class DataInfo(Output):
    """What a data set holds."""

    name: tyro.conf.Positional[str]
    """Name of a data set on this machine, or path of an npz file."""
    episodes: int | None = None
    """The size it was made with, if not the benchmark's own."""


@dataclass(frozen=True, kw_only=True)
class DataCheck(Output):
    """Look for everything that is wrong with a data set, and say what to do. Exit code 1 if training would fail."""

    name: tyro.conf.Positional[str]
    """A file (npz, hdf5), a folder of npz episodes or a Minari data set, or the name of a data set on this machine."""


@dataclass(frozen=True, kw_only=True)
class VideoCommand(Output):
    """Film one episode of a run, with the planned waypoints drawn in: a video and a strip of pictures."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    planner: str = "asym-graph"
    """direct, rec-mid, sym-graph or asym-graph."""
    task: int = 1
    """Which task of the environment."""
    seed: int = 0
    """Seed of the start and the goal."""
    out: Path | None = None
    """Where to write, MP4 or GIF (default: RUN/plots/video.mp4)."""
    planning: Annotated[PlannerSettings, tyro.conf.arg(name="")] = field(default_factory=PlannerSettings)


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


@dataclass(frozen=True, kw_only=True)
class BenchStepping(Output):
    """What our environments cost over the simulators they stand on."""

    seconds: float = 4.0
    """Time spent on each environment."""


@dataclass(frozen=True, kw_only=True)
class BenchCheckpoints(Output):
    """What checkpoints cost of the training time at the laptop preset."""


@dataclass(frozen=True, kw_only=True)
class BenchRuntime(Output):
    """How long one action takes without JAX, with ONNX, and with JAX."""

    widths: tuple[int, ...] = (128, 256, 512)
    """Hidden widths of the networks."""


@dataclass(frozen=True, kw_only=True)
class BenchSeeds(Output):
    """Many seeds in one program, by vmap and by threads, against one process a seed."""

    seeds: int = 8
    """How many seeds."""
    preset: str = "laptop"
    """Preset of IEL."""
    steps: int = 300
    """Gradient steps of each phase that are timed."""
    rounds: int = 2
    """How often everything is measured; the best round of each way counts."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Output):
    """Train and evaluate a grid of environments, methods, planners and seeds; goes on where it was stopped."""

    grid: tyro.conf.Positional[str]
    """A TOML file (docs/comparing.md) or a shipped grid: antmaze, paper-table-2, paper-sensitivity, pointmaze."""
    out: Path | None = None
    """Directory of the results (default: runs/compare-GRID-SCALE)."""
    scale: str | None = None
    """One of the grid's scales; those of the package have smoke, laptop (the default) and paper."""
    jobs: int | None = None
    """Cells at a time, each with its share of the cores (default: one a core; use 1 with an accelerator)."""
    list: bool = False
    """Only say which cells there are and which are done."""


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Output):
    """Turn the results of a comparison into a Markdown table, pictures and one HTML page."""

    sources: tyro.conf.Positional[tuple[Path, ...]]
    """A directory of `iel compare`, or evaluated run directories."""
    out: Path | None = None
    """Directory to write (default: report in the first of them)."""
    into: Path | None = None
    """A Markdown file whose part for this comparison is replaced as well (docs/comparing.md says how it is marked)."""
