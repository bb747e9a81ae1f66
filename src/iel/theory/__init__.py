"""The paper's theory, executable: exact hitting times, representations, bounds, problem span, an audit of any model.

numpy and scipy in float64 only. `iel theory` runs every statement of the paper; docs/theory.md explains what it found.
Here is what people use on their own chains, mazes and models; the files hold the rest.
"""

from iel.theory.audit import Audit, CostAudit, audit_costs, audit_embedding
from iel.theory.builders import grid
from iel.theory.chains import ControlledProcess, hitting_time_matrix, hitting_times, policy_chain, uniform_policy
from iel.theory.mazes import Maze, Teleports, maze_from_map, maze_of, shortest_steps, steps_between
from iel.theory.optimal import OptimalTimes, optimal_hitting_times

__all__ = [
    "Audit", "ControlledProcess", "CostAudit", "Maze", "OptimalTimes", "Teleports", "audit_costs",
    "audit_embedding", "grid", "hitting_time_matrix", "hitting_times", "maze_from_map", "maze_of",
    "optimal_hitting_times", "policy_chain", "shortest_steps", "steps_between", "uniform_policy",
]  # fmt: skip
