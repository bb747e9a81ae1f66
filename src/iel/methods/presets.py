"""Settings: those that presets of several methods share, and how files and commands write them.

paper              the published settings, which are the defaults of a method
laptop             minutes on two cores, for points
laptop-robot       the same for robots with joints
laptop-robot-even  the same with what IEL's and HILP's policies had alone: LayerNorm, a step size that falls, one target
                   rate, a low temperature of AWR; geometries see columns as they are, policies standardised ones
laptop-arm         the same for arms, where nothing separates position from pose
smoke              seconds, for tests
"""

import dataclasses
import json
from typing import Any

from iel.learner import Method, Policy, Settings, refuse_unknown
from iel.policies import Directions, Waypoints, get_policy

LAPTOP: Settings = {"steps": 21_000, "batch_size": 256, "hidden": (128, 128, 128)}
"""Minutes on two cores, for points."""
SMOKE: Settings = {"steps": 1_500, "batch_size": 128, "hidden": (64, 64), "learning_rate": 1e-3}
"""Seconds, for tests. Target copies must follow quickly: what is learned propagates one copy at a time."""
LEGGED: Settings = {
    "steps": 24_000,
    "batch_size": 256,
    "hidden": (256, 256, 256),
    "learning_rate": 1e-3,
    "standardise": "all",
    "cut_jumps": True,
    "cut_rests": True,
}
"""For robots with joints: columns of very different scales, worlds that teleport, robots that wait. With
half the width QRL does not find the maze (docs/lab-notes.md)."""
MAP: Settings = {**LEGGED, "target_rate": 0.02}
"""A geometry learned by temporal differences in minutes: its target copies must follow quickly."""
OWN_POLICY: Settings = {"policy_norm": True, "policy_decay": True}
EVEN: Settings = {**LEGGED, **OWN_POLICY, "standardise": "policy"}
"""For comparisons of geometries: every own policy has the same ingredients, every geometry columns as published."""
EVEN_MAP: Settings = {**MAP, **OWN_POLICY, "standardise": "policy"}
"""The same with target copies."""
WALKING: Settings = {**MAP, "hidden": (128, 128, 128), "policy_hidden": (256, 256, 256), "policy": Waypoints()}
"""With a waypoint policy. The geometry of a maze needs narrower networks than walking does."""
LEGGED_DIRECTIONS = Directions(temperature=1.0, target_rate=0.02, norm=True, future_share=1.0)
"""Latent directions for legged robots, whose gait hides the direction (docs/results.md)."""
ARM_DIRECTIONS = Directions(
    extraction="cloning", target_rate=0.02, norm=True, future_share=1.0, future_steps=50, heads=5, decay=True
)
"""Latent directions for arms, where nothing separates position from pose: the mean of several cloned policies."""


def config_dict(algo: Method) -> dict[str, Any]:
    """A method's settings as JSON-safe values; a policy is described by its `kind` and settings."""
    settings = dataclasses.asdict(algo)
    if algo.policy is not None:
        settings["policy"] = {"kind": algo.policy.kind, **settings["policy"]}
    return json.loads(json.dumps(settings))


def config_from_dict(cls: type[Method], settings: Settings) -> Method:
    """The inverse of `config_dict`; a `preset` may be named, a policy by its kind alone. Unknown names are refused."""
    values = _with_tuples(settings)
    if values.get("policy") is not None:
        values["policy"] = policy_from(values["policy"])
    return cls.preset(values.pop("preset", "paper"), **values)


def policy_from(given: str | Settings) -> Policy | None:
    """A policy from its kind (`own` is the method's own: None), or from its `kind` and settings."""
    settings = _with_tuples({"kind": given} if isinstance(given, str) else given)
    name = str(settings.pop("kind", None))
    if name == "own" and not settings:
        return None
    kind = get_policy(name)
    refuse_unknown(kind, settings, f"setting of the policy {kind.kind}")
    return kind(**settings)


def _with_tuples(settings: Settings) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
