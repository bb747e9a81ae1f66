"""Logged trajectories: the store, its checks, readers and makers. No JAX here; `iel.data.goals` brings it in."""

from iel.data.catalogue import data_directory, load
from iel.data.examine import Finding, examine
from iel.data.positions import (
    cut_at_jumps,
    cut_rests,
    find_position_columns,
    jump_rows,
    rest_rows,
    slow_directions,
    slowness,
)
from iel.data.trajectories import Episode, Trajectories

__all__ = [
    "Episode", "Finding", "Trajectories", "cut_at_jumps", "cut_rests", "data_directory", "examine",
    "find_position_columns", "jump_rows", "load", "rest_rows", "slow_directions", "slowness",
]  # fmt: skip
