"""Evaluation: seeded rollouts, success rates with intervals, tables."""

from iel.evaluation.rollout import Arena, Protocol, Rollouts, TaskRequest, evaluate

__all__ = ["Arena", "Protocol", "Rollouts", "TaskRequest", "evaluate"]
