"""Logged trajectories: the store, its checks, readers and makers. No JAX here; `iel.data.goals` brings it in."""

from iel.data.catalogue import data_directory, load
from iel.data.examine import Finding, examine
from iel.data.trajectories import Episode, Trajectories

__all__ = ["Episode", "Finding", "Trajectories", "data_directory", "examine", "load"]
