"""`iel data make`, `convert`, `info`, `check` and `store`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro

import iel
from iel.commands.common import Command, Facts, Flag
from iel.errors import DataError


@dataclass(frozen=True, kw_only=True)
class DataMake(Command):
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
    on: str | None = None
    """`ray` or `ray=ADDRESS`: blocks of episodes are collected on a Ray cluster whose nodes see the directory."""
    controller: Path | None = None
    """Another controller for the ant than our own: a safetensors file, or D4RL's as npz."""

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
        )
        picture = files["train"].with_suffix(".png")
        maze = iel.make_env(self.name).map
        assert maze is not None, "makers only know mazes"
        draw_visits(picture, maze, iel.load(files["train"]))
        print("\n".join(str(path) for path in (*files.values(), picture)))
        return {**{split: str(path) for split, path in files.items()}, "picture": str(picture)}


@dataclass(frozen=True, kw_only=True)
class DataCheck(Command):
    """Look for everything that is wrong with a data set, and say what to do. Exit code 1 if training would fail."""

    name: tyro.conf.Positional[str]
    """A file (npz, hdf5, csv, parquet), a folder of episodes, a Minari or LeRobot data set, or the name of a data set
    on this machine."""

    def __call__(self) -> Facts:
        from iel.data.examine import examine

        findings = examine(self.name)
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
class DataConvert(Command):
    """Turn logs (CSV, Parquet, LeRobot, HDF5...) into one npz file that everything here reads."""

    source: tyro.conf.Positional[str]
    """A file, a folder with one file per episode, or a data set of LeRobot or Minari."""
    out: tyro.conf.Positional[Path]
    """The npz file to write."""
    observations: tuple[str, ...] = ()
    """Columns that are the observation (default: those that begin with observation, obs or state)."""
    actions: tuple[str, ...] = ()
    """Columns that are the action (default: those that begin with action or act)."""
    episode: str | None = None
    """Column that numbers the episodes (default: episode, episode_index or episode_id)."""
    trust: Flag = False
    """Write the data although `iel data check` finds errors in it."""
    unit_actions: Flag = False
    """Stretch every action column to [-1, 1], as policies need it; the range is printed and kept in the file."""

    def __call__(self) -> Facts:
        from iel.data.catalogue import read, resolve
        from iel.data.examine import judge
        from iel.data.scaling import unit_actions

        path = resolve(self.source)
        if path is None:
            raise DataError(f"{self.source} does not exist; give a file or a folder.")
        columns = {"observations": self.observations, "actions": self.actions, "episode": self.episode}
        given = {name: value for name, value in columns.items() if value}
        data = read(path, trust=self.trust or self.unit_actions, columns=given)
        ranges: Facts = {}
        if self.unit_actions:
            data, low, high = unit_actions(data)
            ranges = {"action_low": low, "action_high": high}
            judge(replace(data, checked=self.trust))
        data.save(self.out, **ranges)
        ranges = {name: _few_digits(values, 9) for name, values in ranges.items()}
        print(f"{self.out}: {len(data)} episodes, {data.num_transitions} steps, {data.observation_size} observation "
              f"and {data.action_size} action columns")  # fmt: skip
        if ranges:
            print(f"actions are stretched to [-1, 1]: low {ranges['action_low']}, high {ranges['action_high']}; send "
                  "u = low + (a + 1) (high - low) / 2")  # fmt: skip
        print(f"next: iel data check {self.out}")
        return {"out": str(self.out), "episodes": len(data), "transitions": data.num_transitions, **ranges}


@dataclass(frozen=True, kw_only=True)
class DataStore(Command):
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
        data = convert(source, self.out, trust=self.trust)
        print(f"{data}\nwritten to {self.out}; next: iel train --data {self.out}")
        facts = {"episodes": len(data), "transitions": data.num_transitions, "fingerprint": data.fingerprint}
        return {"out": str(self.out), **facts}


@dataclass(frozen=True, kw_only=True)
class DataInfo(Command):
    """What a data set holds."""

    name: tyro.conf.Positional[str]
    """Name of a data set on this machine, or path of a file or folder."""
    episodes: int | None = None
    """The size it was made with, if not the benchmark's own."""

    def __call__(self) -> Facts:
        data = iel.load(self.name, episodes=self.episodes, make=False)
        lengths = np.diff(data.offsets) - 1
        facts = {
            "name": data.name,
            "episodes": len(data),
            "transitions": data.num_transitions,
            "observation_size": data.observation_size,
            "action_size": data.action_size,
            "shortest_episode": int(lengths.min()),
            "longest_episode": int(lengths.max()),
            "observation_low": _few_digits(data.observations.min(0)),
            "observation_high": _few_digits(data.observations.max(0)),
            **_motion(data),
            "fingerprint": data.fingerprint,
        }
        for name, value in facts.items():
            if name not in ("observation_low", "observation_high", "slowness"):  # numbers per column
                print(f"{name:18} {value}")
        _print_columns(facts)
        return facts


def _motion(data: iel.Trajectories) -> Facts:
    """What the columns do: how slow each is, which tell the position, how often it jumps and how much it rests."""
    from iel.data.positions import LONG, SHORT, rest_rows, slowness

    facts: Facts = {"slowness": None, "place_columns": None, "jumps": len(data.jumps)}
    try:
        facts["slowness"] = _few_digits(slowness(data), 3)
        facts["place_columns"] = place = list(data.require_position())
    except DataError as problem:  # episodes too short to tell, or nothing separates position from pose
        return {**facts, "note": str(problem)}
    pieces = data.cut(data.jumps)  # as in training: a jump is no motion
    for name, kind in (("resting_share", LONG), ("short_rests_share", SHORT)):
        facts[name] = round(len(rest_rows(pieces, place, kind)) / pieces.num_states, 3)
    return facts


def _few_digits(values: Iterable[float], digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _print_columns(facts: Facts, shown: int = 8) -> None:
    """The slowest columns, with range and ratio."""
    ratios = facts["slowness"] or [0.0] * facts["observation_size"]
    order = sorted(range(len(ratios)), key=lambda column: -ratios[column])
    print(f"{'column':>8} {'lowest':>10} {'highest':>10} {'slowness':>9}")
    for column in order[:shown]:
        low, high = facts["observation_low"][column], facts["observation_high"][column]
        place = "  place" if column in (facts["place_columns"] or []) else ""
        print(f"{column:>8} {low:>10g} {high:>10g} {ratios[column]:>9g}{place}")
    if len(order) > shown:
        print(f"{len(order) - shown} more columns, with a slowness of {ratios[order[shown]]:g} and less")
