"""What several commands share: the options of all of them, and those of planners."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

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
