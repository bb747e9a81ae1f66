"""Reading an exported directory: nothing is believed before it has been checked, and nothing read can run.

    DIR/
      config.json           sizes and geometry                       (required)
      model.safetensors     weights                                  (required)
      planner.safetensors   states to plan over                      (with `iel export --nodes`)
      manifest.json         sha256 and size of every file            (checked where it is there)

A directory without a manifest (such as RUN/model) is read too; a file that the manifest lists differently is refused.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from iel.errors import RunError
from iel.loader import open_regular, read_json, read_safetensors
from iel.runtime.model import GoalRuntime, Pack, Parts, Runtime, RuntimeConfig
from iel.runtime.networks import perceptron, perceptrons

FORMAT = 1
"""Version of config.json that is read."""
MANIFEST_FORMAT = 1
LARGEST = 65536
"""Sizes above this are a damaged config.json, not a network."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "directed": (True, False),
    "squashed": (True, False),
    "policy_norm": (True, False),
    "conditioning": ("direction", "goal"),
    "value": ("none", "state", "action"),
}
PACK_TOLERANCE = 1e-3
"""Largest relative difference between embeddings made here and at export: above rounding, below another model."""


def load_runtime(directory: Path | str) -> Runtime:
    """Load an exported directory (or RUN/model) without JAX; whatever is wrong with it is said in a sentence."""
    directory = Path(directory)
    if not (directory / "config.json").exists():
        raise RunError(f"{directory} holds no model (no config.json); give a directory that `iel export` wrote.")
    names = ["config.json", "model.safetensors"]
    if (directory / "planner.safetensors").exists():
        names.append("planner.safetensors")
    if (directory / "manifest.json").exists():
        verify_manifest(directory, names)
    config = _config(read_json(directory / "config.json"), str(directory / "config.json"))
    source = directory / "model.safetensors"
    runtime = _build(config, read_safetensors(source), str(source))
    if len(names) > 2:
        runtime.pack = _pack(runtime, directory / "planner.safetensors")
    return runtime


# ---------------------------------------------------------------- the manifest


def file_facts(path: Path) -> dict[str, Any]:
    """{"sha256": ..., "size": ...} of a regular file."""
    with open_regular(path, RunError) as (file, size):
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": size}  # type: ignore[arg-type]


def verify_manifest(directory: Path, names: list[str] | None = None) -> None:
    """Refuse files that are not the ones the manifest lists: all of them, or those in `names`."""
    source = directory / "manifest.json"
    manifest = read_json(source)
    if manifest.get("format") != MANIFEST_FORMAT:
        raise RunError(
            f"{source} has manifest format {str(manifest.get('format'))[:40]}, but this version of iel reads format "
            f"{MANIFEST_FORMAT}; use the version that wrote it."
        )
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise RunError(f"{source} lists no files; it is damaged, export the run again.")
    for name in listed:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise RunError(
                f"{source} lists {name[:80]!r}, which is not the name of a file in its directory; do not use it."
            )
    for name in listed if names is None else names:
        if name not in listed:
            raise RunError(f"{directory / name} is not listed in manifest.json; it does not belong to this export.")
        if file_facts(directory / name) != listed[name]:
            raise RunError(f"{directory / name} is damaged (it differs from manifest.json); copy the export again.")


# ---------------------------------------------------------------- config and weights


def _config(settings: dict[str, Any], source: str) -> RuntimeConfig:
    """The checked content of config.json."""
    version = settings.pop("format", None)
    if version != FORMAT:
        raise RunError(
            f"{source} has model format {str(version)[:40]}, but this version of iel reads format {FORMAT}; "
            "use the version that wrote it."
        )
    known = {field.name: field.default for field in fields(RuntimeConfig)}
    missing = sorted(name for name, default in known.items() if default is MISSING and name not in settings)
    extra = sorted(settings.keys() - known.keys())
    if missing or extra:
        raise RunError(
            f"{source} lacks {', '.join(missing) or 'nothing'} and has unexpected {', '.join(extra)[:80] or 'nothing'}"
            "; it does not describe a model this version of iel runs."
        )
    for name, choices in CHOICES.items():
        if name in settings and not any(settings[name] is choice or settings[name] == choice for choice in choices):
            raise RunError(f"{source}: {name} is {str(settings[name])[:40]}; this version of iel runs {choices}.")
    _check_size(settings.get("heads", 1), "heads", source)
    for name in ("observation_size", "action_size", "dimension"):
        _check_size(settings[name], name, source)
    hidden = settings["hidden"]
    if not isinstance(hidden, list) or not 1 <= len(hidden) <= 64:
        raise RunError(f"{source}: hidden is not a list of 1 to 64 widths; it is damaged.")
    for width in hidden:
        _check_size(width, "hidden", source)
    if not isinstance(settings["algo"], str):
        raise RunError(f"{source}: algo is not a name; it is damaged.")
    beta, discount = _number(settings, "beta", source), _number(settings, "discount", source)
    if not 0.0 <= beta <= 100.0 or not 0.0 < discount < 1.0:
        raise RunError(f"{source}: beta is {beta} and discount {discount}; beta >= 0 and 0 < discount < 1 are needed.")
    config = RuntimeConfig(**{**settings, "hidden": tuple(hidden), "beta": beta, "discount": discount})
    if config.conditioning == "goal" and config.dimension != config.observation_size + 1:
        raise RunError(
            f"{source}: dimension is {config.dimension}, but a goal's is observation_size + 1; it is damaged."
        )
    if not config.directed and beta != 0.0:
        raise RunError(f"{source}: beta is {beta}, but without goal directions it must be 0; it is damaged.")
    return config


def _check_size(value: Any, name: str, source: str) -> None:
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise RunError(f"{source}: {name} is {str(value)[:40]}; a whole number from 1 to {LARGEST} is needed.")


def _number(settings: dict[str, Any], name: str, source: str) -> float:
    value = settings[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise RunError(f"{source}: {name} is {str(value)[:40]}; a finite number is needed.")
    return float(value)


def _build(config: RuntimeConfig, arrays: dict[str, np.ndarray], source: str) -> Runtime:
    """The networks that the configuration describes; every tensor must belong to one of them."""
    inputs, hidden, dimension, actions = config.observation_size, config.hidden, config.dimension, config.action_size
    if config.conditioning == "direction":
        embedding = perceptron(arrays, "embedding", (inputs, *hidden, dimension), True, source)
        task = perceptron(arrays, "task", (inputs, *hidden, dimension), True, source) if config.directed else None
        policy = perceptron(arrays, "policy.mean", (inputs + dimension, *hidden, actions), config.policy_norm, source)
        parts = Parts(policy, embedding, task)
    else:
        name, outputs = ("policy.network", 2 * actions) if config.squashed else ("policy.mean", actions)
        policy = perceptron(arrays, name, (2 * inputs, *hidden, outputs), False, source)
        sizes = (2 * inputs + (actions if config.value == "action" else 0), *hidden, 1)
        parts = Parts(
            policy, value=perceptrons(arrays, "value", config.heads, sizes, source) if config.value != "none" else ()
        )
    extra = sorted(arrays.keys() - {"policy.log_std"})
    if extra:
        raise RunError(
            f"{source} has the unexpected tensor {extra[0][:80]}; weights and config.json do not belong together."
        )
    return (Runtime if config.conditioning == "direction" else GoalRuntime)(config, parts)


def _pack(runtime: Runtime, source: Path) -> Pack:
    """The states to plan over; their embeddings must be the ones this model gives them."""
    arrays = read_safetensors(source)
    if arrays.keys() != {"observations", "embeddings"}:
        raise RunError(f"{source} does not hold observations and embeddings; export the run again.")
    observations, embeddings = arrays["observations"], arrays["embeddings"]
    shapes = (len(observations), runtime.config.observation_size), (len(observations), runtime.config.dimension)
    if (observations.shape, embeddings.shape) != shapes or len(observations) == 0:
        raise RunError(
            f"{source} holds observations {list(observations.shape)} and embeddings {list(embeddings.shape)}, which do "
            "not fit this model; export the run again."
        )
    if observations.dtype != np.float32 or embeddings.dtype != np.float32:
        raise RunError(f"{source} does not hold float32 numbers; export the run again.")
    if not (np.isfinite(observations).all() and np.isfinite(embeddings).all()):
        raise RunError(f"{source} holds a number that is not finite; export the run again.")
    scale = max(1.0, float(np.abs(embeddings).max()))
    if np.abs(runtime.embed(observations) - embeddings).max() > PACK_TOLERANCE * scale:
        raise RunError(f"{source} belongs to another model (its embeddings differ from this model's); export again.")
    return Pack(observations, embeddings)
