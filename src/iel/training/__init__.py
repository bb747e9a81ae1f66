"""Training: the loop, checkpoints, run directories and where metrics go."""

from iel.training.loop import Trained, train
from iel.training.run import Run, open_run, open_runs

__all__ = ["Run", "Trained", "open_run", "open_runs", "train"]
