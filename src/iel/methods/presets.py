"""Settings that presets of several methods share.

paper          the published settings, which are the defaults of a method
laptop         minutes on two cores, for points
laptop-body    the same for robots with joints
laptop-arm     the same for arms, where nothing separates position from pose
smoke          seconds, for tests
"""

from __future__ import annotations

from typing import Any

from iel.policies.directions import Directions
from iel.policies.waypoints import Waypoints

LAPTOP: dict[str, Any] = {"steps": 21_000, "batch_size": 256, "hidden": (128, 128, 128)}
"""Minutes on two cores, for points."""
SMOKE: dict[str, Any] = {"steps": 1_500, "batch_size": 128, "hidden": (64, 64), "learning_rate": 1e-3}
"""Seconds, for tests. Where there are target copies they must follow quickly: what is learned spreads one copy at a
time."""
LEGGED: dict[str, Any] = {
    "steps": 24_000,
    "batch_size": 256,
    "hidden": (256, 256, 256),
    "learning_rate": 1e-3,
    "standardise": True,
    "cut_jumps": True,
    "cut_rests": True,
}
"""For robots with joints: columns of very different scales, worlds that teleport, robots that wait. With
half the width QRL does not find the maze (docs/lab-notes.md)."""
MAP: dict[str, Any] = {**LEGGED, "target_rate": 0.02}
"""A geometry learned by temporal differences in minutes: its target copies must follow quickly."""
WALKING: dict[str, Any] = {**MAP, "hidden": (128, 128, 128), "policy_hidden": (256, 256, 256), "policy": Waypoints()}
"""With a waypoint policy. The geometry of a maze asks for narrower networks than walking does."""
LEGGED_DIRECTIONS = Directions(temperature=1.0, target_rate=0.02, norm=True, future_share=1.0)
"""Latent directions for legged robots, whose gait hides the direction (docs/results.md)."""
ARM_DIRECTIONS = Directions(
    extraction="cloning", target_rate=0.02, norm=True, future_share=1.0, future_steps=50, heads=5, decay=True
)
"""Latent directions for arms, where nothing separates position from pose: the mean of several cloned policies."""
