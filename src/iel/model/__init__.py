"""The frozen model in numpy: acts, measures and plans without JAX, on robots and other machines.

    from iel import load_model

    model = load_model("export")            # what `iel export RUN --out export --nodes 2048` wrote, or RUN/model
    planner = model.planner("asym-graph")
    planner.prepare(goal)
    action = planner.act(observation)

Needs numpy; planning also needs scipy.
"""

from iel.model.costs import Measure, MeasureCost, ValueCost
from iel.model.files import load_model, save_model
from iel.model.model import Conditioning, Direction, GoalState, Model, Subgoal, Waypoint
from iel.model.networks import Network, Norm, Perceptron

__all__ = [
    "Conditioning",
    "Direction",
    "GoalState",
    "Measure",
    "MeasureCost",
    "Model",
    "Network",
    "Norm",
    "Perceptron",
    "Subgoal",
    "ValueCost",
    "Waypoint",
    "load_model",
    "save_model",
]  # fmt: skip
