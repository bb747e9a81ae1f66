"""Evaluation: seeded rollouts, success rates with intervals, tables."""

from iel.evaluation.rollout import Arena, Ask, Protocol, Rollouts, evaluate

__all__ = ["Arena", "Ask", "Protocol", "Rollouts", "evaluate"]
