"""Environments by name: Gymnasium environments whose resets are seeded, with `info["goal"]` and `info["success"]`.

Names, maps and the interface need no simulator; `make_env` needs the extra `sim`.
"""

from iel.envs.mazes import MazeMap
from iel.envs.own import GoalEnv, World
from iel.envs.registry import canonical_name, environment_names, make_env, require_simulator

__all__ = ["GoalEnv", "MazeMap", "World", "canonical_name", "environment_names", "make_env", "require_simulator"]
