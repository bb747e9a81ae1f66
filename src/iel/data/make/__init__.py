"""Collects data sets in the simulator: seeded, and the same bits for any number of processes."""

from iel.data.make.collect import make_dataset
from iel.data.make.pointmaze import Recipe, recipe

__all__ = ["Recipe", "make_dataset", "recipe"]
