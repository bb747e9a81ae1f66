"""A frozen model as ONNX graphs, written node by node from the weights.

    model.onnx   observation, goal -> action, distance, hitting_time   heads straight for the goal
    embed.onnx   observation -> embedding                              phi
    task.onnx    goal -> omega                                         a goal's unit direction
    act.onnx     observation, direction -> action                      the policy, for a planner's directions

Every input and output has a free first axis `batch`; all numbers are float32. Only operators that runtimes have had
for years are used (opset 17 for LayerNormalization; GELU is spelt out), so that converters understand the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import iel
from iel.errors import ConfigError
from iel.runtime import Runtime, networks
from iel.runtime.networks import Perceptron

OPSET = 17
IR_VERSION = 8
"""The file format that came with opset 17; newer numbers are refused by older runtimes."""
SHORTEST = 1e-9
"""A displacement shorter than this has no direction; the goal's own is followed instead, as planners do."""


def require_onnx() -> Any:
    """The `onnx` package, or a sentence about the extra that brings it."""
    try:
        import onnx
    except ImportError:
        raise ConfigError(
            "Writing ONNX files needs the package onnx: pip install 'iel[onnx]', or export with --no-onnx."
        ) from None
    return onnx


class Graph:
    """One graph in the making; every method adds nodes and returns the name of their result."""

    def __init__(self, onnx: Any):
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """One node."""
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], name=f"{name}_node", **attributes))
        return name

    def number(self, value: float) -> str:
        """A float32 constant."""
        return self.weight(f"number_{float(value)!r}", np.float32(value))

    def weight(self, name: str, array: Any) -> str:
        """A tensor of the file; a name used twice is stored once."""
        self.weights[name] = np.asarray(array)
        return name

    def perceptron(self, network: Perceptron, name: str, x: str) -> str:
        """Hidden layers and a linear output, as `Perceptron.__call__`."""
        last = len(network.kernels) - 1
        for index, (kernel, bias) in enumerate(zip(network.kernels, network.biases, strict=True)):
            layer = f"{name}.layers.{index}"
            x = self.add("MatMul", x, self.weight(f"{layer}.kernel", kernel))
            x = self.add("Add", x, self.weight(f"{layer}.bias", bias))
            if index == last:
                break
            if network.norms:
                norm = f"{name}.norms.{index}"
                scale = self.weight(f"{norm}.scale", network.norms[index].scale)
                offset = self.weight(f"{norm}.offset", network.norms[index].offset)
                epsilon = networks.LAYER_NORM_EPSILON
                x = self.add("LayerNormalization", self.gelu(x), scale, offset, axis=-1, epsilon=epsilon)
            else:
                x = self.add("Relu", x)
        return x

    def gelu(self, x: str) -> str:
        """x (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2))) / 2."""
        inner = self.add("Mul", self.add("Mul", x, x), self.number(networks.GELU_CUBIC))
        inner = self.add("Mul", self.add("Add", inner, self.number(1.0)), x)
        tanh = self.add("Tanh", self.add("Mul", inner, self.number(networks.GELU_SLOPE)))
        return self.add("Mul", self.add("Mul", self.add("Add", tanh, self.number(1.0)), x), self.number(0.5))

    def row_sum(self, x: str, keep: bool) -> str:
        """Sum over the last axis."""
        return self.add("ReduceSum", x, self.weight("last_axis", np.array([-1], np.int64)), keepdims=int(keep))

    def squares(self, x: str, keep: bool) -> str:
        """||x||^2 over the last axis."""
        return self.row_sum(self.add("Mul", x, x), keep)

    # ---------------------------------------------------------------- parts of a model

    def embedding(self, model: Runtime, x: str) -> str:
        """phi(x)."""
        assert model.parts.embedding is not None
        return self.perceptron(model.parts.embedding, "embedding", x)

    def omega(self, model: Runtime, goal: str) -> str:
        """omega_g = y / (sqrt(max(||y||^2, 1e-12)) + 1e-6) of the task network's y, or the first axis without one."""
        if model.parts.task is None:
            size = model.config.dimension
            pick = np.zeros((model.config.observation_size, size), np.float32)
            first = np.eye(1, size, dtype=np.float32)[0]
            # a product with zeros gives the constant its batch axis
            return self.add("Add", self.add("MatMul", goal, self.weight("no_task", pick)), self.weight("first", first))
        y = self.perceptron(model.parts.task, "task", goal)
        norm = self.add("Sqrt", self.add("Max", self.squares(y, True), self.number(networks.SQUARED_NORM_FLOOR)))
        return self.add("Div", y, self.add("Add", norm, self.number(networks.UNIT_EPSILON)))

    def action(self, model: Runtime, inputs: str) -> str:
        """The policy's mean, within [-1, 1]."""
        mean = self.perceptron(model.parts.policy, "policy", inputs)
        if model.config.squashed:
            bounds = [self.weight(f"cut_{end}", np.array([end], np.int64)) for end in (0, model.config.action_size, 1)]
            mean = self.add("Tanh", self.add("Slice", mean, *bounds))
        return self.add("Clip", mean, self.number(-1.0), self.number(1.0))

    def value_distance(self, model: Runtime, inputs: str, action: str) -> str:
        """max(-V, 0): the mean of the heads of V(x, g), or the smallest of those of Q(x, g, pi(x, g))."""
        by_action = model.config.value == "action"
        if by_action:
            inputs = self.add("Concat", inputs, action, axis=1)
        heads = [self.perceptron(head, f"value.{number}", inputs) for number, head in enumerate(model.parts.value)]
        value = self.row_sum(self.add("Min" if by_action else "Mean", *heads), False)
        return self.add("Max", self.add("Neg", value), self.number(0.0))

    def heading(self, displacement: str, omega: str) -> str:
        """unit(phi(g) - phi(x)), or omega_g where that has no length."""
        norm = self.add("Sqrt", self.squares(displacement, True))
        safe = self.add("Max", norm, self.number(SHORTEST))
        usable = self.add("Greater", norm, self.number(SHORTEST))
        return self.add("Where", usable, self.add("Div", displacement, safe), omega)

    def distance(self, displacement: str, omega: str, beta: float) -> str:
        """l exp(beta (1 - <Delta, omega> / l)) with l = sqrt(max(||Delta||^2, 1e-6))."""
        floor = self.number(networks.SQUARED_LENGTH_FLOOR)
        length = self.add("Sqrt", self.add("Max", self.squares(displacement, False), floor))
        cosine = self.add("Div", self.row_sum(self.add("Mul", displacement, omega), False), length)
        exponent = self.add("Mul", self.add("Sub", self.number(1.0), cosine), self.number(beta))
        return self.add("Mul", length, self.add("Exp", exponent))

    def hitting_time(self, cost: str, discount: float) -> str:
        """max(log(1 - (1 - gamma) d) / log(gamma), 0)."""
        used = self.add("Mul", cost, self.number(1.0 - discount))
        remaining = self.add("Max", self.add("Sub", self.number(1.0), used), self.number(networks.REMAINING_FLOOR))
        steps = self.add("Div", self.add("Log", remaining), self.number(float(np.log(np.float32(discount)))))
        return self.add("Max", steps, self.number(0.0))

    # ---------------------------------------------------------------- the file

    def finish(self, name: str, inputs: dict[str, int], outputs: dict[str, tuple[str, int | None]]) -> Any:
        """A checked model; `inputs` give sizes, `outputs` the inner name and the size (None: one number a row)."""
        helper, number = self.onnx.helper, self.onnx.TensorProto.FLOAT

        def value(label: str, size: int | None) -> Any:
            return helper.make_tensor_value_info(label, number, ["batch"] if size is None else ["batch", size])

        for label, (inner, _) in outputs.items():
            self.add("Identity", inner, output=label)
        weights = [self.onnx.numpy_helper.from_array(array, label) for label, array in self.weights.items()]
        graph = helper.make_graph(
            self.nodes,
            name,
            [value(label, size) for label, size in inputs.items()],
            [value(label, size) for label, (_, size) in outputs.items()],
            weights,
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="iel")
        model.producer_version = iel.__version__
        self.onnx.checker.check_model(model, full_check=True)
        return model


def build_graphs(model: Runtime) -> dict[str, Any]:
    """{file name: ONNX model}; a policy that takes the goal itself has only the whole."""
    onnx = require_onnx()
    builders: dict[str, Callable[[Graph, Runtime], Any]] = {"model.onnx": _whole if model.has_geometry else _goal}
    if model.has_geometry:
        builders |= {"embed.onnx": _embed, "task.onnx": _task, "act.onnx": _act}
    return {name: build(Graph(onnx), model) for name, build in builders.items()}


def _whole(graph: Graph, model: Runtime) -> Any:
    omega = graph.omega(model, "goal")
    displacement = graph.add("Sub", graph.embedding(model, "goal"), graph.embedding(model, "observation"))
    direction = graph.heading(displacement, omega)
    action = graph.action(model, graph.add("Concat", "observation", direction, axis=1))
    return _pair(graph, model, action, graph.distance(displacement, omega, model.config.beta))


def _goal(graph: Graph, model: Runtime) -> Any:
    inputs = graph.add("Concat", "observation", "goal", axis=1)
    action = graph.action(model, inputs)
    return _pair(graph, model, action, graph.value_distance(model, inputs, action) if model.has_distance else None)


def _pair(graph: Graph, model: Runtime, action: str, cost: str | None) -> Any:
    """(observation, goal) -> action, and distance and hitting time where the model has them."""
    config = model.config
    outputs: dict[str, tuple[str, int | None]] = {"action": (action, config.action_size)}
    if cost is not None:
        outputs |= {"distance": (cost, None), "hitting_time": (graph.hitting_time(cost, config.discount), None)}
    return graph.finish("model", {"observation": config.observation_size, "goal": config.observation_size}, outputs)


def _embed(graph: Graph, model: Runtime) -> Any:
    phi = graph.embedding(model, "observation")
    sizes = {"observation": model.config.observation_size}
    return graph.finish("embed", sizes, {"embedding": (phi, model.config.dimension)})


def _task(graph: Graph, model: Runtime) -> Any:
    omega = graph.omega(model, "goal")
    return graph.finish("task", {"goal": model.config.observation_size}, {"omega": (omega, model.config.dimension)})


def _act(graph: Graph, model: Runtime) -> Any:
    action = graph.action(model, graph.add("Concat", "observation", "direction", axis=1))
    sizes = {"observation": model.config.observation_size, "direction": model.config.dimension}
    return graph.finish("act", sizes, {"action": (action, model.config.action_size)})


def signatures(graphs: dict[str, Any]) -> dict[str, str]:
    """{file name: "inputs -> outputs"}, for people."""
    return {
        name: ", ".join(value.name for value in model.graph.input)
        + " -> "
        + ", ".join(value.name for value in model.graph.output)
        for name, model in graphs.items()
    }
