"""Environments by name: Gymnasium environments whose resets are seeded, with `info["goal"]` and `info["success"]`."""

from iel.envs.mazes import MazeMap
from iel.envs.registry import canonical_name, environment_names, make_env
from iel.envs.seeded import GoalEnv, SeededEnv

__all__ = ["GoalEnv", "MazeMap", "SeededEnv", "canonical_name", "environment_names", "make_env"]
