"""Training: the loop, checkpoints and resuming, run directories and where metrics go."""

from iel.training.loop import Trained, resume, train
from iel.training.run import Run, open_run, open_runs

__all__ = ["Run", "Trained", "open_run", "open_runs", "resume", "train"]
