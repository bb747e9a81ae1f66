"""Acting and planning without JAX: for robots and other machines that only run a trained model.

    from iel.runtime import load_runtime

    model = load_runtime("export")                  # what `iel export RUN --out export --nodes 2048` wrote
    planner = model.planner("asym-graph")
    planner.prepare(goal)
    action = planner.act(observation)

Needs numpy; planning also needs scipy.
"""

from iel.runtime.files import load_runtime
from iel.runtime.model import Pack, Runtime, RuntimeConfig

__all__ = ["Pack", "Runtime", "RuntimeConfig", "load_runtime"]
