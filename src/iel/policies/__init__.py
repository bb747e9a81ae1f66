"""Policies: what acts, towards a target that a planner chose. They go with any geometry that has what they need.

    Directions         follows directions of the geometry's embedding, as the paper's policy does
    StateDirections    follows directions of the state, columns weighted by the steps the geometry says they are worth
    Waypoints          follows directions of the position columns; needs nothing of the geometry

A method with a policy of its own (goal-conditioned, hierarchical, by task vectors) has it in its own file.
"""

from iel.errors import unknown_name
from iel.learner import Controls, Policy
from iel.policies.directions import Directions
from iel.policies.state_directions import StateDirections
from iel.policies.waypoints import Waypoints

POLICIES: dict[str, type[Policy]] = {policy.kind: policy for policy in (Directions, StateDirections, Waypoints)}


def get_policy(name: str) -> type[Policy]:
    """A policy's class by its name."""
    if name not in POLICIES:
        raise unknown_name("policy", name, POLICIES)
    return POLICIES[name]


__all__ = ["POLICIES", "Controls", "Directions", "Policy", "StateDirections", "Waypoints", "get_policy"]
