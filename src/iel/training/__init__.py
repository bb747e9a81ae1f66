"""Training: the loop and its callbacks, checkpoints and resuming, run directories and where metrics go."""

from iel.training.callbacks import Callback, Evaluator, TrainingProgress
from iel.training.loop import Trained, resume, train
from iel.training.run import Run, open_run, open_runs
from iel.training.trackers import TRACKERS, Tracker

__all__ = [
    "TRACKERS",
    "Callback",
    "Evaluator",
    "Run",
    "Tracker",
    "Trained",
    "TrainingProgress",
    "open_run",
    "open_runs",
    "resume",
    "train",
]  # fmt: skip
