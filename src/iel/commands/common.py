"""What several commands share: the options of all of them, and those of planners."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""An option that is only ever switched on. A plain `bool` gets `--name` and `--no-name`."""
PLANNER_NAMES = ("direct", "rec-mid", "sym-graph", "asym-graph")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What every command has."""

    json: Flag = False
    """Print one JSON object as the last line of stdout."""


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """How planners see the data."""

    nodes: int | None = None
    """Nodes of the planning graph (default 2048, 8192 for policies that go to waypoints, 512 without an
    embedding that is a space: value networks, QRL, CMD, TMD)."""
    neighbours: int = 10
    """Cheapest edges kept out of every node."""
    coreset: Literal["farthest", "dpp"] | None = None
    """How nodes are chosen (default: the planner's own)."""
    lookahead: float | None = None
    """Head for the first node on the way that is this far ahead (default: as far as waypoints were in training; for
    policies that are sent to states what ten steps of the data cost; else 0, the next node)."""
    witnesses: float | None = None
    """Edges that no trajectory was seen to take cost so many times as much, e.g. 1000; inf takes them out."""
    chance: bool = True
    """Go through places that throw the agent elsewhere (teleports) where that is expected to be shorter."""
    reach: float | None = None
    """gas-graph: how far apart joined nodes may be, in the model's unit (default: as the policy was trained, or 8)."""
    data: Path | None = None
    """Take states from this file or folder instead of the data the run was trained on."""
