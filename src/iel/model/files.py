"""Models as directories: nothing is believed before it has been checked, and nothing read can run.

    DIR/
      config.json           sizes, networks, steering (`iel.model.description`)       (required)
      model.safetensors     weights                                                  (required)
      planner.safetensors   states to plan over                                      (with `iel export --nodes`)
      support.safetensors   where the training data was                              (models since 0.2)
      manifest.json         sha256 and size of every file                            (checked where it is there)

Tensors are called `NETWORK.layers.0.kernel`, `NETWORK.norms.0.scale`, `policy.log_std`; those of several heads have a
leading axis. The landmarks of a support function are `metric.directions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from safetensors.numpy import save

from iel.errors import RunError
from iel.files import MANIFEST, refuse_partial, verify_seal, write_bytes, write_json
from iel.loader import read_safetensors
from iel.metrics import Displacement, Quasimetric, SupportFunction
from iel.model.costs import Measure, ValueCost
from iel.model.description import (
    FORMAT,
    MeasureTable,
    ModelTable,
    NetworkTable,
    QuasimetricTable,
    SupportFunctionTable,
    ToDirection,
    ToGoal,
    ToSubgoal,
    ToWaypoint,
    read_description,
)
from iel.model.model import Direction, GoalState, Model, Pack, Subgoal, Waypoint
from iel.model.networks import FloatArray, Network, perceptron
from iel.model.support import Outside, Support, View

MANIFEST_FORMAT = 1
PARTS = ("planner.safetensors", "support.safetensors")
"""Files that a model may have or not."""
STEERINGS: dict[type, type[Any]] = {
    ToDirection: Direction,
    ToWaypoint: Waypoint,
    ToGoal: GoalState,
    ToSubgoal: Subgoal,
}
PASSAGES = ("codes", "steps")
PORTALS = ("aims", "source", "entered", "left", "exits", "shares")
"""Fields of `iel.planning.chance.Portals`; in files they are called `portals.aims` and so on."""


# ---------------------------------------------------------------- writing


def save_model(model: Model, directory: Path | str) -> None:
    """Write `config.json`, `model.safetensors` and, if the model knows where its data was, `support.safetensors`."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {f"{name}.{part}": array for name, own in model.networks.items() for part, array in own.arrays().items()}
    if isinstance(model.metric, SupportFunction):
        arrays["metric.directions"] = model.metric.directions
    content = save({name: np.require(array, np.float32, "C") for name, array in arrays.items()})
    write_bytes(directory / "model.safetensors", content)
    if model.support is not None:
        write_bytes(directory / "support.safetensors", save(_support_arrays(model.support)))
    config = {
        "format": FORMAT,
        "algo": model.algo,
        "observation_size": model.observation_size,
        "action_size": model.action_size,
        **_metric_facts(model),
        "steering": {"kind": model.steering.kind, **asdict(model.steering)},  # type: ignore[call-overload]
        "networks": {name: network.describe() for name, network in model.networks.items()},
    }
    write_json(directory / "config.json", config)


def _metric_facts(model: Model) -> dict[str, Any]:
    """`beta`, `discount` and `metric`, as far as a model has them."""
    facts: dict[str, Any] = {}
    if isinstance(model.metric, Displacement):
        facts["beta"] = model.metric.beta
    if isinstance(model.metric, Displacement | ValueCost | Quasimetric | SupportFunction):
        facts["discount"] = model.metric.discount
    if isinstance(stated := model.stated_metric, Quasimetric):
        facts["metric"] = {"kind": stated.kind, **asdict(stated)}
        del facts["metric"]["discount"]
    elif isinstance(stated, Measure):
        facts["metric"] = {"kind": stated.kind, **asdict(stated)}
    elif isinstance(stated, SupportFunction):
        facts["metric"] = {"kind": stated.kind, "landmarks": len(stated.directions)}
    return {name: value for name, value in facts.items() if value is not None}


def _support_arrays(support: Support) -> dict[str, np.ndarray]:
    """mean, spread, and of every view its columns, states and limit."""
    arrays = {"mean": support.mean, "spread": support.spread}
    for view in support.views:
        arrays[f"{view.name}.columns"] = np.asarray(view.columns, np.int64)
        arrays[f"{view.name}.states"] = view.states
        arrays[f"{view.name}.limit"] = np.array([view.limit], np.float32)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


# ---------------------------------------------------------------- reading


def load_model(directory: Path | str, outside: Outside = "warn") -> Model:
    """Load RUN/model or an exported directory; whatever is wrong with it is said in a sentence.

    `outside` is what its planners do about goals and observations far outside of the training data.
    """
    directory = Path(directory)
    refuse_partial(directory)
    model = read_model(directory)
    model.outside = outside
    return model


def read_model(directory: Path) -> Model:
    """Like `load_model`, but the directory may be unfinished."""
    if not (directory / "config.json").exists():
        raise RunError(f"{directory} holds no model (no config.json); train first, or check the path.")
    parts = [name for name in PARTS if (directory / name).exists()]
    if (directory / MANIFEST).exists():
        manifest = verify_seal(directory, MANIFEST_FORMAT, ["config.json", "model.safetensors", *parts])
        for name in PARTS:
            if name in manifest["files"] and name not in parts:
                raise RunError(f"{directory / name} does not exist, but {MANIFEST} lists it; copy the directory again.")
    description = read_description(directory / "config.json")
    tensors = Tensors(directory / "model.safetensors")
    model = Model(
        description.algo,
        description.observation_size,
        description.action_size,
        {name: _network(name, network, tensors) for name, network in description.networks.named().items()},
        STEERINGS[type(description.steering)](**structs.asdict(description.steering)),
        beta=description.beta,
        discount=description.discount,
        metric=_metric(description, tensors),
    )
    tensors.require_all_taken()
    if "support.safetensors" in parts:
        model.support = _support(model.observation_size, directory / "support.safetensors")
    if "planner.safetensors" in parts:
        model.pack = _pack(model, directory / "planner.safetensors")
    return model


class Tensors:
    """The tensors of a file, taken out one by one: each must have the shape that is expected, and none may be left."""

    def __init__(self, source: Path):
        self.source, self.arrays = source, read_safetensors(source, finite=True)

    def take(self, name: str, *shape: int | None, dtype: type = np.float32) -> NDArray[Any]:
        """One tensor; None stands for any length but 0."""
        array = self.arrays.pop(name, None)
        if array is None:
            raise RunError(f"{self.source} lacks the tensor {name}; its files do not belong together, copy them again.")
        fits = len(array.shape) == len(shape) and all(
            has == wanted if wanted is not None else has > 0 for has, wanted in zip(array.shape, shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            expected = ", ".join("n" if length is None else str(length) for length in shape)
            raise RunError(
                f"{self.source}: {name} is {array.dtype}{list(array.shape)}, but {dtype.__name__}[{expected}] is "
                "expected; its files do not belong together, copy them again."
            )
        return np.ascontiguousarray(array)

    def require_all_taken(self) -> None:
        if self.arrays:
            raise RunError(
                f"{self.source} has the unexpected tensor {min(self.arrays)[:80]}; its files do not belong together, "
                "copy them again."
            )


def _network(name: str, facts: NetworkTable, tensors: Tensors) -> Network:
    several = (facts.heads,) if facts.heads > 1 else ()
    parts: dict[str, FloatArray] = {}
    for index, (width, following) in enumerate(pairwise(facts.sizes)):
        shapes = {f"layers.{index}.kernel": (width, following), f"layers.{index}.bias": (following,)}
        if facts.norm and index < len(facts.sizes) - 2:
            shapes |= {f"norms.{index}.scale": (following,), f"norms.{index}.offset": (following,)}
        parts |= {part: tensors.take(f"{name}.{part}", *several, *shape) for part, shape in shapes.items()}
    heads = [{part: array[head] if several else array for part, array in parts.items()} for head in range(facts.heads)]
    made = tuple(perceptron(head, len(facts.sizes) - 1, facts.norm, facts.gelu) for head in heads)
    log_std = tensors.take(f"{name}.log_std", facts.outputs) if facts.spread else None
    return Network(facts.inputs, made, facts.squash, log_std, facts.logit)


def _metric(model: ModelTable, tensors: Tensors) -> Quasimetric | SupportFunction | Measure | None:
    """A metric that is described; None where the networks imply it."""
    match model.metric:
        case QuasimetricTable(head, groups, mix, scale):
            return Quasimetric(head, groups, mix, scale, model.discount)
        case MeasureTable(decay):
            return Measure(decay)
        case SupportFunctionTable(landmarks):
            assert model.networks.embedding is not None  # as its rules say
            return SupportFunction(tensors.take("metric.directions", landmarks, model.networks.embedding.outputs))
    return None


def _support(size: int, source: Path) -> Support:
    """Where the training data was, every number of it checked."""
    tensors = Tensors(source)
    names = sorted({name.partition(".")[0] for name in tensors.arrays} - {"mean", "spread"})
    mean, spread = tensors.take("mean", size), tensors.take("spread", size)
    views = []
    for name in names:
        columns = tensors.take(f"{name}.columns", None, dtype=np.int64)
        states = tensors.take(f"{name}.states", None, len(columns))
        (limit,) = tensors.take(f"{name}.limit", 1)
        within = bool((columns >= 0).all() and (columns < size).all()) and len(set(columns.tolist())) == len(columns)
        if not within or not 0 < limit < 1e9:
            raise RunError(f"{source}: {name[:40]} does not fit this model; export or train again.")
        views.append(View(name, columns, states, float(limit)))
    tensors.require_all_taken()
    if not views or not (spread > 0).all():
        raise RunError(f"{source}: there is no view of the data, or a spread is not positive; export or train again.")
    return Support(mean, spread, tuple(views))


# ---------------------------------------------------------------- states to plan over


def _pack(model: Model, source: Path) -> Pack:
    """The states to plan over."""
    arrays = read_safetensors(source)
    named = {f"portals.{name}": name for name in PORTALS}
    known = {"observations", "embeddings", *PASSAGES, "witnesses", "lookahead", "node_scale", *named}
    if "observations" not in arrays or not arrays.keys() <= known:
        raise RunError(f"{source} does not hold observations; export the run again.")
    observations = arrays["observations"]
    if observations.ndim != 2 or observations.shape[1] != model.observation_size or len(observations) == 0:
        raise RunError(f"{source} holds observations {list(observations.shape)}, which do not fit this model.")
    if observations.dtype != np.float32:
        raise RunError(f"{source} does not hold float32 numbers; export the run again.")
    if not np.isfinite(observations).all():
        raise RunError(f"{source} holds a number that is not finite; export the run again.")
    if "embeddings" in arrays:
        _same_model(model, observations, arrays["embeddings"], source)
    passages, factor = _passages(arrays, len(observations), source) if "witnesses" in arrays else (None, None)
    found = {name: arrays[stored] for stored, name in named.items() if stored in arrays}
    portals = _portals(found, observations.shape, source) if found else None
    ahead = arrays.get("lookahead", np.zeros(2))
    if ahead.shape != (2,) or not ((ahead >= 0.0) & (ahead < np.inf)).all():
        raise RunError(f"{source} does not say how far ahead to head; export the run again.")
    lookahead = (float(ahead[0]), float(ahead[1])) if "lookahead" in arrays else None
    scale = arrays.get("node_scale")
    if scale is not None and (scale.shape != model.embed(observations[:1]).shape[1:] or not (scale > 0.0).all()):
        raise RunError(f"{source} does not say how far apart its states are; export the run again.")
    return Pack(observations, passages, factor, portals, lookahead, scale)


def _passages(arrays: Mapping[str, np.ndarray], nodes: int, source: Path) -> tuple[dict[str, np.ndarray], float]:
    """Who was seen to pass between which nodes, and how much dearer all other edges are."""
    numbers = [arrays.get(name, np.zeros(0)) for name in PASSAGES]
    factor, whole = arrays["witnesses"], all(part.dtype.kind in "iu" and part.ndim == 1 for part in numbers)
    codes, steps = (part.astype(np.int64) for part in numbers)
    sound = whole and len(codes) == len(steps) and factor.shape == (1,) and factor[0] >= 1.0
    if not (sound and ((codes >= 0) & (codes < nodes**2)).all() and (np.diff(codes) > 0).all() and (steps > 0).all()):
        raise RunError(f"{source} holds passages that do not fit its states; export the run again.")
    return {"codes": codes, "steps": steps}, float(factor[0])


def _portals(portals: dict[str, np.ndarray], states: tuple[int, ...], source: Path) -> dict[str, np.ndarray]:
    """Places that throw the agent somewhere else: where to head for, from which nodes, and where they lead."""
    error = RunError(f"{source} holds portals that do not fit its states; export the run again.")
    if portals.keys() != set(PORTALS) or portals["aims"].ndim != 2 or portals["aims"].shape[1] != states[1]:
        raise error
    limits = {"source": states[0], "entered": len(portals["aims"]), "left": len(portals["aims"]), "exits": states[0]}
    for name, limit in limits.items():
        numbers = portals[name]
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not ((numbers >= 0) & (numbers < limit)).all():
            raise error
    lengths = {len(portals["source"]) - len(portals["entered"]), len(portals["left"]) - len(portals["exits"])}
    shares = portals["shares"]
    if lengths != {0} or shares.shape != portals["left"].shape or shares.dtype.kind != "f":
        raise error
    total = np.bincount(portals["left"], shares, limits["left"])
    if not ((shares > 0).all() and np.allclose(total, 1.0, atol=1e-4) and np.isfinite(portals["aims"]).all()):
        raise error
    return {name: numbers.astype(np.int64) if name in limits else numbers for name, numbers in portals.items()}


PACK_TOLERANCE = 1e-3
"""Largest relative difference between embeddings made here and at export: above rounding, below another model."""


def _same_model(model: Model, observations: FloatArray, embeddings: np.ndarray, source: Path) -> None:
    """Embeddings that were stored with the states must be the ones this model gives them."""
    own = model.embed(observations)
    if embeddings.shape != own.shape or embeddings.dtype != np.float32 or not np.isfinite(embeddings).all():
        raise RunError(f"{source} holds embeddings {list(embeddings.shape)} that do not fit this model; export again.")
    if np.abs(own - embeddings).max() > PACK_TOLERANCE * max(1.0, float(np.abs(embeddings).max())):
        raise RunError(f"{source} belongs to another model (its embeddings differ from this model's); export again.")
