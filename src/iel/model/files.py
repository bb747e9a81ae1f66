"""Models as directories: nothing is believed before it has been checked, and nothing read can run.

    DIR/
      config.json           sizes, networks, steering                (required)
      model.safetensors     weights                                  (required)
      planner.safetensors   states to plan over                      (with `iel export --nodes`)
      support.safetensors   where the training data was              (models since 0.2)
      manifest.json         sha256 and size of every file            (checked where it is there)

config.json (format 2) describes every network, so that reading it needs to know no method:

    {"format": 2, "algo": "iel", "observation_size": 2, "action_size": 2, "beta": 0.1, "discount": 0.99,
     "steering": {"kind": "direction"},
     "networks": {"embedding": {"inputs": ["observation"], "sizes": [2, 128, 128, 32], "norm": true}, ...}}

A metric that the networks do not imply is described by `"metric": {"kind": "quasimetric", "head": "iqe", ...}` or
`{"kind": "measure", "decay": 0.98}`, or `{"kind": "support", "landmarks": 256}` with a tensor `metric.directions`.
Tensors are called `NETWORK.layers.0.kernel`, `NETWORK.norms.0.scale`, `policy.log_std`; those of several heads have a
leading axis. Files of format 1 are read too (`format1`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from iel.distances import GROUP
from iel.errors import ConfigError, RunError
from iel.files import refuse_partial, verify_seal, write_bytes, write_json
from iel.loader import read_json, read_safetensors
from iel.metrics import Quasimetric, SupportFunction
from iel.model.costs import Measure
from iel.model.format1 import as_format_2
from iel.model.model import Direction, GoalState, Model, Steering, Subgoal, Waypoint
from iel.model.networks import FloatArray, Network, perceptron
from iel.model.support import Outside, Support, View
from iel.quasimetrics import check_groups

FORMAT = 2
MANIFEST_FORMAT = 1
LARGEST = 65536
"""Sizes above this are a damaged config.json, not a network."""
STEERINGS: dict[str, type[Any]] = {kind.kind: kind for kind in (Direction, Waypoint, GoalState, Subgoal)}
NETWORKS = ("embedding", "omega", "representation", "value", "goal_features", "actor", "policy", "high", "forward")
INPUTS = ("observation", "blind", "goal", "command", "action", "representation")
REQUIRED = {"algo", "observation_size", "action_size", "steering", "networks"}
UNITS = ("beta", "discount", "residual")
OPTIONAL = {*UNITS, "metric"}


def save_model(model: Model, directory: Path | str) -> None:
    """Write `config.json`, `model.safetensors` and, if the model knows where its data was, `support.safetensors`."""
    from safetensors.numpy import save  # reading needs no package, writing does

    if model.driven:
        raise ConfigError("A model that another's policy drives has no file of its own; save the two it is made of.")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {f"{name}.{part}": array for name, own in model.networks.items() for part, array in own.arrays().items()}
    if isinstance(model.metric, SupportFunction):
        arrays["metric.directions"] = model.metric.directions
    content = save({name: np.require(array, np.float32, "C") for name, array in arrays.items()})
    write_bytes(directory / "model.safetensors", content)
    if model.support is not None:
        write_bytes(directory / "support.safetensors", save(_support_arrays(model.support)))
    steering = {"kind": model.steering.kind, **asdict(model.steering)}  # type: ignore[call-overload]
    metric: dict[str, Any] = {name: value for name in UNITS if (value := getattr(model.metric, name, None)) is not None}
    if (stated := model.stated_metric) is not None:
        facts: dict[str, Any] = {name: value for name, value in asdict(stated).items() if name not in UNITS}
        if isinstance(stated, SupportFunction):
            facts = {"landmarks": len(stated.directions)}
        metric["metric"] = {"kind": stated.kind, **facts}
    config = {
        "format": FORMAT,
        "algo": model.algo,
        "observation_size": model.observation_size,
        "action_size": model.action_size,
        **metric,
        "steering": steering,
        "networks": {name: network.describe() for name, network in model.networks.items()},
    }
    write_json(directory / "config.json", config)


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
    """The same of a directory that may still be in the making."""
    if not (directory / "config.json").exists():
        raise RunError(f"{directory} holds no model (no config.json); train first, or check the path.")
    names = ["config.json", "model.safetensors"]
    names += [f"{part}.safetensors" for part in ("planner", "support") if (directory / f"{part}.safetensors").exists()]
    if (directory / "manifest.json").exists():
        verify_seal(directory, MANIFEST_FORMAT, names, own_digest=False)
    model = _model(directory / "config.json", directory / "model.safetensors")
    if "support.safetensors" in names:
        model.support = _support(model, directory / "support.safetensors")
    if "planner.safetensors" in names:
        from iel.model.atlas import Atlas  # needs iel.data, which acting does not

        model.atlas = Atlas.load(model, directory / "planner.safetensors")
    return model


# ---------------------------------------------------------------- config and weights


def _model(config: Path, weights: Path) -> Model:
    settings = read_json(config)
    version = settings.pop("format", None)
    if version not in (1, FORMAT) or isinstance(version, bool):
        raise RunError(
            f"{config} has model format {str(version)[:40]}, but this version of iel reads formats 1 and {FORMAT}; "
            "use the version that wrote it."
        )
    arrays = read_safetensors(weights)
    if version == 1:
        settings, arrays = as_format_2(settings, arrays, str(config))
    missing, extra = sorted(REQUIRED - settings.keys()), sorted(settings.keys() - REQUIRED - OPTIONAL)
    if missing or extra:
        raise RunError(
            f"{config} lacks {', '.join(missing) or 'nothing'} and has unexpected {', '.join(extra)[:80] or 'nothing'}"
            "; it does not describe a model this version of iel runs."
        )
    if not isinstance(settings["algo"], str):
        raise RunError(f"{config}: algo is not a name; it is damaged.")
    size, actions = (_size(settings[name], name, config) for name in ("observation_size", "action_size"))
    beta = _number(settings.get("beta"), "beta", config, 0.0, 100.0)
    discount = _number(settings.get("discount"), "discount", config, 1e-9, 1.0)
    steering = _steering(settings["steering"], size, config)
    descriptions = settings["networks"]
    if not isinstance(descriptions, dict) or "policy" not in descriptions or not set(NETWORKS) >= descriptions.keys():
        raise RunError(f"{config}: networks must be a policy and any of {', '.join(NETWORKS)}; it is damaged.")
    widths = {"observation": size, "goal": size, "action": actions, "blind": size}
    if isinstance(steering, Waypoint):
        widths["blind"] = size - len(steering.columns)
    networks = {}
    for name in sorted(descriptions, key=NETWORKS.index):  # a representation comes before whoever is told it
        networks[name] = _network(name, descriptions[name], widths, arrays, config, weights)
        if name == "representation":
            widths[name] = networks[name].sizes[-1]
    directions = arrays.pop("metric.directions", None)
    if arrays:
        raise RunError(
            f"{weights} has the unexpected tensor {min(arrays)[:80]}; weights and config.json do not belong together."
        )
    residual = _size(settings["residual"], "residual", config) if "residual" in settings else 0
    if residual % GROUP or (residual and not 0 < residual < networks.get("embedding", networks["policy"]).sizes[-1]):
        raise RunError(f"{config}: a residual of {residual} columns does not fit the embedding; it is damaged.")
    _consistent(networks, steering, widths, beta, discount, residual, config)
    stated = settings.get("metric")
    metric: Quasimetric | SupportFunction | Measure | None
    if directions is not None:
        metric = _support_function(stated, directions, networks, discount, config)
    elif "forward" in networks:
        metric = _measure(stated, networks, steering, widths, config)
    else:
        metric = _metric(stated, networks, discount, config)
    units: dict[str, Any] = {"beta": beta, "discount": discount, "residual": residual}
    return Model(settings["algo"], size, actions, networks, steering, **units, metric=metric)


def _network(
    name: str, given: Any, widths: dict[str, int], arrays: dict[str, np.ndarray], config: Path, weights: Path
) -> Network:
    """One network as its description says; its tensors are checked, and taken out of `arrays`."""
    flags = ("squash", "spread", "logit", "gelu")
    known = {"inputs": None, "sizes": None, "norm": None, "heads": 1, **dict.fromkeys(flags, False)}
    if not isinstance(given, dict) or not {"inputs", "sizes", "norm"} <= given.keys() <= known.keys():
        raise RunError(f"{config}: the network {name} is not described by inputs, sizes and norm; it is damaged.")
    facts = {**known, **given}
    inputs, sizes = facts["inputs"], facts["sizes"]
    if not isinstance(inputs, list) or not inputs or not all(part in INPUTS for part in inputs):
        raise RunError(f"{config}: inputs of {name} are {str(inputs)[:60]}; this version of iel knows {INPUTS}.")
    if not isinstance(sizes, list) or not 2 <= len(sizes) <= 65:
        raise RunError(f"{config}: sizes of {name} is not a list of 2 to 65 widths; it is damaged.")
    sizes = [_size(size, f"sizes of {name}", config) for size in sizes]
    if any(type(facts[flag]) is not bool for flag in ("norm", *flags)):
        flagged = "norm, gelu, squash, spread and logit"
        raise RunError(f"{config}: {flagged} of {name} must be true or false; it is damaged.")
    needed = sum(widths.get(part, 0) for part in inputs)
    if sizes[0] < needed or (sizes[0] != needed and "command" not in inputs):
        raise RunError(f"{config}: {name} takes {sizes[0]} numbers, but its inputs have {needed}; it is damaged.")
    heads = _size(facts["heads"], f"heads of {name}", config)

    def take(tensor: str, shape: tuple[int, ...]) -> FloatArray:
        label = f"{name}.{tensor}"
        array = arrays.pop(label, None)
        if array is None:
            raise RunError(f"{weights} lacks the tensor {label}; weights and config.json do not belong together.")
        if array.dtype != np.float32 or array.shape != shape:
            raise RunError(
                f"{weights}: {label} is {array.dtype}{list(array.shape)}, but config.json asks for "
                f"float32{list(shape)}; weights and config.json do not belong together."
            )
        if not np.isfinite(array).all():
            raise RunError(f"{weights}: {label} holds a number that is not finite; export the run again.")
        return np.ascontiguousarray(array)

    several = (heads,) if heads > 1 else ()
    parts: dict[str, FloatArray] = {}
    for index, pair in enumerate(pairwise(sizes)):
        parts[f"layers.{index}.kernel"] = take(f"layers.{index}.kernel", (*several, *pair))
        parts[f"layers.{index}.bias"] = take(f"layers.{index}.bias", (*several, pair[1]))
        if facts["norm"] and index < len(sizes) - 2:
            for part in ("scale", "offset"):
                parts[f"norms.{index}.{part}"] = take(f"norms.{index}.{part}", (*several, pair[1]))
    made = tuple(
        perceptron(
            {key: array[head] if several else array for key, array in parts.items()},
            len(sizes) - 1,
            facts["norm"],
            facts["gelu"],
        )
        for head in range(heads)
    )
    log_std = take("log_std", (sizes[-1],)) if facts["spread"] else None
    return Network(tuple(inputs), made, facts["squash"], log_std, facts["logit"])


def _consistent(
    networks: Mapping[str, Network],
    steering: Steering,
    widths: dict[str, int],
    beta: float | None,
    discount: float | None,
    residual: int,
    config: Path,
) -> None:
    """What the parts of a description owe each other."""
    policy, actions = networks["policy"], widths["action"]
    for acting in (policy, networks.get("actor", policy)):
        answers = acting.sizes[-1]
        if answers != (2 * actions if acting.squash else actions):
            raise RunError(f"{config}: the policy answers {answers} numbers for {actions} actions; it is damaged.")
    if beta and "omega" not in networks:
        raise RunError(f"{config}: beta is {beta}, but without goal directions it must be 0; it is damaged.")
    directions = networks["embedding"].sizes[-1] - residual if "embedding" in networks else 0
    if "embedding" in networks and "omega" in networks and directions != networks["omega"].sizes[-1]:
        raise RunError(f"{config}: embedding and omega differ in size; it is damaged.")
    _consistent_value(networks, steering, config)
    no_steps = "value" in networks and networks["value"].logit
    if no_steps and discount is not None:
        raise RunError(f"{config} has a discount, but its value counts no steps; it is damaged.")
    if ("embedding" in networks or "value" in networks) and not no_steps and discount is None:
        raise RunError(f"{config} lacks discount, without which distances mean nothing; it is damaged.")
    if isinstance(steering, Subgoal) != ("high" in networks) and "forward" not in networks:
        raise RunError(f"{config}: steering by subgoals and the network high go together; it is damaged.")
    told = policy.sizes[0] - sum(widths[part] for part in policy.inputs if part != "command")
    expected = {
        "direction": directions,
        "goal": widths["goal"],
        "subgoal": networks["high"].sizes[-1] if "high" in networks else 0,
    }
    if told != expected.get(steering.kind, told):
        raise RunError(f"{config}: the policy takes commands of {told} numbers, which its steering does not give.")
    if isinstance(steering, Direction) and "embedding" not in networks:
        raise RunError(f"{config}: steering by directions needs an embedding; it is damaged.")


def _consistent_value(networks: Mapping[str, Network], steering: Steering, config: Path) -> None:
    """What a value needs beside it, and what nothing but a value needs."""
    value, features = networks.get("value"), networks.get("goal_features")
    inputs = value.inputs if value else ()
    if "representation" in (part for name in networks if name != "value" for part in networks[name].inputs):
        raise RunError(f"{config}: only a value is told a representation; it is damaged.")
    if "command" in inputs or ("representation" in inputs) != ("representation" in networks):
        raise RunError(f"{config}: the inputs of the value are not what the model can give it; it is damaged.")
    if "action" in inputs and "actor" not in networks and not isinstance(steering, GoalState):
        raise RunError(f"{config}: the value is asked about actions, but no policy is told the goal; it is damaged.")
    pair = {"observation", "goal"}
    for name, allowed in {"actor": pair, "representation": pair, "goal_features": {"goal"}}.items():
        if name == "actor" and "forward" in networks:
            continue  # `_measure` has looked at it
        if name in networks and (value is None or not set(networks[name].inputs) <= allowed):
            raise RunError(f"{config}: {name} goes with a value and takes {' and '.join(sorted(allowed))} alone.")
    if value is not None:
        answers = (features.sizes[-1], len(features.heads)) if features else (1, len(value.heads))
        if (value.sizes[-1], len(value.heads)) != answers:
            raise RunError(f"{config}: the value and what it is multiplied with differ in size; it is damaged.")


def _steering(given: Any, size: int, config: Path) -> Steering:
    if not isinstance(given, dict) or given.get("kind") not in STEERINGS:
        raise RunError(f"{config}: steering must be one of {', '.join(STEERINGS)}; it is damaged.")
    kind = STEERINGS[given["kind"]]
    if kind is Direction:
        return Direction(_number(given.get("ahead", 0.0), "ahead", config, 0.0, 1e30) or 0.0)
    if kind is not Waypoint:
        return kind()
    columns, scale = given.get("columns"), given.get("scale")
    whole = isinstance(columns, list) and all(type(column) is int and 0 <= column < size for column in columns)
    if not whole or not columns or len(set(columns)) != len(columns):
        raise RunError(f"{config}: the waypoint's columns {str(columns)[:60]} are not columns of the observation.")
    if not isinstance(scale, list) or len(scale) != len(columns) or None in scale:
        raise RunError(f"{config}: the waypoint's scale must be one positive number per column; it is damaged.")
    numbers = [_number(value, "scale", config, 1e-30, 1e30) for value in scale]
    reach = _number(given.get("reach", 0.0), "reach", config, 0.0, 1e30) or 0.0
    return Waypoint(tuple(columns), tuple(float(value) for value in numbers if value is not None), reach)


def _metric(given: Any, networks: Mapping[str, Network], discount: float | None, config: Path) -> Quasimetric | None:
    """A metric that is described; None where the networks imply it."""
    if given is None:
        return None
    known = {"kind", "head", "groups", "mix", "scale"}
    if not isinstance(given, dict) or given.keys() != known or given["kind"] != Quasimetric.kind:
        raise RunError(f"{config}: metric must be a quasimetric with head, groups, mix and scale; it is damaged.")
    if "embedding" not in networks or "omega" in networks or "value" in networks:
        raise RunError(f"{config}: a quasimetric is one of an embedding and of nothing else; it is damaged.")
    groups = _size(given["groups"], "groups", config)
    mix, scale = (
        _number(given[name], name, config, low, high) for name, low, high in (("mix", 0.0, 1.0), ("scale", 1e-9, 1e9))
    )
    try:
        check_groups(given["head"], networks["embedding"].sizes[-1], groups)
    except ConfigError as error:
        raise RunError(f"{config}: {error}") from error
    if mix is None or scale is None:
        raise RunError(f"{config}: mix and scale of the metric must be numbers; it is damaged.")
    return Quasimetric(given["head"], groups, mix, scale, discount)


def _support_function(
    given: Any, directions: np.ndarray, networks: Mapping[str, Network], discount: float | None, config: Path
) -> SupportFunction:
    """A support function: the directions of its landmarks must fit the embedding."""
    known = {"kind": SupportFunction.kind, "landmarks": len(directions)}
    if given != known or discount != SupportFunction.discount or not {"embedding", "omega"} <= networks.keys():
        raise RunError(f"{config}: a support function has landmarks, steps, an embedding and omega; it is damaged.")
    sound = directions.ndim == 2 and directions.shape[1:] == (networks["embedding"].sizes[-1],)
    if not sound or not len(directions) or not _float32(directions):
        raise RunError(f"{config}: the landmarks' directions do not fit the embedding; it is damaged.")
    return SupportFunction(directions)


def _measure(
    given: Any, networks: Mapping[str, Network], steering: Steering, widths: dict[str, int], config: Path
) -> Measure:
    """The description of a successor measure, and what its networks owe each other."""
    if not isinstance(given, dict) or given.keys() != {"kind", "decay"} or given["kind"] != Measure.kind:
        raise RunError(f"{config}: with a network forward the metric must be a measure with its decay; it is damaged.")
    decay = _number(given["decay"], "decay", config, 1e-9, 1.0 - 1e-9)
    if decay is None or not networks.keys() <= {"policy", "actor", "forward", "high"} or "high" not in networks:
        raise RunError(f"{config}: a measure is made of the networks forward and high alone; it is damaged.")
    forward, high = networks["forward"], networks["high"]
    actor = networks["policy"] if isinstance(steering, Subgoal) else networks.get("actor")
    size = high.sizes[-1]
    expected = {
        "forward": (forward, ("observation", "action", "command"), widths["observation"] + widths["action"] + size),
        "high": (high, ("goal",), widths["goal"]),
        "actor": (actor, ("observation", "command"), widths["observation"] + size),
    }
    for name, (network, inputs, width) in expected.items():
        if network is None or network.inputs != inputs or network.sizes[0] != width:
            raise RunError(f"{config}: {name} must take {', '.join(inputs)} ({width} numbers); it is damaged.")
    if forward.sizes[-1] != size:
        raise RunError(f"{config}: forward and high differ in size; it is damaged.")
    return Measure(decay)


def _size(value: Any, name: str, config: Path) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise RunError(f"{config}: {name} is {str(value)[:40]}; a whole number from 1 to {LARGEST} is needed.")
    return value


def _number(value: Any, name: str, config: Path, low: float, high: float) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise RunError(f"{config}: {name} is {str(value)[:40]}; a number from {low:g} to {high:g} is needed.")
    return float(value)


def _support_arrays(support: Support) -> dict[str, np.ndarray]:
    """mean, spread, and of every view its columns, states and limit."""
    arrays = {"mean": support.mean, "spread": support.spread}
    for view in support.views:
        arrays[f"{view.name}.columns"] = np.asarray(view.columns, np.int64)
        arrays[f"{view.name}.states"] = view.states
        arrays[f"{view.name}.limit"] = np.array([view.limit], np.float32)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _support(model: Model, source: Path) -> Support:
    """Where the training data was, every number of it checked."""
    arrays, size = read_safetensors(source), model.observation_size
    names = sorted({name.partition(".")[0] for name in arrays} - {"mean", "spread"})
    wanted = {"mean", "spread", *(f"{name}.{part}" for name in names for part in ("columns", "states", "limit"))}
    if not names or arrays.keys() != wanted:
        raise RunError(f"{source} does not say where the data was; it is damaged, export or train again.")
    views = []
    for name in names:
        columns, states, limit = (arrays.pop(f"{name}.{part}") for part in ("columns", "states", "limit"))
        good = columns.dtype == np.int64 and columns.ndim == 1 and len(set(columns.tolist())) == len(columns) > 0
        good = good and bool((columns >= 0).all() and (columns < size).all()) and limit.shape == (1,)
        good = good and states.ndim == 2 and states.shape[1] == len(columns) and len(states) > 0
        if not good or not all(_float32(part) for part in (states, limit)) or not 0 < limit[0] < 1e9:
            raise RunError(f"{source}: {name[:40]} does not fit this model; export or train again.")
        views.append(View(name, columns, np.ascontiguousarray(states), float(limit[0])))
    mean, spread = arrays["mean"], arrays["spread"]
    if mean.shape != (size,) or spread.shape != (size,) or not _float32(mean) or not _float32(spread):
        raise RunError(f"{source}: mean and spread do not fit this model; export or train again.")
    if not (spread > 0).all():
        raise RunError(f"{source}: a spread is not positive; export or train again.")
    return Support(mean, spread, tuple(views))


def _float32(array: np.ndarray) -> bool:
    return array.dtype == np.float32 and bool(np.isfinite(array).all())
