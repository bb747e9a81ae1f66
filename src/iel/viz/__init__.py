"""Pictures, drawn without a screen."""

from iel.viz.pictures import draw_curves, draw_field, draw_graph, draw_rollouts
from iel.viz.timeline import log_episode

__all__ = ["draw_curves", "draw_field", "draw_graph", "draw_rollouts", "log_episode"]
