"""Environments by name: Gymnasium environments whose resets are seeded, with `info["goal"]` and `info["success"]`."""

from iel.envs.mazes import MazeMap, SeededMaze, environment_names, make_env

__all__ = ["MazeMap", "SeededMaze", "environment_names", "make_env"]
