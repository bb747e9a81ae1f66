"""`iel data make`, `convert`, `info`, `check` and `store`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from msgspec import to_builtins

import iel
from iel.commands.common import Command, Facts, Flag
from iel.data.writers import Format
from iel.errors import ConfigError, DataError
from iel.files import write_text

if TYPE_CHECKING:
    from iel.data.tables import Given
    from iel.signals import Signals

SHOWN = 8
"""Columns that `iel data info` lists."""


@dataclass(frozen=True, kw_only=True)
class ColumnSettings:
    """Which columns of CSV and Parquet files are what."""

    observations: tuple[str, ...] = ()
    """Columns of the observation (default: those whose names begin with observation, obs or state)."""
    actions: tuple[str, ...] = ()
    """Columns of the action (default: those whose names begin with action or act)."""
    episode: str | None = None
    """Column that numbers the episodes (default: episode, episode_index or episode_id)."""
    time: str | None = None
    """Column that rises within an episode (default: step, frame_index, timestamp or time). `iel data convert --rate`
    resamples rows by it, and gaps in it end episodes."""
    gaps: Literal["refuse", "cut", "interpolate"] = "refuse"
    """What to do with empty cells: refuse the file, cut their rows, or interpolate up to 5 in a row."""

    @property
    def given(self) -> Given | None:
        """These settings as `iel.load` takes them; None if all have their defaults."""
        named = {"observations": self.observations, "actions": self.actions, "episode": self.episode, "step": self.time}
        given: dict[str, str | tuple[str, ...]] = {name: value for name, value in named.items() if value}
        return {**given, "gaps": self.gaps} if given or self.gaps != "refuse" else None


@dataclass(frozen=True, kw_only=True)
class TableCommand(Command):
    """A command that reads data."""

    columns: Annotated[ColumnSettings, tyro.conf.OmitArgPrefixes] = ColumnSettings()


@dataclass(frozen=True, kw_only=True)
class DataMake(Command):
    """Collect a data set in the simulator, with a validation set a tenth of its size."""

    name: tyro.conf.Positional[str]
    """{pointmaze,antmaze}-{medium,large,giant,teleport}-{navigate,stitch,explore}-v0, D4RL's
    antmaze-{umaze,medium,large}-{play,diverse}-v2 and antmaze-ultra-{play,diverse}-v0, or OGBench's robot arms:
    {cube-{single,double,triple,quadruple},scene,puzzle-{3x3,4x4,4x5,4x6}}-{play,noisy}-v0."""
    episodes: int | None = None
    """Number of episodes (default: the benchmark's)."""
    seed: int = 0
    """Seed of the data: the same seed gives the same file, bit for bit."""
    workers: int | None = None
    """Processes (default: all cores); does not change the result."""
    out: Path | None = None
    """Directory (default: $IEL_DATA, else the user's cache)."""
    on: str | None = None
    """`ray` or `ray=ADDRESS`: collect blocks of episodes on a Ray cluster whose nodes share the directory."""
    controller: Path | None = None
    """Another controller for the ant: a safetensors file, or D4RL's as npz."""
    again: Flag = False
    """Collect it again even if the same data set exists."""

    def __call__(self) -> Facts:
        from iel.cluster import Cluster
        from iel.data.make import make_dataset
        from iel.viz.pictures import draw_visits

        files = make_dataset(
            self.name,
            episodes=self.episodes,
            seed=self.seed,
            workers=self.workers,
            directory=self.out,
            controller=self.controller,
            cluster=None if self.on is None else Cluster(self.on),
            again=self.again,
        )
        written: dict[str, Path] = {**files}
        if (maze := iel.make_env(self.name).map) is not None:
            written["picture"] = files["train"].with_suffix(".png")
            draw_visits(written["picture"], maze, iel.load(files["train"]))
        print("\n".join(map(str, written.values())))
        return {what: str(path) for what, path in written.items()}


@dataclass(frozen=True, kw_only=True)
class DataCheck(TableCommand):
    """Find everything that is wrong with a data set, and say what to do. Exit code 1 if training would fail."""

    name: tyro.conf.Positional[str]
    """A file (npz, hdf5, csv, parquet), a folder of episodes, a Minari or LeRobot data set, or the name of a data set
    on this machine."""

    def __call__(self) -> Facts:
        from iel.data.examine import examine

        findings = examine(self.name, self.columns.given)
        errors = sum(finding.severity == "error" for finding in findings)
        print("\n".join(map(str, findings)) or f"{self.name}: nothing wrong was found")
        facts = {"data": self.name, "errors": errors, "warnings": len(findings) - errors}
        return {**facts, "findings": [asdict(finding) for finding in findings], "exit_code": int(errors > 0)}


@dataclass(frozen=True, kw_only=True)
class DataConvert(TableCommand):
    """Turn logs (CSV, Parquet, LeRobot, HDF5, bags of ROS...) into a data set, or a data set into another format."""

    source: tyro.conf.Positional[str]
    """A file, a folder with one file per episode, a LeRobot or Minari data set, or a ROS or MCAP bag."""
    out: Path | None = None
    """What to write: FILE.npz, FILE.parquet, or a directory with --to (for a bag without --map: FILE.toml)."""
    to: Format | None = None
    """Format to write (default: by the ending of --out)."""
    map: Path | None = None
    """For a bag: the file that maps topics and fields to columns (docs/bags.md); without it, a first guess is
    written."""
    silence: float | None = None
    """With --time and --rate: seconds without a row that end an episode (default: five usual intervals)."""
    trust: Flag = False
    """Write the data although `iel data check` finds errors in it."""
    unit_actions: Flag = False
    """Rescale every action column to [-1, 1], as policies need it. The range is stored, so the agent can answer in the
    original units."""
    action_delay: int = 0
    """Shift actions by this number of rows: from where they were logged to where they act (`iel data check` estimates
    it)."""
    units: tuple[str, ...] = ()
    """Units of columns: x=m v=m/s."""
    rate: float | None = None
    """Rows per second: with --time the rate to resample to, else the rate of the file (default: from its times, where
    these are dates)."""

    def __call__(self) -> Facts:
        from iel.data.bags import is_bag
        from iel.data.catalogue import resolve
        from iel.data.examine import validate
        from iel.data.scaling import unit_actions
        from iel.data.writers import write_dataset

        path = resolve(self.source)
        if path is None:
            raise DataError(f"{self.source} does not exist; give a file or a folder.")
        if is_bag(path) and self.map is None:
            return self._guess(path)
        if self.out is None:
            raise ConfigError("Say what to write with --out, such as --out robot.npz.")
        units = dict(pair.split("=", 1) for pair in self.units if "=" in pair)
        if len(units) < len(self.units):
            raise ConfigError("--units takes COLUMN=UNIT, as in x=m v=m/s.")
        data, ranges = self._rows(path), Facts()
        if self.unit_actions:
            data = unit_actions(data)
            low, high = data.signals.action_low, data.signals.action_high
            ranges = {"action_low": _few_digits(low, 9), "action_high": _few_digits(high, 9)}
            validate(replace(data, checked=self.trust))
        rate = data.signals.rate if self.rate is None else self.rate
        data = data.described(units={**data.signals.units, **units}, rate=rate)
        write_dataset(data, self.out, self.to)
        columns = f"{data.observation_size} observation and {data.action_size} action columns"
        print(f"{self.out}: {len(data)} episodes, {data.num_transitions} steps, {columns}")
        if ranges:
            print(f"actions were rescaled to [-1, 1]: low {ranges['action_low']}, high {ranges['action_high']}; send "
                  "u = low + (a + 1) (high - low) / 2")  # fmt: skip
        print(f"next: iel data check {self.out}")
        return {"out": str(self.out), "episodes": len(data), "transitions": data.num_transitions, **ranges}

    def _rows(self, path: Path) -> iel.Trajectories:
        """The rows of the source, each action at the row where it acts."""
        from iel.data.bags import is_bag, read_bags, read_mapping
        from iel.data.catalogue import read
        from iel.data.delay import shift_actions
        from iel.data.trajectories import Rows

        trust = self.trust or self.unit_actions or self.action_delay > 0  # changed data is checked afterwards
        if is_bag(path):
            assert self.map is not None, "a guess was written instead"
            rows, reports = read_bags(path, read_mapping(self.map))
            print("\n".join(map(str, reports)))
            data = rows.trajectories(trust)
        else:
            given: dict[str, str | Sequence[str] | float] = dict(self.columns.given or {})
            if self.columns.time is not None and self.rate is not None:
                given |= {"rate": self.rate} | ({} if self.silence is None else {"silence": self.silence})
            data = read(path, trust=trust, columns=given or None)
        if self.action_delay:
            rows = Rows(data.observations, data.actions, data.offsets, data.name, data.signals)
            data = shift_actions(rows, self.action_delay).trajectories(self.trust or self.unit_actions)
        return data

    def _guess(self, path: Path) -> Facts:
        """Write a first mapping of a bag."""
        from iel.data.bag_guess import guess

        out = self.out or Path(f"{path.stem}.toml")
        if out.exists():
            raise DataError(f"{out} exists already; use it with --map {out}, or give another --out OTHER.toml.")
        write_text(out, guess(path))
        print(f"{out}: a first guess of what the topics of {path} are")
        print(f"edit it, then: iel data convert {path} --map {out} --out {path.stem}.npz")
        return {"out": str(out)}


@dataclass(frozen=True, kw_only=True)
class DataStore(TableCommand):
    """Write a data set as a store on disk: training then reads it without loading it (docs/scale.md)."""

    name: tyro.conf.Positional[str]
    """A file (npz, hdf5), a folder of npz episodes or a Minari data set, or the name of a data set on this machine."""
    out: Path
    """Directory of the store; it must not exist yet."""
    trust: Flag = False
    """Skip the checks of `iel data check`, which read a million rows at a time."""

    def __call__(self) -> Facts:
        from iel.data.catalogue import resolve
        from iel.data.store import convert

        source = resolve(self.name)
        if source is None:
            raise DataError(f"Data set '{self.name}' is not on this machine; run `iel data make {self.name}` first.")
        data = convert(source, self.out, trust=self.trust, columns=self.columns.given)
        print(f"{data}\nwritten to {self.out}; next: iel train --data {self.out}")
        facts = {"episodes": len(data), "transitions": data.num_transitions, "fingerprint": data.fingerprint}
        return {"out": str(self.out), **facts}


@dataclass(frozen=True, kw_only=True)
class DataInfo(TableCommand):
    """Describe a data set: size, ranges, position columns, jumps and rests."""

    name: tyro.conf.Positional[str]
    """Name of a data set on this machine, or path of a file or folder."""
    episodes: int | None = None
    """The size it was made with (default: the benchmark's)."""

    def __call__(self) -> Facts:
        data = iel.load(self.name, episodes=self.episodes, make=False, columns=self.columns.given)
        lengths = np.diff(data.offsets) - 1
        facts = {
            "name": data.name,
            "episodes": len(data),
            "transitions": data.num_transitions,
            "observation_size": data.observation_size,
            "action_size": data.action_size,
            **{name: value for name, value in to_builtins(data.signals).items() if value},
            "shortest_episode": int(lengths.min()),
            "longest_episode": int(lengths.max()),
            "observation_low": _few_digits(data.observations.min(0)),
            "observation_high": _few_digits(data.observations.max(0)),
            **_motion(data),
            "fingerprint": data.fingerprint,
        }
        for name, value in facts.items():
            if name not in ("observation_low", "observation_high", "slowness", "units"):  # of every column
                print(f"{name:18} {value}")
        _print_columns(facts, data.signals)
        return facts


def _motion(data: iel.Trajectories) -> Facts:
    """How columns change: slowness of each, position columns, number of jumps, shares of rows at rest."""
    from iel.data.positions import LONG, SHORT, monotone_columns, rest_rows, slowness

    facts: Facts = {"slowness": None, "position_columns": None, "jumps": len(data.jumps)}
    facts["one_way_columns"] = list(monotone_columns(data))
    try:
        facts["slowness"] = _few_digits(slowness(data), 3)
        facts["position_columns"] = position = list(data.require_position())
    except DataError as problem:  # episodes are too short, or no column is clearly slower than the others
        return {**facts, "note": str(problem)}
    pieces = data.cut(data.jumps)  # as in training: a jump is not a motion
    for name, kind in (("resting_share", LONG), ("short_rests_share", SHORT)):
        facts[name] = round(len(rest_rows(pieces, position, kind)) / pieces.num_states, 3)
    return facts


def _few_digits(values: Iterable[float], digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _print_columns(facts: Facts, signals: Signals) -> None:
    """The slowest columns, with range and slowness."""
    ratios = facts["slowness"] or [0.0] * facts["observation_size"]
    order = sorted(range(len(ratios)), key=lambda column: -ratios[column])
    names = {column: signals.axis(column).removeprefix("column ") for column in order[:SHOWN]}
    width = max(8, *(min(len(name), 40) for name in names.values()))
    print(f"{'column':>{width}} {'lowest':>10} {'highest':>10} {'slowness':>9}")
    for column, name in names.items():
        low, high = facts["observation_low"][column], facts["observation_high"][column]
        position = "  position" if column in (facts["position_columns"] or []) else ""
        one_way = "  battery? clock? leave it out" if column in facts["one_way_columns"] else ""
        print(f"{name[:40]:>{width}} {low:>10g} {high:>10g} {ratios[column]:>9g}{position}{one_way}")
    if len(order) > SHOWN:
        print(f"{len(order) - SHOWN} more columns, with a slowness of {ratios[order[SHOWN]]:g} and less")
