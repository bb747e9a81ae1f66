"""Models as directories: every number is checked before it is used, and nothing that is read can run code.

    DIR/
      config.json           sizes, networks, conditioning (`iel.model.description`)       (required)
      model.safetensors     weights                                                  (required)
      planner.safetensors   states to plan over                                      (with `iel export --nodes`)
      support.safetensors   where the training data was
      manifest.json         sha256 and size of every file

Of a directory with a manifest, a file that is missing, changed or unlisted is refused by its name.

Tensors are called `NETWORK.layers.0.kernel`, `NETWORK.norms.0.scale`, `policy.log_std`; those of several heads have a
leading axis. The landmarks of a support function are `metric.directions`.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from iel.distances import Displacement, Quasimetric, SupportFunction
from iel.errors import RunError
from iel.files import MANIFEST, seal, verify_seal, write_bytes, write_json
from iel.loader import refuse_partial
from iel.model.archive import MANIFEST_FORMAT, unpacked
from iel.model.costs import Measure
from iel.model.description import (
    FORMAT,
    ModelTable,
    NetworkTable,
    QuasimetricTable,
    SupportFunctionTable,
    read_description,
)
from iel.model.model import Model
from iel.model.networks import FloatArray, Network, perceptron
from iel.model.support import Outside, Support, View
from iel.model.tensors import Tensors
from iel.signals import UNNAMED

# ---------------------------------------------------------------- writing


def save_model(model: Model, directory: Path | str, versions: Mapping[str, str] = {}) -> None:
    """Write a model's files and their manifest to a new directory."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_model(model, directory)
    seal(directory, MANIFEST_FORMAT, versions)


def write_model(model: Model, directory: Path) -> None:
    """Write `config.json`, `model.safetensors` and, if the model has a support, `support.safetensors`; the caller seals
    them with the other files of the directory."""
    arrays = {f"{name}.{part}": array for name, own in model.networks.items() for part, array in own.arrays().items()}
    if isinstance(model.metric, SupportFunction):
        arrays["metric.directions"] = model.metric.directions
    content = save({name: np.require(array, np.float32, "C") for name, array in arrays.items()})
    write_bytes(directory / "model.safetensors", content)
    if model.support is not None:
        write_bytes(directory / "support.safetensors", save(_support_arrays(model.support)))
    config = {
        "format": FORMAT,
        "sealed": True,
        "algo": model.algo,
        "observation_size": model.observation_size,
        "action_size": model.action_size,
        **_metric_facts(model),
        "conditioning": msgspec.to_builtins(model.conditioning),
        "networks": {name: network.describe() for name, network in model.networks.items()},
    }
    if model.signals != UNNAMED:
        config["signals"] = msgspec.to_builtins(model.signals)
    write_json(directory / "config.json", config)


def _metric_facts(model: Model) -> dict[str, Any]:
    """`beta`, `discount` and `metric`, as far as a model has them."""
    metric, stated = model.metric, model.stated_metric
    facts: dict[str, Any] = {"beta": metric.beta} if isinstance(metric, Displacement) else {}
    if metric is not None and metric.discount is not None:
        facts["discount"] = metric.discount
    if isinstance(stated, SupportFunction):
        facts["metric"] = SupportFunctionTable(len(stated.directions))
    elif isinstance(stated, Quasimetric):
        facts["metric"] = QuasimetricTable(stated.head, stated.groups, stated.mix, stated.scale)
    elif stated is not None:
        facts["metric"] = stated
    return msgspec.to_builtins(facts)


def _support_arrays(support: Support) -> dict[str, np.ndarray]:
    """mean, standard deviation, and of every view its columns, states and limit."""
    arrays = {"mean": support.mean, "std": support.std}
    for view in support.views:
        arrays[f"{view.name}.columns"] = np.asarray(view.columns, np.int64)
        arrays[f"{view.name}.states"] = view.states
        arrays[f"{view.name}.limit"] = np.array([view.limit], np.float32)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


# ---------------------------------------------------------------- reading


def load_model(path: Path | str, outside: Outside = "warn") -> Model:
    """The model in RUN/model, an exported directory or a zip archive of one.

    `outside` is what its planners do about goals and observations far outside of the training data: warn, refuse or
    ignore. Raises `RunError` where a file is missing, damaged or does not fit the others.
    """
    refuse_partial(Path(path))
    with unpacked(Path(path)) as directory:
        model = read_model(directory)
    model.outside = outside
    return model


def read_model(directory: Path) -> Model:
    """Like `load_model`, but the directory may be unfinished."""
    if not (directory / "config.json").exists():
        raise RunError(f"{directory} holds no model (no config.json); train first, or check the path.")
    there = {path.name for path in directory.iterdir()}
    if MANIFEST in there:
        listed = verify_seal(directory, MANIFEST_FORMAT)["files"]
        if extra := [name for name in there - listed.keys() - {MANIFEST} if not name.startswith(".")]:
            raise RunError(f"{directory / min(extra)} is not listed in {MANIFEST}; move it elsewhere.")
    description = read_description(directory / "config.json")
    if MANIFEST not in there and description.sealed:
        raise RunError(f"{directory / MANIFEST} is missing, so nothing says what is whole; copy the directory again.")
    tensors = Tensors(directory / "model.safetensors")
    model = Model(
        description.algo,
        description.observation_size,
        description.action_size,
        {name: _network(name, network, tensors) for name, network in description.networks.named().items()},
        description.conditioning,
        beta=description.beta,
        discount=description.discount,
        metric=_metric(description, tensors),
        signals=description.signals,
    )
    tensors.require_all_taken()
    if "support.safetensors" in there:
        model.support = _support(model.observation_size, directory / "support.safetensors")
    if "planner.safetensors" in there:
        from iel.model.atlas import Atlas  # needs iel.data, which acting does not

        model.atlas = Atlas.load(model, directory / "planner.safetensors")
    return model


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
    log_std = tensors.take(f"{name}.log_std", facts.outputs) if facts.stochastic else None
    return Network(facts.inputs, made, facts.squash, log_std, facts.logit)


def _metric(model: ModelTable, tensors: Tensors) -> Quasimetric | SupportFunction | Measure | None:
    """A metric that is described; None where the networks imply it."""
    match model.metric:
        case QuasimetricTable(head, groups, mix, scale):
            return Quasimetric(head, groups, mix, scale, model.discount)
        case Measure() as measure:
            return measure
        case SupportFunctionTable(landmarks):
            assert model.networks.embedding is not None  # as its rules say
            return SupportFunction(tensors.take("metric.directions", landmarks, model.networks.embedding.outputs))
    return None


def _support(size: int, source: Path) -> Support:
    """Where the training data was, every number of it checked."""
    tensors = Tensors(source)
    names = sorted({name.partition(".")[0] for name in tensors.arrays} - {"mean", "std"})
    mean, std = tensors.take("mean", size), tensors.take("std", size)
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
    if not views or not (std > 0).all():
        raise RunError(f"{source}: it lacks a view of the data, or a deviation is not positive; export again.")
    return Support(mean, std, tuple(views))
