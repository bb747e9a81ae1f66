"""How long one action takes, and how well they agree: the numpy runtime, ONNX Runtime and JAX beside each other.

A robot asks for one action, waits, and asks again; what counts is the latency of a single row, not throughput. Three
hidden layers, 29 observations, 8 actions, 32 latent dimensions: the ant with the paper's networks at width 512.

Agreement is the largest difference from JAX over 500 inputs and a random model of every kind at width 128: actions as
they are, distances relative to max(1, d).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import print_rows
from iel.algos.contract import Spec
from iel.algos.model import GoalModel, Model, ModelConfig, empty_networks, goal_model_config
from iel.commands.common import Output
from iel.export import build_graphs
from iel.planning import make_planner
from iel.runtime import Pack, load_runtime

SCALES = (1.0, 30.0, 1000.0)


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """How long one action takes without JAX, with ONNX, and with JAX."""

    widths: tuple[int, ...] = (128, 256, 512)
    """Hidden widths of the networks."""


def trained_like(config: ModelConfig, seed: int = 0) -> Model:
    """A model with random weights of the size that training leaves, no bias or offset zero."""
    generator = np.random.default_rng(seed)

    def draw(leaf: Any) -> np.ndarray:
        array = generator.standard_normal(leaf.shape)
        is_kernel = len(leaf.shape) >= 2 and leaf.shape[-2] > config.heads
        return np.asarray(array / np.sqrt(leaf.shape[-2]) if is_kernel else 0.3 * array, np.float32)

    kind = Model if config.conditioning == "direction" else GoalModel
    return kind(config, jax.tree.map(draw, empty_networks(config)))


def run(widths: Sequence[int] = (128, 256, 512), repeats: int = 2000, nodes: int = 2048) -> dict[str, Any]:
    """{"rows": [{width, act_ms, act_99_ms, plan_act_ms, onnx_ms, jax_ms}], "agreement": [...]}: medians, and the 99th
    percentile of act; then {scale, numpy_actions, numpy_distances, onnx_actions, onnx_distances} by size of the inputs.

    `plan_act_ms` is a whole step of asym-graph in numpy: embed, find the node, choose the hop, act. `onnx_ms` is None
    without onnxruntime.
    """
    return {"rows": [_row(width, repeats, nodes) for width in widths], "agreement": [agreement(s) for s in SCALES]}


def _row(width: int, repeats: int, nodes: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    model = trained_like(ModelConfig("iel", 29, 8, 32, (width,) * 3, 0.1, 0.99))
    with tempfile.TemporaryDirectory() as directory:
        model.save(directory)
        runtime = load_runtime(Path(directory))
    observations = generator.standard_normal((nodes, 29)).astype(np.float32)

    planner = make_planner("asym-graph", runtime, Pack(observations, runtime.embed(observations)), coreset="all")
    planner.prepare(observations[0])
    one, direction = observations[1:2], runtime.task(observations[:1])
    own = _times(lambda: runtime.act(one, direction), repeats)
    return {
        "width": width,
        "act_ms": _milliseconds(own, 50),
        "act_99_ms": _milliseconds(own, 99),
        "plan_act_ms": _milliseconds(_times(lambda: planner.act(one[0]), repeats), 50),
        "onnx_ms": _onnx(runtime, one, direction, repeats),
        "jax_ms": _milliseconds(_times(lambda: model.act(one, direction), repeats), 50),
    }


def every_kind(width: int = 128) -> list[ModelConfig]:
    """A configuration of every kind of model there is: 29 observations, 8 actions."""
    spec, hidden = Spec(29, 8), (width,) * 3
    return [
        ModelConfig("iel", 29, 8, 32, hidden, 0.1, 0.99),
        ModelConfig("iel", 29, 8, 32, hidden, 0.1, 0.99, policy_norm=True),
        ModelConfig("hilp", 29, 8, 32, hidden, 0.0, 0.99, directed=False),
        goal_model_config("gcbc", spec, hidden, 0.99),
        goal_model_config("gcivl", spec, hidden, 0.99, value="state"),
        goal_model_config("gccql", spec, hidden, 0.99, value="action", squashed=True),
    ]


def agreement(scale: float, rows: int = 500) -> dict[str, Any]:
    """Largest differences from JAX over all kinds of models, for inputs drawn from N(0, scale^2)."""
    states, goals = (scale * np.random.default_rng(1).standard_normal((2, rows, 29))).astype(np.float32)
    worst: dict[str, float] = {}

    def compare(name: str, ours: np.ndarray, reference: np.ndarray, size: np.ndarray | float = 1.0) -> None:
        worst[name] = max(worst.get(name, 0.0), float((np.abs(ours - reference) / size).max()))

    for config in every_kind():
        model = trained_like(config)
        with tempfile.TemporaryDirectory() as directory:
            model.save(directory)
            runtime = load_runtime(Path(directory))
        direction = make_planner("direct", model, Pack(states, states)).plan(goals).directions(model.embed(states))
        action = model.act(states, direction.astype(np.float32))
        compare("numpy_actions", runtime.act(states, direction), action)
        distance = model.distance(states, goals, goals) if model.has_distance else None
        if distance is not None:
            size = np.maximum(1.0, distance)
            compare("numpy_distances", runtime.distance(states, goals, goals), distance, size)
        if (session := _session(runtime, "model.onnx")) is not None:
            theirs = session.run(None, {"observation": states, "goal": goals})
            compare("onnx_actions", theirs[0], action)
            if distance is not None:
                compare("onnx_distances", theirs[1], distance, size)
    names = ("numpy_actions", "numpy_distances", "onnx_actions", "onnx_distances")
    return {"scale": scale, **{name: worst.get(name) for name in names}}


def _onnx(runtime: Any, one: np.ndarray, direction: np.ndarray, repeats: int) -> float | None:
    session = _session(runtime, "act.onnx")
    if session is None:
        return None
    return _milliseconds(_times(lambda: session.run(None, {"observation": one, "direction": direction}), repeats), 50)


def _session(runtime: Any, graph: str) -> Any:
    """ONNX Runtime on one of the graphs, or None where it is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # one row is too little work to share
    content = build_graphs(runtime)[graph].SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _times(function: Callable[[], Any], repeats: int) -> np.ndarray:
    for _ in range(20):
        function()
    taken = np.empty(repeats)
    for index in range(repeats):
        started = time.perf_counter()
        function()
        taken[index] = time.perf_counter() - started
    return taken


def _milliseconds(taken: np.ndarray, percentile: float) -> float:
    return round(float(np.percentile(taken, percentile)) * 1e3, 4)


def command(options: Options) -> dict[str, Any]:
    """`iel bench runtime`."""
    result = run(options.widths)
    if not options.json:
        print_rows(result["rows"])
        print("\nlargest differences from JAX, by size of the inputs")
        print_rows(
            [{name: f"{value:.0e}" if value else value for name, value in row.items()} for row in result["agreement"]]
        )
    return result
