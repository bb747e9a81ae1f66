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
from iel.commands.common import UNSAID, Command, Facts, Flag
from iel.data.writers import Format
from iel.errors import ConfigError, DataError
from iel.files import write_text

if TYPE_CHECKING:
    from iel.data.tables import Given
    from iel.signals import Signals


@dataclass(frozen=True, kw_only=True)
class ColumnSettings:
    """Which columns of CSV and Parquet files are what."""

    observations: Annotated[tuple[str, ...], UNSAID] = ()
    """Columns that are the observation (default: those that begin with observation, obs or state)."""
    actions: Annotated[tuple[str, ...], UNSAID] = ()
    """Columns that are the action (default: those that begin with action or act)."""
    episode: Annotated[str | None, UNSAID] = None
    """Column that numbers the episodes (default: episode, episode_index or episode_id)."""
    time: Annotated[str | None, UNSAID] = None
    """Column that rises within an episode (default: step, frame_index, timestamp or time); converted with --rate, rows
    are resampled by it and gaps in time end episodes."""
    gaps: Literal["refuse", "cut", "interpolate"] = "refuse"
    """What becomes of empty cells: cut leaves their rows out, interpolate fills up to 5 in a row."""

    @property
    def given(self) -> Given | None:
        """As `iel.load` takes them; None if nothing was said."""
        said = {"observations": self.observations, "actions": self.actions, "episode": self.episode, "step": self.time}
        given: dict[str, str | tuple[str, ...]] = {name: value for name, value in said.items() if value}
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
    """The same seed gives the same file, bit for bit."""
    workers: int | None = None
    """Processes (default: all cores; does not change the result)."""
    out: Path | None = None
    """Directory (default: $IEL_DATA, else the user's cache)."""
    on: str | None = None
    """`ray` or `ray=ADDRESS`: blocks of episodes are collected on a Ray cluster whose nodes see the directory."""
    controller: Path | None = None
    """Another controller for the ant than our own: a safetensors file, or D4RL's as npz."""
    again: Flag = False
    """Collect it again even if the same data set is there."""

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
    """Look for everything that is wrong with a data set, and say what to do. Exit code 1 if training would fail."""

    name: tyro.conf.Positional[str]
    """A file (npz, hdf5, csv, parquet), a folder of episodes, a Minari or LeRobot data set, or the name of a data set
    on this machine."""

    def __call__(self) -> Facts:
        from iel.data.examine import examine

        findings = examine(self.name, self.columns.given)
        errors = sum(finding.severity == "error" for finding in findings)
        print("\n".join(str(finding) for finding in findings) or f"{self.name}: nothing wrong was found")
        return {
            "data": self.name,
            "errors": errors,
            "warnings": len(findings) - errors,
            "findings": [asdict(finding) for finding in findings],
            "exit_code": int(errors > 0),
        }


@dataclass(frozen=True, kw_only=True)
class DataConvert(TableCommand):
    """Turn logs of any kind (CSV, Parquet, LeRobot, HDF5, bags of ROS...) into a data set, or a data set into another
    format."""

    source: tyro.conf.Positional[str]
    """A file, a folder with one file per episode, a data set of LeRobot or Minari, or a bag of ROS or MCAP."""
    out: Path | None = None
    """What to write: FILE.npz, FILE.parquet, or a directory with --to (of a bag without --map: the first guess)."""
    to: Format | None = None
    """What to write (default: as --out ends)."""
    map: Path | None = None
    """Of a bag: the file that says which topics and fields are what (docs/bags.md); without it, a first guess is
    written."""
    silence: float | None = None
    """With --time and --rate: seconds without a row that end an episode (default: five usual intervals)."""
    trust: Flag = False
    """Write the data although `iel data check` finds errors in it."""
    unit_actions: Flag = False
    """Rescale every action column to [-1, 1], as policies need it; the range is kept, and the agent answers in these
    units if asked to."""
    action_delay: int = 0
    """Actions act so many rows after they were logged (`iel data check` estimates it): move them there."""
    units: tuple[str, ...] = ()
    """What columns are measured in: x=m v=m/s."""
    rate: float | None = None
    """Rows per second: to make, with --time; else what they are (default: as the file says, where times are dates)."""

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
        data = self._rows(path)
        ranges: Facts = {}
        if self.unit_actions:
            data = unit_actions(data)
            low, high = data.signals.action_low, data.signals.action_high
            ranges = {"action_low": _few_digits(low, 9), "action_high": _few_digits(high, 9)}
            validate(replace(data, checked=self.trust))
        units = dict(pair.split("=", 1) for pair in self.units if "=" in pair)
        if len(units) < len(self.units):
            raise ConfigError("--units takes COLUMN=UNIT, as in x=m v=m/s.")
        data = data.described(
            units={**data.signals.units, **units}, rate=data.signals.rate if self.rate is None else self.rate
        )
        write_dataset(data, self.out, self.to)
        print(f"{self.out}: {len(data)} episodes, {data.num_transitions} steps, {data.observation_size} observation "
              f"and {data.action_size} action columns")  # fmt: skip
        if ranges:
            print(f"actions are stretched to [-1, 1]: low {ranges['action_low']}, high {ranges['action_high']}; send "
                  "u = low + (a + 1) (high - low) / 2")  # fmt: skip
        print(f"next: iel data check {self.out}")
        return {"out": str(self.out), "episodes": len(data), "transitions": data.num_transitions, **ranges}

    def _rows(self, path: Path) -> iel.Trajectories:
        """The rows of the source, with its actions where they act."""
        from iel.data.bags import is_bag, read_bags, read_mapping
        from iel.data.catalogue import read
        from iel.data.delay import shift_actions
        from iel.data.trajectories import Rows

        trust = self.trust or self.unit_actions or self.action_delay > 0  # what is changed is looked at afterwards
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
            raise DataError(f"{out} is there already; use it with --map {out}, or say --out OTHER.toml.")
        write_text(out, guess(path))
        print(f"{out}: a first guess at what is what in {path}\nedit it, then: "
              f"iel data convert {path} --map {out} --out {path.stem}.npz")  # fmt: skip
        return {"out": str(out)}


@dataclass(frozen=True, kw_only=True)
class DataStore(TableCommand):
    """Write a data set as a store on the disk, which is trained on without being loaded (docs/scale.md)."""

    name: tyro.conf.Positional[str]
    """A file (npz, hdf5), a folder of npz episodes or a Minari data set, or the name of a data set on this machine."""
    out: Path
    """Directory of the store; it must not be there yet."""
    trust: Flag = False
    """Leave out the checks of `iel data check`; they look at a million rows at a time."""

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
    """What a data set holds."""

    name: tyro.conf.Positional[str]
    """Name of a data set on this machine, or path of a file or folder."""
    episodes: int | None = None
    """The size it was made with, if not the benchmark's own."""

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
    """What the columns do: how slow each is, which tell the position, how often it jumps and how much it rests."""
    from iel.data.positions import LONG, SHORT, monotone_columns, rest_rows, slowness

    facts: Facts = {"slowness": None, "position_columns": None, "jumps": len(data.jumps)}
    facts["one_way_columns"] = list(monotone_columns(data))
    try:
        facts["slowness"] = _few_digits(slowness(data), 3)
        facts["position_columns"] = position = list(data.require_position())
    except DataError as problem:  # episodes too short to tell, or nothing separates position from pose
        return {**facts, "note": str(problem)}
    pieces = data.cut(data.jumps)  # as in training: a jump is no motion
    for name, kind in (("resting_share", LONG), ("short_rests_share", SHORT)):
        facts[name] = round(len(rest_rows(pieces, position, kind)) / pieces.num_states, 3)
    return facts


def _few_digits(values: Iterable[float], digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _print_columns(facts: Facts, signals: Signals, shown: int = 8) -> None:
    """The slowest columns, with range and ratio."""
    ratios = facts["slowness"] or [0.0] * facts["observation_size"]
    order = sorted(range(len(ratios)), key=lambda column: -ratios[column])
    names = {column: signals.axis(column).removeprefix("column ") for column in order[:shown]}
    width = max(8, *(min(len(name), 40) for name in names.values()))
    print(f"{'column':>{width}} {'lowest':>10} {'highest':>10} {'slowness':>9}")
    for column in order[:shown]:
        low, high = facts["observation_low"][column], facts["observation_high"][column]
        position = "  place" if column in (facts["position_columns"] or []) else ""
        one_way = "  battery? clock? leave it out" if column in facts["one_way_columns"] else ""
        print(f"{names[column][:40]:>{width}} {low:>10g} {high:>10g} {ratios[column]:>9g}{position}{one_way}")
    if len(order) > shown:
        print(f"{len(order) - shown} more columns, with a slowness of {ratios[order[shown]]:g} and less")
