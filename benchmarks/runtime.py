"""How long one action takes: the numpy model and ONNX Runtime beside each other.

A robot takes one action at a time, so what counts is the latency of a single row, not throughput. Three
hidden layers, 29 observations, 8 actions, 32 latent dimensions: the ant with the paper's networks at width 512.

Agreement is the largest difference of ONNX's actions from numpy's over 500 inputs and a random model of every kind at
width 128.

Planners on values evaluate thousands of pairs at once. Blocks: a value of two heads on 8,192 pairs, `block` rows at a
time; `ratio` is to all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks import print_rows
from iel.commands.common import Output
from iel.data.trajectories import Trajectories
from iel.distances import Quasimetric, SupportFunction
from iel.export import build_graphs
from iel.model import Conditioning, Direction, GoalState, Measure, Model, Network, Norm, Perceptron, Subgoal, Waypoint
from iel.model.networks import FloatArray
from iel.model.support import support_of
from iel.planning import Atlas, make_planner

SCALES = (1.0, 30.0, 1000.0)
PAIRS = 8192


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """How long one action takes in numpy and with ONNX."""

    widths: tuple[int, ...] = (128, 256, 512)
    """Hidden widths of the networks."""


class Maker:
    """Networks with random weights of the size that training leaves, no bias or offset zero."""

    def __init__(self, hidden: Sequence[int], seed: int = 0):
        self.hidden, self.generator = tuple(hidden), np.random.default_rng(seed)

    def draw(self, *shape: int, scale: float = 0.3) -> FloatArray:
        return (scale * self.generator.standard_normal(shape)).astype(np.float32)

    def perceptron(self, inputs: int, outputs: int, norm: bool) -> Perceptron:
        sizes = [inputs, *self.hidden, outputs]
        pairs = list(pairwise(sizes))
        return Perceptron(
            tuple(self.draw(*pair, scale=pair[0] ** -0.5) for pair in pairs),
            tuple(self.draw(after) for _, after in pairs),
            tuple(Norm(self.draw(width) + np.float32(1.0), self.draw(width)) for width in self.hidden) if norm else (),
        )

    def network(self, inputs: Sequence[str], size: int, outputs: int, norm: bool = True, heads: int = 1) -> Network:
        return Network(tuple(inputs), tuple(self.perceptron(size, outputs, norm) for _ in range(heads)))


KINDS = (
    "directed",
    "euclidean",
    "waypoint",
    "goal",
    "goal-value",
    "goal-critic",
    "subgoal",
    "hierarchy",
    "contrast",
    "measure",
    "measure-waypoint",
    "iqe",
    "mrn",
)
QUASIMETRICS = {"iqe": Quasimetric("iqe", 2, 0.7), "mrn": Quasimetric("mrn", 2, scale=30.0)}


def random_model(
    kind: str, hidden: Sequence[int], observations: int, actions: int, dimension: int, seed: int = 0, beta: float = 0.3
) -> Model:
    """A model of one of the KINDS that there are."""
    make = Maker(hidden, seed)
    latent = dict.fromkeys(("directed", "euclidean"), dimension)
    without_position = kind in ("waypoint", "contrast", "measure-waypoint")
    condition = (
        2 if without_position else {"subgoal": 4, "hierarchy": 4, "measure": 4, **latent}.get(kind, observations)
    )
    size = observations - 2 * without_position + condition
    outputs = 2 * actions if kind == "goal-critic" else actions
    policy = replace(make.perceptron(size, outputs, without_position), smooth=kind in ("goal", "goal-value"))
    squash = kind == "goal-critic"
    log_std = make.draw(actions) if kind in ("directed", "euclidean", "waypoint") else None
    networks = {
        "policy": Network(
            ("without_position" if without_position else "observation", "command"), (policy,), squash, log_std
        )
    }
    if kind in ("directed", "euclidean", "waypoint", *QUASIMETRICS):
        networks["embedding"] = make.network(("observation",), observations, dimension)
    if kind in ("directed", "waypoint"):
        networks["omega"] = make.network(("observation",), observations, dimension)
    if kind in ("goal-value", "subgoal"):
        networks["value"] = make.network(("observation", "goal"), 2 * observations, 1, heads=2)
    if kind == "goal-critic":
        networks["value"] = make.network(("observation", "goal", "action"), 2 * observations + actions, 1, heads=2)
    if kind == "hierarchy":
        networks["representation"] = make.network(("observation", "goal"), 2 * observations, condition)
        networks["value"] = make.network(("observation", "representation"), observations + condition, 1, heads=2)
    if kind == "contrast":
        critic = make.network(("observation", "action"), observations + actions, dimension, heads=2)
        networks["value"] = replace(critic, logit=True)
        networks["goal_features"] = make.network(("goal",), observations, dimension, heads=2)
        networks["actor"] = make.network(("observation", "goal"), 2 * observations, actions, norm=False)
    if kind.startswith("measure"):
        networks["high"] = make.network(("goal",), observations, 4)
        inputs, size = ("observation", "action", "command"), observations + actions + 4
        networks["forward"] = make.network(inputs, size, 4, heads=2)
        if without_position:
            actor = make.network(("observation", "command"), observations + 4, 2 * actions, norm=False)
            networks["actor"] = replace(actor, squash=True)
    if kind in ("subgoal", "hierarchy"):
        networks["high"] = make.network(("observation", "goal"), 2 * observations, condition)
    steerings: dict[str, Conditioning] = {
        **dict.fromkeys(("waypoint", "contrast", "measure-waypoint"), Waypoint((0, 1), (1.5, 2.0))),
        **dict.fromkeys(("subgoal", "hierarchy", "measure"), Subgoal()),
        "directed": Direction(),
        "euclidean": Direction(),
    }
    discount = None if kind in ("goal", "contrast") else 0.99
    return Model(
        kind,
        observations,
        actions,
        networks,
        steerings.get(kind, GoalState()),
        beta=beta if "omega" in networks else None,
        discount=discount,
        metric=Measure(0.98) if kind.startswith("measure") else QUASIMETRICS.get(kind),
    )


def run(widths: Sequence[int] = (128, 256, 512), repeats: int = 2000, nodes: int = 2048) -> dict[str, Any]:
    """{"rows": [{width, act_ms, act_99_ms, plan_act_ms, onnx_ms}], "control": [...], "agreement": [...], "blocks":
    [...]}: medians, and the 99th percentile of act; then `control_loop` with its parts, {scale, actions} by size of the
    inputs, and {width, block, ms, ratio}.

    `plan_act_ms` is a whole step of asym-graph in numpy: embed, find the node, choose the hop, act. `onnx_ms` is None
    without onnxruntime.
    """
    return {
        "rows": [_row(width, repeats, nodes) for width in widths],
        "control": [control_loop(width, repeats, 4 * nodes) for width in (64, *widths)],
        "agreement": [agreement(s) for s in SCALES],
        "blocks": [row for width in widths for row in _blocks(width)],
    }


def _row(width: int, repeats: int, nodes: int) -> dict[str, Any]:
    model = random_model("directed", (width,) * 3, 29, 8, 32, beta=0.1)
    observations = np.random.default_rng(0).standard_normal((nodes, 29)).astype(np.float32)
    planner = make_planner("asym-graph", model, Atlas(observations), coreset="all")
    planner.prepare(observations[0])
    one, command = observations[1:2], model.omega(observations[:1])
    own = _times(lambda: model.act(one, command), repeats)
    return {
        "width": width,
        "act_ms": _milliseconds(own, 50),
        "act_99_ms": _milliseconds(own, 99),
        "plan_act_ms": _milliseconds(_times(lambda: planner.act(one[0]), repeats), 50),
        "onnx_ms": _onnx(model, one, command, repeats),
    }


def control_loop(width: int, repeats: int, nodes: int) -> dict[str, Any]:
    """One robot with HTP's metric and a waypoint policy over `nodes` states of a curve: microseconds of a step, of its
    parts (support of the data, embedding, target, command, policy), and milliseconds of a new goal."""
    make, generator = Maker((width,) * 3), np.random.default_rng(0)
    networks = {
        "policy": Network(("without_position", "command"), (make.perceptron(29, 8, False),)),
        "embedding": make.network(("observation",), 29, 32),
        "omega": make.network(("observation",), 29, 32),
    }
    metric = SupportFunction(generator.standard_normal((256, 32)).astype(np.float32))
    time_of = np.linspace(0.0, 60.0, nodes)
    curve = np.stack([np.sin(time_of * rate) for rate in np.linspace(0.1, 1.0, 29)], axis=1)
    states = (curve + 0.05 * generator.standard_normal(curve.shape)).astype(np.float32)
    model = Model("htp", 29, 8, networks, Waypoint((0, 1), (1.5, 2.0), 3.0), metric=metric, discount=1.0)
    actions = np.zeros((nodes, 8), np.float32)
    model.support = support_of(Trajectories.from_flat(states, actions, np.arange(1, nodes + 1) % 128 == 0))
    planner = make_planner("asym-graph", model, Atlas(states), coreset="all")
    goals = iter(states[np.arange(100_000) * 77 % nodes])
    goal_ms = _milliseconds(_times(lambda: planner.prepare(next(goals)), 20), 50)
    visited = iter(states[np.arange(2 * repeats) // 20 % 400 + nodes // 4])
    whole = _times(lambda: planner.act(next(visited)), repeats)
    one, memory = states[nodes // 4 : nodes // 4 + 1], planner.controller.memory
    embeddings = model.embed(one)
    target = planner.prepared.target(embeddings, memory)
    command = model.command(one, target, embeddings)
    parts: dict[str, Callable[[], Any]] = {
        "support": lambda: model.support and model.support.excess(one),
        "embed": lambda: model.embed(one),
        "target": lambda: planner.prepared.target(embeddings, memory),
        "command": lambda: model.command(one, target, embeddings),
        "policy": lambda: model.act(one, command),
    }
    split = {f"{name}_us": _microseconds(_times(part, repeats)) for name, part in parts.items()}
    return {"width": width, "nodes": nodes, "step_us": _microseconds(whole), **split, "goal_ms": goal_ms}


def _microseconds(taken: np.ndarray) -> float:
    return round(float(np.median(taken)) * 1e6, 1)


def agreement(scale: float, rows: int = 500) -> dict[str, Any]:
    """The largest difference of ONNX from numpy over all kinds of models, for inputs drawn from N(0, scale^2)."""
    states, goals = (scale * np.random.default_rng(1).standard_normal((2, rows, 29))).astype(np.float32)
    worst: list[float] = []
    for kind in KINDS:
        model = random_model(kind, (128,) * 3, 29, 8, 32)
        if (session := _session(model, "model.onnx")) is None:
            break
        (answer,) = session.run(None, {"observation": states, "goal": goals})
        target = make_planner("direct", model, Atlas(states)).plan(goals).target(model.embed(states))
        actions = model.act(states, model.command(states, target))
        worst.append(float(np.abs(answer - actions).max()))
    return {"scale": scale, "actions": max(worst, default=None)}


def _blocks(width: int, sizes: Sequence[int] = (PAIRS, 2048, 1024, 256)) -> list[dict[str, Any]]:
    from threadpoolctl import threadpool_limits

    value = random_model("goal-value", (width,) * 3, 29, 8, 32).networks["value"]
    pairs = np.random.default_rng(0).standard_normal((PAIRS, 58)).astype(np.float32)

    def answer(block: int) -> None:
        for start in range(0, PAIRS, block):
            value.features(pairs[start : start + block])

    with threadpool_limits(1, "blas"):  # as in rollouts
        times = [float(_times(partial(answer, block), 10).min()) for block in sizes]
    rows = zip(sizes, times, strict=True)
    return [{"width": width, "block": b, "ms": round(1e3 * t, 1), "ratio": round(t / times[0], 2)} for b, t in rows]


def _onnx(model: Model, one: np.ndarray, command: np.ndarray, repeats: int) -> float | None:
    session = _session(model, "act.onnx")
    if session is None:
        return None
    return _milliseconds(_times(lambda: session.run(None, {"observation": one, "command": command}), repeats), 50)


def _session(model: Model, graph: str) -> Any:
    """ONNX Runtime on one of the graphs, or None where it is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # one row is too little work to share
    content = build_graphs(model)[graph].SerializeToString()
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
        print("\na control loop with HTP's metric, in microseconds")
        print_rows(result["control"])
        print("\nlargest differences of ONNX from numpy, by size of the inputs")
        print_rows(
            [{name: f"{value:.0e}" if value else value for name, value in row.items()} for row in result["agreement"]]
        )
        print(f"\na value of {PAIRS} pairs, in blocks of rows")
        print_rows(result["blocks"])
    return result
