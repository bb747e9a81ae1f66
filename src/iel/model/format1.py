"""Model files of format 1, which described methods by flags, turned into format 2, which describes networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from iel.errors import RunError

Arrays = dict[str, np.ndarray]
FLAGS = {
    "directed": True,
    "conditioning": "direction",
    "value": "none",
    "heads": 2,
    "squashed": False,
    "policy_norm": False,
}
NEEDED = {"algo", "observation_size", "action_size", "dimension", "hidden", "beta", "discount"}
SIZES = ("observation_size", "action_size", "dimension", "heads")


def as_format_2(settings: dict[str, Any], arrays: Arrays, source: str) -> tuple[dict[str, Any], Arrays]:
    """(config, tensors) in format 2, which is then checked like any other."""
    missing, extra = sorted(NEEDED - settings.keys()), sorted(settings.keys() - NEEDED - FLAGS.keys())
    if missing or extra:
        raise RunError(
            f"{source} lacks {', '.join(missing) or 'nothing'} and has unexpected {', '.join(extra)[:80] or 'nothing'}"
            "; it does not describe a model this version of iel runs."
        )
    old = {**FLAGS, **settings}
    hidden = old["hidden"]
    if not isinstance(hidden, list) or any(type(value) is not int for value in (*hidden, *(old[n] for n in SIZES))):
        raise RunError(f"{source}: hidden, dimension and the other sizes must be whole numbers; it is damaged.")
    known = {"conditioning": ("direction", "goal"), "value": ("none", "state", "action")}
    for name, choices in known.items():
        if old[name] not in choices:
            raise RunError(f"{source}: {name} is {str(old[name])[:40]}; format 1 knows {choices}.")
    toward = old["conditioning"] == "direction"
    networks = _direction_networks(old, hidden) if toward else _goal_networks(old, hidden)
    # The Polyak-free copy of a policy's log spread was stored also where it was never trained.
    learned = {name: array for name, array in arrays.items() if toward or name != "policy.log_std"}
    config = {
        "algo": old["algo"],
        "observation_size": old["observation_size"],
        "action_size": old["action_size"],
        "steering": {"kind": "direction" if toward else "goal"},
        "networks": networks,
        "discount": old["discount"],
        **({"beta": old["beta"]} if toward else {}),
    }
    return config, {_renamed(name): array for name, array in _one_head(learned, old).items()}


def _direction_networks(old: dict[str, Any], hidden: list[int]) -> dict[str, Any]:
    size, dimension = old["observation_size"], old["dimension"]
    embedding = {"inputs": ["observation"], "sizes": [size, *hidden, dimension], "norm": True}
    policy = {
        "inputs": ["observation", "command"],
        "sizes": [size + dimension, *hidden, old["action_size"]],
        "norm": old["policy_norm"],
        "spread": True,
    }
    return {"embedding": embedding, **({"omega": embedding} if old["directed"] else {}), "policy": policy}


def _goal_networks(old: dict[str, Any], hidden: list[int]) -> dict[str, Any]:
    size, actions, value = old["observation_size"], old["action_size"], old["value"]
    outputs = 2 * actions if old["squashed"] else actions
    policy = {"inputs": ["observation", "command"], "sizes": [2 * size, *hidden, outputs], "norm": False}
    networks: dict[str, Any] = {"policy": {**policy, "squash": old["squashed"]}}
    if value != "none":
        inputs = ["observation", "goal", *(["action"] if value == "action" else [])]
        first = 2 * size + (actions if value == "action" else 0)
        networks["value"] = {"inputs": inputs, "sizes": [first, *hidden, 1], "norm": True, "heads": old["heads"]}
    return networks


def _one_head(arrays: Arrays, old: dict[str, Any]) -> Arrays:
    """Format 1 gave a single head a leading axis too."""
    if old["heads"] != 1:
        return arrays
    return {
        name: array[0] if name.startswith("value.") and array.ndim and len(array) == 1 else array
        for name, array in arrays.items()
    }


def _renamed(name: str) -> str:
    for before, now in (("task.", "omega."), ("policy.mean.", "policy."), ("policy.network.", "policy.")):
        if name.startswith(before):
            return now + name.removeprefix(before)
    return name
