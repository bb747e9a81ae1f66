"""Collects data sets in the simulator: seeded, resumable, and the same bits for any number of processes."""

from iel.data.make.collect import make_collector, make_dataset
from iel.data.make.recipes import Recipe, recipe, recipe_names

__all__ = ["Recipe", "make_collector", "make_dataset", "recipe", "recipe_names"]
